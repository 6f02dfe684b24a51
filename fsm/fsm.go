package fsm

import (
	"sync/atomic"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Options of an FSM.
type Options struct {
	// CheckWrites detects objects that were changed in place after they entered the store (state.Options).
	CheckWrites bool
}

// Entry is one committed log entry. An entry without data only advances the index (a raft no-op or configuration).
type Entry struct {
	Index structs.Index
	Data  []byte
}

// FSM applies log entries to the state. ApplyBatch and Restore are called from one goroutine at a time; Snapshot from
// any.
type FSM struct {
	opts  Options
	store *state.Store
	snap  atomic.Pointer[state.Snapshot]
}

// New makes an FSM with the empty state.
func New(opts Options) *FSM {
	f := &FSM{opts: opts, store: newStore(opts)}
	f.snap.Store(f.store.Snapshot())
	return f
}

func newStore(opts Options) *state.Store {
	s := state.New(state.Options{CheckWrites: opts.CheckWrites})
	s.Builtin()
	return s
}

// Snapshot returns the state after the last applied batch. It is cheap, and the result never changes.
func (f *FSM) Snapshot() *state.Snapshot { return f.snap.Load() }

// Hash returns the hash of that state. Only the caller of ApplyBatch may call it, between batches; it leaves less to do for the
// hashes of later snapshots.
func (f *FSM) Hash() [32]byte { return f.store.Hash() }

// VerifyImmutable reports the first object that was changed in place, if Options.CheckWrites is set.
func (f *FSM) VerifyImmutable() error { return f.store.VerifyImmutable() }

// ApplyBatch applies entries in order and makes the new state visible once, at the end. The results, the state and the
// delta's lists do not depend on how a log is cut into batches.
//
// A command that cannot be carried out has Result.Err set and changed nothing. For an entry that cannot be read, or whose
// type this build neither knows nor may skip, the error is an *UnreadableError: the entries before it have been applied,
// those after it have not, and the FSM must not be used any more (I9).
func (f *FSM) ApplyBatch(entries []Entry) ([]structs.Result, structs.Delta, error) {
	results := make([]structs.Result, len(entries))
	causes := make(map[structs.Index]structs.Cause, len(entries))
	last := f.store.Snapshot().Index()
	var bad error
	for i, e := range entries {
		results[i] = structs.Result{Index: e.Index}
		if len(e.Data) == 0 {
			last = max(last, e.Index)
			continue
		}
		cmd, err := Decode(e.Data)
		if err != nil {
			bad = unreadable(e.Index, err)
			break
		}
		last = max(last, e.Index)
		if cmd.Body != nil {
			causes[e.Index] = structs.Cause{Type: commands.of(cmd.Body).typ, By: cmd.By}
		}
		results[i] = f.apply(e.Index, cmd)
	}
	snap, delta := f.store.Publish(last)
	delta.Causes = causes
	f.snap.Store(snap)
	return results, delta, bad
}

// tx is one command while it is applied.
type tx struct {
	*state.Store
	commands *commandTable // a field, because applyBatch cannot refer to the variable commands, which refers to applyBatch
	index    structs.Index
	time     structs.LogTime
	cmd      *structs.Command
	result   *structs.Result
	touched  map[structs.JobKey]bool // jobs whose status may have changed
	order    []structs.JobKey        // the keys of touched, in order of insertion
	evals    map[structs.JobKey]structs.EvalID
	attained map[structs.JobKey]int64     // service of ended allocations by job; nil for none
	losses   map[lossKey]structs.UserLoss // nil for none
	keep     bool                         // this command does not bring touched jobs back to life (collection)
}

func (f *FSM) apply(index structs.Index, cmd structs.Command) structs.Result {
	result := structs.Result{Index: index}
	if cmd.Body == nil {
		return result // ignorable, and unknown to this version
	}
	x := &tx{
		Store: f.store, commands: commands, index: index, time: f.store.Advance(cmd.Time), cmd: &cmd, result: &result,
		touched: map[structs.JobKey]bool{}, evals: map[structs.JobKey]structs.EvalID{},
	}
	if err := x.run(); err != nil {
		f.store.RollbackEntry()
		return structs.Result{Index: index, Err: err}
	}
	x.settle()
	f.store.CommitEntry(index)
	return result
}

// run carries out the command or returns an error. The caller then undoes what it wrote.
func (x *tx) run() *structs.Error {
	row := x.commands.of(x.cmd.Body)
	if in := x.Format(); row.format > in {
		return structs.Errorf(structs.CodeConflict, "%s needs format %d; format %d is in force", row.body.Elem().Name(), row.format, in)
	}
	return row.apply(x, x.cmd.Body)
}

// touch marks a job whose status must be checked when the command has been carried out.
func (x *tx) touch(k structs.JobKey) {
	if !x.touched[k] {
		x.touched[k] = true
		x.order = append(x.order, k)
	}
}
