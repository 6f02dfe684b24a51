package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// realJob is a job of the trace, in seconds of the replay.
type realJob struct {
	id          string
	gpus        int
	submit, run float64
	wait, jct   float64 // as the servers and the nodes saw it
}

// The cluster of the comparison, and what one node has.
const (
	realNodes    = 8
	realNodeGPUs = 8
)

// runReal replays the beginning of a trace twice: in the simulator, and through three servers and simulated nodes over
// HTTP, with times scaled down so that the busiest GPU works for about the given time. The scheduler is the same, so the
// difference is the price of the real path: HTTP, raft, polls, reports.
func runReal(bin, trace string, jobs int, length time.Duration) {
	list := readReal(trace, jobs)
	busy := 0.0
	for _, j := range list {
		busy += float64(j.gpus) * j.run / (realNodes * realNodeGPUs)
	}
	scale := max(list[len(list)-1].submit, busy) / length.Seconds()
	for i := range list {
		list[i].submit /= scale
		list[i].run = math.Round(list[i].run/scale*1000) / 1000
	}
	ideal := simulated(bin, list)
	c := newCluster(bin, 3)
	defer c.close()
	c.nodes(realNodes, "-gpus", fmt.Sprintf("%dxH100", realNodeGPUs))
	replay(c, list)

	waits, jcts := make([]float64, len(list)), 0.0
	classes := map[string][]float64{}
	end := 0.0
	for i, j := range list {
		waits[i] = j.wait
		jcts += j.jct
		end = max(end, j.submit+j.jct)
		classes[sizeClass(j.gpus)] = append(classes[sizeClass(j.gpus)], j.wait)
	}
	cmd := "make bench-real"
	what := fmt.Sprintf("the first %d jobs of %s, 1 s for %.0f s, 3 servers and %d nodes of %d GPUs", len(list), filepath.Base(trace), scale, realNodes, realNodeGPUs)
	gap := func(name string, real, sim float64) {
		row(fmt.Sprintf("%s: %s", what, name), fmt.Sprintf("%.3f s, simulator %.3f s: %+.1f %%", real, sim, 100*(real-sim)/max(sim, 1e-3)), "-", "-", cmd)
	}
	gap("mean wait", mean(waits), ideal["mean_wait"])
	gap("p95 wait", quantile(waits, 95), ideal["p95_wait"])
	for _, class := range []string{"1", "2-8", "16-64"} {
		if len(classes[class]) > 0 {
			gap("p95 wait of jobs of "+class+" GPUs", quantile(classes[class], 95), ideal["wait_p95_"+class])
		}
	}
	gap("average JCT", jcts/float64(len(list)), ideal["avg_jct"])
	gap("makespan", end-list[0].submit, ideal["makespan"])
}

// readReal reads the first jobs of a trace in the form of Muri's, without those that the cluster cannot hold.
func readReal(trace string, jobs int) []realJob {
	f, err := os.Open(trace)
	if err != nil {
		fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		fatal(fmt.Errorf("read %s: %w", trace, err))
	}
	var out []realJob
	for _, r := range rows[1:] {
		gpus, err1 := strconv.Atoi(r[1])
		submit, err2 := strconv.ParseFloat(r[2], 64)
		run, err3 := strconv.ParseFloat(r[3], 64)
		if err1 != nil || err2 != nil || err3 != nil {
			fatal(fmt.Sprintf("%s: row %v: want job, gpus, submit_s, duration_s", trace, r))
		}
		if gpus <= realNodes*realNodeGPUs && len(out) < jobs {
			out = append(out, realJob{id: "real-" + r[0], gpus: gpus, submit: submit, run: run})
		}
	}
	if len(out) == 0 {
		fatal(trace, "has no jobs that fit")
	}
	slices.SortStableFunc(out, func(a, b realJob) int { return int(math.Copysign(1, a.submit-b.submit)) })
	return out
}

// simulated returns the figures of the same jobs in muster sim.
func simulated(bin string, list []realJob) map[string]float64 {
	var b bytes.Buffer
	b.WriteString("job,submit,runtime,gpus,cpus,memory\n")
	for _, j := range list {
		fmt.Fprintf(&b, "%s,%.6f,%.3f,%d,1,1024\n", j.id, j.submit, j.run, j.gpus)
	}
	path := filepath.Join(os.TempDir(), fmt.Sprintf("muster-real-%d.csv", os.Getpid()))
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		fatal(err)
	}
	defer os.Remove(path)
	out, err := exec.Command(bin, "sim", "-format", "csv", "-trace", path, "-nodes", fmt.Sprintf("%dx%dxH100", realNodes, realNodeGPUs), "-policy", "default", "-json").Output()
	if err != nil {
		fatal("muster sim:", err)
	}
	var all map[string]any
	if err := json.Unmarshal(out, &all); err != nil {
		fatal("muster sim:", err)
	}
	figures := map[string]float64{}
	for k, v := range all {
		if f, ok := v.(float64); ok {
			figures[k] = f
		}
	}
	if figures["done"] != float64(len(list)) {
		fatal("muster sim did", figures["done"], "of", len(list), "jobs")
	}
	return figures
}

// replay submits every job at its time, waits for the end of all, and notes what the servers say of each.
func replay(c *cluster, list []realJob) {
	start := time.Now().Add(500 * time.Millisecond)
	for i, j := range list {
		time.Sleep(time.Until(start.Add(time.Duration((j.submit - list[0].submit) * float64(time.Second)))))
		if err := c.call("PUT", "/v1/jobs", gpuJob(j), nil); err != nil {
			c.close()
			fatal("register", list[i].id, err)
		}
	}
	left := map[int]bool{}
	for i := range list {
		left[i] = true
	}
	c.until(15*time.Minute, "the end of all jobs", func() bool {
		for i := range list {
			if left[i] && ended(c, &list[i], start.Add(time.Duration((list[i].submit-list[0].submit)*float64(time.Second)))) {
				delete(left, i)
			}
		}
		return len(left) == 0
	})
}

// ended reports whether a job has ended, and notes its wait and completion time from the moment it was due.
func ended(c *cluster, j *realJob, due time.Time) bool {
	var as []struct {
		ClientStatus string
		TaskStates   map[string]struct{ StartedAt, FinishedAt time.Time }
	}
	if c.call("GET", "/v1/job/"+j.id+"/allocations", nil, &as) != nil || len(as) == 0 {
		return false
	}
	var began, over time.Time
	for _, a := range as {
		if a.ClientStatus != "complete" {
			return false
		}
		t := a.TaskStates["t"]
		if t.StartedAt.After(began) {
			began = t.StartedAt
		}
		if t.FinishedAt.After(over) {
			over = t.FinishedAt
		}
	}
	j.wait, j.jct = began.Sub(due).Seconds(), over.Sub(due).Seconds()
	return true
}

// gpuJob is a job as muster sim reads it: one allocation, or a gang of whole nodes.
func gpuJob(j realJob) map[string]any {
	count, each := 1, j.gpus
	if each > realNodeGPUs {
		count, each = (each+realNodeGPUs-1)/realNodeGPUs, realNodeGPUs
	}
	g := map[string]any{
		"Name": "g", "Count": count, "EphemeralDisk": map[string]any{"SizeMB": 10}, "ReschedulePolicy": map[string]any{"Attempts": 0, "Unlimited": false},
		"Tasks": []any{map[string]any{
			"Name": "t", "Driver": "fake", "LogConfig": map[string]any{"MaxFiles": 1, "MaxFileSizeMB": 1},
			"Config":    map[string]any{"command": "train", "run_for": fmt.Sprintf("%dms", int(j.run*1000))},
			"Resources": map[string]any{"CPU": 1, "MemoryMB": 1024, "Devices": []any{map[string]any{"Name": "nvidia/gpu", "Count": each}}},
		}},
	}
	if count > 1 {
		g["Gang"] = map[string]any{}
	}
	return map[string]any{"Job": map[string]any{"ID": j.id, "Name": j.id, "Type": "batch", "Datacenters": []string{"*"}, "TaskGroups": []any{g}}}
}

// sizeClass returns the class of a number of GPUs under which waits are reported.
func sizeClass(gpus int) string {
	switch {
	case gpus <= 1:
		return "1"
	case gpus <= 8:
		return "2-8"
	}
	return "16-64"
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(max(len(v), 1))
}

func quantile(v []float64, percent int) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[min(len(v)-1, len(v)*percent/100)]
}
