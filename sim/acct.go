package sim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// acctFormat is a cluster's own history, the output of `muster acct -json`. Each job is submitted at its recorded time
// and runs for as long as its longest allocation did.
type acctFormat struct{}

func (acctFormat) Name() string { return "acct" }

func (acctFormat) About() string {
	return "a cluster's own past as `muster acct -json` prints it; policies as csv"
}

// acctRow is the part of an accounting record that is used, with the names of the HTTP API. Times are Unix nanoseconds.
type acctRow struct {
	ID, Namespace, JobID, Name, User, Queue, Type string
	Priority                                      int
	SubmitTime, StartTime, EndTime                int64
	Allocs                                        int64
	GPUs                                          float64
	CPU, MemoryMiB                                int64
	Longest, Limit, Expected, Deadline            int64
}

func (acctFormat) Run(ctx context.Context, o *Options, policy string) (*Result, error) {
	rules, err := RulesFor(policy)
	if err != nil {
		return nil, err
	}
	if o.Nodes == "" {
		return nil, errors.New("no cluster is given: say -nodes, such as -nodes 8x8 or -nodes 1000x8xH100-80GiB")
	}
	kinds, err := ParseNodes(o.Nodes)
	if err != nil {
		return nil, err
	}
	f, err := openTrace(o.Trace)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows, err := readAcct(f)
	if err != nil {
		return nil, err
	}
	base := newJobs(o, rules, kinds)
	src := &acctJobs{jobs: base, rows: rows}
	return runGeneral(ctx, o, "acct", policy, rules, BuildNodes(kinds), src, int64(len(rows)))
}

// readAcct reads the records of jobs that ran, sorted by submission.
func readAcct(f *file) ([]acctRow, error) {
	d := json.NewDecoder(f.in)
	var rows []acctRow
	take := func(r acctRow) {
		if r.StartTime > 0 && r.EndTime >= r.StartTime && (r.Type == "" || r.Type == string(structs.JobBatch)) {
			rows = append(rows, r)
		}
	}
	for n := 1; ; n++ { // one list, or one record per line
		var raw json.RawMessage
		if err := d.Decode(&raw); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("%s: record %d (byte %d): %w", f.name, n, d.InputOffset(), err)
		}
		if raw[0] == '[' {
			var list []acctRow
			if err := json.Unmarshal(raw, &list); err != nil {
				return nil, fmt.Errorf("%s: %w", f.name, err)
			}
			for _, r := range list {
				take(r)
			}
			continue
		}
		var r acctRow
		if err := json.Unmarshal(raw, &r); err != nil {
			return nil, fmt.Errorf("%s: record %d: %w", f.name, n, err)
		}
		take(r)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s has no record of a batch job that ran", f.name)
	}
	slices.SortStableFunc(rows, func(a, b acctRow) int {
		return cmp.Or(cmp.Compare(a.SubmitTime, b.SubmitTime), cmp.Compare(a.ID, b.ID))
	})
	return rows, nil
}

type acctJobs struct {
	*jobs
	rows []acctRow
}

// Next returns the next job.
func (s *acctJobs) Next() (*Job, error) {
	if int(s.n) == len(s.rows) || s.o.Limit > 0 && s.n >= s.o.Limit {
		return nil, io.EOF
	}
	r := &s.rows[s.n]
	s.n++
	a := asked{
		job: r.JobID, namespace: r.Namespace, user: r.User, queue: r.Queue, submit: time.Duration(r.SubmitTime), run: time.Duration(cmp.Or(r.Longest, r.EndTime-r.StartTime)),
		gpus: r.GPUs, cpuMHz: max(r.CPU, 1), memMiB: max(r.MemoryMiB, 1), estimate: time.Duration(r.Expected), limit: time.Duration(r.Limit),
		deadline: time.Duration(r.Deadline),
		priority: int64(cmp.Or(r.Priority, structs.JobPriorityDefault)),
	}
	if a.gpus > 1 {
		a.gpus = float64(int64(a.gpus + 0.999))
	}
	if !s.begun {
		s.begun, s.origin = true, a.submit
	}
	return s.job(&a)
}
