package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// runMemory fills one server with running allocations on simulated nodes, and measures what an allocation takes in the
// server and in the process of the nodes: live heap after a collection, and resident memory before it.
func runMemory(bin string, nodes, allocs, per int) {
	c := newCluster(bin, 1)
	defer c.close()
	cmd := fmt.Sprintf("make bench-memory (e2e/bench -only memory -nodes %d -allocs %d -per-job %d)", nodes, allocs, per)
	c.nodes(nodes)
	time.Sleep(3 * time.Second)
	server, sim := c.url(0, ""), fmt.Sprintf("http://127.0.0.1:%d", c.simDebug)
	emptyServer, emptySim := heapOf(server, ""), heapOf(sim, "")
	_, simMiB := procUsage(c.sim.Process.Pid)

	jobs := max(1, allocs/per)
	total := float64(jobs * per)
	before := c.usage()
	submit(c, jobs, func(i int) (string, []byte) {
		id := fmt.Sprintf("memory-%d", i)
		return id, job(id, per)
	})
	peak := usage{}
	c.until(15*time.Minute, fmt.Sprintf("%.0f running", total), func() bool {
		u := c.usage()
		peak.serverMiB, peak.simMiB = max(peak.serverMiB, u.serverMiB), max(peak.simMiB, u.simMiB)
		return num(c.stats(0)["server.allocations_running"]) >= total
	})
	cpu := c.usage().since(before)
	time.Sleep(10 * time.Second)
	used := c.usage()
	serverParts, simParts := partsOf(server), partsOf(sim)
	fullServer, fullSim := heapOf(server, "memory-leader"), heapOf(sim, "memory-sim")
	each := func(bytes float64) string { return fmt.Sprintf("%.2f KiB", bytes/1024/total) }
	what := fmt.Sprintf("%.0f allocations of %d jobs on %d nodes, one server: ", total, jobs, nodes)
	row(what+"live heap an allocation, server", each(fullServer.live-emptyServer.live), "<= 1.2 KiB", "-", cmd)
	row("the same, resident memory in all, at most and 10 s later", each(peak.serverMiB*(1<<20))+", "+each(used.serverMiB*(1<<20)), "<= 2.5 KiB", "-", cmd)
	row("the same, of which live and garbage, free in spans and kept from the system, stacks, the runtime's own", serverParts.each(total), "-", "-", cmd)
	row("the same, share of the processor time spent on collections", fmt.Sprintf("%.1f %% of the server, %.1f %% of the nodes", 100*fullServer.gc, 100*fullSim.gc), "-", "-", cmd)
	row("live heap an allocation, simulated nodes", each(fullSim.live-emptySim.live), "-", "-", cmd)
	row("the same, resident memory beyond that of idle nodes, at most and 10 s later", each((peak.simMiB-simMiB)*(1<<20))+", "+each((used.simMiB-simMiB)*(1<<20)), "<= 5 KiB", "-", cmd)
	row("the same in all, of which live and garbage, free in spans and kept from the system, stacks, the runtime's own", simParts.each(total), "-", "-", cmd)
	row("processor time of an allocation until it runs", cpu.perAlloc(int(total)), "-", "-", cmd)
}

// parts is what the memory of a Go process is used for, in bytes. Files that are mapped are not in it.
type parts struct{ objects, free, stacks, own float64 }

func (p parts) each(n float64) string {
	f := func(b float64) string { return fmt.Sprintf("%.2f", b/1024/n) }
	return f(p.objects) + ", " + f(p.free) + ", " + f(p.stacks) + ", " + f(p.own) + " KiB"
}

var partsRE = regexp.MustCompile(`(?m)^# (Sys|HeapSys|HeapAlloc|HeapReleased|Stack) = (\d+)`)

// partsOf asks a process, without a collection.
func partsOf(base string) parts {
	m := map[string]float64{}
	for _, f := range partsRE.FindAllSubmatch(get(base+"/debug/pprof/heap?debug=1"), -1) {
		m[string(f[1])] = num(string(f[2]))
	}
	return parts{
		objects: m["HeapAlloc"], free: m["HeapSys"] - m["HeapReleased"] - m["HeapAlloc"],
		stacks: m["Stack"], own: m["Sys"] - m["HeapSys"] - m["Stack"],
	}
}

// heap is what a process says of its memory.
type heap struct {
	live float64 // bytes of the heap that a collection left
	gc   float64 // part of the processor time since the start that collections took
}

var heapRE = regexp.MustCompile(`(?m)^# (HeapAlloc|GCCPUFraction) = (\S+)$`)

// heapOf collects the garbage of a process and measures the rest. With a name and -profile it also stores its profile.
func heapOf(base, name string) (h heap) {
	for _, m := range heapRE.FindAllSubmatch(get(base+"/debug/pprof/heap?gc=1&debug=1"), -1) {
		if v := num(string(m[2])); string(m[1]) == "HeapAlloc" {
			h.live = v
		} else {
			h.gc = v
		}
	}
	if profiles != "" && name != "" {
		if err := os.WriteFile(filepath.Join(profiles, name+"-heap.pprof"), get(base+"/debug/pprof/heap?gc=1"), 0o600); err != nil {
			fatal(err)
		}
	}
	return h
}

func get(url string) []byte {
	hc := &http.Client{Timeout: time.Minute}
	resp, err := hc.Get(url)
	if err != nil {
		fatal("read the heap profile:", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		fatal("read the heap profile:", err)
	}
	return b
}
