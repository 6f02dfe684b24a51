package decide

import (
	"context"
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

// A server that does not lead prepares at most this often, and with at most a hundredth of a processor.
const (
	followRest    = 99 // times as long as it took
	followRestMin = 100 * time.Millisecond
	followLeading = time.Second // between checks whether this server still leads
)

// Follow prepares the published state while this server does not decide, so that it is prepared when it begins to: a decision
// after an election then computes only what has changed since. It returns when ctx ends.
func (s *Service) Follow(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for view := (*model.View)(nil); ; {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if s.decider.Load() != nil {
			timer.Reset(followLeading)
			continue
		}
		began := time.Now()
		if pub := s.env.Replica.Published(); pub.View != view && s.prepare(pub.View, pub.Snapshot.SchedulerConfig()) {
			view = pub.View
		}
		timer.Reset(max(followRest*time.Since(began), followRestMin))
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
