package server

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/structs"
)

// scriptedDuty returns commands that a test has prepared, and records the calls of its runner.
type scriptedDuty struct {
	loads, feeds atomic.Int64
	panics       atomic.Int64     // calls of Due that panic
	due          [][]duty.Command // for the next calls of Due
}

func (d *scriptedDuty) Load(*state.Snapshot, structs.LogTime)                 { d.loads.Add(1) }
func (d *scriptedDuty) Feed(*state.Snapshot, *structs.Delta, structs.LogTime) { d.feeds.Add(1) }

func (d *scriptedDuty) Due(_ *state.Snapshot, now structs.LogTime) ([]duty.Command, structs.LogTime) {
	if d.panics.Load() > 0 {
		d.panics.Add(-1)
		panic("planted")
	}
	if len(d.due) == 0 {
		return nil, 0
	}
	cmds := d.due[0]
	d.due = d.due[1:]
	return cmds, now.Add(time.Minute)
}

// lead runs a duty in addition to those of the leading server, until the test ends.
func lead(t *testing.T, s *Server, d duty.Duty) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.runService(ctx, s.lead.term.Load(), s.dutyService("scripted", d, nil))
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// drainOf returns a command that drains a node. It is refused if the node does not exist.
func drainOf(id structs.NodeID) duty.Command {
	return duty.Command{Subject: "node", Command: structs.Command{Body: &structs.NodeDrainCommand{ID: id, Strategy: &structs.DrainStrategy{}}}}
}

// TestDutyWritesAgain: after a refused command the rest is written. If one cannot be written, the duty loads the state
// again a second later, and of the rest only commands with Keep are written.
func TestDutyWritesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 4)
		drained := func() (out []int) {
			for i, n := range f.nodes {
				if x := s.Published().Snapshot.NodeByID(n.ID); x.Drain != nil || x.LastDrain != nil {
					out = append(out, i)
				}
			}
			return out
		}
		kept := drainOf(f.nodes[2].ID)
		kept.Keep = true
		d := &scriptedDuty{due: [][]duty.Command{
			{drainOf(structs.NodeID{9}), drainOf(f.nodes[0].ID), {}, drainOf(f.nodes[1].ID), kept}, // {}: has no body, so it cannot be written
			{drainOf(f.nodes[3].ID)},
		}}
		before := s.duties.refused.Load()
		lead(t, s, d)
		time.Sleep(900 * time.Millisecond)
		if got := drained(); !slices.Equal(got, []int{0}) || d.loads.Load() != 1 {
			t.Errorf("before the second attempt nodes %v drain, want 0; %d loads, want 1", got, d.loads.Load())
		}
		if n := s.duties.refused.Load() - before; n != 1 {
			t.Errorf("%d commands were counted as refused, want 1", n)
		}
		time.Sleep(time.Second)
		if got := drained(); !slices.Equal(got, []int{0, 2, 3}) || d.loads.Load() != 2 {
			t.Errorf("after it nodes %v drain, want 0, 2 and 3; %d loads, want 2", got, d.loads.Load())
		}
		if d.feeds.Load() == 0 {
			t.Error("the duty was fed nothing of what it wrote")
		}
	})
}

// TestDutyThatPanics: the duty is restarted after growing pauses, while the other duties keep running.
func TestDutyThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 1)
		bad := &scriptedDuty{}
		bad.panics.Store(1000)
		lead(t, s, bad)
		register(t, s, passJob("limited", 1, func(j *structs.Job) {
			j.Type, j.Groups[0].MaxRunDuration = structs.JobBatch, time.Minute
		}))
		waitFor(t, 5*time.Second, "limited", func() bool { return running(s, "limited") == 1 })
		waitFor(t, 2*time.Minute, "the end by another duty", func() bool { return len(live(s, "limited")) == 0 })
		panicked := 1000 - bad.panics.Load()
		if panicked < 5 || panicked > 40 || bad.loads.Load() != panicked {
			t.Errorf("%d panics and %d loads in a minute; want a start after each, with pauses that grow to 5 s", panicked, bad.loads.Load())
		}
		bad.panics.Store(0)
		time.Sleep(6 * time.Second)
		loads := bad.loads.Load()
		time.Sleep(time.Minute)
		if n := bad.loads.Load(); n != loads {
			t.Errorf("%d more loads after the last panic, want none", n-loads)
		}
		if len(live(s, "limited")) != 0 || !s.IsLeader() {
			t.Error("the server does not lead any more")
		}
	})
}
