package sim

import (
	"math"
	"strconv"
	"time"

	"github.com/muster-sched/muster/structs"
)

// asked is one row of a trace in any format.
type asked struct {
	line                    int // line of the file; 0: none
	job, user, queue, model string
	namespace               string // "": the default one
	submit, run             time.Duration
	gpus                    float64
	gpuMiB, cpuMHz, memMiB  int64
	count                   int64
	estimate, limit         time.Duration
	priority                int64
	deadline                time.Duration
	preemptible             bool
}

// csvRows reads a CSV trace.
type csvRows struct {
	f   *file
	csv *table
	n   int64
}

func openRows(name string) (*csvRows, error) {
	f, err := openTrace(name)
	if err != nil {
		return nil, err
	}
	r := &csvRows{f: f}
	if r.csv, err = newTable(name, f.in, csvAliases); err == nil {
		err = r.csv.need("submit", "runtime")
	}
	if err != nil {
		f.Close()
	}
	return r, err
}

// Close closes the file.
func (r *csvRows) Close() error { return r.f.Close() }

// Next returns the next row.
func (r *csvRows) Next() (a asked, err error) {
	t := r.csv
	if err := t.next(); err != nil {
		return a, err
	}
	if err := t.must("submit", "runtime"); err != nil {
		return a, err
	}
	r.n++
	a = asked{line: t.line, job: t.text("job"), user: t.text("user"), queue: t.text("queue"), namespace: t.text("namespace"), model: t.text("model")}
	if a.job == "" {
		a.job = "job-" + strconv.FormatInt(r.n, 10)
	}
	var e [11]error
	a.submit, e[0] = t.span("submit")
	a.run, e[1] = t.span("runtime")
	a.gpus, e[2] = t.float("gpus", 0)
	a.gpuMiB, e[3] = t.amount("gpu_memory", 0)
	var cores float64
	cores, e[4] = t.float("cpus", max(1, a.gpus))
	a.cpuMHz = int64(cores * megahertzOfOne)
	a.memMiB, e[5] = t.amount("memory", int64(1024*max(1, a.gpus)))
	a.count, e[6] = t.whole("nodes", 0)
	a.estimate, e[7] = t.span("estimate")
	a.limit, e[8] = t.span("limit")
	a.priority, e[9] = t.whole("priority", structs.JobPriorityDefault)
	a.deadline, e[10] = t.span("deadline")
	for _, err := range e {
		if err != nil {
			return a, err
		}
	}
	if p := t.text("preemptible"); p != "" {
		if a.preemptible, err = strconv.ParseBool(p); err != nil {
			return a, t.wrong("preemptible", "is neither true nor false")
		}
	}
	if a.priority < structs.JobPriorityMin || a.priority > structs.JobPriorityMax {
		return a, t.wrong("priority", "is not from 1 to 100")
	}
	if a.gpus > 1 && a.gpus != math.Trunc(a.gpus) {
		return a, t.wrong("gpus", "is more than one and not a whole number")
	}
	return a, nil
}

// swfRows reads a log of a parallel machine for a cluster of nodes.
type swfRows struct {
	*SWFReader
	jobs *jobs
}

// Next returns the next row.
func (s *swfRows) Next() (a asked, err error) {
	r, err := s.SWFReader.Next()
	if err != nil {
		return a, err
	}
	a = asked{line: r.Line, job: "job-" + strconv.FormatInt(r.ID, 10), user: r.User, submit: r.Submit, run: r.Run, limit: r.Req, priority: structs.JobPriorityDefault}
	if s.jobs.gpus > 0 {
		a.gpus, a.cpuMHz, a.memMiB = float64(r.Procs), r.Procs*megahertzOfOne, max(r.Procs*r.MemMiB, r.Procs*1024)
	} else {
		a.cpuMHz, a.memMiB = r.Procs*megahertzOfOne, max(r.Procs*r.MemMiB, 1)
		a.count = (r.Procs + s.jobs.cores - 1) / max(s.jobs.cores, 1)
	}
	return a, nil
}
