package main

import (
	"fmt"
	"os"
	"time"
)

// runScale fills a large cluster: three servers with fsync, simulated nodes in one process, one driver of load.
func runScale(bin string, servers, nodes, allocs, per int) {
	c := newCluster(bin, servers)
	defer c.close()
	cmd := fmt.Sprintf("e2e/bench -only scale -servers %d -nodes %d -allocs %d -per-job %d", servers, nodes, allocs, per)
	start := time.Now()
	c.nodes(nodes)
	row(fmt.Sprintf("%d nodes registered", nodes), fmt.Sprintf("%.1f s", time.Since(start).Seconds()), "-", "-", cmd)
	time.Sleep(5 * time.Second)
	idle := c.usage()
	quiet := c.profile("idle", 9*time.Second)
	time.Sleep(10 * time.Second)
	quiet()
	u := c.usage().since(idle)
	row(fmt.Sprintf("processor use of %d idle nodes", nodes), fmt.Sprintf("servers %.1f %%, nodes %.1f %% of a core", u.servers*10, u.sim*10), "-", "-", cmd)

	jobs := allocs / per
	total := jobs * per
	before := c.usage()
	profiled := c.profile("scale", 20*time.Second)
	start = time.Now()
	done := make(chan struct{})
	go func() {
		submit(c, jobs, func(i int) (string, []byte) {
			id := fmt.Sprintf("scale-%d", i)
			return id, job(id, per)
		})
		close(done)
	}()
	var placed, running time.Duration
	var peak usage
	limit := 15 * time.Minute
	for look := time.Now(); running == 0; time.Sleep(200 * time.Millisecond) {
		s := c.stats(c.leader()) // none during an election: then nothing is concluded
		u := c.usage()
		peak.serverMiB, peak.simMiB = max(peak.serverMiB, u.serverMiB), max(peak.simMiB, u.simMiB)
		if placed == 0 && num(s["server.allocations"]) >= float64(total) {
			placed = time.Since(start)
		}
		if num(s["server.allocations_running"]) >= float64(total) {
			running = time.Since(start)
		}
		if time.Since(look) > 10*time.Second {
			look = time.Now()
			fmt.Fprintf(os.Stderr, "%4.0f s: %s placed, %s running, server %.0f MiB, nodes %.0f MiB\n", time.Since(start).Seconds(), s["server.allocations"], s["server.allocations_running"], u.serverMiB, u.simMiB)
		}
		if time.Since(start) > limit {
			row(fmt.Sprintf("%d allocations on %d nodes", total, nodes), fmt.Sprintf("not within %s: %s placed, %s running", limit, s["server.allocations"], s["server.allocations_running"]), "<= 5 min", "-", cmd)
			return
		}
	}
	<-done
	profiled()
	cpu := c.usage().since(before)
	row(fmt.Sprintf("%d allocations on %d simulated nodes, %d servers, placed", total, nodes, servers), fmt.Sprintf("%.0f s (%.0f/s)", placed.Seconds(), float64(total)/placed.Seconds()), "1,000,000 in 5 min", "Nomad's C1M: 5 min on 5,000 hosts", cmd)
	row("the same, running", fmt.Sprintf("%.0f s (%.0f/s)", running.Seconds(), float64(total)/running.Seconds()), "-", "-", cmd)
	row("memory of the largest server, of the nodes, at most", fmt.Sprintf("%.0f MiB, %.0f MiB", peak.serverMiB, peak.simMiB), "<= 2.5 GB a server", "-", cmd)
	row("processor time of an allocation until it runs", cpu.perAlloc(total), "-", "-", cmd)
}
