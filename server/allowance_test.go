package server

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestAllowance: what a token may ask for in a time is limited in allocations, because a small request can ask for many.
// Every way to ask counts, through every server; others are not affected, and the largest valid job is never refused for
// good.
func TestAllowance(t *testing.T) {
	t.Parallel() // it takes long, and shares nothing with other tests
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(_ int, cfg *Config) { cfg.ACL = true })
		lead := c.leader()
		admin := rpc.Header{Token: c.bootstrapACL(lead).String()}
		s, follower := c.servers[lead], c.servers[(lead+1)%3]
		call(t, s, methods.ACLPolicyUpsert, admin, &methods.ACLPolicyUpsertRequest{Policies: []*structs.ACLPolicy{{Name: "user", Rules: `namespace "default" { policy = "write" }`}}})
		user := func(name string) rpc.Header {
			t.Helper()
			tok := call(t, s, methods.ACLTokenUpsert, admin, &methods.ACLTokenUpsertRequest{Token: &structs.ACLToken{Type: structs.TokenClient, Name: name, Policies: []string{"user"}}}).Token
			return rpc.Header{Token: tok.Secret.String()}
		}
		greedy, other := user("greedy"), user("other")
		again := func() {
			time.Sleep(2 * structs.JobCountMax / structs.AllocRateDefault * time.Second)
		}
		register := func(to *Server, h rpc.Header, j *structs.Job) error {
			_, err := callErr(to, methods.JobRegister, h, &methods.JobRegisterRequest{Job: j})
			return err
		}
		admitted := func(what string, err error) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		refused := func(what string, err error) {
			t.Helper()
			if structs.CodeOf(err) != structs.CodeBusy || structs.RetryAfter(err) <= 0 || !strings.Contains(err.Error(), "alloc_max_rate_per_token") {
				t.Errorf("%s: %v, again after %s", what, err, structs.RetryAfter(err))
			}
		}

		call(t, s, methods.JobRegister, greedy, &methods.JobRegisterRequest{Job: apiJob("scaled", 1)})
		param := apiJob("param", 20_000)
		param.Parameterized = &structs.Parameterized{}
		call(t, s, methods.JobRegister, greedy, &methods.JobRegisterRequest{Job: param})
		periodic := apiJob("periodic", 20_000)
		periodic.Periodic = &structs.Periodic{Enabled: true, Specs: []string{"0 0 1 1 *"}, TimeZone: "UTC"}
		call(t, s, methods.JobRegister, greedy, &methods.JobRegisterRequest{Job: periodic})

		array := apiJob("array", 1)
		array.Array = &structs.Array{Count: structs.ArrayCountMax, Concurrency: 1}
		for n, j := range []*structs.Job{apiJob("big", structs.JobCountMax), array} {
			again()
			admitted("the largest job", register(s, greedy, j))
			for i, to := range []*Server{s, follower} {
				refused(fmt.Sprintf("a second one, through server %d", i), register(to, greedy, apiJob(fmt.Sprintf("more-%d", n), structs.JobCountMax)))
			}
			admitted("the same job again", register(s, greedy, j))
			admitted("a job of another user", register(follower, other, apiJob(fmt.Sprintf("other-%d", n), 100)))
			admitted("a job of an operator", register(s, admin, apiJob(fmt.Sprintf("operator-%d", n), structs.JobCountMax)))
			for i, to := range []*Server{s, follower} {
				if _, err := callErr(to, methods.JobList, greedy, &methods.ListRequest{}); err != nil {
					t.Errorf("a read through server %d: %v", i, err)
				}
			}
		}
		changed := apiJob("big", structs.JobCountMax)
		changed.Meta = map[string]string{"version": "2"}
		refused("a new version, which replaces all that run", register(s, greedy, changed))

		for what, f := range map[string]func() error{
			"dispatches": func() error {
				_, err := callErr(follower, methods.JobDispatch, greedy, &methods.JobDispatchRequest{JobID: "param"})
				return err
			},
			"launches": func() error {
				time.Sleep(time.Second) // a launch a second
				_, err := callErr(s, methods.JobPeriodic, greedy, &methods.JobGetRequest{JobID: "periodic"})
				return err
			},
		} {
			again()
			n, err := 0, error(nil)
			for ; err == nil && n < 20; n++ {
				err = f()
			}
			if n != 6 {
				t.Errorf("%s: %d calls", what, n)
			}
			refused(what, err)
		}

		again()
		count := int64(structs.JobCountMax)
		scale := func(n int64) error {
			_, err := callErr(s, methods.JobScale, greedy, &methods.JobScaleRequest{JobID: "scaled", Group: "g", Count: &n})
			return err
		}
		admitted("scaling up", scale(count))
		admitted("scaling down", scale(1))
		refused("scaling up again", scale(count))

		// What the state refuses is not charged.
		again()
		for range 3 {
			wrong := apiJob("big", structs.JobCountMax)
			wrong.Type = structs.JobService
			if err := register(s, greedy, wrong); structs.CodeOf(err) != structs.CodeInvalid {
				t.Errorf("another type: %v", err)
			}
		}
		admitted("after jobs that were refused", register(s, greedy, changed))

		// Large requests count by their bytes: 100,000 times 4 KiB at once, 4 MiB a second.
		again()
		large := apiJob("large", 0)
		large.Meta = map[string]string{}
		for i := range 5 {
			large.Meta[fmt.Sprint("text", i)] = strings.Repeat("x", 12<<10)
		}
		admitted("a large request", register(s, greedy, large))
		if _, err := s.allowance.Allocs("token "+tokenOf(t, s, greedy).Accessor.String(), structs.JobCountMax-50); err != nil {
			t.Fatal(err)
		}
		var err error
		n := 0
		for ; err == nil && n < 100; n++ {
			large.Meta["n"] = fmt.Sprint(n)
			err = register(s, greedy, large)
		}
		refused("many large requests", err)
		if n > 3 {
			t.Errorf("%d large requests", n)
		}
	})
}

// tokenOf returns the token of a header.
func tokenOf(t *testing.T, s *Server, h rpc.Header) *structs.ACLToken {
	t.Helper()
	id, err := structs.ParseID[structs.SecretID](h.Token)
	if err != nil {
		t.Fatal(err)
	}
	return s.Published().Snapshot.TokenBySecret(id)
}

// TestAllowanceOff: the limit can be switched off, and does not exist without access control.
func TestAllowanceOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		for i := range 5 {
			call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob(fmt.Sprint("j", i), structs.JobCountMax)})
		}
	})
}
