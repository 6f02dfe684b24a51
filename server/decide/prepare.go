package decide

import (
	"fmt"
	"runtime/debug"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// preparing is the work ahead of the next passes: see scheduler.Prepare. It has one goroutine at a time.
type preparing struct {
	view  *model.View // prepared, or in work
	busy  bool
	after time.Time // not again before
	done  chan prepared
}

type prepared struct {
	complete bool
	took     time.Duration
}

// Preparing takes at most a tenth of a processor: where few jobs run, each start changes what all decisions depend on.
const (
	prepareRest    = 9 // times as long as it took
	prepareRestMin = 10 * time.Millisecond
)

// prepare starts preparing the newest view if no pass runs. It returns when to call it again; 0: at the next event.
func (d *decider) prepare() time.Duration {
	x := &d.flight.prepare
	if x.busy || d.flight.passes > 0 || x.view == d.pub.View {
		return 0
	}
	if rest := time.Until(x.after); rest > 0 {
		return rest
	}
	x.busy, x.view = true, d.pub.View
	view, config := x.view, d.pub.Snapshot.SchedulerConfig()
	d.s.computing.Add(1)
	go func() {
		defer d.s.computing.Done()
		began := time.Now()
		p := prepared{complete: d.s.prepare(view, config)}
		p.took = time.Since(began)
		select {
		case x.done <- p:
		case <-d.inbox.closed: // the term is over
		}
	}()
	return 0
}

// ended notes that the goroutine has ended.
func (x *preparing) ended(p prepared) {
	x.busy, x.after = false, time.Now().Add(max(prepareRest*p.took, prepareRestMin))
	if !p.complete {
		x.view = nil
	}
}

// prepare is scheduler.Prepare. A panic ends it: the pass that meets the same work reports it.
func (s *Service) prepare(view *model.View, config *structs.SchedulerConfig) (complete bool) {
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("cannot prepare decisions", "error", fmt.Sprintf("%v\n%s", r, debug.Stack()))
		}
	}()
	return scheduler.Prepare(view, config, func(pool structs.PoolName) search.Policy { return policy.For(view.Pool(pool), *config) })
}
