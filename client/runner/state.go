package runner

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// state is how far a Runner is with its allocation.
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
// At most one goroutine runs for the allocation itself, in preparing and driving. A runner at rest has none; its running
// tasks have one each. When the agent stops, a runner stays in the state that it is in.
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

// transitions are the arrows of the drawing. An allocation that an agent found ended may be destroyed before it is started,
// and a removal that failed is repeated.
var transitions = [...][]state{
	created:   {preparing, ended, destroyed},
	preparing: {driving},
	driving:   {resting, ended},
	resting:   {driving},
	ended:     {destroyed},
	destroyed: {destroyed},
}

// to changes the state. A transition that the drawing does not have is a bug: the agent stops, and its tasks go on. r.mu is
// held.
func (r *Runner) to(next state) {
	if !slices.Contains(transitions[r.state], next) {
		panic(fmt.Sprintf("allocation %s cannot become %s while it is %s", r.id, next, r.state))
	}
	r.state = next
}

// broadcast wakes all who wait for something to change. The zero value is ready to use. Whoever owns it guards it, together
// with what changes.
type broadcast struct{ ch chan struct{} }

// next is closed at the next change. A waiter takes it before it unlocks what it looked at.
func (b *broadcast) next() <-chan struct{} {
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

// send wakes those who wait now.
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

// suspension is how far the allocation is frozen.
type suspension struct {
	since   structs.LogTime // all its tasks have been frozen since then; 0: they are not
	look    *time.Timer     // until the frozen tasks are looked at again; nil: not armed
	changed broadcast       // the servers suspended or resumed it
}

// membership is the allocation's place in its gang.
type membership struct {
	roster  *structs.Roster // the newest that the servers sent; nil before
	changed broadcast       // roster changed
	port    int             // rendezvous port reserved on this node, or 0
	epoch   uint64          // of the roster that the port was reserved for
}

// savedReport is when checkpoints are reported.
type savedReport struct {
	last time.Time // the last report
	due  bool      // the next one is armed
}
