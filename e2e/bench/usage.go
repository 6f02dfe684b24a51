package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/muster-sched/muster/client/procfile"
)

// profiles is the folder for CPU profiles, or "".
var profiles string

// usage is what the processes of a cluster have used: processor time in seconds, and memory now in MiB.
type usage struct {
	servers, sim, self, simMiB, serverMiB float64
	each                                  []float64 // processor time of each server
}

// usage reads /proc; figures of processes that are gone are 0. serverMiB is that of the largest server.
func (c *cluster) usage() usage {
	var u usage
	for _, p := range c.procs {
		cpu, mib := procUsage(p.Process.Pid)
		u.servers += cpu
		u.each = append(u.each, cpu)
		u.serverMiB = max(u.serverMiB, mib)
	}
	if c.sim != nil {
		u.sim, u.simMiB = procUsage(c.sim.Process.Pid)
	}
	u.self, _ = procUsage(os.Getpid())
	return u
}

func (u usage) since(b usage) usage {
	u.servers, u.sim, u.self = u.servers-b.servers, u.sim-b.sim, u.self-b.self
	for i := range u.each {
		u.each[i] -= b.each[i]
	}
	return u
}

// perAlloc says how much processor time one of n allocations took.
func (u usage) perAlloc(n int) string {
	f := func(s float64) float64 { return s * 1e6 / float64(n) }
	return fmt.Sprintf("%.0f us (servers %.0f, nodes %.0f, load generator %.0f)", f(u.servers+u.sim+u.self), f(u.servers), f(u.sim), f(u.self))
}

// procUsage is a process's processor time in seconds, at the kernel's 100 Hz, and its resident memory in MiB.
func procUsage(pid int) (cpu, mib float64) {
	st, _ := procfile.StatOf(pid) // one that has ended uses nothing
	return st.CPU.Seconds(), float64(st.RSS) / (1 << 20)
}

// profile profiles every process for d, its processor time and what it allocates, in the background; wait for the returned function before the next.
func (c *cluster) profile(name string, d time.Duration) (wait func()) {
	if profiles == "" {
		return func() {}
	}
	var wg sync.WaitGroup
	get := func(who, base string) {
		kinds := map[string]string{
			fmt.Sprintf("profile?seconds=%d", max(1, int(d.Seconds()))): ".pprof",
			"heap?gc=1": "-allocs.pprof", // at the end: a heap profile shows nothing newer than the last collection, and a server may not collect for the whole run
		}
		for kind, ending := range kinds {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if ending == "-allocs.pprof" {
					time.Sleep(d)
				}
				hc := &http.Client{Timeout: d + 30*time.Second}
				resp, err := hc.Get(base + "/debug/pprof/" + kind)
				if err != nil {
					fmt.Fprintln(os.Stderr, "bench: profile:", err)
					return
				}
				defer resp.Body.Close()
				f, err := os.Create(filepath.Join(profiles, name+"-"+who+ending))
				if err != nil {
					fatal(err)
				}
				defer f.Close()
				_, _ = io.Copy(f, resp.Body)
			}()
		}
	}
	lead := c.leader()
	for i := range c.procs {
		who := fmt.Sprintf("follower%d", i)
		if i == lead {
			who = "leader"
		}
		get(who, c.url(i, ""))
	}
	if c.sim != nil {
		get("sim", fmt.Sprintf("http://127.0.0.1:%d", c.simDebug))
	}
	f, err := os.Create(filepath.Join(profiles, name+"-bench.pprof"))
	if err != nil {
		fatal(err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		fatal(err)
	}
	wg.Add(1)
	time.AfterFunc(d, func() {
		pprof.StopCPUProfile()
		f.Close()
		wg.Done()
	})
	return wg.Wait
}
