package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// The cluster of a replay.
const (
	replayNodes    = 1000
	replayNodeGPUs = 8
)

// runReplay lets the simulator replay a trace that offers a share of what a large cluster can do, from its first job to
// its last, on one core.
func runReplay(bin string, jobs int, load float64) {
	dir, err := os.MkdirTemp("", "muster-bench")
	if err != nil {
		fatal(err)
	}
	defer os.RemoveAll(dir)
	trace := filepath.Join(dir, "trace.csv")
	if err := writeReplay(trace, jobs, load); err != nil {
		fatal("write trace:", err)
	}
	sim := exec.Command(bin, "sim", "-trace", trace, "-nodes", fmt.Sprintf("%dx%dxH100-80GiB", replayNodes, replayNodeGPUs), "-policy", "default", "-json")
	sim.Env = append(os.Environ(), "GOMAXPROCS=1")
	sim.Stderr = os.Stderr
	out, err := sim.Output()
	if err != nil {
		fatal("muster sim:", err)
	}
	var figures map[string]any
	if err := json.Unmarshal(out, &figures); err != nil {
		fatal("muster sim:", err)
	}
	what := fmt.Sprintf("replay of %d jobs on %d nodes x %d GPUs, %.0f %% load, one core", jobs, replayNodes, replayNodeGPUs, 100*load)
	if figures["done"] != float64(jobs) {
		fatal(what+": muster sim did", figures["done"])
	}
	goal := "-"
	if jobs <= 100_000 {
		goal = "< 60 s"
	}
	u := sim.ProcessState.SysUsage().(*syscall.Rusage)
	cpu := sim.ProcessState.UserTime() + sim.ProcessState.SystemTime()
	row(what, fmt.Sprintf("%.0f s, of the processor %.0f s, %d MiB", figures["wall_s"], cpu.Seconds(), u.Maxrss>>10), goal, "-",
		fmt.Sprintf("e2e/bench -only replay -replay-jobs %d -load %.2f", jobs, load))
}

// writeReplay writes a trace of users in a few queues, who ask for one GPU to 32. It is the same one each time.
func writeReplay(name string, jobs int, load float64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	fmt.Fprintln(w, "submit,runtime,gpus,cpus,memory,user,queue,limit")
	r := rand.New(rand.NewPCG(7, 9))
	sizes := []int{1, 1, 1, 1, 1, 2, 2, 4, 8, 8, 16, 32}
	queues := []string{"default", "research", "research/vision", "prod"}
	mean := 0.0
	for _, s := range sizes {
		mean += float64(s) / float64(len(sizes))
	}
	const run, spread = 3 * 3600.0, 1.5
	rate := load * replayNodes * replayNodeGPUs / (mean * run)
	at := 0.0
	for range jobs {
		at += r.ExpFloat64() / rate
		gpus, user := sizes[r.IntN(len(sizes))], r.IntN(60)
		ran := math.Exp(spread*r.NormFloat64())*run/math.Exp(spread*spread/2) + 10
		fmt.Fprintf(w, "%.0f,%.0f,%d,%d,%d,u%s,%s,%.0f\n", at, ran, gpus, gpus*(2<<r.IntN(3)), gpus*8192, strconv.Itoa(user), queues[user%len(queues)], ran*(1.1+3*r.Float64())+60)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}
