package main

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
)

// runFailover kills the leader with -9 and measures the time to the next acknowledged write and to its placement, with
// clients that try all servers.
func runFailover(bin string, rounds int, busy time.Duration) {
	c := newCluster(bin, 3)
	defer c.close()
	c.nodes(20)
	var writes, places []time.Duration
	for r := range rounds {
		c.until(30*time.Second, "three voters", func() bool {
			var conf struct{ Servers []struct{ Voter bool } }
			if c.call("GET", "/v1/operator/raft/configuration", nil, &conf) != nil || len(conf.Servers) != len(c.procs) {
				return false
			}
			for i := range c.procs {
				if c.procs[i].ProcessState != nil || c.once(i, "GET", "/v1/status/leader", nil, nil) != nil {
					return false
				}
			}
			return true
		})
		time.Sleep(300 * time.Millisecond)
		lead := c.leader()
		kill := time.Now()
		c.kill(lead)
		id := fmt.Sprintf("fail-%d", r)
		body := job(id, 1)
		at := 0
		for i := 0; ; i++ {
			at = i % len(c.procs)
			if at == lead {
				continue
			}
			if c.once(at, "PUT", "/v1/jobs", body, nil) == nil {
				break
			}
			if time.Since(kill) > 30*time.Second {
				fatal("no write acknowledged within 30 s of the leader's death")
			}
			time.Sleep(2 * time.Millisecond)
		}
		wrote := time.Since(kill)
		for {
			var as []struct{ ID string }
			if c.once(at, "GET", "/v1/job/"+id+"/allocations", nil, &as) == nil && len(as) > 0 {
				break
			}
			if time.Since(kill) > 30*time.Second {
				fatal("nothing placed within 30 s of the leader's death")
			}
			time.Sleep(2 * time.Millisecond)
		}
		placed := time.Since(kill)
		writes, places = append(writes, wrote), append(places, placed)
		fmt.Printf("round %2d: write after %4d ms, placement after %4d ms\n", r+1, wrote.Milliseconds(), placed.Milliseconds())
		c.start(lead)
	}
	slices.Sort(writes)
	slices.Sort(places)
	fmt.Printf("kill -9 of the leader -> next acknowledged write: p50 %d ms, max %d ms (goal p50 <= 700, max <= 1500; Nomad 2500-3800)\n", writes[len(writes)/2].Milliseconds(), writes[len(writes)-1].Milliseconds())
	fmt.Printf("kill -9 of the leader -> next placement:          p50 %d ms, max %d ms\n", places[len(places)/2].Milliseconds(), places[len(places)-1].Milliseconds())
	if busy <= 0 {
		return
	}
	c.until(30*time.Second, "all servers back", func() bool {
		for i := range c.procs {
			if c.once(i, "GET", "/v1/status/leader", nil, nil) != nil {
				return false
			}
		}
		return true
	})
	time.Sleep(2 * time.Second)
	term := c.stats(c.leader())["raft.term"]
	var stop atomic.Bool
	for range 2 * runtime.NumCPU() {
		go func() {
			for x := 1; !stop.Load(); x = x*31 + 7 {
			}
		}()
	}
	end := time.Now().Add(busy)
	n := 0
	for time.Now().Before(end) {
		if c.call("PUT", "/v1/jobs", job(fmt.Sprintf("busy-%d", n), 1), nil) == nil {
			n++
		}
		time.Sleep(50 * time.Millisecond)
	}
	stop.Store(true)
	after := c.stats(c.leader())["raft.term"]
	fmt.Printf("%s of full processor load, %d writes: term %s before, %s after (goal: no election)\n", busy, n, term, after)
}
