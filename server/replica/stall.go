package replica

import (
	"context"
	"runtime"
	"runtime/metrics"
	"time"
)

// Stall names what kept raft waiting.
type Stall string

// Causes of stalls. A leader that stalls for longer than the others' timeouts is replaced.
const (
	StallApply    Stall = "apply"    // entries were applied to the state
	StallPublish  Stall = "publish"  // the view was advanced and the state published
	StallRestore  Stall = "restore"  // a snapshot was restored
	StallSnapshot Stall = "snapshot" // a snapshot was begun
	StallDisk     Stall = "disk"     // entries were written to the raft log
	StallProcess  Stall = "process"  // nothing of the process ran: too little processor time, garbage collection, or stopped
	StallQueue    Stall = "queue"    // goroutines that were ready waited for their turn: as above, or more work than processor time
	StallServices Stall = "services" // the leader's services had to end
)

// StallMin is the shortest stall that is reported, a third of QuietDefault.
const StallMin = 100 * time.Millisecond

// stallWarn is the shortest time without processor time that is logged.
const stallWarn = 300 * time.Millisecond

// stallLook is the time between two looks at whether the process runs.
const stallLook = 50 * time.Millisecond

// stalled reports what began at a time and has just ended, if it took long.
func (r *Replica) stalled(cause Stall, began time.Time) {
	if took := time.Since(began); took >= StallMin && r.cfg.Stalled != nil {
		r.cfg.Stalled(cause, took)
	}
}

// runStallWatch notices when its own timer is late, and when goroutines wait for their turn.
func (r *Replica) runStallWatch(ctx context.Context) {
	t := time.NewTimer(stallLook)
	defer t.Stop()
	waiting := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}}
	for due := time.Now().Add(stallLook); ; due = time.Now().Add(stallLook) {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		r.stalled(StallProcess, due)
		runtime.Gosched() // timers fire before others that are ready; now wait as long as they do
		r.stalled(StallQueue, due)
		if late := time.Since(due); late >= stallWarn {
			metrics.Read(waiting)
			r.log.Warn("this process did not run; it lacks processor time, or was stopped", "for", late, "goroutines_waiting", waiting[0].Value.Uint64())
		}
		t.Reset(stallLook)
	}
}
