package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// scale is a run of -only scale: three servers with fsync, simulated nodes in one process, one driver of load.
type scale struct {
	servers, nodes, allocs, per int
	fills                       int  // times that the cluster is filled and emptied
	check                       bool // fail if leadership changed or a node was lost in a round in which no watchdog was late
	faults                      bool // at the end kill the leader, then lostNodes nodes

	c     *cluster
	cmd   string
	watch watchdog
	lost  *exec.Cmd // nodes that will be lost, or nil
}

// Limits of a run.
const (
	fillLimit      = 15 * time.Minute
	fillCheckLimit = 4 * time.Minute // with -check; at 100,000 it takes one minute on two slow processors
	lostNodes      = 1000
	// watchdogLimit is how late a watchdog may be in a round that counts for -check.
	watchdogLimit = 200 * time.Millisecond
	// nodesLimit is how late the process of all simulated nodes may be in a round in which Muster may have lost one. A real
	// node has its own machine; these are late together while theirs has too much to do. A heartbeat takes several turns.
	nodesLimit = 2 * time.Second
)

func (s *scale) run(bin string) {
	s.c = newCluster(bin, s.servers)
	defer s.c.close()
	s.cmd = fmt.Sprintf("e2e/bench -only scale -servers %d -nodes %d -allocs %d -per-job %d", s.servers, s.nodes, s.allocs, s.per)
	start := time.Now()
	if s.faults {
		s.c.nodes(lostNodes, "-prefix", "lost")
		s.lost, s.c.sim = s.c.sim, nil
	}
	s.c.nodes(s.nodes)
	s.row(fmt.Sprintf("%d nodes registered", s.nodes), fmt.Sprintf("%.1f s", time.Since(start).Seconds()), "-")
	go s.watch.run()
	if !s.check {
		s.idle()
	}
	stop := make(chan struct{})
	judged := make(chan verdict)
	go func() { judged <- s.judge(stop) }()
	for i := range s.fills {
		s.fill(i)
		if i < s.fills-1 {
			s.empty(i)
		}
	}
	close(stop)
	v := <-judged
	s.row(fmt.Sprintf("elections and false downs of %d nodes in %d fills", s.nodes, s.fills), fmt.Sprintf("%.0f, %.0f", v.all.elections, v.all.downs), "-")
	s.row(fmt.Sprintf("the same in the %d of %d rounds of %s in which no watchdog was late by %s", v.usable, v.rounds, round, watchdogLimit),
		fmt.Sprintf("%.0f, %.0f", v.blamed.elections, v.blamed.downs), "0, 0")
	if v.unknown > 0 {
		s.row("rounds in which a server did not answer", fmt.Sprint(v.unknown), "0")
	}
	s.row("rounds in which a false down would have counted", fmt.Sprint(v.judged), "-")
	s.row("a simulated node waited for its turn, at most", v.nodes.Round(time.Millisecond).String(), "-")
	s.row("stalls of servers, 100 ms and more", v.all.causes(), "-")
	if s.faults {
		s.fault()
	}
	if s.check {
		if why := v.wrong(); why != "" {
			s.missed()
			s.c.close()
			print()
			fatal(why)
		}
	}
}

// missed prints what the history of the first missedMost nodes says that missed a heartbeat, with the time of their registration.
func (s *scale) missed() {
	const missedMost = 20
	var nodes []struct{ ID string }
	if err := s.c.call("GET", "/v1/nodes", nil, &nodes); err != nil {
		fmt.Fprintln(os.Stderr, "nodes that missed heartbeats:", err)
		return
	}
	for found := 0; len(nodes) > 0 && found < missedMost; nodes = nodes[1:] {
		var n struct {
			Name   string
			Events []struct{ Message, Timestamp string }
		}
		if s.c.call("GET", "/v1/node/"+nodes[0].ID, nil, &n) != nil {
			continue
		}
		if slices.ContainsFunc(n.Events, func(e struct{ Message, Timestamp string }) bool {
			return strings.Contains(e.Message, "heartbeat missed")
		}) {
			fmt.Fprintln(os.Stderr, n.Name, n.Events)
			found++
		}
	}
}

// Rounds, in which the servers are judged.
const (
	round = 5 * time.Second
	// settled is how many rounds without a late watchdog, that of the nodes included, must have passed before a node that
	// goes down was lost by Muster: it was last heard 15 to 17 s before.
	settled = 4
)

// verdict sums rounds.
type verdict struct {
	all, blamed    strain        // of all rounds, and of the usable ones
	rounds, usable int           // all, and those in which no watchdog was late
	unknown        int           // rounds after which a server did not answer
	judged         int           // of the usable ones, those in which a node that went down was lost by Muster
	calm           int           // rounds since a watchdog was late, that of the nodes included
	nodes          time.Duration // how late the nodes' watchdog was at most
}

// judge asks the servers after each round until stop is closed.
func (s *scale) judge(stop <-chan struct{}) verdict {
	v := verdict{calm: settled}
	first, _ := s.c.strain()
	before := first
	for done := false; !done; {
		s.watch.take()
		select {
		case <-time.After(round):
		case <-stop:
			done = true
		}
		after, ok := s.c.strain()
		v.rounds++
		if !ok {
			v.unknown, v.calm = v.unknown+1, 0
			continue
		}
		v.count(after.since(before), s.watch.take(), s.c.nodesLate())
		before = after
	}
	v.all = before.since(first)
	return v
}

// count counts a round. late is how late the own watchdog was at most, and nodes that of the simulated nodes.
func (v *verdict) count(d strain, late, nodes time.Duration) {
	v.nodes = max(v.nodes, nodes)
	if d.late > 0 || late >= watchdogLimit {
		v.calm = 0
		if d.elections+d.downs > 0 {
			fmt.Fprintf(os.Stderr, "%.0f elections and %.0f downs in a round in which watchdogs of servers were late %.0f times, the own by %s, the nodes by %s\n", d.elections, d.downs, d.late, late.Round(time.Millisecond), nodes)
		}
		return
	}
	v.usable++
	v.blamed.elections += d.elections
	if v.calm++; nodes >= nodesLimit {
		v.calm = 0
		if d.downs > 0 {
			fmt.Fprintf(os.Stderr, "%.0f downs in a round in which simulated nodes waited %s for their turn\n", d.downs, nodes)
		}
	}
	if v.calm > settled {
		v.judged++
		v.blamed.downs += d.downs
	}
}

// wrong returns why the run does not pass, or "". That a machine is too busy for half of the verdicts is printed only.
func (v *verdict) wrong() string {
	if v.usable*2 < v.rounds {
		fmt.Fprintf(os.Stderr, "only %d of %d rounds say something about Muster: in the others a watchdog was late by %s\n", v.usable, v.rounds, watchdogLimit)
	}
	if v.judged*2 < v.rounds {
		fmt.Fprintf(os.Stderr, "only %d of %d rounds say something about nodes that go down: in the others, or shortly before, a watchdog was late, or a simulated node waited %s for its turn\n", v.judged, v.rounds, nodesLimit)
	}
	if v.unknown > 0 {
		return fmt.Sprintf("a server did not answer after %d rounds; want none", v.unknown)
	}
	if v.usable == 0 {
		return fmt.Sprintf("none of %d rounds says anything about Muster: in all of them a watchdog was late by %s; run it on a machine with less to do", v.rounds, watchdogLimit)
	}
	if v.blamed.elections > 0 || v.blamed.downs > 0 {
		return fmt.Sprintf("%.0f elections and %.0f false downs in rounds in which no watchdog was late by %s; want none", v.blamed.elections, v.blamed.downs, watchdogLimit)
	}
	return ""
}

// fault kills the leader, then lostNodes nodes at once, and waits until everything runs again.
func (s *scale) fault() {
	c, total := s.c, float64(s.jobs()*s.per)
	// Work on a lost node counts as running until it is replaced, so all replacements must have been placed first.
	recovered := func(what string, since time.Time, replaced float64) {
		placed, steady := 0.0, time.Now()
		c.until(fillLimit, "everything running after "+what, func() bool {
			st := c.stats(c.leader())
			now := num(st["server.allocations"])
			if now != placed {
				placed, steady = now, time.Now()
			}
			return now > replaced && num(st["server.allocations_running"]) >= total && time.Since(steady) > 2*time.Second
		})
		s.row("everything running after "+what+", 2 s of quiet included", fmt.Sprintf("%.1f s", time.Since(since).Seconds()), "-")
	}
	before := c.usage()
	lead := c.leader()
	at := time.Now()
	c.kill(lead)
	c.untilWithin(time.Minute, 20*time.Millisecond, "a new leader", func() bool { l := c.leader(); return l >= 0 && l != lead })
	s.row("a new leader after kill -9 of the one of a full cluster", fmt.Sprintf("%.2f s", time.Since(at).Seconds()), "-")
	c.start(lead)
	recovered("that", at, 0)
	placed := num(c.stats(c.leader())["server.allocations"])
	at = time.Now()
	_ = s.lost.Process.Kill()
	_ = s.lost.Wait()
	c.until(5*time.Minute, "lost nodes are down", func() bool {
		now, ok := c.strain()
		return ok && now.downs >= lostNodes
	})
	// Simulated nodes do not gossip, so their heartbeats decide. The leader is new and was overloaded, so intervals are long.
	s.row(fmt.Sprintf("%d nodes lost at once are down", lostNodes), fmt.Sprintf("%.1f s", time.Since(at).Seconds()), "28 s (docs/operate/lost-nodes.md)")
	recovered("that", at, placed)
	time.Sleep(30 * time.Second)
	after := c.usage()
	s.row("memory of the largest server before the faults, and 30 s after them", fmt.Sprintf("%.0f MiB, %.0f MiB", before.serverMiB, after.serverMiB), "-")
}

func (s *scale) row(what, measured, goal string) { row(what, measured, goal, "-", s.cmd) }

// idle measures what nodes with nothing to do cost.
func (s *scale) idle() {
	time.Sleep(5 * time.Second)
	idle := s.c.usage()
	quiet := s.c.profile("idle", 9*time.Second)
	time.Sleep(10 * time.Second)
	quiet()
	u := s.c.usage().since(idle)
	s.row(fmt.Sprintf("processor use of %d idle nodes", s.nodes), fmt.Sprintf("servers %.1f %%, nodes %.1f %% of a core", u.servers*10, u.sim*10), "-")
}

// jobs returns the number of jobs of one fill.
func (s *scale) jobs() int { return s.allocs / s.per }

// fill registers jobs until they run.
func (s *scale) fill(turn int) {
	c, total := s.c, s.jobs()*s.per
	before, earlier := c.usage(), num(c.stats(c.leader())["server.allocations"]) // those of earlier fills are kept until they are collected
	profiled := c.profile("scale", 20*time.Second)
	start := time.Now()
	done := make(chan struct{})
	go func() {
		submit(c, s.jobs(), func(i int) (string, []byte) {
			id := fmt.Sprintf("scale-%d-%d", turn, i)
			return id, job(id, s.per)
		})
		close(done)
	}()
	var placed, running time.Duration
	var peak usage
	for look := time.Now(); running == 0; time.Sleep(200 * time.Millisecond) {
		st := c.stats(c.leader()) // none during an election: then nothing is concluded
		u := c.usage()
		peak.serverMiB, peak.simMiB = max(peak.serverMiB, u.serverMiB), max(peak.simMiB, u.simMiB)
		if placed == 0 && num(st["server.allocations"]) >= earlier+float64(total) {
			placed = time.Since(start)
		}
		if num(st["server.allocations_running"]) >= float64(total) {
			running = time.Since(start)
		}
		if time.Since(look) > 10*time.Second {
			look = time.Now()
			fmt.Fprintf(os.Stderr, "%4.0f s: %s placed, %s running, server %.0f MiB, nodes %.0f MiB\n", time.Since(start).Seconds(), st["server.allocations"], st["server.allocations_running"], u.serverMiB, u.simMiB)
		}
		limit := fillLimit
		if s.check {
			limit = fillCheckLimit
		}
		if time.Since(start) > limit {
			s.row(fmt.Sprintf("%d allocations on %d nodes", total, s.nodes), fmt.Sprintf("not within %s: %s placed, %s running", limit, st["server.allocations"], st["server.allocations_running"]), "<= 5 min")
			if s.check {
				s.unfinished(turn)
				c.close()
				print()
				fatal("not everything runs within", limit)
			}
			return
		}
	}
	<-done
	profiled()
	cpu := c.usage().since(before)
	row(fmt.Sprintf("%d allocations on %d simulated nodes, %d servers, placed", total, s.nodes, s.servers), fmt.Sprintf("%.0f s (%.0f/s)", placed.Seconds(), float64(total)/placed.Seconds()), "1,000,000 in 5 min", "Nomad's C1M: 5 min on 5,000 hosts", s.cmd)
	s.row("the same, running", fmt.Sprintf("%.0f s (%.0f/s)", running.Seconds(), float64(total)/running.Seconds()), "-")
	s.row("memory of the largest server, of the nodes, at most", fmt.Sprintf("%.0f MiB, %.0f MiB", peak.serverMiB, peak.simMiB), "<= 2.5 GB a server")
	s.row("processor time of an allocation until it runs", cpu.perAlloc(total), "-")
}

// unfinished prints what the servers say of the first jobs of a fill of which not everything runs.
func (s *scale) unfinished(turn int) {
	for i, found := 0, 0; i < s.jobs() && found < 3; i++ {
		id := fmt.Sprintf("scale-%d-%d", turn, i)
		var as []struct{ ID, NodeName, DesiredStatus, ClientStatus, ClientDescription string }
		if err := s.c.call("GET", "/v1/job/"+id+"/allocations", nil, &as); err != nil {
			fmt.Fprintln(os.Stderr, id, err)
			continue
		}
		states, odd := map[string]int{}, ""
		for _, a := range as {
			state := a.DesiredStatus + " " + a.ClientStatus
			if states[state]++; state != "run running" {
				odd = fmt.Sprint(a)
			}
		}
		if states["run running"] == s.per {
			continue
		}
		found++
		fmt.Fprintln(os.Stderr, id, states, odd)
		why := exec.Command(s.c.bin, "job", "why", id)
		why.Env = append(os.Environ(), "MUSTER_ADDR="+s.c.url(0, ""))
		text, err := why.CombinedOutput()
		fmt.Fprintln(os.Stderr, string(text), err)
	}
}

// empty stops the jobs of a fill and forgets them.
func (s *scale) empty(turn int) {
	for i := range s.jobs() {
		_ = s.c.call("DELETE", fmt.Sprintf("/v1/job/scale-%d-%d?purge=true", turn, i), nil, nil)
	}
	s.c.until(2*time.Minute, "everything stopped", func() bool {
		st := s.c.stats(s.c.leader())
		return st != nil && num(st["server.allocations_running"]) == 0
	})
}
