package replica

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// Patience follows the longest stall of the last seconds, and a leader's death is no stall.
func TestContact(t *testing.T) {
	const ms = time.Millisecond
	start := time.Unix(1_000_000, 0)
	now := start
	c := &contact{quiet: QuietDefault, lost: HeartbeatDefault}
	// run looks for a time, with a contact every gap.
	run := func(d, gap time.Duration, term uint64) {
		last := now
		for end := now.Add(d); now.Before(end); now = now.Add(silenceLook) {
			if now.Sub(last) >= gap {
				last = now
			}
			c.look(now, last, term, silenceLook)
		}
		c.look(now, now, term, silenceLook)
	}
	want := func(what string, d time.Duration) {
		t.Helper()
		if got := c.patience(); got != d {
			t.Errorf("%s: patience %s, want %s", what, got, d)
		}
	}
	run(20*time.Second, 50*ms, 1)
	want("contact every 50 ms", QuietDefault)
	run(2*time.Second, 200*ms, 1)
	want("contact every 200 ms", 800*ms)
	run(4*time.Second, 50*ms, 1)
	want("4 s later", 800*ms)
	run(2*silenceMemory, 50*ms, 1)
	want("when that is forgotten", QuietDefault)

	now = now.Add(150 * ms) // this process did not run
	c.look(now, now, 1, silenceLook)
	if p := c.patience(); p < 500*ms || p > 600*ms {
		t.Errorf("after the process stood still for 150 ms: patience %s", p)
	}
	run(2*silenceMemory, 50*ms, 1)

	now = now.Add(10 * time.Second) // it was stopped
	c.look(now, now, 1, silenceLook)
	want("after the process was stopped for 10 s", QuietDefault)

	last := now
	for range 40 { // the leader is dead
		now = now.Add(silenceLook)
		c.look(now, last, 1, silenceLook)
	}
	if !c.silent(now) {
		t.Error("a leader of whom nothing was heard for a second is not silent")
	}
	c.look(now, last, 2, silenceLook)
	if c.silent(now) {
		t.Error("the leader of a new term is silent at once")
	}
	run(time.Second, 50*ms, 2)
	want("after a leader died", QuietDefault)
}

// A leader that is the only voter looks seldom, which is no stall, until there is another voter.
func TestLeaderAloneLooksSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := newSender(t, func(why string) { t.Error("ended: " + why) })
		want := func(what string, d time.Duration) {
			t.Helper()
			if silent, next := r.look(); next != d || silent && d == silenceAlone {
				t.Errorf("%s: silent %v, looks again after %s; want %s", what, silent, next, d)
			}
		}
		want("a server without a cluster", silenceLook)
		if err := r.Bootstrap([]raft.Server{{ID: "one", Address: s.to}}); err != nil {
			t.Fatal(err)
		}
		for !r.IsRaftLeader() {
			r.look()
			time.Sleep(silenceLook)
		}
		for range 40 {
			want("the only voter", silenceAlone)
			time.Sleep(silenceAlone)
		}
		if p := r.silence.patience(); p != QuietDefault {
			t.Errorf("patience %s, want %s", p, QuietDefault)
		}
		r.raft.AddVoter("two", "nobody:1", 0, 0)
		synctest.Wait()
		want("one of two voters", silenceLook)
	})
}
