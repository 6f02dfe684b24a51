package raftlog

import (
	"errors"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// tail keeps what raft removes from the end of a log until its replacement is stored.
//
// A follower that has entries which a new leader lacks removes them, and stores those of the leader. Raft notes the new
// end of the log after the second step. If that fails because the disk is full, raft continues as if the removed entries
// were there, finds none of them, and refuses every message of the leader until the process starts again. So the entries
// stay readable here, as if they had not been removed. Raft removes and stores again once the disk has room. If raft
// adds to them instead, they are written first. After a crash they are gone, which is safe: no other server heard that their
// replacement is stored, and a leader that lacks them proves that they were not committed.
type tail struct {
	raft.LogStore

	mu   sync.Mutex
	held []*raft.Log // follow the last entry of the store without a gap
}

// errForgotten is the error of a write that brought back a change of the servers. Raft undid the change when the entry was
// removed, and reads it again only when it starts.
var errForgotten = errors.New("raft has undone a change of the servers that the log holds again")

func (t *tail) holding() []*raft.Log {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}

func (t *tail) hold(es []*raft.Log) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = es
}

// IsMonotonic implements raft.MonotonicLogStore.
func (t *tail) IsMonotonic() bool {
	m, ok := t.LogStore.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

// LastIndex returns the index of the last entry that can be read.
func (t *tail) LastIndex() (uint64, error) {
	if held := t.holding(); len(held) > 0 {
		return held[len(held)-1].Index, nil
	}
	return t.LogStore.LastIndex()
}

// GetLog reads an entry.
func (t *tail) GetLog(index uint64, e *raft.Log) error {
	held := t.holding()
	if len(held) == 0 || index < held[0].Index || index > held[len(held)-1].Index {
		return t.LogStore.GetLog(index, e)
	}
	*e = *held[index-held[0].Index]
	return nil
}

// DeleteRange removes entries from either end, and keeps those of the newer end. Raft empties the log before it continues
// after a snapshot; nothing is kept then.
func (t *tail) DeleteRange(low, high uint64) error {
	first, err := t.FirstIndex()
	if err != nil {
		return err
	}
	stored, err := t.LogStore.LastIndex()
	if err != nil {
		return err
	}
	if high < stored {
		return t.LogStore.DeleteRange(low, high)
	}
	if low > stored && low > first {
		return nil // held
	}
	var removed []*raft.Log
	for i := low; low > first && i <= stored; i++ {
		e := new(raft.Log)
		if err := t.LogStore.GetLog(i, e); err != nil {
			return err
		}
		removed = append(removed, e)
	}
	if err := t.LogStore.DeleteRange(low, min(high, stored)); err != nil {
		return err
	}
	if low > first {
		removed = append(removed, t.holding()...)
	}
	t.hold(removed)
	return nil
}

// StoreLog writes an entry.
func (t *tail) StoreLog(e *raft.Log) error { return t.StoreLogs([]*raft.Log{e}) }

// StoreLogs writes entries in one commit, in the place of the removed ones or after them.
func (t *tail) StoreLogs(es []*raft.Log) error {
	held := t.holding()
	var before []*raft.Log
	if n := len(held); n > 0 && es[0].Index > held[0].Index && es[0].Index <= held[n-1].Index+1 {
		before = held[:es[0].Index-held[0].Index]
	}
	if err := t.LogStore.StoreLogs(slices.Concat(before, es)); err != nil {
		return err
	}
	t.hold(nil)
	if slices.ContainsFunc(before, func(e *raft.Log) bool { return e.Type == raft.LogConfiguration }) {
		return errForgotten
	}
	return nil
}
