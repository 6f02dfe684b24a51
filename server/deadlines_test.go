package server

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/server/events"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// A missed deadline is reported once: when it passes, or with the end of a job whose miss was not recorded before. A
// job that ends or is stopped in time, or gets a later deadline, has not missed it. Accounting agrees.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 3)
		sub := s.replica.Subscribe("test", 4096)
		defer s.replica.Unsubscribe(sub)
		var told []string
		listen := func() {
			for a, ok := sub.TryNext(); ok; a, ok = sub.TryNext() {
				for _, e := range events.Missed(a) {
					told = append(told, e.Key+" "+e.Type)
				}
			}
		}
		began := time.Now()
		at := structs.LogTimeOf(began.Add(30 * time.Minute))
		job := func(id string, runs time.Duration, deadline structs.LogTime) *structs.Job {
			f.set(func() { f.runs[id] = runs })
			return passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Deadline, j.Groups[0].Reschedule = structs.JobBatch, deadline, structs.Reschedule{}
			})
		}
		register(t, s, job("early", 10*time.Minute, at))
		register(t, s, job("late", 50*time.Minute, at))
		register(t, s, job("stopped", 5*time.Hour, at))
		register(t, s, job("none", 50*time.Minute, 0))
		moved := job("moved", 50*time.Minute, at)
		register(t, s, moved)
		time.Sleep(20 * time.Minute)
		mustApply(t, s, &structs.JobDeregisterCommand{Namespace: "default", JobID: "stopped"})
		later := *moved
		later.Deadline = structs.LogTimeOf(began.Add(3 * time.Hour))
		register(t, s, &later)
		time.Sleep(9 * time.Minute)
		listen()
		if len(told) > 0 {
			t.Fatalf("told before the deadline: %v", told)
		}
		time.Sleep(2 * time.Minute)
		listen()
		if w := s.Published().Snapshot.Workload(structs.JobKey{Namespace: "default", ID: "late"}); w == nil || w.Missed != at {
			t.Errorf("a minute after its deadline the queue entry is %+v", w)
		}
		time.Sleep(5 * time.Hour)
		listen()
		if want := []string{"late JobDeadlineMissed"}; !slices.Equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}
		missed := map[string]bool{}
		n := 0
		for r := range s.Published().Snapshot.AcctBack() {
			n++
			missed[r.JobID] = r.Missed
			if want := map[string]structs.LogTime{"early": at, "late": at, "stopped": at, "moved": later.Deadline}[r.JobID]; r.Deadline != want {
				t.Errorf("the record of %s has the deadline %d, want %d", r.JobID, r.Deadline, want)
			}
		}
		if n != 5 || !missed["late"] || missed["early"] || missed["stopped"] || missed["none"] || missed["moved"] {
			t.Errorf("%d records, missed: %v", n, missed)
		}
	})
}

// If a job's end is in the log before its miss, the miss is reported with the end.
func TestMissedWithTheEnd(t *testing.T) {
	w := &structs.Workload{Namespace: "default", JobID: "j"}
	told := *w
	told.Missed = 7
	late := &structs.AcctRecord{Namespace: "default", JobID: "j", Missed: true}
	inTime := &structs.AcctRecord{Namespace: "default", JobID: "j"}
	s := testServer(t, nil)
	for _, c := range []struct {
		name          string
		before, after *structs.Workload
		rec           *structs.AcctRecord
		want          int
	}{
		{"written", w, &told, nil, 1}, {"written, then ended in one batch", w, nil, late, 1}, {"ended, told before", &told, nil, late, 0},
		{"ended in time", w, nil, inTime, 0}, {"goes on", &told, &told, nil, 0}, {"new", nil, w, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := replica.Applied{Published: s.Published()}
			a.Delta.Workloads = []structs.Changed[structs.Workload]{{Before: c.before, After: c.after}}
			if c.rec != nil {
				a.Delta.Acct = []structs.Changed[structs.AcctRecord]{{After: c.rec}}
			}
			got := events.Missed(a)
			if len(got) != c.want || slices.ContainsFunc(got, func(e methods.Event) bool { return e.Topic != "Job" || !strings.Contains(e.Type, "Missed") }) {
				t.Errorf("%s: %d events, want %d", c.name, len(got), c.want)
			}
		})
	}
}
