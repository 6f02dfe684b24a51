package fsm

import "github.com/muster-sched/muster/structs"

// serverWrote stores an allocation whose server-owned fields changed: agents that wait for it wake up.
func (x *tx) serverWrote(a *structs.Allocation) {
	a.AllocIndex, a.ModifyIndex, a.ModifyTime = x.index, x.index, x.time
	x.PutAlloc(a)
	x.touch(a.JobKey())
}
