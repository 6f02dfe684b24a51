package agentstore

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/muster-sched/muster/internal/powercut"
)

// cutStep is a change of one allocation or of its task, or a checkpoint.
type cutStep struct {
	alloc   byte
	attempt int64 // of the task; 0: the allocation is stored; -1: it is deleted
}

var cutSteps = []cutStep{{1, 0}, {1, 1}, {2, 0}, {1, 2}, {}, {2, 1}, {1, -1}, {3, 0}, {}, {3, 5}, {1, 0}, {2, 2}, {3, -1}}

func (c cutStep) do(s *Disk) error {
	switch {
	case c.alloc == 0:
		return s.do()
	case c.attempt < 0:
		return s.DeleteAlloc(alloc(c.alloc).ID)
	case c.attempt == 0:
		return s.PutAlloc(alloc(c.alloc))
	}
	return s.PutTask(alloc(c.alloc).ID, "t", &TaskRecord{Attempt: c.attempt})
}

// after returns the attempts of the tasks of all allocations after some steps.
func after(steps []cutStep) map[byte]int64 {
	m := map[byte]int64{}
	for _, c := range steps {
		if c.alloc != 0 {
			m[c.alloc] = c.attempt
		}
		if c.attempt < 0 {
			delete(m, c.alloc)
		}
	}
	return m
}

// cutWork makes the changes, with a restart of the agent between them.
func cutWork(dir string) error {
	for steps := range slices.Chunk(cutSteps, 7) {
		s, _, err := Open(dir)
		if err != nil {
			return err
		}
		for _, c := range steps {
			if err := c.do(s); err != nil {
				return err
			}
			powercut.Ack("%v", c)
		}
		if err := s.Close(); err != nil {
			return err
		}
	}
	return nil
}

// TestPowerCut: a kill or a power cut at any write of the log and of the database loses no acknowledged change. The next
// agent finds the state after the newest one, or after the one in progress.
func TestPowerCut(t *testing.T) {
	powercut.Record(t, t.TempDir(), cutWork).Restart(t, func(dir string, acked []string) error {
		s, damage, err := Open(dir)
		if err != nil || damage != "" && len(acked) > 0 { // a database that was never complete is moved aside
			return fmt.Errorf("opened with %v, damage %q", err, damage)
		}
		defer s.Close()
		saved, err := s.Load()
		if err != nil {
			return err
		}
		have := map[byte]int64{}
		for _, r := range saved.Allocs {
			have[r.Alloc.ID[0]] = 0
			if t := r.Tasks["t"]; t != nil {
				have[r.Alloc.ID[0]] = t.Attempt
			}
		}
		n := len(acked)
		if maps.Equal(have, after(cutSteps[:n])) || maps.Equal(have, after(cutSteps[:min(n+1, len(cutSteps))])) {
			return nil
		}
		return fmt.Errorf("%d changes were acknowledged, and the store has %v", n, have)
	})
}
