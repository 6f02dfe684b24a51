package main

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// TestNoSuchRank: what cannot be a rank of a job is said to be none, and not answered with something else.
func TestNoSuchRank(t *testing.T) {
	two := []ranked{{first: 0, ranks: 2, labelled: true}, {first: 2, ranks: 2, labelled: true}}
	for _, c := range []struct {
		name string
		ms   []ranked
		rank int
		want string
	}{
		{"the last", two, 3, ""},
		{"beyond", two, 4, "the ranks are 0 to 3"},
		{"no ranks at all", []ranked{{}}, 99, "leave out -rank"},
		{"rank mode, the roster is gone", []ranked{{labelled: true}}, 1, ""},
		{"several, the roster is gone", []ranked{{}, {}}, 1, "-index"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := holding(c.ms, c.rank)
			if c.want == "" && (err != nil || m == nil) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: %v, %v; want %q", c.name, m, err, c.want)
			}
		})
	}
	o := &allocLogsOptions{rank: -5}
	if err := o.check(); err == nil || !strings.Contains(err.Error(), "count from 0") {
		t.Errorf("rank -5: %v", err)
	}
}

// TestLogsOfOneOfSeveral: at a terminal job logs says which allocation it shows; the stderr of a pipe is the task's alone.
func TestLogsOfOneOfSeveral(t *testing.T) {
	for _, tty := range []bool{true, false} {
		f := newAgentFake(t)
		f.tty = tty
		f.answers["GET /v1/job/pair/gangs"] = []any{}
		list := []*wire.AllocationListStub{{ID: allocA, Name: "pair.g[0]", TaskGroup: "g"}, {ID: allocB, Name: "pair.g[1]", TaskGroup: "g"}}
		f.answers["GET /v1/job/pair/allocations"] = list
		r := f.run(t, "", "job", "logs", "pair")
		if got := strings.Contains(r.errOut, "This is the log of index 0, of 2 allocations: -index N shows another"); r.code != 0 || got != tty {
			t.Errorf("at a terminal: %t; exit %d, %s", tty, r.code, r.errOut)
		}
	}
}
