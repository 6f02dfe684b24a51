package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
)

// gangs reads the gangs of a job.
func (a *api) gangs(ctx context.Context, job *wire.JobListStub) ([]nomadlike.Gang, error) {
	var out []nomadlike.Gang
	if _, err := a.get(ctx, jobPath(job.ID, "/gangs"), ns(job.Namespace), &out); err != nil {
		return nil, fmt.Errorf("read the gangs of job %q: %w", job.ID, err)
	}
	return out, nil
}

// ranked is an allocation and its range of ranks.
type ranked struct {
	id           string
	name         string // of its node
	address      string // of its node; "" if there is no roster any more
	member       int    // node rank
	first, ranks int
	labelled     bool // its lines begin with the rank that wrote them
}

// members lists the allocations of a job's gang in rank order. A gang that failed has no roster any more, and other jobs
// have none: then they are the newest allocation of each name, by group and index, and the index is the member.
func (e *env) members(ctx context.Context, a *api, stub *wire.JobListStub, group string) ([]ranked, error) {
	gangs, err := a.gangs(ctx, stub)
	if err != nil {
		return nil, err
	}
	var out []ranked
	var job wire.Job
	if _, err := a.get(ctx, jobPath(stub.ID), ns(stub.Namespace), &job); err != nil {
		return nil, err
	}
	inRanks := func(name string) bool {
		for _, g := range job.TaskGroups {
			if val(g.Name) == name {
				return g.Launch != nil && g.Launch.Mode == "rank"
			}
		}
		return false
	}
	for _, g := range gangs {
		if group != "" && g.Group != group || len(g.Members) == 0 {
			continue
		}
		if out != nil {
			return nil, fmt.Errorf("job %q has several gangs: choose one with -group", stub.ID)
		}
		for _, m := range g.Members {
			out = append(out, ranked{m.AllocID, m.NodeName, m.Address, m.NodeRank, m.FirstRank, m.Ranks, inRanks(g.Group)})
		}
	}
	if out != nil {
		return out, nil
	}
	var list []*wire.AllocationListStub
	if _, err := a.get(ctx, jobPath(stub.ID, "/allocations"), ns(stub.Namespace), &list); err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(x, y *wire.AllocationListStub) int {
		return cmp.Or(cmp.Compare(x.TaskGroup, y.TaskGroup), cmp.Compare(nameIndex(x.Name), nameIndex(y.Name)), cmp.Compare(y.CreateIndex, x.CreateIndex))
	})
	newest := map[string]bool{}
	for _, s := range list {
		if newest[s.Name] || group != "" && s.TaskGroup != group {
			continue
		}
		newest[s.Name] = true
		out = append(out, ranked{id: s.ID, name: s.NodeName, member: nameIndex(s.Name), labelled: inRanks(s.TaskGroup)})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("job %q has no allocation (muster job why %s%s)", stub.ID, inNamespace(stub.Namespace), word(stub.ID))
	}
	return out, nil
}

// nameIndex returns i of an allocation's name "job.group[i]".
func nameIndex(name string) int {
	i, _ := strconv.Atoi(strings.TrimSuffix(name[strings.LastIndex(name, "[")+1:], "]"))
	return i
}

// holding returns the allocation that a rank runs in.
func holding(ms []ranked, rank int) (*ranked, error) {
	world := 0
	for i := range ms {
		if rank >= ms[i].first && rank < ms[i].first+ms[i].ranks {
			return &ms[i], nil
		}
		world += ms[i].ranks
	}
	switch {
	case world == 0 && len(ms) == 1 && rank > 0 && !ms[0].labelled:
		return nil, fmt.Errorf("there is no rank %d: the job has neither a launch nor a gang block, or its ranks are over; leave out -rank", rank)
	case world == 0 && len(ms) == 1:
		return &ms[0], nil
	case world == 0:
		return nil, errors.New("the job has no ranks, or its gang has ended: choose an allocation with -index, or see all of them with -all")
	}
	return nil, fmt.Errorf("there is no rank %d: the ranks are 0 to %d", rank, world-1)
}

type jobLogsOptions struct {
	allocLogsOptions
	all   bool
	index int
	group string
}

func newJobLogs(e *env) *cobra.Command {
	o := &jobLogsOptions{allocLogsOptions: allocLogsOptions{env: e, rank: -1}}
	c := e.verb("logs [options] JOB [TASK]", "Print what the ranks of a job wrote",
		"Print what a rank of a job wrote, or all of them: its stdout to stdout, its stderr to stderr. Without -rank and -all it is rank 0 of a gang, or one allocation of\nany other job. Lines of several ranks begin with the rank, and those of other jobs with the index; where a launcher like torchrun starts the ranks, and so\nmixes their lines, they begin with the node rank.", `
muster job logs train
muster job logs -rank 3 -f train
muster job logs -index 3 sweep
muster job logs -all -stderr train`, 1, 2, o.run)
	o.flags(c)
	f := c.Flags()
	f.IntVar(&o.rank, "rank", -1, "the rank")
	f.IntVar(&o.index, "index", -1, "the index of an array or of any other job, such as 3 for sweep.g[3]")
	f.BoolVar(&o.all, "all", false, "all ranks, as they write")
	f.StringVar(&o.group, "group", "", "the group; needed only when several are gangs")
	return c
}

func (o *jobLogsOptions) run(ctx context.Context, args []string) error {
	name, err := taskFlagOrArg(o.task, args)
	if err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	o.both = o.both || o.stderr && o.stdout
	if o.all && (o.rank >= 0 || o.index >= 0 || o.json) {
		return errors.New("-all prints the lines of every rank: leave out -rank, -index and -json")
	}
	if o.rank >= 0 && o.index >= 0 {
		return errors.New("-rank and -index exclude each other: choose an allocation by one of them")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	ms, err := o.members(ctx, a, stub, o.group)
	if err != nil {
		return err
	}
	if o.all {
		return o.together(ctx, a, ms, name)
	}
	m := &ms[0]
	if o.tty && len(ms) > 1 && m.ranks == 0 && o.index < 0 && o.rank < 0 { // elsewhere stderr is the task's; of a gang the first rank speaks for all
		o.hint("This is the log of index %d, of %d allocations: -index N shows another, -all shows them all.", m.member, len(ms))
	}
	if o.index >= 0 {
		at := slices.IndexFunc(ms, func(m ranked) bool { return m.member == o.index })
		if at < 0 {
			return fmt.Errorf("job %q has no allocation with index %d", stub.ID, o.index)
		}
		m = &ms[at]
	}
	if o.rank < 0 && m.labelled && m.ranks > 0 {
		o.rank = m.first
	} else if o.rank >= 0 {
		if m, err = holding(ms, o.rank); err != nil {
			return err
		}
	}
	if !m.labelled {
		if o.rank >= 0 && m.ranks > 1 {
			o.hint("The ranks on %s are started by a launcher of the job, which mixes their lines: these are all of them.", m.name)
		}
		o.rank = -1
	}
	al, err := a.alloc(ctx, m.id)
	if err != nil {
		return err
	}
	return o.print(ctx, a, al, name, o.out, o.env.err)
}

// together prints the logs of all members at once, in whole lines.
func (o *jobLogsOptions) together(ctx context.Context, a *api, ms []ranked, name string) error {
	var mu sync.Mutex
	errs := make([]error, len(ms))
	var wg sync.WaitGroup
	for i := range ms {
		wg.Go(func() {
			al, err := a.alloc(ctx, ms[i].id)
			if err != nil {
				errs[i] = err
				return
			}
			var out, errw io.Writer = o.out, o.env.err
			if !ms[i].labelled {
				label := fmt.Sprintf("%d| ", ms[i].member)
				out, errw = &labelWriter{w: out, label: label}, &labelWriter{w: errw, label: label}
			}
			lines, errLines := &lineWriter{mu: &mu, w: out}, &lineWriter{mu: &mu, w: errw}
			errs[i] = o.print(ctx, a, al, name, lines, errLines)
			lines.flush()
			errLines.flush()
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(errs...)
}

// labelWriter adds a label to every line. Its input is whole lines.
type labelWriter struct {
	w     io.Writer
	label string
}

// Write implements io.Writer.
func (l *labelWriter) Write(b []byte) (int, error) {
	var out []byte
	for start := 0; start < len(b); {
		end := len(b)
		for i := start; i < len(b); i++ {
			if b[i] == '\n' {
				end = i + 1
				break
			}
		}
		out = append(append(out, l.label...), b[start:end]...)
		start = end
	}
	if _, err := l.w.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}

type jobExecOptions struct {
	allocExecOptions
	group string
}

func newJobExec(e *env) *cobra.Command {
	o := &jobExecOptions{allocExecOptions: allocExecOptions{env: e, rank: -1}}
	c := e.verb("exec [options] JOB COMMAND [ARGUMENT...]", "Run a command next to a rank of a job",
		"Run a command inside the task of a job, on the node of a rank and with its variables. Without -rank it is rank 0 of a\ngang, or one allocation of any other job. Its exit code becomes this command's.", `
muster job exec -rank 3 train nvidia-smi
muster job exec -it train /bin/sh`, 2, -1, o.run)
	o.flags(c)
	c.Flags().StringVar(&o.group, "group", "", "the group; needed only when several are gangs")
	return c
}

func (o *jobExecOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	ms, err := o.members(ctx, a, stub, o.group)
	if err != nil {
		return err
	}
	m := &ms[0]
	if o.rank >= 0 {
		if m, err = holding(ms, o.rank); err != nil {
			return err
		}
	}
	al, err := a.alloc(ctx, m.id)
	if err != nil {
		return err
	}
	return o.enter(ctx, a, al, args[1:])
}
