package nodesim

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// One complaint of one node does not take the session from the others; many soon after each other do.
func TestManyComplaintsTakeASession(t *testing.T) {
	at := time.Unix(1000, 0)
	g := &grief{few: 3}
	for i, c := range []struct {
		after time.Duration
		want  bool
	}{{0, false}, {time.Second, false}, {time.Minute, false}, {0, false}, {0, true}, {0, false}, {0, false}, {0, true}} {
		at = at.Add(c.after)
		if got := g.enough(at); got != c.want {
			t.Errorf("complaint %d: %t, want %t", i, got, c.want)
		}
	}
	if g := (&grief{few: 1}); !g.enough(at) {
		t.Error("the only node complains in vain")
	}
}

func TestJobsAreShared(t *testing.T) {
	var s jobs
	job := func(id string, version uint64, spec structs.Index) *structs.Job {
		return &structs.Job{Namespace: "default", ID: id, Version: version, SpecIndex: spec}
	}
	a := s.share(job("a", 0, 5))
	if s.share(job("a", 0, 5)) != a {
		t.Error("the same version is kept twice")
	}
	if s.share(job("a", 1, 9)) == a || s.share(job("a", 0, 12)) == a {
		t.Error("another version, or one registered anew, is taken for the first")
	}
	for i := range structs.Index(jobsKept) {
		s.share(job("b", 0, i))
		if s.share(job("a", 0, 5)) != a {
			t.Fatal("forgotten although it was asked for")
		}
	}
	for i := range structs.Index(3 * jobsKept) {
		s.share(job("c", 0, i))
	}
	if n := len(s.new) + len(s.old); n > 2*jobsKept {
		t.Errorf("%d jobs are kept, want at most %d", n, 2*jobsKept)
	}
}
