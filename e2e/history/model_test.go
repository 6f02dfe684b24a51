// Package history runs a real cluster through schedules of faults while clients write and read, and checks that what
// they were answered could have happened: there is one order of all operations on a job or a variable that agrees with
// every answer and with the times of calls and answers (linearizability).
package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/muster-sched/muster/e2e/harness"
)

// The state of a job or a variable is the unique value of its last write, absent, or a value and stopped.
const (
	absent  = ""
	stopped = "!"
)

// What an operation asks for.
const (
	opWrite  = "write"
	opSwap   = "check-and-set"
	opStop   = "stop"
	opDelete = "delete"
	opRead   = "read"
	opStale  = "stale read" // any server may answer it; not part of the linearizable history
)

// Op is one operation of a client, as it was recorded.
type Op struct {
	Client int
	Key    string
	Kind   string
	Value  string // written
	Expect string // state that a check-and-set expects
	Server string // that was asked, with the number of its start: "s1#2"; "" if it was restarted meanwhile

	Outcome harness.Outcome
	Seen    string // state that the answer shows, if SeenOK
	SeenOK  bool
	Index   uint64 // modify index that the answer shows; 0: none
	Problem string // of an answer that is wrong by itself

	Call, Return int64 // nanoseconds since the start of the run
}

// step is the sequential specification of one key.
func step(state string, o *Op) (bool, string) {
	if o.Outcome == harness.Refused {
		known := !o.SeenOK || o.Seen == state
		switch o.Kind {
		case opSwap:
			return known && state != o.Expect, state
		default: // there is none
			return state == absent, state
		}
	}
	sure := o.Outcome == harness.Done
	switch o.Kind {
	case opWrite:
		return true, o.Value
	case opSwap:
		if state != o.Expect {
			return !sure, state
		}
		return true, o.Value
	case opStop, opDelete:
		switch {
		case o.SeenOK && sure: // the answer says that there was nothing to stop
			return state == o.Seen, state
		case o.Kind == opDelete:
			return true, absent
		case state == absent:
			return !sure, state
		}
		return true, strings.TrimSuffix(state, stopped) + stopped
	}
	return o.Seen == state, state
}

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, h := range history {
			k := h.Input.(*Op).Key
			byKey[k] = append(byKey[k], h)
		}
		var out [][]porcupine.Operation
		for _, k := range sortedKeys(byKey) {
			out = append(out, byKey[k])
		}
		return out
	},
	Init: func() any { return absent },
	Step: func(state, input, _ any) (bool, any) { return step(state.(string), input.(*Op)) },
	DescribeOperation: func(input, _ any) string {
		o := input.(*Op)
		text := o.Kind + " " + o.Key
		if o.Kind == opSwap {
			text += fmt.Sprintf(" %q to", o.Expect)
		}
		if o.Value != "" {
			text += fmt.Sprintf(" %q", o.Value)
		}
		text += ": " + string(o.Outcome)
		if o.SeenOK {
			text += fmt.Sprintf(", is %q", o.Seen)
		}
		return text
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%q", state) },
}

func sortedKeys[V any](m map[string]V) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// operations returns the part of a history that must be linearizable. An operation of unknown outcome has no end: it may
// take effect at any later time. One that took none is the last of all then. A write of unknown outcome that no answer
// shows is left out where every answer shows the state, because then nothing can follow from it.
func operations(ops []Op) []porcupine.Operation {
	seen, blind := map[string]bool{}, map[string]bool{}
	for i := range ops {
		o := &ops[i]
		if o.SeenOK {
			seen[o.Key+" "+strings.TrimSuffix(o.Seen, stopped)] = true
		}
		if o.Kind == opSwap && o.Outcome == harness.Done {
			seen[o.Key+" "+strings.TrimSuffix(o.Expect, stopped)] = true
		}
		if o.Kind == opStop || o.Outcome == harness.Refused && !o.SeenOK {
			blind[o.Key] = true
		}
	}
	var out []porcupine.Operation
	for i := range ops {
		o := &ops[i]
		end := o.Return
		switch {
		case o.Kind == opStale || o.Outcome == harness.NotDone || o.Kind == opRead && o.Outcome == harness.Unknown:
			continue
		case o.Outcome == harness.Unknown:
			if o.Value != "" && !seen[o.Key+" "+o.Value] && !blind[o.Key] {
				continue
			}
			end = math.MaxInt64
		}
		out = append(out, porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Output: o, Return: end})
	}
	return out
}

// checkPatience is how long the search for an order may take.
const checkPatience = 30 * time.Second

// check returns what is wrong with a history; draw receives the keys that have no order, for a picture.
func check(ops []Op, draw func(porcupine.LinearizationInfo)) []string {
	var out []string
	for i := range ops {
		if p := ops[i].Problem; p != "" {
			out = append(out, fmt.Sprintf("%s %s: %s", ops[i].Kind, ops[i].Key, p))
		}
	}
	for _, part := range model.Partition(operations(ops)) {
		result, info := porcupine.CheckOperationsVerbose(model, part, checkPatience)
		key := part[0].Input.(*Op).Key
		switch result {
		case porcupine.Illegal:
			out = append(out, fmt.Sprintf("%s: no order of its %d operations agrees with every answer", key, len(part)))
			draw(info)
		case porcupine.Unknown:
			out = append(out, fmt.Sprintf("%s: no order of its %d operations was found within %s", key, len(part), checkPatience))
		}
	}
	return append(append(out, checkIndexes(ops)...), checkStale(ops)...)
}

// checkIndexes checks that a state has one modify index, and an index one state.
func checkIndexes(ops []Op) (out []string) {
	index, state := map[string]uint64{}, map[string]string{}
	for i := range ops {
		o := &ops[i]
		if o.Index == 0 || !o.SeenOK || o.Seen == absent {
			continue
		}
		a, b := o.Key+" "+o.Seen, fmt.Sprint(o.Key, " ", o.Index)
		if was := cmp.Or(index[a], o.Index); was != o.Index {
			out = append(out, fmt.Sprintf("%s: %q has the indexes %d and %d", o.Key, o.Seen, was, o.Index))
		}
		if was := cmp.Or(state[b], o.Seen); was != o.Seen {
			out = append(out, fmt.Sprintf("%s: index %d is that of %q and of %q", o.Key, o.Index, was, o.Seen))
		}
		index[a], state[b] = o.Index, o.Seen
	}
	return out
}

// checkStale checks what stale reads guarantee: one shows a state that was written before its answer, and a server that
// was not restarted never goes back.
func checkStale(ops []Op) (out []string) {
	written := map[string]int64{} // by key and value: call of its write
	deletes := map[string]bool{}
	for i := range ops {
		o := &ops[i]
		if o.Value != "" {
			written[o.Key+" "+o.Value] = o.Call
		}
		deletes[o.Key] = deletes[o.Key] || o.Kind == opDelete
	}
	byServer := map[string][]*Op{}
	for i := range ops {
		o := &ops[i]
		if o.Kind != opStale || !o.SeenOK {
			continue
		}
		if at, ok := written[o.Key+" "+strings.TrimSuffix(o.Seen, stopped)]; o.Seen != absent && (!ok || at > o.Return) {
			out = append(out, fmt.Sprintf("%s: a stale read by %s shows %q, which was never written", o.Key, o.Server, o.Seen))
		}
		if o.Server != "" {
			byServer[o.Key+" "+o.Server] = append(byServer[o.Key+" "+o.Server], o)
		}
	}
	for _, k := range sortedKeys(byServer) {
		out = append(out, goesBack(byServer[k], deletes[byServer[k][0].Key])...)
	}
	return out
}

// goesBack checks that reads of one key at one server, each called after another's answer, never show an older state.
func goesBack(reads []*Op, deleted bool) (out []string) {
	byCall := slices.Clone(reads)
	slices.SortFunc(byCall, func(a, b *Op) int { return cmp.Compare(a.Call, b.Call) })
	slices.SortFunc(reads, func(a, b *Op) int { return cmp.Compare(a.Return, b.Return) })
	var newest *Op // of the reads that had been answered
	for _, r := range byCall {
		for len(reads) > 0 && reads[0].Return < r.Call {
			if newest == nil || reads[0].Index > newest.Index {
				newest = reads[0]
			}
			reads = reads[1:]
		}
		if newest == nil || r.Seen == absent && deleted {
			continue
		}
		if r.Index < newest.Index {
			out = append(out, fmt.Sprintf("%s: %s showed %q (index %d), then %q (index %d)", r.Key, r.Server, newest.Seen, newest.Index, r.Seen, r.Index))
		}
	}
	return out
}

// Dispatch is one request to dispatch a job, as it was recorded.
type Dispatch struct {
	Prefix  string // unique to the dispatch: its child's name begins with it
	Token   bool   // it had an idempotency token, so that it was repeated
	Outcome harness.Outcome
	Child   string // that the answer names
	Body    string // of an answer that refuses
}

// checkDispatches compares dispatches with the children of their job: an acknowledged one has exactly one child, one of
// unknown outcome at most one, and one that was not done none.
func checkDispatches(ds []Dispatch, children []string) (out []string) {
	have := map[string][]string{}
	for _, c := range children {
		_, rest, _ := strings.Cut(c, "/dispatch-")
		p, _, _ := strings.Cut(rest, "-")
		have[p] = append(have[p], c)
	}
	maybe := map[string]bool{}
	for _, d := range ds {
		maybe[d.Prefix] = maybe[d.Prefix] || d.Outcome == harness.Done || d.Outcome == harness.Unknown
	}
	for _, d := range ds {
		switch got := have[d.Prefix]; {
		case d.Outcome == harness.Refused:
			out = append(out, fmt.Sprintf("dispatch %s was refused: %s", d.Prefix, d.Body))
		case len(got) > 1:
			out = append(out, fmt.Sprintf("dispatch %s (%s) has %d children: %v", d.Prefix, d.Outcome, len(got), got))
		case d.Outcome == harness.Done && (len(got) == 0 || got[0] != d.Child):
			out = append(out, fmt.Sprintf("dispatch %s was answered with child %s; its children are %v", d.Prefix, d.Child, got))
		case !maybe[d.Prefix] && len(got) > 0:
			out = append(out, fmt.Sprintf("dispatch %s was answered with an error that means it was not done, and has the child %s", d.Prefix, got[0]))
		}
	}
	return out
}
