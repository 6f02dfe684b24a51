package server

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestRefusalsOfRegistration: what an operator configures to be refused is refused, and without the setting it is not.
func TestRefusalsOfRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, func(_ int, cfg *Config) { cfg.ACL = true })
		lead := c.leader()
		root := rpc.Header{Token: c.bootstrapACL(lead).String()}
		s := c.servers[lead]
		call(t, s, methods.ACLPolicyUpsert, root, &methods.ACLPolicyUpsertRequest{Policies: []*structs.ACLPolicy{{Name: "user", Rules: `namespace "*" { policy = "write" }`}}})
		user := rpc.Header{Token: call(t, s, methods.ACLTokenUpsert, root, &methods.ACLTokenUpsertRequest{Token: &structs.ACLToken{Type: structs.TokenClient, Policies: []string{"user"}}}).Token.Secret.String()}
		user.Namespace = "ml"
		job := func() *structs.Job {
			j := apiJob("j", 1)
			j.Namespace = "ml"
			return j
		}
		driver := job().Groups[0].Tasks[0].Driver
		for name, with := range map[string]struct {
			ns   structs.Namespace
			cfg  structs.SchedulerConfig
			want string
		}{
			"no setting":                     {},
			"SchedulerConfig.RejectRegister": {cfg: structs.SchedulerConfig{RejectRegister: true}, want: "regist"},
			"Namespace.EnabledDrivers":       {ns: structs.Namespace{EnabledDrivers: []string{"other"}}, want: driver},
			"Namespace.DisabledDrivers":      {ns: structs.Namespace{DisabledDrivers: []string{driver}}, want: driver},
		} {
			with.ns.Name = "ml"
			call(t, s, methods.NamespaceUpsert, root, &methods.NamespaceUpsertRequest{Namespace: &with.ns})
			mustApply(t, s, &structs.SchedulerConfigCommand{Config: &with.cfg})
			_, err := callErr(s, methods.JobRegister, user, &methods.JobRegisterRequest{Job: job()})
			if with.want == "" && err != nil || with.want != "" && (err == nil || !strings.Contains(err.Error(), with.want)) {
				t.Errorf("%s: %v, want %q", name, err, with.want)
			}
		}
	})
}
