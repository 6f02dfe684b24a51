package server

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// volumeJob is a job that mounts a host volume.
func volumeJob(id, source string, readOnly bool) *structs.Job {
	j := apiJob(id, 1)
	j.Groups[0].Volumes = []structs.VolumeRequest{{Name: "v", Raw: structs.RawConfig(fmt.Sprintf(`{"Type":"host","Source":%q,"ReadOnly":%v}`, source, readOnly))}}
	return j
}

// entries are the ways to the servers that a caller's token may take: the leader, a follower, and a client agent, which
// passes the call on in its own session.
func (c *cluster) entries(t *testing.T) map[string]rpc.Caller {
	t.Helper()
	lead := c.leader()
	h := c.net.Host("agent")
	pool := rpc.NewPool(rpc.PoolConfig{Dial: h.Dial})
	t.Cleanup(func() { pool.Close() })
	return map[string]rpc.Caller{
		"leader": c.servers[lead].Caller(rpc.Peer{}), "follower": c.servers[(lead+1)%len(c.servers)].Caller(rpc.Peer{}),
		"client agent": pool.To(hostName((lead+1)%len(c.servers)) + ":4647"),
	}
}

// tokenWith makes a client token with these rules.
func (c *cluster) tokenWith(management structs.SecretID, name, rules string) structs.SecretID {
	c.t.Helper()
	lead, h := c.servers[c.leader()], rpc.Header{Token: management.String()}
	call(c.t, lead, methods.ACLPolicyUpsert, h, &methods.ACLPolicyUpsertRequest{Policies: []*structs.ACLPolicy{{Name: name, Rules: rules}}})
	return call(c.t, lead, methods.ACLTokenUpsert, h, &methods.ACLTokenUpsertRequest{Token: &structs.ACLToken{Name: name, Type: structs.TokenClient, Policies: []string{name}}}).Token.Secret
}

// TestHostVolumePolicies: what a host_volume rule does not grant cannot be mounted, by any call that lets the caller
// choose the version that runs. A volume that no rule mentions is denied.
func TestHostVolumePolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(_ int, cfg *Config) { cfg.ACL = true })
		root := c.bootstrapACL(c.leader())
		admin := rpc.Header{Token: root.String()}
		write := "namespace \"default\" { policy = \"write\" }\n"
		tokens := map[string]structs.SecretID{
			"no rule":   c.tokenWith(root, "none", write),
			"deny":      c.tokenWith(root, "deny", write+`host_volume "*" { policy = "deny" }`),
			"read":      c.tokenWith(root, "read", write+`host_volume "prod*" { policy = "read" }`),
			"write":     c.tokenWith(root, "write", write+`host_volume "prod" { policy = "write" }`),
			"readwrite": c.tokenWith(root, "readwrite", write+`host_volume "prod" { capabilities = ["mount-readwrite"] }`),
			"deny wins": c.tokenWith(root, "wins", write+"host_volume \"*\" { policy = \"write\" }\nhost_volume \"prod\" { capabilities = [\"deny\", \"mount-readwrite\"] }"),
		}
		may := map[string][2]bool{"read": {true, false}, "write": {true, true}, "readwrite": {true, true}} // read-only, read-write
		n := 0
		for through, to := range c.entries(t) {
			for who, token := range tokens {
				for i, readOnly := range []bool{true, false} {
					h, want := rpc.Header{Token: token.String()}, may[who][i]
					n++
					id := fmt.Sprintf("%d-plain", n)
					// A version with the volume that a management token registered, and one without it above it.
					call(t, c.servers[c.leader()], methods.JobRegister, admin, &methods.JobRegisterRequest{Job: volumeJob(id, "prod", readOnly)})
					call(t, c.servers[c.leader()], methods.JobRegister, admin, &methods.JobRegisterRequest{Job: apiJob(id, 1)})
					calls := map[string]func() error{
						"register": func() error {
							_, err := rpc.Invoke(t.Context(), to, methods.JobRegister, h, &methods.JobRegisterRequest{Job: volumeJob(fmt.Sprintf("%d-new", n), "prod", readOnly)})
							return err
						},
						"plan": func() error {
							_, err := rpc.Invoke(t.Context(), to, methods.JobPlan, h, &methods.JobPlanRequest{Job: volumeJob("planned", "prod", readOnly)})
							return err
						},
						"validate": func() error {
							_, err := rpc.Invoke(t.Context(), to, methods.JobValidate, h, &methods.JobRegisterRequest{Job: volumeJob("valid", "prod", readOnly)})
							return err
						},
						"revert": func() error {
							_, err := rpc.Invoke(t.Context(), to, methods.JobRevert, h, &methods.JobRevertRequest{JobID: id})
							return err
						},
					}
					for what, do := range calls {
						err := do()
						if denied := structs.CodeOf(err) == structs.CodeDenied && err != nil; denied == want || err != nil && !denied {
							t.Errorf("%s of a job with a volume (read only: %v) with %q through the %s: %v; want it allowed: %v", what, readOnly, who, through, err, want)
						} else if denied && !strings.Contains(err.Error(), `Permission denied: needs host_volume capability mount-read`) {
							t.Errorf("the refusal does not name what is missing: %v", err)
						}
					}
				}
			}
		}
	})
}
