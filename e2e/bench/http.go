package main

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// perOnly leaves only the rate run with that many allocations a job; 0: all of them.
var perOnly int

// profileFor is how long a rate run is profiled; it should be shorter than the run.
var profileFor time.Duration

// conns is how many jobs are submitted at the same time.
var conns int

// overHTTP measures placements over HTTP against three servers with fsync and 200 simulated nodes.
func overHTTP(bin string, quick, rate, latency bool) {
	c := newCluster(bin, 3)
	defer c.close()
	c.nodes(200)
	cmd := "make bench (e2e/bench -only http)"
	if latency {
		n := 300
		if quick {
			n = 60
		}
		var took []time.Duration
		lead := c.leader()
		for i := range n {
			d, err := placeOne(c, lead, fmt.Sprintf("lat-%d", i))
			if err != nil {
				fatal(err)
			}
			took = append(took, d)
			time.Sleep(5 * time.Millisecond)
		}
		slices.Sort(took)
		row("submit -> placed, idle cluster, 3 servers, p50", us(took[len(took)/2]), "<= 4 ms", "Nomad 76-122 ms", "make bench (e2e/bench -only latency)")
		row("submit -> placed, p99", us(took[len(took)*99/100]), "<= 15 ms", "Nomad 217-363 ms", "make bench (e2e/bench -only latency)")
		for i := range n {
			_ = c.call("DELETE", fmt.Sprintf("/v1/job/lat-%d?purge=true", i), nil, nil)
		}
		c.until(60*time.Second, "the jobs of the latency run stopped", func() bool { return num(c.stats(c.leader())["server.allocations_running"]) == 0 })
	}
	if !rate {
		return
	}
	defer needProfiles()()
	for _, r := range []struct {
		per, total int
		goal, peer string
	}{{30, 12000, ">= 5,000/s", "Nomad 94-109/s"}, {1, 4000, ">= 2,000/s", "Nomad 23-45/s"}, {1000, 20000, "-", "-"}} {
		if perOnly != 0 && perOnly != r.per {
			continue
		}
		total := r.total
		if quick {
			total = max(r.per, total/8/r.per*r.per)
		}
		before := c.stats(c.leader())
		jobs := total / r.per
		profiled := c.profile(fmt.Sprintf("rate%d", r.per), profileFor)
		used := c.usage()
		start := time.Now()
		submit(c, jobs, func(i int) (string, []byte) {
			id := fmt.Sprintf("rate-%d-%d", r.per, i)
			return id, job(id, r.per)
		})
		submitted := time.Since(start)
		want := num(before["server.plan_places"]) + float64(total)
		c.until(120*time.Second, "everything placed", func() bool { return num(c.stats(c.leader())["server.plan_places"]) >= want })
		took := time.Since(start)
		cpu := c.usage().since(used)
		after := c.stats(c.leader())
		c.until(120*time.Second, "everything running", func() bool {
			return num(c.stats(c.leader())["server.allocations_running"]) >= num(before["server.allocations_running"])+float64(total)
		})
		running := float64(total) / time.Since(start).Seconds()
		row(fmt.Sprintf("placements/s over HTTP, %d a job (%d jobs, 3 servers, fsync, 200 simulated nodes)", r.per, jobs),
			fmt.Sprintf("%.0f/s (submitted in %.2f s)", float64(total)/took.Seconds(), submitted.Seconds()), r.goal, r.peer, cmd)
		row(fmt.Sprintf("processor time of a placement over all processes, %d a job", r.per), cpu.perAlloc(total), "<= 180 us", "-", cmd)
		whole := c.usage().since(used)
		row(fmt.Sprintf("the same until the nodes run it, %d a job", r.per), fmt.Sprintf("%s, %.0f/s", whole.perAlloc(total), running), "-", "-", cmd)
		profiled()
		c.stageRows(fmt.Sprintf("rate%d", r.per), whole, total, cmd)
		entries := num(after["server.plan_entries"]) - num(before["server.plan_entries"])
		plans := num(after["server.plans"]) - num(before["server.plans"])
		if entries > 0 {
			row(fmt.Sprintf("plans per raft entry, %d a job", r.per), fmt.Sprintf("%.2f", plans/entries), "> 1 under load", "-", cmd)
		}
		end := c.stats(c.leader())
		diff := func(k string) float64 { return num(end[k]) - num(before[k]) }
		row(fmt.Sprintf("log entries of a placement, %d a job", r.per), fmt.Sprintf("%.2f, in batches of %.1f; %.2f calls at the leader", diff("server.apply_entries")/float64(total),
			diff("server.apply_entries")/diff("server.apply_seconds_count"), diff("server.rpc_calls")/float64(total)), "-", "-", cmd)
		row(fmt.Sprintf("deepest plan pipeline, %d a job", r.per), after["server.plan_depth_max"], "> 1 under load", "-", cmd)
		for i := range jobs {
			_ = c.call("DELETE", fmt.Sprintf("/v1/job/rate-%d-%d?purge=true", r.per, i), nil, nil)
		}
		c.until(120*time.Second, "everything stopped", func() bool {
			return num(c.stats(c.leader())["server.allocations_running"]) <= num(before["server.allocations_running"])
		})
		time.Sleep(2 * time.Second)
	}
}

func us(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1e3) }

func num(s string) float64 {
	f, _ := strconv.ParseFloat(s, 64)
	return f
}

// submit registers n jobs over conns connections to all servers.
func submit(c *cluster, n int, make func(i int) (string, []byte)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for w := range conns {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				_, body := make(i)
				for try := 0; ; try++ {
					err := c.once((w+try)%len(c.procs), "PUT", "/v1/jobs", body, nil)
					if err == nil {
						break
					}
					if try > 200 {
						c.close()
						fatal("register:", err)
					}
					time.Sleep(5 * time.Millisecond)
				}
			}
		}()
	}
	wg.Wait()
}

// placeOne registers a job of one allocation and waits, by blocking query, until the allocation is there.
func placeOne(c *cluster, server int, id string) (time.Duration, error) {
	start := time.Now()
	var reg struct{ JobModifyIndex uint64 }
	if err := c.once(server, "PUT", "/v1/jobs", job(id, 1), &reg); err != nil {
		return 0, err
	}
	index := uint64(1)
	for {
		var as []struct{ ID string }
		if err := c.once(server, "GET", fmt.Sprintf("/v1/job/%s/allocations?index=%d&wait=5s", id, index), nil, &as); err != nil {
			return 0, err
		}
		if len(as) > 0 {
			return time.Since(start), nil
		}
		index = reg.JobModifyIndex
		if time.Since(start) > 20*time.Second {
			return 0, fmt.Errorf("%s was not placed within 20 s", id)
		}
	}
}

func format(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) }
