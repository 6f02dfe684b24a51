package history

import (
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/muster-sched/muster/e2e/harness"
)

func done(kind, value string, call, ret int64) Op {
	return Op{Key: "k", Kind: kind, Value: value, Outcome: harness.Done, Call: call, Return: ret}
}

func read(seen string, call, ret int64) Op {
	return Op{Key: "k", Kind: opRead, Seen: seen, SeenOK: true, Outcome: harness.Done, Call: call, Return: ret}
}

func stale(server, seen string, index uint64, call, ret int64) Op {
	return Op{Key: "k", Kind: opStale, Server: server, Seen: seen, SeenOK: true, Index: index, Outcome: harness.Done, Call: call, Return: ret}
}

func with(o Op, change func(*Op)) Op { change(&o); return o }

// TestCheck gives the checker histories that it must accept, and ones that it must refuse.
func TestCheck(t *testing.T) {
	unknown := func(o *Op) { o.Outcome = harness.Unknown }
	refused := func(o *Op) { o.Outcome = harness.Refused }
	swap := func(expect, value string, call, ret int64) Op {
		return with(done(opSwap, value, call, ret), func(o *Op) { o.Expect = expect })
	}
	for _, c := range []struct {
		name string
		want string // part of the problem; "": none
		ops  []Op
	}{
		{"reads follow writes", "", []Op{done(opWrite, "a", 1, 2), read("a", 3, 4), done(opWrite, "b", 5, 6), read("b", 7, 8)}},
		{"a read during a write sees either", "", []Op{done(opWrite, "a", 1, 2), done(opWrite, "b", 3, 9), read("b", 4, 5), read("b", 6, 7)}},
		{"a read goes back", "no order", []Op{done(opWrite, "a", 1, 2), done(opWrite, "b", 3, 9), read("b", 4, 5), read("a", 6, 7)}},
		{"a stale read that had to be current", "no order", []Op{done(opWrite, "a", 1, 2), done(opWrite, "b", 3, 4), read("a", 5, 6)}},
		{"a lost write", "no order", []Op{done(opWrite, "a", 1, 2), read(absent, 3, 4)}},
		{"a write of unknown outcome that took effect late", "", []Op{done(opWrite, "a", 1, 2), with(done(opWrite, "b", 3, 4), unknown), read("a", 5, 6), read("b", 7, 8)}},
		{"a write of unknown outcome that took none", "", []Op{done(opWrite, "a", 1, 2), with(done(opWrite, "b", 3, 4), unknown), read("a", 5, 6)}},
		{"a write of unknown outcome that took effect twice", "no order", []Op{done(opWrite, "a", 1, 2), with(done(opWrite, "b", 3, 4), unknown), read("b", 5, 6), done(opWrite, "c", 7, 8), read("b", 9, 10)}},
		{"a write that was not done", "no order", []Op{with(done(opWrite, "b", 3, 4), func(o *Op) { o.Outcome = harness.NotDone }), read("b", 5, 6)}},
		{"check-and-set", "", []Op{swap(absent, "a", 1, 2), swap("a", "b", 3, 4), read("b", 5, 6)}},
		{"two of one check-and-set", "no order", []Op{done(opWrite, "a", 1, 2), swap("a", "b", 3, 6), swap("a", "c", 3, 6)}},
		{"a check-and-set refused without cause", "no order", []Op{done(opWrite, "a", 1, 2), with(swap("a", "b", 3, 4), refused)}},
		{"a check-and-set refused by what no answer shows", "", []Op{done(opWrite, "a", 1, 2), with(done(opWrite, "b", 3, 4), unknown), with(swap("a", "c", 5, 6), refused)}},
		{"a lost stop", "no order", []Op{done(opWrite, "a", 1, 2), done(opStop, "", 3, 4), read("a", 5, 6)}},
		{"a stop", "", []Op{done(opWrite, "a", 1, 2), done(opStop, "", 3, 4), read("a"+stopped, 5, 6), done(opWrite, "b", 7, 8), read("b", 9, 10)}},
		{"a stop of what is not there", "", []Op{with(done(opStop, "", 1, 2), refused), done(opWrite, "a", 3, 4)}},
		{"a stop that was answered for a job that is not there", "no order", []Op{done(opWrite, "a", 1, 2), with(done(opStop, "", 3, 4), func(o *Op) { o.SeenOK = true })}},
		{"a stop that did not find the job", "no order", []Op{done(opWrite, "a", 1, 2), with(done(opStop, "", 3, 4), refused)}},
		{"a delete", "", []Op{done(opWrite, "a", 1, 2), done(opDelete, "", 3, 4), read(absent, 5, 6)}},
		{"a deleted variable returns", "no order", []Op{done(opWrite, "a", 1, 2), done(opDelete, "", 3, 4), read("a", 5, 6)}},
		{"stale reads", "", []Op{done(opWrite, "a", 1, 2), done(opWrite, "b", 3, 4), stale("s1#1", "a", 10, 5, 6), stale("s2#1", "b", 11, 5, 6), stale("s1#1", "b", 11, 7, 8)}},
		{"stale reads that overlap", "", []Op{done(opWrite, "a", 1, 2), done(opWrite, "b", 3, 4), stale("s1#1", "b", 11, 5, 8), stale("s1#1", "a", 10, 6, 9)}},
		{"a server goes back", "then", []Op{done(opWrite, "a", 1, 2), done(opWrite, "b", 3, 4), stale("s1#1", "b", 11, 5, 6), stale("s1#1", "a", 10, 7, 8)}},
		{"a server forgets", "then", []Op{done(opWrite, "a", 1, 2), stale("s1#1", "a", 11, 5, 6), stale("s1#1", absent, 0, 7, 8)}},
		{"a server goes back when it restarts", "", []Op{done(opWrite, "a", 1, 2), done(opWrite, "b", 3, 4), stale("s1#1", "b", 11, 5, 6), stale("s1#2", "a", 10, 7, 8)}},
		{"a stale read of what was never written", "never", []Op{done(opWrite, "a", 1, 2), stale("s1#1", "x", 11, 5, 6)}},
		{"two indexes of one value", "indexes", []Op{done(opWrite, "a", 1, 2), stale("s1#1", "a", 11, 5, 6), stale("s2#1", "a", 12, 5, 6)}},
	} {
		got := strings.Join(check(c.ops, func(porcupine.LinearizationInfo) {}), "; ")
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: want %q, have %q", c.name, c.want, got)
		}
	}
}

func TestCheckDispatches(t *testing.T) {
	const one, two = "p/dispatch-a-1-f00", "p/dispatch-a-1-f01"
	d := func(o harness.Outcome, child string) Dispatch { return Dispatch{Prefix: "a", Outcome: o, Child: child} }
	for _, c := range []struct {
		name     string
		bad      bool
		ds       []Dispatch
		children []string
	}{
		{"acknowledged", false, []Dispatch{d(harness.Done, one)}, []string{one}},
		{"lost", true, []Dispatch{d(harness.Done, one)}, nil},
		{"another", true, []Dispatch{d(harness.Done, one)}, []string{two}},
		{"twice", true, []Dispatch{d(harness.Done, one)}, []string{one, two}},
		{"unknown", false, []Dispatch{d(harness.Unknown, "")}, []string{one}},
		{"unknown, not done", false, []Dispatch{d(harness.Unknown, "")}, nil},
		{"unknown, twice", true, []Dispatch{d(harness.Unknown, "")}, []string{one, two}},
		{"not done", false, []Dispatch{d(harness.NotDone, "")}, nil},
		{"not done, but done", true, []Dispatch{d(harness.NotDone, "")}, []string{one}},
		{"repeated", false, []Dispatch{d(harness.Unknown, ""), d(harness.NotDone, ""), d(harness.Done, one)}, []string{one}},
		{"repeated, two answers", true, []Dispatch{d(harness.Done, two), d(harness.Done, one)}, []string{one}},
		{"the job was not found", true, []Dispatch{d(harness.Refused, "")}, nil},
	} {
		if got := checkDispatches(c.ds, c.children); (len(got) > 0) != c.bad {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
