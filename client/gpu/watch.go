package gpu

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// A watcher enforces shares of GPU memory where nothing stronger does (backend "watch"), and catches programs that
// bypass the library (backend "shim"): it compares what the processes of each task hold on each GPU with the quota. It
// can only observe, so the memory is already taken when the excess is seen. Two consecutive measurements must agree,
// because a program that ends may still be on the list.

// Excess is a task that holds more of a GPU than its share.
type Excess struct {
	Alloc    structs.AllocID
	Task     string
	GPU      string // UUID
	QuotaMiB int64
	UsedMiB  int64
}

// TaskUse is what the processes of one task hold on one GPU.
type TaskUse struct {
	Alloc   structs.AllocID
	Task    string
	GPU     string
	Bytes   int64
	Unknown bool  // the driver does not report it for some process
	SM      int64 // percent of the GPU's multiprocessors, sampled; -1 if not reported
}

// Quota is a task's share of a GPU.
type Quota struct {
	Alloc structs.AllocID
	Task  string
	GPU   string
	MiB   int64 // 0: the whole GPU

	Backend string
}

// What a task may hold beyond its quota before it is stopped: allocations in large pages and rounding by the driver are
// tolerated.
const (
	watchSlackPercent = 2
	watchSlackMiB     = 256
	watchLooks        = 2 // consecutive measurements
)

// Watcher is the state of watching. Not safe for concurrent use.
type Watcher struct {
	Owner func(pid int) (structs.AllocID, string, bool) // returns the task of a process; OwnerOf when nil
	over  map[watchKey]int
}

type watchKey struct {
	alloc structs.AllocID
	task  string
	gpu   string
}

// Uses sums the memory of processes by task and GPU, in the order of samples. Processes outside of tasks are left out.
func (w *Watcher) Uses(samples []Sample) []TaskUse {
	owner := w.Owner
	if owner == nil {
		owner = OwnerOf
	}
	var out []TaskUse
	for i := range samples {
		from := len(out)
		for _, p := range samples[i].Processes {
			alloc, task, ok := owner(p.PID)
			if !ok {
				continue
			}
			at := from
			for at < len(out) && (out[at].Alloc != alloc || out[at].Task != task) {
				at++
			}
			if at == len(out) {
				out = append(out, TaskUse{Alloc: alloc, Task: task, GPU: samples[i].UUID})
			}
			if p.SM < 0 || out[at].SM < 0 {
				out[at].SM = -1
			} else {
				out[at].SM += p.SM
			}
			if p.Bytes < 0 {
				out[at].Unknown = true
				continue
			}
			out[at].Bytes += p.Bytes
		}
	}
	return out
}

// Look compares uses with quotas, and returns the tasks that exceeded theirs in this measurement and the previous one.
func (w *Watcher) Look(uses []TaskUse, quotas []Quota) []Excess {
	next := map[watchKey]int{}
	var out []Excess
	for _, q := range quotas {
		k := watchKey{q.Alloc, q.Task, q.GPU}
		for _, u := range uses {
			if u.Alloc != q.Alloc || u.Task != q.Task || u.GPU != q.GPU || q.MiB == 0 {
				continue
			}
			if u.Bytes>>20 <= q.MiB+max(q.MiB*watchSlackPercent/100, watchSlackMiB) {
				continue
			}
			next[k] = w.over[k] + 1
			if next[k] >= watchLooks {
				out = append(out, Excess{Alloc: q.Alloc, Task: q.Task, GPU: q.GPU, QuotaMiB: q.MiB, UsedMiB: u.Bytes >> 20})
			}
		}
	}
	w.over = next
	return out
}

// OwnerOf finds the task of a process by its control group: ".../muster/SCOPE/ALLOC.TASK.RUN". Children of a task, and
// processes of containers that it started below its group, belong to it. Without control groups, which only root can
// make, the launcher among its ancestors does.
func OwnerOf(pid int) (structs.AllocID, string, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return structs.AllocID{}, "", false
	}
	if alloc, task, ok := ownerIn(string(b)); ok {
		return alloc, task, true
	}
	for range ancestorsMax {
		if pid = parentOf(pid); pid <= 1 {
			break
		}
		argv, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if err != nil {
			break
		}
		if rest, ok := strings.CutPrefix(string(argv), "muster-launch\x00"); ok {
			id, _, _ := strings.Cut(rest, "\x00")
			return taskOf(id)
		}
	}
	return structs.AllocID{}, "", false
}

// ancestorsMax is how many generations of processes OwnerOf follows.
const ancestorsMax = 64

// parentOf returns the parent of a process; 0 if it is gone.
func parentOf(pid int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // the name before it may hold anything
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// taskOf reads the id that the supervisor gives a run of a task, "ALLOC.TASK.RUN".
func taskOf(run string) (structs.AllocID, string, bool) {
	id, task, _ := strings.Cut(run, ".")
	at := strings.LastIndexByte(task, '.')
	alloc, err := structs.ParseID[structs.AllocID](id)
	if at <= 0 || err != nil {
		return structs.AllocID{}, "", false
	}
	return alloc, task[:at], true
}

func ownerIn(text string) (structs.AllocID, string, bool) {
	for line := range strings.Lines(text) {
		// hierarchy:controllers:path
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		_, path, _ := strings.Cut(rest, ":")
		_, below, ok := strings.Cut(path, "/muster/")
		if !ok {
			continue
		}
		parts := strings.Split(below, "/")
		if len(parts) < 2 {
			continue
		}
		if alloc, task, ok := taskOf(parts[1]); ok {
			return alloc, task, true
		}
	}
	return structs.AllocID{}, "", false
}
