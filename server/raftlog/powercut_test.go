package raftlog

import (
	"fmt"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/powercut"
)

const cutSize = 300 // bytes of an entry

// cutWork opens a new log, writes entries, terms and votes, replaces and removes entries, and closes it.
func cutWork(dir string, o Options) error {
	l, err := Open(dir, o, hclog.NewNullLogger())
	if err != nil {
		return err
	}
	first, last, term := uint64(1), uint64(0), uint64(0)
	ack := func() { powercut.Ack("%d %d %d", first, last, term) }
	write := func(n uint64) error {
		var es []*raft.Log
		for range n {
			last++
			es = append(es, entryOf(last, cutSize))
		}
		if err := l.StoreLogs(es); err != nil {
			return err
		}
		ack()
		return nil
	}
	setTerm := func() error {
		term++
		err := l.SetUint64([]byte("CurrentTerm"), term)
		if err == nil {
			err = l.Set([]byte("LastVoteCand"), fmt.Append(nil, "s", term))
		}
		ack()
		return err
	}
	for round := range uint64(3) {
		if err := setTerm(); err != nil {
			return err
		}
		for n := range uint64(4) {
			if err := write(1 + 20*n); err != nil { // the last ones need a new file of the wal backend
				return err
			}
		}
		last -= 3 // as a follower of a new leader does
		ack()
		if err := l.DeleteRange(last+1, last+3); err != nil {
			return err
		}
		if err := write(2); err != nil {
			return err
		}
		if round == 1 { // as after a snapshot
			first = last - 5
			ack()
			if err := l.DeleteRange(1, first-1); err != nil {
				return err
			}
		}
	}
	return l.Close()
}

// TestPowerCut: a kill or a power cut at any write of the log, of the term and of the vote loses nothing that was
// acknowledged, and the log opens.
func TestPowerCut(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			work := func(dir string) error { return cutWork(dir, v.o) }
			powercut.Record(t, memoryDir(t), work).Restart(t, func(dir string, acked []string) error {
				l, err := Open(dir, v.o, hclog.NewNullLogger())
				if err != nil {
					return err
				}
				defer l.Close()
				if len(acked) == 0 {
					return nil
				}
				var first, last, term uint64
				if _, err := fmt.Sscan(acked[len(acked)-1], &first, &last, &term); err != nil {
					return err
				}
				return holds(l, first, last, term)
			})
		})
	}
}

// holds checks what a log must have at least.
func holds(l *Log, first, last, term uint64) error {
	if n, err := l.GetUint64([]byte("CurrentTerm")); n != term && n != term+1 || err != nil {
		return fmt.Errorf("term %d, %v; %d was acknowledged and is lost", n, err, term)
	}
	if have, err := l.LastIndex(); have < last || err != nil {
		return fmt.Errorf("entries to %d, %v; %d was acknowledged and is lost", have, err, last)
	}
	for i := first; i <= last; i++ {
		var e raft.Log
		if err := l.GetLog(i, &e); err != nil {
			return fmt.Errorf("entry %d was acknowledged and is lost: %w", i, err)
		}
		if string(e.Data) != string(entryOf(i, cutSize).Data) {
			return fmt.Errorf("entry %d is wrong", i)
		}
	}
	return nil
}
