package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Faults. Each happens to a server of the region unless its name says otherwise.
const (
	pause      = "pause"         // SIGSTOP
	kill       = "kill"          // kill -9
	killAll    = "kill all"      // of the servers, at once
	cut        = "cut off"       // from everybody
	deaf       = "deaf"          // it hears nothing from the other servers
	mute       = "mute"          // the other servers hear nothing from it
	isolate    = "isolate"       // it and the other servers do not hear each other, but clients reach it
	split      = "split"         // it and one other server do not hear each other
	slow       = "slow"          // its packets are late
	lossy      = "lossy"         // every fifth of its packets is lost
	full       = "full disk"     //
	freeze     = "frozen disk"   // no write returns
	broken     = "broken disk"   // half of it cannot be read or written; the server is removed, and joins with a new disk
	remove     = "remove"        // from raft; it joins again, with an empty disk
	transfer   = "transfer"      // of the leadership
	loseRegion = "lose region"   // all servers of the other region are cut off
	pauseAgent = "pause agent"   // SIGSTOP of an agent that runs tasks
	killAgent  = "kill agent"    //
	cutAgent   = "cut agent off" // from everybody
	length     = 8               // steps of a schedule
)

// faults are all but isolate and deaf, in the order of the deck before it is shuffled.
var faults = []string{pause, kill, killAll, cut, mute, split, slow, lossy, full, freeze, broken, remove, transfer, loseRegion, pauseAgent, killAgent, cutAgent}

// Protections of a cluster; clients have a token unless it is open.
const (
	open   = "open" // neither ACLs nor TLS
	acls   = "acls" // servers have a join key, agents an introduction token, clients a token
	mutual = "mtls" // every connection between agents has a certificate at both ends
)

var protections = []string{open, acls, mutual}

// protection returns the one of a seed. Three consecutive seeds have all three, and nine from a multiple of nine on have
// each with every fault.
func protection(seed uint64) string { return protections[(seed+seed/3)%3] }

// alone are faults that begin when all others have ended, and end before the next begins.
var alone = []string{killAll, freeze, broken, remove}

// onAgents are the faults of agents.
var onAgents = []string{pauseAgent, killAgent, cutAgent}

// Step is a fault of a schedule.
type Step struct {
	Fault  string
	Wait   time.Duration // before it begins, after the one before has begun (or ended, if alone)
	For    time.Duration
	Leader bool // it happens to the leader, otherwise to a follower
	Pick   int  // which follower, agent, or peer
}

func (s Step) String() string {
	who := fmt.Sprintf("follower %d", s.Pick%2+1)
	switch {
	case slices.Contains(onAgents, s.Fault):
		who = fmt.Sprintf("agent %d", s.Pick%2+1)
	case s.Fault == killAll || s.Fault == loseRegion || s.Fault == transfer:
		who = ""
	case s.Leader:
		who = "leader"
	}
	return fmt.Sprintf("%s %s for %s", s.Fault, who, s.For)
}

// schedule draws the steps of a seed. They are dealt from a shuffled deck of all faults, so that schedules with
// consecutive seeds are as different as possible: each seed of three has another third of the deck, which is shuffled
// again after nine. Each also isolates the leader, which then could answer what is no longer true, and makes it deaf: what
// it was writing is then done by the next leader, although its client knows nothing of that. No schedule has a fault
// twice: the end of one would end the other.
func schedule(seed uint64) []Step {
	d := slices.Clone(faults)
	shared := rand.New(rand.NewPCG(seed/9, 12))
	shared.Shuffle(len(d), func(i, j int) { d[i], d[j] = d[j], d[i] })
	r := rand.New(rand.NewPCG(seed, 13))
	names := []string{isolate, deaf}
	for i := int(seed % 3); i < len(d); i += 3 {
		names = append(names, d[i])
	}
	for len(names) < length {
		if f := faults[r.IntN(len(faults))]; !slices.Contains(names, f) {
			names = append(names, f)
		}
	}
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	var out []Step
	for _, name := range names {
		out = append(out, Step{
			Fault:  name,
			Wait:   time.Duration(300+r.IntN(1200)) * time.Millisecond,
			For:    time.Duration(500+r.IntN(2500)) * time.Millisecond,
			Leader: name == isolate || name == deaf || r.IntN(5) < 3,
			Pick:   r.IntN(1 << 16),
		})
	}
	return out
}

// TestSchedule checks that three consecutive seeds have every fault, that a seed repeats its schedule, and that a schedule
// has no fault twice.
func TestSchedule(t *testing.T) {
	pairs := map[string]bool{}
	for first := uint64(0); first < 36; first += 3 {
		if first%9 == 0 {
			clear(pairs)
		}
		have, protected := map[string]bool{}, map[string]bool{}
		for s := first; s < first+3; s++ {
			protected[protection(s)] = true
			steps := schedule(s)
			if !slices.Equal(steps, schedule(s)) {
				t.Errorf("seed %d has two schedules", s)
			}
			own := map[string]bool{}
			for _, x := range steps {
				have[x.Fault], own[x.Fault] = true, true
				pairs[x.Fault+" "+protection(s)] = true
			}
			if len(steps) != length || len(own) != length {
				t.Errorf("seed %d has %d steps with %d different faults; want %d", s, len(steps), len(own), length)
			}
		}
		if len(protected) != len(protections) {
			t.Errorf("seeds %d to %d have the protections %v, want %v", first, first+2, protected, protections)
		}
		for _, f := range faults {
			if !have[f] {
				t.Errorf("seeds %d to %d have no fault %q", first, first+2, f)
			}
			for _, p := range protections {
				if first%9 == 6 && !pairs[f+" "+p] {
					t.Errorf("seeds %d to %d have no fault %q with %s", first-6, first+2, f, p)
				}
			}
		}
	}
}
