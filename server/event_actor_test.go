package server

import (
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
