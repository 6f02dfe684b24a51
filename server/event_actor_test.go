package server

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestEventsSayWhoActed: a change of each object that operators manage raises an event with the token that sent it.
func TestEventsSayWhoActed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, func(c *Config) { c.ACL = true })
		root := call(t, s, methods.ACLBootstrap, rpc.Header{}, &methods.ACLBootstrapRequest{}).Token
		h := rpc.Header{Token: root.Secret.String()}
		call(t, s, methods.JobRegister, h, &methods.JobRegisterRequest{Job: apiJob("j", 1)})
		cfg := *call(t, s, methods.SchedulerConfigGet, h, &methods.EmptyRequest{}).Config
		cfg.PreemptBatch = true
		call(t, s, methods.SchedulerConfigSet, h, &methods.SchedulerConfigRequest{Config: &cfg})
		call(t, s, methods.QueueUpsert, h, &methods.QueueUpsertRequest{Queues: []*structs.Queue{{Path: "research"}}})
		call(t, s, methods.QueueDelete, h, &methods.NameRequest{Name: "research"})
		call(t, s, methods.QuotaUpsert, h, &methods.QuotaUpsertRequest{Quota: &structs.QuotaSpec{Name: "small"}})
		call(t, s, methods.QuotaDelete, h, &methods.NameRequest{Name: "small"})
		call(t, s, methods.NamespaceUpsert, h, &methods.NamespaceUpsertRequest{Namespace: &structs.Namespace{Name: "ml"}})
		call(t, s, methods.NamespaceDelete, h, &methods.NameRequest{Name: "ml"})
		call(t, s, methods.PoolUpsert, h, &methods.PoolUpsertRequest{Name: "gpu", Pool: &structs.NodePool{Name: "gpu"}})
		call(t, s, methods.PoolDelete, h, &methods.NameRequest{Name: "gpu"})
		call(t, s, methods.JobPriority, h, &methods.JobPriorityRequest{JobID: "j", Priority: 70})
		now := structs.LogTimeOf(time.Now())
		call(t, s, methods.ReservationUpsert, h, &methods.ReserveRequest{Reservation: &structs.Reservation{ID: "maintenance", Domain: "default",
			Start: now.Add(time.Hour), End: now.Add(2 * time.Hour), Amount: &structs.Amount{CPU: 100}}})
		call(t, s, methods.ReservationDelete, h, &methods.NameRequest{Name: "maintenance"})
		want := map[string]bool{"SchedulerConfigUpserted": true, "QueueUpserted": true, "QueueDeleted": true, "QuotaUpserted": true, "QuotaDeleted": true, "NamespaceUpserted": true,
			"NamespaceDeleted": true, "NodePoolUpserted": true, "NodePoolDeleted": true, "JobPriorityChanged": true, "ReservationUpserted": true, "ReservationDeleted": true, "JobRegistered": true}
		waitFor(t, 10*time.Second, "events", func() bool { return s.Published().Index > 0 })
		st, err := s.Caller(rpc.Peer{}).Open(t.Context(), rpc.Header{Method: methods.EventStream.Name, Token: h.Token, Namespace: "*"}, &methods.EventStreamRequest{})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close(nil)
		for len(want) > 0 {
			var b methods.EventBatch
			if err := st.RecvMsg(&b); err != nil {
				t.Fatal(err)
			}
			if len(b.Events) == 0 && b.Index >= s.Published().Index {
				break
			}
			for _, e := range b.Events {
				if !want[e.Type] {
					continue
				}
				if e.By == nil || e.By.Accessor != root.Accessor || e.By.Name != root.Name {
					t.Errorf("%s of %q was caused by %+v; want the token %q", e.Type, e.Key, e.By, root.Name)
				}
				delete(want, e.Type)
			}
		}
		for typ := range want {
			t.Errorf("no event %s", typ)
		}
	})
}

// acted reads events from a server until there are at least so many of each type, and returns the first ones.
func acted(t *testing.T, s *Server, h rpc.Header, want map[string]int) (out []methods.Event) {
	t.Helper()
	st, err := s.Caller(rpc.Peer{}).Open(t.Context(), rpc.Header{Method: methods.EventStream.Name, Token: h.Token, Namespace: "*"}, &methods.EventStreamRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close(nil)
	for len(want) > 0 {
		var b methods.EventBatch
		if err := st.RecvMsg(&b); err != nil {
			t.Fatal(err)
		}
		for _, e := range b.Events {
			if n := want[e.Type]; n == 1 {
				delete(want, e.Type)
			} else if n > 1 {
				want[e.Type]--
			} else {
				continue
			}
			out = append(out, e)
		}
		if len(want) > 0 && b.Index >= s.Published().Index {
			t.Errorf("no more events, and these are missing: %v", want)
			break
		}
	}
	return out
}

// TestDecisionsSayWhoActed: a user who stops, releases, scales or drains work, or changes its priority, is the actor of the
// decisions and events that follow, not the one who submitted it. So it is through the leader and through a follower.
func TestDecisionsSayWhoActed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(_ int, cfg *Config) { cfg.ACL = true })
		lead := c.leader()
		root := rpc.Header{Token: c.bootstrapACL(lead).String()}
		token := func(name string) rpc.Header {
			return rpc.Header{Token: call(t, c.servers[lead], methods.ACLTokenUpsert, root, &methods.ACLTokenUpsertRequest{Token: &structs.ACLToken{Name: name, Type: structs.TokenManagement}}).Token.Secret.String()}
		}
		owner, operator := token("owner"), token("operator")
		newFleet(t, func() *Server { return c.servers[lead] }, 3)
		time.Sleep(time.Second) // a job that arrives with the nodes may be refused on the state before them, and decided again for a new reason
		last := uint64(0)
		decided := func(what, job string, why structs.Trigger, by string) {
			t.Helper()
			snap := c.servers[lead].Published().Snapshot
			waitFor(t, time.Minute, what, func() bool {
				snap = c.servers[lead].Published().Snapshot
				for r := range snap.DecisionsBack() {
					if r.Seq > last && r.JobID == job && r.Reason == why {
						return true
					}
				}
				return false
			})
			for r := range snap.Decisions(last + 1) {
				last = r.Seq
				if r.JobID == job && r.Reason == why && r.Actor != by {
					t.Errorf("%s: a decision (%s, %s) has the actor %q, want %q", what, r.Kind, r.Reason, r.Actor, by)
				}
			}
		}
		for _, to := range []int{lead, (lead + 1) % 3} {
			s, name := c.servers[to], map[bool]string{true: "leader ", false: "follower "}[to == lead]
			job := "j" + fmt.Sprint(to)
			call(t, s, methods.JobRegister, owner, &methods.JobRegisterRequest{Job: passJob(job, 2, nil)})
			decided(name+"register", job, structs.TriggerJobRegister, "owner")
			waitFor(t, time.Minute, "it runs", func() bool { return running(c.servers[lead], job) == 2 })
			count := int64(3)
			call(t, s, methods.JobScale, operator, &methods.JobScaleRequest{JobID: job, Group: "g", Count: &count})
			decided(name+"scale", job, structs.TriggerScale, "operator")
			waitFor(t, time.Minute, "it runs", func() bool { return running(c.servers[lead], job) == 3 })
			call(t, s, methods.AllocStop, operator, &methods.AllocStopRequest{AllocID: live(c.servers[lead], job)[0].ID, Reschedule: true})
			decided(name+"alloc stop", job, structs.TriggerAllocStop, "operator")
			waitFor(t, time.Minute, "it runs", func() bool { return running(c.servers[lead], job) == 3 })
			node := live(c.servers[lead], job)[0].NodeID
			call(t, s, methods.NodeDrain, operator, &methods.NodeDrainRequest{NodeID: node, Strategy: &structs.DrainStrategy{Deadline: time.Hour}})
			decided(name+"drain", job, structs.TriggerNodeDrain, "operator")
			call(t, s, methods.NodeDrain, operator, &methods.NodeDrainRequest{NodeID: node, MarkEligible: true})
			waitFor(t, time.Minute, "it runs", func() bool { return running(c.servers[lead], job) == 3 })

			later := job + "-later"
			call(t, s, methods.JobRegister, owner, &methods.JobRegisterRequest{Job: passJob(later, 1, func(j *structs.Job) { j.Hold = true })})
			call(t, s, methods.JobWorkload, operator, &methods.JobWorkloadRequest{JobID: later, Action: structs.ActionRelease})
			decided(name+"release", later, structs.TriggerHold, "operator")
			call(t, s, methods.JobDeregister, operator, &methods.JobDeregisterRequest{JobID: job})
			decided(name+"stop", job, structs.TriggerJobDeregister, "operator")
			call(t, s, methods.JobPriority, operator, &methods.JobPriorityRequest{JobID: later, Priority: 70})
			waitFor(t, time.Minute, "it runs", func() bool { return running(c.servers[lead], later) == 1 })
		}
		want := map[string]int{"JobDeregistered": 2, "JobPriorityChanged": 2, "NodeDrain": 2, "AllocationUpdateDesiredStatus": 2}
		for _, e := range acted(t, c.servers[(lead+2)%3], root, want) {
			if e.By == nil || e.By.Name != "operator" && e.By.Name != "drain" {
				t.Errorf("%s of %q was caused by %+v", e.Type, e.Key, e.By)
			}
		}
	})
}
