package search

import (
	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// The first search on the views of a lineage counts everything that is held and sorts all rows into sets of twins; the
// first one for an ask after the mix has changed rates every set. On 10,000 nodes that is 30 ms and 1 to 4 ms. Prepare does
// both while no pass runs, for what the running work asks for: mostly, what comes next asks for the same.

// prepared is how far Prepare has come with a mix.
type prepared struct {
	mix  *model.Mix
	todo []*model.HeldWork
	asks map[string]bool // done, by pool and GPU key
}

// preparedMax is the highest number of asks that are prepared for a mix.
const preparedMax = 16

// Prepare fills the caches of a view's lineage for asks like those of the work that runs, the most frequent first. No decision
// depends on it. It stops at once while a pass runs, and a pass that begins meanwhile waits for the ask in turn. compile returns
// the ask of some work and the policy that places it, or nil. Prepare returns false if a pass kept it from being complete.
func Prepare(v *model.View, compile func(*model.HeldWork) (*match.Ask, Policy)) bool {
	for m, more := remembered.Of(v), true; more; {
		if !m.use.TryLock() {
			return false
		}
		more = m.prepareNext(v, compile)
	}
	return true
}

// prepareNext does the next step of Prepare and unlocks m.use. It returns false when nothing is left to do.
func (m *known) prepareNext(v *model.View, compile func(*model.HeldWork) (*match.Ask, Policy)) bool {
	defer m.use.Unlock()
	w := newPass(v, model.Overlay{})
	defer w.Release()
	if !w.AnyGPUs() { // nothing is rated for a mix
		return false
	}
	x, mix := &m.prepared, v.LiveMix()
	if x.mix != mix {
		*x = prepared{mix: mix, todo: v.LiveWork(), asks: make(map[string]bool)}
		w.twinIndex(structs.NodePoolDefault)
		return true
	}
	if len(x.todo) == 0 {
		return false
	}
	h := x.todo[0]
	x.todo = x.todo[1:]
	a, p := compile(h)
	if a == nil {
		return true
	}
	key := string(a.Job.NodePool) + " " + a.GPUKey()
	if x.asks[key] {
		return true
	}
	if x.asks[key] = true; len(x.asks) == preparedMax {
		x.todo = nil
	}
	s := New(a, w, p, 0)
	s.AnyRoom()
	s.Done()
	return true
}
