package server

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// inPages reads a list in pages of two and checks that it has the rows of the whole list, in order.
func inPages(t *testing.T, what string, whole []string, page func(q methods.Query) ([]string, string)) {
	t.Helper()
	var got []string
	q := methods.Query{PerPage: 2}
	for range len(whole) + 1 {
		rows, next := page(q)
		got = append(got, rows...)
		if q.NextToken = next; next == "" {
			break
		}
	}
	if len(whole) < 5 || !slices.Equal(got, whole) {
		t.Errorf("%s: in pages %q, whole %q", what, got, whole)
	}
}

func TestPagesOfAListAreTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 3)
		for _, ns := range []string{"a", "a-b"} { // '-' sorts before '.', which once was between namespace and job
			mustApply(t, s, &structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: ns}}})
			for i := range 3 {
				call(t, s, methods.JobRegister, rpc.Header{Namespace: ns}, &methods.JobRegisterRequest{Job: passJob(fmt.Sprintf("j%d", i), 1, func(j *structs.Job) { j.Namespace = ns })})
			}
		}
		register(t, s, passJob("wide", 7, nil))
		for i := range 5 {
			register(t, s, passJob(fmt.Sprintf("huge%d", i), 1, func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.MemoryMiB = 1 << 30 }))
		}
		waitFor(t, 10*time.Second, "placements", func() bool { return running(s, "wide") == 7 })
		all := rpc.Header{Namespace: "*"}

		jobs := func(q methods.Query) (rows []string, next string) {
			r := call(t, s, methods.JobList, all, &methods.ListRequest{Query: q})
			for _, it := range r.Jobs {
				rows = append(rows, it.Job.Key().String())
			}
			return rows, r.NextToken
		}
		whole, _ := jobs(methods.Query{})
		inPages(t, "jobs", whole, jobs)

		allocs := func(q methods.Query) (rows []string, next string) {
			r := call(t, s, methods.JobAllocs, rpc.Header{}, &methods.JobAllocsRequest{JobID: "wide", Query: q})
			for _, a := range r.Allocs {
				rows = append(rows, a.ID.String())
			}
			return rows, r.NextToken
		}
		whole, _ = allocs(methods.Query{})
		inPages(t, "allocations of a job", whole, allocs)

		queue := func(q methods.Query) (rows []string, next string) {
			r := call(t, s, methods.QueueList, all, &methods.ListRequest{Query: q})
			for _, it := range r.Items {
				rows = append(rows, it.Workload.JobID)
			}
			return rows, r.NextToken
		}
		whole, _ = queue(methods.Query{})
		inPages(t, "queue", whole, queue)
		_, next := queue(methods.Query{PerPage: 2})
		call(t, s, methods.JobDeregister, rpc.Header{}, &methods.JobDeregisterRequest{JobID: whole[2]})
		waitFor(t, 10*time.Second, "the job to leave the queue", func() bool { rows, _ := queue(methods.Query{}); return len(rows) == 4 })
		if rows, _ := queue(methods.Query{PerPage: 2, NextToken: next}); !slices.Equal(rows, whole[3:5]) {
			t.Errorf("the job of the token has left the queue: the page has %q, want %q", rows, whole[3:5])
		}
	})
}
