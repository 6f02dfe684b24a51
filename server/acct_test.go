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

// TestAcctAndDecisionsArePaged places jobs, ends them, and reads both logs page by page, forwards and backwards.
func TestAcctAndDecisionsArePaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 3)
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "research"}, {Path: "research/nlp"}, {Path: "ops"}}})
		const jobs = 12
		for i := range jobs {
			register(t, s, passJob(fmt.Sprintf("j%02d", i), 2, func(j *structs.Job) { j.Queue = []structs.QueuePath{"research", "research/nlp", "ops"}[i%3] }))
		}
		waitFor(t, 10*time.Second, "placements", func() bool {
			n := 0
			for i := range jobs {
				n += running(s, fmt.Sprintf("j%02d", i))
			}
			return n == 2*jobs
		})
		d := call(t, s, methods.DecisionList, rpc.Header{}, &methods.DecisionsRequest{Kind: structs.DecidedPlace})
		if len(d.Rows) != 2*jobs || d.Rows[0].Seq == 0 || d.Rows[0].Wait < 0 || d.Rows[0].Score == 0 || d.Rows[0].EvalID.IsZero() {
			t.Fatalf("%d rows for %d placements, the first %+v", len(d.Rows), 2*jobs, d.Rows[0])
		}
		one := call(t, s, methods.DecisionList, rpc.Header{}, &methods.DecisionsRequest{JobID: "j03", Queue: "research"})
		if len(one.Rows) != 2 {
			t.Fatalf("%d rows of one job, want 2", len(one.Rows))
		}
		last := call(t, s, methods.DecisionList, rpc.Header{}, &methods.DecisionsRequest{Last: 5})
		if n := len(last.Rows); n != 5 || last.Rows[4].Seq != d.Rows[len(d.Rows)-1].Seq && last.Rows[4].Kind == structs.DecidedPlace {
			t.Fatalf("the last rows are %+v", last.Rows)
		}
		var seqs []uint64
		for next := ""; ; {
			p := call(t, s, methods.DecisionList, rpc.Header{}, &methods.DecisionsRequest{Kind: structs.DecidedPlace, Query: methods.Query{PerPage: 7, NextToken: next}})
			for _, r := range p.Rows {
				seqs = append(seqs, r.Seq)
			}
			if next = p.NextToken; next == "" {
				break
			}
		}
		if len(seqs) != 2*jobs || seqs[0] != d.Rows[0].Seq {
			t.Fatalf("paged: %v", seqs)
		}
		for i := range jobs {
			call(t, s, methods.JobDeregister, rpc.Header{}, &methods.JobDeregisterRequest{JobID: fmt.Sprintf("j%02d", i)})
		}
		waitFor(t, time.Minute, "ends", func() bool { return s.Published().Snapshot.AcctCount() == jobs })
		all := call(t, s, methods.AcctList, rpc.Header{}, &methods.AcctRequest{}).Records
		if len(all) != jobs || all[0].Exit != structs.ExitStopped || all[0].ID == "" || all[0].Allocs != 2 {
			t.Fatalf("%d records, the first %+v", len(all), all[0])
		}
		for _, reverse := range []bool{false, true} {
			var got []string
			for next := ""; ; {
				p := call(t, s, methods.AcctList, rpc.Header{}, &methods.AcctRequest{Query: methods.Query{PerPage: 5, NextToken: next, Reverse: reverse}})
				for _, r := range p.Records {
					got = append(got, r.ID)
				}
				if next = p.NextToken; next == "" {
					break
				}
			}
			for i, id := range got {
				want := all[i].ID
				if reverse {
					want = all[jobs-1-i].ID
				}
				if id != want || len(got) != jobs {
					t.Fatalf("reverse %v: record %d of %d is %s, want %s", reverse, i, len(got), id, want)
				}
			}
		}
		if r := call(t, s, methods.AcctList, rpc.Header{}, &methods.AcctRequest{Queue: "research"}).Records; len(r) != 8 {
			t.Errorf("%d records of a subtree, want 8", len(r))
		}
		mid := all[6].End
		before := call(t, s, methods.AcctList, rpc.Header{}, &methods.AcctRequest{Until: mid}).Records
		since := call(t, s, methods.AcctList, rpc.Header{}, &methods.AcctRequest{Since: mid}).Records
		if len(before)+len(since) != jobs {
			t.Errorf("%d ended before and %d since; together %d jobs", len(before), len(since), jobs)
		}
	})
}

// TestAdviceStartsTheJob applies the first change that job why suggests, for each reason that a plain cluster can give.
// Then the job must run.
func TestAdviceStartsTheJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 3)
		codes := map[structs.ReasonCode]bool{}
		for i, edit := range []func(j *structs.Job){
			func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.MemoryMiB = 1 << 20 },
			func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.CPU = 1 << 20 },
			func(j *structs.Job) { j.Groups[0].Count = 5000 },
			func(j *structs.Job) {
				j.Constraints = []structs.Constraint{{LTarget: "${attr.kernel.name}", Operand: "=", RTarget: "plan9"}}
			},
			func(j *structs.Job) { j.Datacenters = []string{"elsewhere"} },
		} {
			id := fmt.Sprint("j", i)
			register(t, s, passJob(id, 1, edit))
			var why *methods.JobWhyResponse
			waitFor(t, 10*time.Second, "reason of "+id, func() bool {
				why = call(t, s, methods.JobWhy, rpc.Header{}, &methods.JobGetRequest{JobID: id})
				return why.Workload != nil && why.Workload.Waiting > 0 && why.Advice != nil
			})
			codes[why.Workload.Reason] = true
			if why.Advice.Never == "" || why.Advice.Starts || len(why.Advice.Changes) == 0 || why.Advice.Changes[0].Job == nil {
				t.Fatalf("%s [%s]: advice %+v", id, why.Workload.Reason, why.Advice)
			}
			c := why.Advice.Changes[0]
			register(t, s, c.Job)
			want := c.Job.Groups[0].Count
			waitFor(t, 30*time.Second, fmt.Sprintf("%s with %q", id, c.Text), func() bool { return running(s, id) == want })
			call(t, s, methods.JobDeregister, rpc.Header{}, &methods.JobDeregisterRequest{JobID: id, Purge: true})
			waitFor(t, time.Minute, "end of "+id, func() bool { return len(live(s, id)) == 0 })
		}
		for _, code := range []structs.ReasonCode{structs.ReasonResources, structs.ReasonConstraint} {
			if !codes[code] {
				t.Errorf("no job waited for %s: %v", code, codes)
			}
		}
	})
}

func TestClusterMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 1)
		register(t, s, passJob("small", 1, nil))
		register(t, s, passJob("big", 3, func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.MemoryMiB = 1 << 20 }))
		waitFor(t, 10*time.Second, "decisions", func() bool { return running(s, "small") == 1 && s.clusterMetrics().queued == 1 })
		time.Sleep(time.Minute)
		got := s.Stats()
		for name, want := range map[string]string{"queue_depth": "1", "queue_allocations": "3", "queue_oldest_wait_seconds": "60", "decision_rows": "1", "gpus": "0"} {
			if got[name] != want {
				t.Errorf("%s is %q, want %s", name, got[name], want)
			}
		}
		for name, figure := range s.RaftStats() { // agent-info shows both groups
			if twice, ok := got[name]; ok {
				t.Errorf("%s of raft, %q, is among the server's figures, too: %q", name, figure, twice)
			}
		}
	})
}
