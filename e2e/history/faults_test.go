//go:build e2e

package history

import (
	"fmt"
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// begin begins a fault and returns what ends it.
func (c *cluster) begin(s Step) (what string, end func()) {
	name := c.target(s)
	h := c.net.Host(name)
	peers := slices.DeleteFunc(slices.Clone(servers), func(o string) bool { return o == name })
	var others []*harness.Host
	for _, p := range peers {
		others = append(others, c.net.Host(p))
	}
	what = fmt.Sprintf("%s %s", s.Fault, name)
	nothing := func() {}
	switch s.Fault {
	case pause, pauseAgent:
		p := c.proc(name)
		p.Signal(syscall.SIGSTOP)
		return what, func() { p.Signal(syscall.SIGCONT) }
	case kill, killAgent:
		c.kill(name)
		return what, func() { c.revive(name) }
	case killAll:
		for _, s := range servers {
			c.kill(s)
		}
		return s.Fault, func() {
			for _, s := range servers {
				c.revive(s)
			}
		}
	case cut, cutAgent:
		h.Cut()
		return what, h.Join
	case deaf:
		return what, c.silence(h, others, true, false)
	case mute:
		return what, c.silence(h, others, false, true)
	case isolate:
		return what, c.silence(h, others, true, true)
	case split:
		o := others[s.Pick%len(others)]
		return what + " from " + o.Name, c.silence(h, []*harness.Host{o}, true, true)
	case lossy:
		h.Lose(20)
		return what, func() { h.Lose(0) }
	case slow:
		h.Slow()
		return what, h.Fast
	case full:
		d := c.disks[name]
		c.fail(name)
		d.Fill()
		return what, func() { d.Free(); c.heal(name); c.revive(name) }
	case freeze:
		d := c.disks[name]
		c.fail(name)
		d.Freeze()
		return what, func() { d.Thaw(); c.heal(name); c.revive(name) }
	case broken:
		c.fail(name)
		c.disks[name].Break()
		return what, func() { c.rejoin(name, 0) }
	case remove:
		c.rejoin(name, s.For)
		return what, nothing
	case transfer:
		to := c.target(Step{Pick: s.Pick}) // a follower
		a, err := c.api.Send(c.addr(servers[s.Pick%len(servers)]), "PUT", "/v1/operator/raft/transfer-leadership?address="+c.net.Host(to).IP+":4647", nil)
		if err == nil && a.Status == http.StatusBadRequest { // other refusals may follow from other faults
			c.t.Errorf("transfer of the leadership to %s: %s", to, a.Body)
		}
		return s.Fault + " to " + to, nothing
	case loseRegion:
		for _, o := range other {
			c.net.Host(o).Cut()
		}
		return s.Fault, func() {
			for _, o := range other {
				c.net.Host(o).Join()
			}
		}
	}
	panic("no fault " + s.Fault)
}

// silence drops what others send to a host (in), what it sends to them (out), or both, and returns what ends that.
func (c *cluster) silence(h *harness.Host, others []*harness.Host, in, out bool) (end func()) {
	each := func(f func(from, to *harness.Host)) {
		for _, o := range others {
			if in {
				f(o, h)
			}
			if out {
				f(h, o)
			}
		}
	}
	each(c.net.Silence)
	return func() { each(c.net.Hear) }
}

// target returns the host that a fault happens to.
func (c *cluster) target(s Step) string {
	if slices.Contains(onAgents, s.Fault) {
		return agents[s.Pick%len(agents)]
	}
	able := servers
	if s.Fault == freeze || s.Fault == broken {
		able = slices.DeleteFunc(slices.Clone(servers), func(n string) bool { return !c.disks[n].CanBreak() })
	}
	lead := c.leader()
	if s.Leader && slices.Contains(able, lead) {
		return lead
	}
	able = slices.DeleteFunc(slices.Clone(able), func(n string) bool { return n == lead })
	return able[s.Pick%len(able)]
}

// play runs a schedule. Faults overlap unless they must be alone.
func (c *cluster) play(steps []Step) {
	type running struct {
		what  string
		until time.Time
		end   func()
	}
	began := time.Now()
	since := func() time.Duration { return time.Since(began).Round(10 * time.Millisecond) }
	var now []running
	// finish ends the faults that are due by a time.
	finish := func(by time.Time) {
		for len(now) > 0 {
			next := slices.IndexFunc(now, func(r running) bool {
				return !slices.ContainsFunc(now, func(o running) bool { return o.until.Before(r.until) })
			})
			r := now[next]
			if r.until.After(by) {
				break
			}
			time.Sleep(time.Until(r.until))
			c.t.at(fmt.Sprintf("the faults are played, at %s end of %s", since(), r.what))
			r.end()
			c.t.Logf("%7s  end of %s", since(), r.what)
			now = slices.Delete(now, next, next+1)
		}
		time.Sleep(time.Until(by))
	}
	all := func() {
		for len(now) > 0 {
			finish(slices.MinFunc(now, func(a, b running) int { return a.until.Compare(b.until) }).until)
		}
	}
	for _, s := range steps {
		single := slices.Contains(alone, s.Fault)
		c.t.at(fmt.Sprintf("the faults are played, at %s before %s", since(), s))
		if single {
			all()
			c.voters()
		}
		finish(time.Now().Add(s.Wait))
		what, end := c.begin(s)
		c.t.Logf("%7s  %s", since(), what)
		now = append(now, running{what, time.Now().Add(s.For), end})
		if single {
			all()
		}
	}
	all()
	c.reviveAll()
}
