package state

import (
	"encoding/binary"
	"iter"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// The decision log (D23) is a ring of rows. Rows of one plan entry share an object, so that their common fields are
// kept, written and hashed once: one object per row would cost an allocation a quarter of its time in the store.

// decisionBytes is the size of a packed row: kind, places, stops, nodes, first node, score.
const decisionBytes = 1 + 4 + 4 + 4 + 16 + 8

// decisionKinds are the kinds as bytes. Their order never changes.
var decisionKinds = [...]string{"", structs.DecidedPlace, structs.DecidedStop, structs.DecidedUpdate, structs.DecidedPreempt,
	structs.DecidedGang, structs.DecidedRequeue, structs.DecidedReserve, structs.DecidedResize, structs.DecidedSuspend, structs.DecidedResume}

// Decisions is a sequence of rows of the decision log with their common fields.
type Decisions struct {
	Seq       uint64 // of the first row
	Index     structs.Index
	Time      structs.LogTime
	Namespace string
	JobID     string
	EvalID    structs.EvalID
	Queue     structs.QueuePath
	Wait      time.Duration
	Rows      []byte                   // packed
	Policy    string                   `since:"2"`
	Reason    structs.Trigger          `since:"2"`
	Actor     string                   `since:"2"`
	Victims   []structs.DecisionVictim `since:"2"` // of all rows
}

// Len returns the number of rows.
func (d *Decisions) Len() int { return len(d.Rows) / decisionBytes }

// Grow makes room for n rows.
func (d *Decisions) Grow(n int) { d.Rows = slices.Grow(d.Rows, n*decisionBytes) }

// Add appends a row; it ignores the common fields.
func (d *Decisions) Add(r *structs.DecisionRow) {
	kind := byte(0)
	for i, k := range decisionKinds {
		if k == r.Kind {
			kind = byte(i)
		}
	}
	d.Rows = append(d.Rows, kind)
	for _, n := range [...]int64{r.Places, r.Stops, r.Nodes} {
		d.Rows = binary.BigEndian.AppendUint32(d.Rows, uint32(min(max(n, 0), 1<<32-1)))
	}
	d.Rows = append(d.Rows, r.Node[:]...)
	d.Rows = binary.BigEndian.AppendUint64(d.Rows, uint64(r.Score))
}

// Row returns row i.
func (d *Decisions) Row(i int) structs.DecisionRow {
	b := d.Rows[i*decisionBytes:][:decisionBytes]
	r := structs.DecisionRow{
		Seq: d.Seq + uint64(i), Index: d.Index, Time: d.Time, Namespace: d.Namespace, JobID: d.JobID, EvalID: d.EvalID, Queue: d.Queue, Wait: d.Wait,
		Places: int64(binary.BigEndian.Uint32(b[1:])), Stops: int64(binary.BigEndian.Uint32(b[5:])), Nodes: int64(binary.BigEndian.Uint32(b[9:])),
		Node: structs.NodeID(b[13:29]), Score: int64(binary.BigEndian.Uint64(b[29:])),
	}
	r.Policy, r.Reason, r.Actor = d.Policy, d.Reason, d.Actor
	for _, v := range d.Victims {
		if v.Row == int64(i) {
			r.Victims = append(r.Victims, v)
		}
	}
	if int(b[0]) < len(decisionKinds) {
		r.Kind = decisionKinds[b[0]]
	}
	return r
}

// PutDecisions appends to the decision log, numbers the rows, and drops the oldest ones beyond structs.DecisionsKept,
// together with those that share an object with them.
func (s *Store) PutDecisions(d *Decisions) {
	if d.Len() == 0 {
		return
	}
	d.Seq = 1
	if last := DecisionLog.Last(s); last != nil {
		d.Seq = last.Seq + uint64(last.Len())
	}
	DecisionLog.Put(s, d)
	end := d.Seq + uint64(d.Len())
	for first := DecisionLog.First(s); first != d && end-first.Seq > structs.DecisionsKept; first = DecisionLog.First(s) {
		DecisionLog.Delete(s, first.Seq)
	}
}

// Decisions returns the rows of the decision log from seq, oldest first.
func (s *Snapshot) Decisions(seq uint64) iter.Seq[structs.DecisionRow] {
	return func(yield func(structs.DecisionRow) bool) {
		for d := range DecisionLog.from(s, DecisionLog.atOrBelow(s, seq)) { // seq may lie within the first
			for i := range d.Len() {
				if r := d.Row(i); r.Seq >= seq && !yield(r) {
					return
				}
			}
		}
	}
}

// DecisionsBack returns the rows of the decision log newest first.
func (s *Snapshot) DecisionsBack() iter.Seq[structs.DecisionRow] {
	return func(yield func(structs.DecisionRow) bool) {
		for d := range DecisionLog.backward(s) {
			for i := d.Len() - 1; i >= 0; i-- {
				if !yield(d.Row(i)) {
					return
				}
			}
		}
	}
}

// DecisionCount returns the number of rows in the decision log.
func (s *Snapshot) DecisionCount() int {
	first, last := DecisionLog.First(s), DecisionLog.Last(s)
	if first == nil {
		return 0
	}
	return int(last.Seq - first.Seq + uint64(last.Len()))
}
