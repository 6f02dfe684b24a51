package runner

import (
	"testing"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/structs"
)

// Every transition that the drawing has is allowed, every other one is refused.
func TestTransitions(t *testing.T) {
	allowed := map[[2]state]bool{
		{created, preparing}: true, {created, ended}: true, {created, destroyed}: true, {preparing, driving}: true, {driving, resting}: true,
		{driving, ended}: true, {resting, driving}: true, {ended, destroyed}: true, {destroyed, destroyed}: true,
	}
	try := func(from, to state) (ok bool) {
		defer func() { ok = recover() == nil }()
		(&Runner{id: structs.AllocID{1}, state: from}).to(to)
		return true
	}
	for from := created; from <= destroyed; from++ {
		for to := created; to <= destroyed; to++ {
			if got, want := try(from, to), allowed[[2]state{from, to}]; got != want {
				t.Errorf("%s to %s: allowed %v, want %v", from, to, got, want)
			}
		}
	}
}

// A broadcast wakes those who wait, once, and none who come later.
func TestBroadcast(t *testing.T) {
	var b broadcast
	b.send() // without a receiver
	first, second := b.next(), b.next()
	b.send()
	<-first
	<-second
	select {
	case <-b.next():
		t.Error("one who waits since the last change is woken without a new one")
	default:
	}
}

type noGPUs struct{ GPUs }

func (noGPUs) Use(*structs.Allocation) []structs.GPUUse { return nil }

// TestBeginWhileSuspended: a task that is about to start is not reported again, and no step is due, unless its allocation was
// suspended at this moment and counts as frozen.
func TestBeginWhileSuspended(t *testing.T) {
	for name, s := range map[string]*structs.Suspension{"runs": nil, "suspended": {By: "alice", Since: 1}} {
		t.Run(name, func(t *testing.T) {
			reports := 0
			r := &Runner{state: driving, cfg: &Config{
				Host:    Host{BootID: "b", Store: agentstore.Memory{}, GPUs: noGPUs{}, Node: func() *structs.Node { return nil }},
				Servers: Servers{Report: func(*structs.AllocObserved) { reports++ }},
			}, alloc: &structs.Allocation{Suspension: s, Job: &structs.Job{}}}
			tk := newTask(r, "t", nil)
			r.tasks = []*task{tk}
			tk.begin(t.Context())
			if tk.phase() != agentstore.PhaseStarting || tk.rec.BootID != "b" {
				t.Errorf("the record is %+v", tk.rec)
			}
			if news := s != nil; r.dirty != news || (reports > 0) != news {
				t.Errorf("another step is due: %v, %d reports; want %v", r.dirty, reports, news)
			}
		})
	}
}
