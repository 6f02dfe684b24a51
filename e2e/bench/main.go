// Command bench measures Muster and prints the table of figures: what, measured, goal, and the command that measured
// it. With -failover it loses the leader again and again instead. Figures depend on the machine; compare ratios.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

type line struct{ what, measured, goal, peer, command string }

var table []line

func row(what, measured, goal, peer, command string) {
	table = append(table, line{what, measured, goal, peer, command})
	fmt.Fprintf(os.Stderr, "%s: %s (goal %s)\n", what, measured, goal)
}

func main() {
	failover := flag.Bool("failover", false, "lose the leader again and again: kill -9, SIGSTOP, transfer")
	rounds := flag.Int("rounds", 20, "of -failover, of each way to lose the leader")
	busy := flag.Duration("busy", 3*time.Minute, "of full processor load after -failover, in which no election may happen")
	quick := flag.Bool("quick", false, "smaller runs, for a look at whether everything works")
	only := flag.String("only", "", "only the parts whose name contains this: decide, store, raftlog, http, latency, tasks, shim, replay; launch, memory, real and scale only by their names")
	nodes := flag.Int("nodes", 10_000, "simulated nodes of -only scale and memory")
	allocs := flag.Int("allocs", 100_000, "allocations of -only scale and memory")
	perJob := flag.Int("per-job", 1000, "allocations a job of -only scale and memory")
	servers := flag.Int("servers", 3, "servers of -only scale")
	fills := flag.Int("fills", 1, "times that -only scale fills the cluster, and empties it if there are several")
	check := flag.Bool("check", false, "of -only scale: fail if leadership changed or a node was lost in a round in which no watchdog was late; of -failover: fail if it takes much too long")
	faults := flag.Bool("faults", false, "of -only scale: kill the leader at the end, then 1,000 nodes at once")
	trace := flag.String("trace", "sim/testdata/traces/philly-muri/trace3.csv", "of -only real, in the form of Muri's")
	jobs := flag.Int("jobs", 300, "of the trace, of -only real")
	length := flag.Duration("length", 2*time.Minute, "of -only real: for how long the nodes would be busy with no gap")
	replayJobs := flag.Int("replay-jobs", 100_000, "jobs of the replay; a million tells whether its memory grows")
	load := flag.Float64("load", 0, "what the replay offers, as a share of what the cluster can do; 0: 0.95 and 1.3, one after the other")
	flag.StringVar(&profiles, "profile", "", "write CPU profiles of servers, simulated nodes and this program into this folder, of each rate run")
	flag.IntVar(&perOnly, "per", 0, "of -only http: only the run with that many allocations a job, 30, 1 or 1000")
	flag.IntVar(&conns, "conns", 16, "of -only http: jobs submitted at the same time")
	flag.DurationVar(&profileFor, "profile-for", 4*time.Second, "of -profile: how long each rate run is profiled")
	flag.StringVar(&backend, "logstore", "", "backend of the servers' raft log, wal or boltdb; empty: the default")
	flag.Parse()
	bin := os.Getenv("MUSTER_BIN")
	if bin == "" {
		fatal("set MUSTER_BIN to the binary, as `make bench` does")
	}
	if *failover {
		runFailover(bin, *rounds, *busy, *check)
		return
	}
	want := func(part string) bool { return *only == "" || strings.Contains(part, *only) }
	if want("decide") {
		decide()
	}
	if want("store") {
		store()
	}
	if want("raftlog") {
		raftLog(*quick)
	}
	if want("http") || want("latency") {
		overHTTP(bin, *quick, want("http"), want("latency"))
	}
	if want("tasks") {
		tasks(bin, *quick)
	}
	if want("shim") {
		shim()
	}
	if want("replay") && (!*quick || *only != "") { // minutes; a part of it is in decide
		loads := []float64{0.95, 1.3}
		if *load > 0 {
			loads = []float64{*load}
		}
		for _, l := range loads {
			runReplay(bin, *replayJobs, l)
		}
	}
	if *only == "launch" {
		runLaunch(bin, *quick)
	}
	if *only == "real" {
		runReal(bin, *trace, *jobs, *length)
	}
	if *only == "memory" {
		runMemory(bin, *nodes, *allocs, *perJob)
	}
	if *only == "scale" {
		s := scale{servers: *servers, nodes: *nodes, allocs: *allocs, per: *perJob, fills: *fills, check: *check, faults: *faults}
		s.run(bin)
	}
	print()
}

func print() {
	w := [5]int{}
	rows := append([]line{{"what", "measured", "goal", "peer", "command"}}, table...)
	for _, r := range rows {
		for i, s := range []string{r.what, r.measured, r.goal, r.peer, r.command} {
			w[i] = max(w[i], len([]rune(s)))
		}
	}
	for n, r := range rows {
		fmt.Printf("| %-*s | %-*s | %-*s | %-*s | %-*s |\n", w[0], r.what, w[1], r.measured, w[2], r.goal, w[3], r.peer, w[4], r.command)
		if n == 0 {
			fmt.Printf("|%s|%s|%s|%s|%s|\n", strings.Repeat("-", w[0]+2), strings.Repeat("-", w[1]+2), strings.Repeat("-", w[2]+2), strings.Repeat("-", w[3]+2), strings.Repeat("-", w[4]+2))
		}
	}
}

var resultRE = regexp.MustCompile(`(?m)^(Benchmark\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)

// goBench runs Go benchmarks of a package and gives each one's metrics by unit.
func goBench(pkg, pattern, benchtime string) map[string]map[string]float64 {
	cmd := exec.Command("go", "test", "-run", "^$", "-bench", pattern, "-benchtime", benchtime, pkg)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
		return nil
	}
	res := map[string]map[string]float64{}
	for _, m := range resultRE.FindAllStringSubmatch(string(out), -1) {
		f := strings.Fields(m[2])
		res[m[1]] = map[string]float64{}
		for i := 0; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err == nil {
				res[m[1]][f[i+1]] = v
			}
		}
	}
	return res
}

func ms(ns float64) string {
	switch {
	case ns == 0:
		return "not measured"
	case ns >= 1e6:
		return fmt.Sprintf("%.2f ms", ns/1e6)
	}
	return fmt.Sprintf("%.1f us", ns/1e3)
}

func decide() {
	res := goBench("./scheduler", "BenchmarkDecide", "1s")
	cmd := "go test -run '^$' -bench BenchmarkDecide ./scheduler"
	row("decide 600 allocations over 5,000 nodes, one constraint, all nodes scored", ms(res["BenchmarkDecide600of5000"]["ns/op"]), "<= 5 ms", "Nomad 274 ms (a sample)", cmd)
	row("the same with spread", ms(res["BenchmarkDecide600of5000Spread"]["ns/op"]), "<= 15 ms", "Nomad 11,300 ms", cmd)
	one := res["BenchmarkDecideOne10000"]
	row("decide one allocation over 10,000 nodes, p99", ms(one["p99-us"]*1e3), "<= 1 ms", "-", cmd)
	streams := goBench("./scheduler", "BenchmarkShareStream", "3000x")
	for _, x := range []struct{ name, what string }{
		{"idle", "decide a share of a GPU or a small GPU job over 10,000 nodes of four models, default policy, 3,000 that come while others end, processor time, p99"},
		{"new_leader", "the same on a new leader, where no time between decisions is left to prepare them"},
		{"cold", "the same on a server that has prepared nothing"},
	} {
		stream := streams["BenchmarkShareStream/"+x.name]
		row(x.what, fmt.Sprintf("%s (p50 %s, dearest %s, in the first ten %s)", ms(stream["p99-cpu-us"]*1e3), ms(stream["p50-cpu-us"]*1e3), ms(stream["max-cpu-us"]*1e3), ms(stream["max-of-first-10-cpu-us"]*1e3)),
			"<= 1 ms", "-", "go test -run '^$' -bench BenchmarkShareStream -benchtime 3000x ./scheduler")
	}
	gangs := goBench("./scheduler", "BenchmarkPendingGangs", "3x")
	cmd = "go test -run '^$' -bench BenchmarkPendingGangs ./scheduler"
	row("a pass over 10,000 pending gangs on 2,000 nodes x 8 GPUs, full cluster", ms(gangs["BenchmarkPendingGangs/full"]["ns/op"]), "<= 200 ms", "-", cmd)
	row("the same with one GPU free on each node", ms(gangs["BenchmarkPendingGangs/one_free_each"]["ns/op"]), "<= 200 ms", "-", cmd)
	replay := goBench("./sim", "BenchmarkReplay/load=130", "1x")["BenchmarkReplay/load=130%"]
	cmd = "go test -run '^$' -bench BenchmarkReplay ./sim"
	row("replay of 100,000 jobs on 1,000 nodes x 8 GPUs, one core, from 8,000", fmt.Sprintf("%.0f s", replay["ns/job"]/1e4), "< 60 s", "-", cmd)
	row("scheduling overhead of it: time in passes over virtual time", fmt.Sprintf("%.4f %%", replay["overhead-%"]), "< 2 %", "-", cmd)
}

func store() {
	res := goBench("./fsm", "BenchmarkInsertAlloc|BenchmarkPlanApply", "1s")
	cmd := "go test -run '^$' -bench 'InsertAlloc|PlanApply' ./fsm"
	for _, name := range []string{"BenchmarkInsertAlloc", "BenchmarkPlanApply"} {
		for full, m := range res {
			if full != name && !strings.HasPrefix(full, name+"/") {
				continue
			}
			v := ms(m["ns/op"])
			for _, unit := range []string{"us/alloc", "ns/alloc", "B/alloc", "bytes/alloc"} {
				if x, ok := m[unit]; ok {
					v += fmt.Sprintf(", %.3g %s", x, unit)
				}
			}
			row("store: "+strings.TrimPrefix(full, "Benchmark"), v, "<= 14 us an allocation", "-", cmd)
		}
	}
}

// raftLog measures both backends of the raft log.
func raftLog(quick bool) {
	long := "2s"
	if quick {
		long = "300ms"
	}
	res := goBench("./server/raftlog", "BenchmarkAppend|BenchmarkOpen", long)
	cmd := "go test -run '^$' -bench 'Append|Open' ./server/raftlog"
	for _, b := range []string{"wal", "boltdb", "boltdb_no_freelist_sync"} {
		a, o := res["BenchmarkAppend/"+b], res["BenchmarkOpen/"+b]
		row("raft log "+b+": a batch of 6 entries, synced", fmt.Sprintf("%s, %s of processor time, %.1f KiB to disk, %.0f entries/s",
			ms(a["ns/op"]), ms(a["cpu-us/batch"]*1e3), a["disk-B/batch"]/1024, a["entries/s"]), "-", "-", cmd)
		row("raft log "+b+": start with 100,000 entries of 600 bytes", fmt.Sprintf("%s, %s of processor time, %.0f bytes an entry",
			ms(o["ns/op"]), ms(o["cpu-us/open"]*1e3), o["disk-B/entry"]), "-", "-", cmd)
	}
}

func fatal(v ...any) {
	fmt.Fprintln(os.Stderr, append([]any{"bench:"}, v...)...)
	os.Exit(1)
}
