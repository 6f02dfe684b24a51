package runner

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// state is the phase of a Runner.
//
//	         Start              the hooks have run             nothing is due
//	created -------> preparing --------------------> driving ------------------> resting
//	   |                                              |    <--------------------
//	   |                                              |       something changed
//	   |                                              | all tasks have ended, and that is recorded
//	   | Start, with a recorded end                   v
//	   `--------------------------------------------> ended --------------------> destroyed
//	                                                             Destroy
//
// At most one goroutine runs for the allocation itself, in preparing and driving. A runner at rest has none; its
// running tasks have one each. One that has started a task and has nothing else to do drives, too. When the agent stops,
// a runner stays in its state.
type state uint8

const (
	created   state = iota // made for an allocation that the servers sent, or from the agent's records
	preparing              // the hooks run
	driving                // tasks are started and ended
	resting                // every task runs or waits
	ended                  // the end has been recorded and reported
	destroyed              // directories and records are removed, or being removed
)

func (s state) String() string {
	return [...]string{"created", "preparing", "driving", "resting", "ended", "destroyed"}[s]
}

// transitions are the arrows of the drawing. An allocation that an agent found ended may be destroyed before it is
// started, and a failed removal is repeated.
var transitions = [...][]state{
	created:   {preparing, ended, destroyed},
	preparing: {driving},
	driving:   {resting, ended},
	resting:   {driving},
	ended:     {destroyed},
	destroyed: {destroyed},
}

// to changes the state. A transition that the drawing does not have is a bug: it stops the agent, and its tasks
// continue. The caller holds r.mu.
func (r *Runner) to(next state) {
	if !slices.Contains(transitions[r.state], next) {
		panic(fmt.Sprintf("allocation %s cannot become %s while it is %s", r.id, next, r.state))
	}
	r.state = next
}

// broadcast wakes all goroutines that wait for a change. The zero value is ready to use. The owner's lock guards it,
// together with the state that changes.
type broadcast struct{ ch chan struct{} }

// next returns a channel that is closed at the next change. A waiter takes it before it unlocks the state that it
// looked at.
func (b *broadcast) next() <-chan struct{} {
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

// send wakes the current waiters.
func (b *broadcast) send() {
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// timeLimit is the end of the allocation's wall-clock time.
type timeLimit struct {
	end    structs.LogTime // as armed; 0: not armed
	disarm func()          // or nil
	passed bool            // the allocation is ended because of it
}

// suspension tracks whether the allocation is frozen.
type suspension struct {
	since   structs.LogTime // since when all its tasks have been frozen; 0: they are not
	look    *time.Timer     // until the next look at the frozen tasks; nil: not armed
	changed broadcast       // the servers suspended or resumed it
}

// membership is the allocation's place in its gang.
type membership struct {
	roster  *structs.Roster // the newest that the servers sent; nil before the first
	changed broadcast       // roster changed
	port    int             // rendezvous port reserved on this node, or 0
	epoch   uint64          // of the roster that the port was reserved for
}

// savedReport limits the reports of checkpoints.
type savedReport struct {
	last time.Time // the last report
	due  bool      // the next one is armed
}
