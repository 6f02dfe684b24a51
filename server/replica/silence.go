package replica

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// A server that stalls for a moment must not lose leadership, and a dead leader must be replaced soon. One timeout
// cannot do both, so there are two (ADR 0026). Raft's own is long: a leader gives up, and a follower stands for
// election, after RaftConfig.Heartbeat. Long before that, a follower that has heard nothing for its patience asks the
// others whether they have heard anything, and if a majority has not, it has raft elect. Patience is RaftConfig.Quiet
// where nothing stalls, and grows with the stalls that the follower has measured.
//
//	heard --patience--> silent --a majority is silent, none of them has a longer log--> candidate
//
// Elections are safe whenever they happen. The question only decides how many are held: it takes the place of raft's
// pre-vote, which followers refuse until their own long timeout has passed.
const (
	silenceLook    = 25 * time.Millisecond  // time between two looks
	silenceAlone   = 250 * time.Millisecond // the same of a leader that is the only voter; less than QuietDefault, so that a new election is not later
	silenceFactor  = 4                      // patience, in the longest time that newly passed between two contacts
	silenceMemory  = 5 * time.Second        // a measured stall counts for this time, at most for twice as long
	silenceAsk     = 100 * time.Millisecond // for the others to answer
	silenceYield   = 200 * time.Millisecond // given to a server with a longer log to stand for election first
	silenceStepTry = time.Second            // for raft to take the request
)

// contact is what a follower knows of its contact with the leader: a plain structure that is driven by an explicit now.
type contact struct {
	quiet time.Duration // least patience
	lost  time.Duration // raft's own timeout

	term   uint64
	last   time.Time        // newest contact in the term, or when the term was first seen
	looked time.Time        // time of the last look
	next   time.Duration    // time from it to the next one
	worst  [2]time.Duration // longest stall in this period and in the one before it
	period time.Time        // start of this period
}

// look records the newest contact and measures stalls: time between contacts, and time in which this process did not
// look. next is the time until the next look. What a leader left at the end of its term is no stall, or the next one would
// not be replaced soon either.
func (c *contact) look(now, last time.Time, term uint64, next time.Duration) {
	if now.Sub(c.period) >= silenceMemory {
		c.period, c.worst[1], c.worst[0] = now, c.worst[0], 0
	}
	if !c.looked.IsZero() {
		c.stalled(now.Sub(c.looked) - c.next)
	}
	rare := max(0, c.next-silenceLook) // a leader that is alone notes its contact with itself this much later than others
	c.looked, c.next = now, next
	switch {
	case term != c.term:
		c.term, c.last = term, now
	case last.After(c.last):
		c.stalled(last.Sub(c.last) - rare)
		c.last = last
	}
}

// stalled records a stall. One for which raft's own timeout was too short is not counted: a server that was stopped for
// a minute would wait for raft's timeout when the next leader dies, and gain nothing.
func (c *contact) stalled(d time.Duration) {
	if d < c.lost {
		c.worst[0] = max(c.worst[0], d)
	}
}

// patience returns how long the leader may be silent.
func (c *contact) patience() time.Duration {
	return max(c.quiet, silenceFactor*max(c.worst[0], c.worst[1]))
}

// silent reports whether the leader has been silent for longer than that.
func (c *contact) silent(now time.Time) bool { return now.Sub(c.last) >= c.patience() }

// Silence is a server's answer to another one that hears nothing of the leader of a term.
type Silence struct {
	Silent bool   // it has no leader, or has heard nothing for its patience
	Stands bool   // it may become the leader itself
	Last   uint64 // index of its newest log entry
}

// watch guards a contact between its owner, runSilence, and the others' questions.
type silenceWatch struct {
	mu sync.Mutex
	contact
}

// look looks now, and returns the time until the next look. A leader is in contact with itself.
func (r *Replica) look() (silent bool, next time.Duration) {
	now, last := time.Now(), r.raft.LastContact()
	next = silenceLook
	if r.raft.State() == raft.Leader {
		last = now
		if r.voters() == 1 { // no other server asks it, or could lead in its place
			next = silenceAlone
		}
	}
	term := r.raft.CurrentTerm()
	w := &r.silence
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look(now, last, term, next)
	return w.silent(now), next
}

// Silence answers another server that hears nothing of the leader of a term.
func (r *Replica) Silence(term uint64) Silence {
	w := &r.silence
	w.mu.Lock()
	silent := w.silent(time.Now())
	w.mu.Unlock()
	return Silence{
		Silent: silent && r.raft.CurrentTerm() <= term && r.raft.State() != raft.Leader,
		Stands: r.mayStand(), Last: r.raft.LastIndex(),
	}
}

// mayStand reports whether this server may become the leader.
func (r *Replica) mayStand() bool { return !r.disk.Ill() && r.Quarantined() == "" }

// runSilence has raft elect when a majority of the servers hears nothing of the leader.
func (r *Replica) runSilence(ctx context.Context, peers Peers) {
	t, every := time.NewTicker(silenceLook), silenceLook
	defer t.Stop()
	var yielded time.Time // since when another server is given time to stand, or zero
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		silent, next := r.look()
		if next != every {
			every = next
			t.Reset(every)
		}
		if !silent || r.raft.State() != raft.Follower || !r.mayStand() {
			yielded = time.Time{}
			continue
		}
		term := r.raft.CurrentTerm()
		most, first := r.askSilence(ctx, peers, term)
		switch {
		case !most:
		case !first && (yielded.IsZero() || time.Since(yielded) < silenceYield):
			if yielded.IsZero() {
				yielded = time.Now()
			}
		case r.raft.State() == raft.Follower && r.raft.CurrentTerm() == term:
			_, id := r.Leader()
			if id == "" {
				r.log.Info("there is no leader; standing for election", "term", term)
			} else {
				r.log.Warn("a majority hears nothing of the leader; standing for election", "leader", id, "term", term)
			}
			r.transport.elect(ctx)
			yielded = time.Time{}
		}
		r.silence.mu.Lock()
		r.silence.looked = time.Time{} // waiting for answers was no stall
		r.silence.mu.Unlock()
	}
}

// askSilence asks the other voters. most says whether a majority, this server included, hears nothing of the leader of
// a term, and first whether this server should be the one to stand for election: the one with the longest log, and of
// those the one with the smallest ID.
func (r *Replica) askSilence(ctx context.Context, peers Peers, term uint64) (most, first bool) {
	servers, _, err := r.Configuration()
	if err != nil {
		return false, false
	}
	ctx, cancel := context.WithTimeout(ctx, silenceAsk)
	defer cancel()
	type answer struct {
		id raft.ServerID
		Silence
	}
	_, leader := r.Leader()
	answers := make(chan answer, len(servers))
	voters, asked, voter := 0, 0, false
	for _, s := range servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if s.ID == raft.ServerID(r.cfg.ID) {
			voter = true
			continue
		}
		if s.ID == raft.ServerID(leader) || peers == nil {
			continue
		}
		asked++
		go func() {
			a, err := peers.Silence(ctx, string(s.Address), term)
			if err != nil {
				a = Silence{}
			}
			answers <- answer{s.ID, a}
		}()
	}
	if !voter {
		return false, false
	}
	silent, mine := 1, r.raft.LastIndex()
	first = true
	for range asked {
		a := <-answers
		if !a.Silent {
			continue
		}
		silent++
		if a.Stands && (a.Last > mine || a.Last == mine && a.id < raft.ServerID(r.cfg.ID)) {
			first = false
		}
	}
	return silent > voters/2, first
}
