package watch

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// TestChangeWhileLooking: a change that comes while a blocking query reads the state wakes it.
func TestChangeWhileLooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := &replica.Published{Index: 5}
		h := NewHub(func() *replica.Published { return now }, still, make(chan struct{}))
		job := &structs.Job{Namespace: "default", ID: "j"}
		began, looks := time.Now(), 0
		var m methods.Meta
		err := h.Read(auth.With(t.Context(), &auth.Identity{}), &methods.Query{MinIndex: 5}, &m, []Key{OnJob(job.Key())}, func(p *replica.Published) (structs.Index, error) {
			if looks++; looks == 1 { // the answer is from before
				now = &replica.Published{Index: 6}
				h.Feed(replica.Applied{Published: now, Delta: structs.Delta{Jobs: []structs.Changed[structs.Job]{{After: job}}}})
			}
			return p.Index, nil
		})
		if err != nil || m.Index != 6 || time.Since(began) > 0 {
			t.Errorf("index %d after %s, %v; want 6 at once", m.Index, time.Since(began), err)
		}
	})
}

// TestReadEnds: a blocking query ends with its caller, its time, and the server.
func TestReadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closing := make(chan struct{})
		h := NewHub(func() *replica.Published { return &replica.Published{Index: 5} }, still, closing)
		read := func(ctx context.Context, wait time.Duration) error {
			var m methods.Meta
			return h.Read(auth.With(ctx, &auth.Identity{}), &methods.Query{MinIndex: 5, MaxWait: wait}, &m, nil, func(p *replica.Published) (structs.Index, error) { return p.Index, nil })
		}
		if err := read(t.Context(), time.Minute); err != nil {
			t.Errorf("at the end of its time: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := read(ctx, time.Minute); err != context.DeadlineExceeded {
			t.Errorf("without its caller: %v", err)
		}
		close(closing)
		if err := read(t.Context(), time.Minute); structs.CodeOf(err) != structs.CodeUnavailable {
			t.Errorf("without the server: %v", err)
		}
		if n := h.Watches.Load(); n != 0 || len(h.waiting) != 0 {
			t.Errorf("%d queries are left, %d keys", n, len(h.waiting))
		}
	})
}

func still(*auth.Identity, *state.Snapshot) bool { return true }
