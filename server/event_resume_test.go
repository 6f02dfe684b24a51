package server

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestEventStreamResumesWithinABatch registers jobs at once, which raft writes together, and follows the stream from each
// of their indexes: events up to it come no second time, and all later ones come.
func TestEventStreamResumesWithinABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		const jobs = 40
		var wg sync.WaitGroup
		for i := range jobs {
			wg.Go(func() {
				call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob(fmt.Sprintf("j%02d", i), 1)})
			})
		}
		wg.Wait()
		time.Sleep(time.Second)
		end := s.Published().Index
		registered := func(after structs.Index) (at []structs.Index) {
			st, err := s.Caller(rpc.Peer{}).Open(t.Context(), rpc.Header{Method: methods.EventStream.Name, Namespace: "*"},
				&methods.EventStreamRequest{Index: after})
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close(nil)
			for {
				var b methods.EventBatch
				if err := st.RecvMsg(&b); err != nil {
					t.Fatal(err)
				}
				if b.Gap {
					t.Fatalf("a gap after index %d", after)
				}
				for _, e := range b.Events {
					if e.Type == "JobRegistered" {
						at = append(at, e.Index)
					}
				}
				if len(b.Events) == 0 && b.Index >= end { // the heartbeat after the last frame
					return at
				}
			}
		}
		all := registered(1)
		if len(all) != jobs {
			t.Fatalf("%d registrations, want %d", len(all), jobs)
		}
		for i, index := range all {
			if got := registered(index); len(got) != jobs-1-i {
				t.Fatalf("after index %d there are %d registrations, want %d", index, len(got), jobs-1-i)
			}
		}
	})
}
