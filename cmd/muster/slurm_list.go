package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/user"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// slurmVerb makes a command that takes options as Slurm does: -ualice, -lh, --me. run gets the words that are no options. Options for which
// there is nothing are refused with the command that does it here.
func (e *env) slurmVerb(use, short, long, example, elsewhere string, own func(*pflag.FlagSet), run func(ctx context.Context, a *api, words []string) error) *cobra.Command {
	c := e.verb(use, short, long, example, 0, -1, nil)
	c.DisableFlagParsing = true
	c.RunE = func(cmd *cobra.Command, args []string) error {
		fs := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
		fs.Usage = func() {}
		own(fs)
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" { // -h is another option here
				fs.AddFlag(f)
			}
		})
		args = slices.Clone(args)
		for i, w := range args { // the general options also with one dash, as everywhere
			name, _, _ := strings.Cut(strings.TrimPrefix(w, "-"), "=")
			if strings.HasPrefix(w, "-") && len(name) > 1 && fs.Lookup(name) != nil {
				args[i] = "-" + w
			}
		}
		switch err := fs.Parse(args); {
		case errors.Is(err, pflag.ErrHelp):
			return cmd.Help()
		case err != nil:
			return fmt.Errorf("%w: muster %s knows the options that are used daily (muster %s --help). More shows:  %s", err, cmd.Name(), cmd.Name(), elsewhere)
		}
		if name := emptyArgument(cmd.Use, fs.Args()); name != "" {
			return fmt.Errorf("%s is empty: %s", name, cmd.UseLine())
		}
		e.useContext(cmd.Flags())
		a, err := e.api()
		if err != nil {
			return err
		}
		return run(cmd.Context(), a, fs.Args())
	}
	return c
}

// slurmTable is a table of Slurm's: %i or JobID for a column, by its letter and its names.
type slurmTable[T any] []slurmColumn[T]

type slurmColumn[T any] struct {
	letter string // of -o, or ""
	name   string // of --format and --Format, in lower case
	head   string
	cell   func(T) string
}

var slurmSpec = regexp.MustCompile(`%(\.)?([0-9]*)([A-Za-z])`)

// columns reads "%.18i %j", or "JobID,Name:20,State%30".
func (t slurmTable[T]) columns(format string) (picked []slurmColumn[T], err error) {
	var known []string
	for _, c := range t {
		known = append(known, strings.TrimPrefix("%"+c.letter+"=", "%=")+c.name)
	}
	find := func(word string, is func(slurmColumn[T]) bool) {
		i := slices.IndexFunc(t, is)
		if i < 0 {
			err = errors.Join(err, fmt.Errorf("no field %q: there are %s", word, strings.Join(known, ", ")))
			return
		}
		picked = append(picked, t[i])
	}
	if strings.Contains(format, "%") && slurmSpec.MatchString(format) && strings.HasPrefix(strings.TrimSpace(format), "%") {
		for _, m := range slurmSpec.FindAllStringSubmatch(format, -1) {
			find(m[0], func(c slurmColumn[T]) bool { return c.letter == m[3] })
		}
		return picked, err
	}
	for _, w := range strings.FieldsFunc(format, func(r rune) bool { return r == ',' || r == ' ' }) {
		name, _, _ := strings.Cut(strings.ToLower(w), "%")
		name, _, _ = strings.Cut(name, ":")
		find(w, func(c slurmColumn[T]) bool { return c.name == name })
	}
	return picked, err
}

// print prints rows; delimiter "" aligns the columns.
func (t slurmTable[T]) print(e *env, format string, noHead bool, delimiter string, rows []T) error {
	picked, err := t.columns(format)
	if err != nil {
		return err
	}
	var lines [][]string
	if !noHead {
		head := []string{}
		for _, c := range picked {
			head = append(head, c.head)
		}
		lines = append(lines, head)
	}
	for _, r := range rows {
		line := []string{}
		for _, c := range picked {
			line = append(line, oneLine(c.cell(r)))
		}
		lines = append(lines, line)
	}
	widths := make([]int, len(picked))
	for _, l := range lines {
		for i, c := range l {
			widths[i] = max(widths[i], len([]rune(c)))
		}
	}
	for _, l := range lines {
		if delimiter == "" {
			for i := range l[:len(l)-1] {
				l[i] += strings.Repeat(" ", widths[i]-len([]rune(l[i])))
			}
			e.println(strings.Join(l, " "))
		} else {
			e.println(strings.Join(l, delimiter))
		}
	}
	return nil
}

// slurmJob is a job that waits or runs, as squeue lists it.
type slurmJob struct {
	*wire.JobListStub
	reason string
	starts int64 // estimate in Unix nanoseconds, or 0
	since  int64 // start of its first allocation that lives, or 0
	nodes  []string
	gpus   int64
	now    time.Time
}

func (j slurmJob) state() (short, long string) {
	switch {
	case j.Status == "pending" || len(j.nodes) == 0:
		return "PD", "PENDING"
	case j.Stop:
		return "CG", "COMPLETING"
	}
	return "R", "RUNNING"
}

// slurmSpan formats a duration as Slurm does: 3:05, 1:02:03, 2-01:00:00.
func slurmSpan(d time.Duration) string {
	s := int64(max(d, 0) / time.Second)
	days, hours, minutes, seconds := s/86400, s/3600%24, s/60%60, s%60
	switch {
	case days > 0:
		return fmt.Sprintf("%d-%02d:%02d:%02d", days, hours, minutes, seconds)
	case hours > 0:
		return fmt.Sprintf("%d:%02d:%02d", hours, minutes, seconds)
	}
	return fmt.Sprintf("%d:%02d", minutes, seconds)
}

func slurmDate(ns int64) string {
	if ns <= 0 {
		return "N/A"
	}
	return time.Unix(0, ns).Format("2006-01-02T15:04:05")
}

func slurmNumber(index uint64) string { return strconv.FormatUint(index, 10) }

var squeueTable = slurmTable[slurmJob]{
	{"i", "jobid", "JOBID", func(j slurmJob) string { return j.ID }},
	{"A", "jobarrayid", "JOBID", func(j slurmJob) string { return slurmNumber(j.CreateIndex) }},
	{"P", "partition", "PARTITION", func(j slurmJob) string { return j.NodePool }},
	{"j", "name", "NAME", func(j slurmJob) string { return j.Name }},
	{"u", "username", "USER", func(j slurmJob) string { return orDash(j.User) }},
	{"t", "statecompact", "ST", func(j slurmJob) string { short, _ := j.state(); return short }},
	{"T", "state", "STATE", func(j slurmJob) string { _, long := j.state(); return long }},
	{"M", "timeused", "TIME", func(j slurmJob) string {
		if j.since == 0 {
			return "0:00"
		}
		return slurmSpan(j.now.Sub(time.Unix(0, j.since)))
	}},
	{"D", "numnodes", "NODES", func(j slurmJob) string { return strconv.Itoa(len(j.nodes)) }},
	{"R", "reasonlist", "NODELIST(REASON)", func(j slurmJob) string {
		if len(j.nodes) > 0 {
			return strings.Join(j.nodes, ",")
		}
		return "(" + cmp.Or(j.reason, "None") + ")"
	}},
	{"N", "nodelist", "NODELIST", func(j slurmJob) string { return strings.Join(j.nodes, ",") }},
	{"r", "reason", "REASON", func(j slurmJob) string { return cmp.Or(j.reason, "None") }},
	{"a", "account", "ACCOUNT", func(j slurmJob) string { return cmp.Or(j.Queue, "default") }},
	{"Q", "prioritylong", "PRIORITY", func(j slurmJob) string { return strconv.Itoa(j.Priority) }},
	{"b", "gres", "GRES", func(j slurmJob) string { return "gpu:" + strconv.FormatInt(j.gpus, 10) }},
	{"V", "submittime", "SUBMIT_TIME", func(j slurmJob) string { return slurmDate(j.SubmitTime) }},
	{"S", "starttime", "START_TIME", func(j slurmJob) string { return slurmDate(cmp.Or(j.since, j.starts)) }},
}

// slurmPick says which jobs are meant, as options of squeue and scancel do.
type slurmPick struct {
	user, name, partition, account, states string
	me                                     bool
}

func (p *slurmPick) flags(f *pflag.FlagSet) {
	f.StringVarP(&p.user, "user", "u", "", "")
	f.StringVarP(&p.name, "name", "n", "", "")
	f.StringVarP(&p.partition, "partition", "p", "", "")
	f.StringVarP(&p.account, "account", "A", "", "")
	f.BoolVar(&p.me, "me", false, "")
}

// among reports whether a list with commas is empty or has a word.
func among(list, word string) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), word)
}

// users replaces --me, and the name that the system gives the user, by the name under which the user submits.
func (p *slurmPick) users(ctx context.Context, a *api) error {
	own, err := user.Current()
	if !p.me && (err != nil || p.user != own.Username) {
		return nil
	}
	me, err := a.me(ctx)
	p.user = me
	return err
}

func (p *slurmPick) picks(j *wire.JobListStub) bool {
	return among(p.user, j.User) && (among(p.name, j.Name) || among(p.name, j.ID)) && among(p.partition, j.NodePool) && among(p.account, cmp.Or(j.Queue, "default"))
}

// live reports whether squeue would list a job: it waits or runs by itself.
func slurmLive(j *wire.JobListStub) bool {
	return j.Status != "dead" && (j.ParentID != "" || !j.Periodic && !j.ParameterizedJob)
}

// slurmIs reports whether a job is the one with an id: its name, or the number in SLURM_JOB_ID or SLURM_ARRAY_JOB_ID, also of one index.
func slurmIs(j *wire.JobListStub, id string) bool {
	if j.ID == id {
		return true
	}
	n, err := strconv.ParseUint(id, 10, 64)
	return err == nil && (n == j.CreateIndex || n >= structs.ArrayCountMax && n/structs.ArrayCountMax == j.CreateIndex)
}

// slurmJobs lists the jobs of all namespaces that the token may read, or of one.
func slurmJobs(ctx context.Context, a *api) (list []*wire.JobListStub, err error) {
	_, err = a.get(ctx, "/v1/jobs", ns(a.anyNamespace()), &list)
	return list, err
}

// squeueJobs adds to jobs where they run or why they wait.
func (e *env) squeueJobs(ctx context.Context, a *api, list []*wire.JobListStub) ([]slurmJob, error) {
	type key struct{ namespace, id string }
	byJob := map[key]*slurmJob{}
	out := make([]slurmJob, len(list))
	for i, j := range list {
		out[i] = slurmJob{JobListStub: j, now: e.now()}
		byJob[key{j.Namespace, j.ID}] = &out[i]
	}
	allocs, err := slurmAllocs(ctx, a)
	if err != nil {
		return nil, err
	}
	for _, s := range allocs {
		j := byJob[key{s.Namespace, s.JobID}]
		if j == nil {
			continue
		}
		j.gpus += heldBy([]*wire.AllocationListStub{s})
		if j.since == 0 || s.CreateTime < j.since {
			j.since = s.CreateTime
		}
		if at, has := slices.BinarySearch(j.nodes, s.NodeName); !has {
			j.nodes = slices.Insert(j.nodes, at, s.NodeName)
		}
	}
	waits, err := pages[nomadlike.QueueItem](ctx, a, "/v1/queue", ns(a.anyNamespace()))
	if err != nil {
		return nil, err
	}
	for _, w := range waits {
		if j := byJob[key{w.Namespace, w.JobID}]; j != nil {
			j.reason, j.starts = w.Reason, w.StartEstimate
			if w.Held {
				j.reason = "JobHeldUser"
			}
		}
	}
	return out, nil
}

// slurmAllocs lists what runs or starts, with what it holds.
func slurmAllocs(ctx context.Context, a *api) (list []*wire.AllocationListStub, err error) {
	q := ns(a.anyNamespace())
	q.Set("resources", "true")
	q.Set("task_states", "false")
	q.Set("filter", `ClientStatus == "running" or ClientStatus == "pending"`)
	if _, err = a.get(ctx, "/v1/allocations", q, &list); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(s *wire.AllocationListStub) bool { return !liveAlloc(s.ClientStatus) }), nil
}

func newSqueue(e *env) *cobra.Command {
	var (
		pick          slurmPick
		jobs, format  string
		long, noHead  bool
		start         bool
		withoutColumn string
	)
	return e.slurmVerb("squeue [options]", "List jobs as Slurm's squeue does",
		`List the jobs that wait or run, as Slurm's squeue does: -u USER, --me, -j ID, -n NAME, -p PARTITION (a node pool), -A ACCOUNT (a queue), -t STATE, -l,
-h, --start, and -o or --Format with the common fields. JOBID is the name that sbatch printed; -j also takes the number of SLURM_JOB_ID. A list
of several has commas. The reason is that of muster job why.`, `
muster squeue --me
muster squeue -u alice -t PD
muster squeue -h -o '%i %T %R'`, "muster queue (what waits), muster job status (the rest), -json of both for programs",
		func(f *pflag.FlagSet) {
			pick = slurmPick{}
			pick.flags(f)
			f.StringVarP(&jobs, "jobs", "j", "", "")
			f.StringVarP(&pick.states, "states", "t", "", "")
			f.StringVarP(&format, "format", "o", "", "")
			f.StringVarP(&withoutColumn, "Format", "O", "", "")
			f.BoolVarP(&long, "long", "l", false, "")
			f.BoolVarP(&noHead, "noheader", "h", false, "")
			f.BoolVar(&start, "start", false, "")
			f.BoolP("array", "r", false, "")
		}, func(ctx context.Context, a *api, words []string) error {
			if len(words) > 0 {
				return fmt.Errorf("squeue takes no arguments, got %q; one job:  squeue -j %s", words[0], word(words[0]))
			}
			if err := pick.users(ctx, a); err != nil {
				return err
			}
			list, err := slurmJobs(ctx, a)
			if err != nil {
				return err
			}
			list = slices.DeleteFunc(list, func(j *wire.JobListStub) bool {
				return !slurmLive(j) || !pick.picks(j) || jobs != "" && !slices.ContainsFunc(strings.Split(jobs, ","), func(id string) bool { return slurmIs(j, id) })
			})
			rows, err := e.squeueJobs(ctx, a, list)
			if err != nil {
				return err
			}
			rows = slices.DeleteFunc(rows, func(j slurmJob) bool {
				short, name := j.state()
				states := strings.ToUpper(pick.states)
				return states != "ALL" && !among(states, short) && !among(states, name) || start && short != "PD"
			})
			switch {
			case format+withoutColumn != "":
				format = cmp.Or(format, withoutColumn)
			case start:
				format = "%i %P %j %u %t %S %R"
			case long:
				format = "%i %P %j %u %T %M %D %R"
			default:
				format = "%i %P %j %u %t %M %D %R"
			}
			return squeueTable.print(e, format, noHead, "", rows)
		})
}

func newScancel(e *env) *cobra.Command {
	var (
		pick slurmPick
		yes  bool
	)
	return e.slurmVerb("scancel [options] [ID...]", "Stop jobs as Slurm's scancel does",
		`Stop jobs by the names that sbatch printed or the numbers of SLURM_JOB_ID, or all of -u USER, --me, -n NAME, -p PARTITION (a node pool), -A ACCOUNT
(a queue) and -t STATE (pending or running); all that are given must hold. A selection asks, with the number of jobs and GPUs. Where there is no
terminal to ask at, --yes is needed.`, `
muster scancel train-1a2b
muster scancel --me -t PENDING --yes`, "muster job stop -help; a signal is sent by muster alloc signal, one index of an array is ended by muster alloc stop",
		func(f *pflag.FlagSet) {
			pick = slurmPick{}
			pick.flags(f)
			f.StringVarP(&pick.states, "state", "t", "", "")
			f.BoolVar(&yes, "yes", false, "")
			f.BoolP("quiet", "Q", false, "")
		}, func(ctx context.Context, a *api, words []string) error {
			selects := pick.me || pick.user+pick.name+pick.partition+pick.account+pick.states != ""
			if len(words) == 0 && !selects {
				return errors.New("scancel takes a job, or -u, --me, -n, -p, -A or -t")
			}
			if err := pick.users(ctx, a); err != nil {
				return err
			}
			state := strings.ToUpper(pick.states)
			if state != "" && !slices.Contains([]string{"PD", "PENDING", "R", "RUNNING"}, state) {
				return fmt.Errorf("-t %s: want PENDING or RUNNING", pick.states)
			}
			list, err := slurmJobs(ctx, a)
			if err != nil {
				return err
			}
			var meant []*wire.JobListStub
			for _, j := range list {
				if slurmLive(j) && pick.picks(j) && (state == "" || strings.HasPrefix(state, "P") == (j.Status == "pending")) &&
					(len(words) == 0 || slices.ContainsFunc(words, func(id string) bool { return slurmIs(j, id) })) {
					meant = append(meant, j)
				}
			}
			for _, id := range words {
				same := slices.DeleteFunc(slices.Clone(meant), func(j *wire.JobListStub) bool { return !slurmIs(j, id) })
				if len(same) > 1 {
					return fmt.Errorf("job %q exists in %d namespaces: choose one with -namespace", id, len(same))
				}
				if !slices.ContainsFunc(meant, func(j *wire.JobListStub) bool { return slurmIs(j, id) }) {
					if name, index, is := strings.Cut(id, "_"); is && index != "" && strings.Trim(index, "0123456789") == "" {
						return fmt.Errorf("%s: one index of an array is ended by  muster alloc stop ALLOCATION  (muster job allocs %s lists them)", id, word(name))
					}
					return fmt.Errorf("%s: no such job waits or runs (muster squeue lists them)", id)
				}
			}
			o := &jobStopOptions{env: e, yes: yes}
			switch {
			case len(meant) == 0:
				return nil
			case yes:
			case len(words) == 0:
				question, err := o.blast(ctx, a, meant)
				if err != nil {
					return err
				}
				if err := e.confirm(ctx, false, "%s", question); err != nil {
					return err
				}
			default:
				for _, j := range meant {
					if err := o.sure(ctx, a, j.ID, j); err != nil {
						return err
					}
				}
			}
			var errs []error
			for _, j := range meant {
				_, err := o.deregister(ctx, a, j)
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		})
}

// slurmNodes are nodes of one pool in one state.
type slurmNodes struct {
	pool, state, gres string
	names             []string
	cores, memory     int64
}

// slurmState is a node's state in Slurm's words.
func slurmState(n *wire.NodeListStub, running, held int) string {
	gpus := slurmGPUs(n)
	switch {
	case n.Status != "ready":
		return "down"
	case n.Drain && running > 0:
		return "draining"
	case n.Drain || n.SchedulingEligibility != "eligible":
		return "drained"
	case running == 0:
		return "idle"
	case gpus > 0 && held >= gpus:
		return "allocated"
	}
	return "mixed"
}

var slurmStateShort = map[string]string{"down": "down", "draining": "drng", "drained": "drain", "idle": "idle", "allocated": "alloc", "mixed": "mix"}

func slurmGPUs(n *wire.NodeListStub) (count int) {
	if n.NodeResources != nil {
		for _, d := range n.NodeResources.Devices {
			if d.Type == "gpu" {
				count += len(d.Instances)
			}
		}
	}
	return count
}

var sinfoTable = slurmTable[slurmNodes]{
	{"P", "partition", "PARTITION", func(n slurmNodes) string { return n.pool }},
	{"R", "partitionname", "PARTITION", func(n slurmNodes) string { return n.pool }},
	{"a", "available", "AVAIL", func(slurmNodes) string { return "up" }},
	{"D", "nodes", "NODES", func(n slurmNodes) string { return strconv.Itoa(len(n.names)) }},
	{"t", "statecompact", "STATE", func(n slurmNodes) string { return slurmStateShort[n.state] }},
	{"T", "statelong", "STATE", func(n slurmNodes) string { return n.state }},
	{"N", "nodelist", "NODELIST", func(n slurmNodes) string { return strings.Join(n.names, ",") }},
	{"n", "nodehost", "HOSTNAMES", func(n slurmNodes) string { return strings.Join(n.names, ",") }},
	{"G", "gres", "GRES", func(n slurmNodes) string { return cmp.Or(n.gres, "(null)") }},
	{"c", "cpus", "CPUS", func(n slurmNodes) string { return strconv.FormatInt(n.cores, 10) }},
	{"m", "memory", "MEMORY", func(n slurmNodes) string { return strconv.FormatInt(n.memory, 10) }},
}

func newSinfo(e *env) *cobra.Command {
	var (
		format, columns, pools, states, names string
		byNode, long, noHead                  bool
	)
	return e.slurmVerb("sinfo [options]", "List nodes as Slurm's sinfo does",
		`List node pools with their nodes by state, as Slurm's sinfo does, or with -N each node: -p PARTITION, -n NODE, -t STATE, -l, -h, and -o or --Format with
the common fields. A node is allocated when all its GPUs are held, mixed when some or none are; drained nodes take no new work.`, `
muster sinfo
muster sinfo -N -l
muster sinfo -h -o '%N %G %t'`, "muster node status, muster gpu list and muster node pool list",
		func(f *pflag.FlagSet) {
			f.StringVarP(&pools, "partition", "p", "", "")
			f.StringVarP(&names, "nodes", "n", "", "")
			f.StringVarP(&states, "states", "t", "", "")
			f.StringVarP(&format, "format", "o", "", "")
			f.StringVarP(&columns, "Format", "O", "", "")
			f.BoolVarP(&byNode, "Node", "N", false, "")
			f.BoolVarP(&long, "long", "l", false, "")
			f.BoolVarP(&noHead, "noheader", "h", false, "")
		}, func(ctx context.Context, a *api, words []string) error {
			if len(words) > 0 {
				return fmt.Errorf("sinfo takes no arguments, got %q; one node:  sinfo -n %s", words[0], word(words[0]))
			}
			var list []*wire.NodeListStub
			if _, err := a.get(ctx, "/v1/nodes", url.Values{"resources": {"true"}}, &list); err != nil {
				return err
			}
			allocs, err := slurmAllocs(ctx, a)
			if err != nil {
				return err
			}
			running, held := map[string]int{}, map[string]int{}
			for _, s := range allocs {
				running[s.NodeID]++
				held[s.NodeID] += int(heldBy([]*wire.AllocationListStub{s}))
			}
			var rows []slurmNodes
			slices.SortFunc(list, func(x, y *wire.NodeListStub) int {
				return cmp.Or(cmp.Compare(x.NodePool, y.NodePool), cmp.Compare(x.Name, y.Name), cmp.Compare(x.ID, y.ID))
			})
			for _, n := range list {
				r := slurmNodes{pool: n.NodePool, state: slurmState(n, running[n.ID], held[n.ID]), names: []string{n.Name}}
				if !among(pools, r.pool) || !among(names, n.Name) || !among(strings.ToLower(states), r.state) && !among(strings.ToLower(states), slurmStateShort[r.state]) {
					continue
				}
				if v := n.NodeResources; v != nil {
					r.cores, r.memory = int64(v.Cpu.TotalCpuCores), v.Memory.MemoryMB
					var gres []string
					for _, d := range v.Devices {
						if d.Type == "gpu" {
							gres = append(gres, fmt.Sprintf("gpu:%s:%d", strings.ReplaceAll(d.Name, " ", "_"), len(d.Instances)))
						}
					}
					r.gres = strings.Join(gres, ",")
				}
				i := slices.IndexFunc(rows, func(x slurmNodes) bool {
					return x.pool == r.pool && x.state == r.state && x.gres == r.gres && x.cores == r.cores && x.memory == r.memory
				})
				if i < 0 || byNode {
					rows = append(rows, r)
				} else {
					rows[i].names = append(rows[i].names, n.Name)
				}
			}
			switch {
			case format+columns != "":
				format = cmp.Or(format, columns)
			case byNode && long:
				format = "%N %D %P %T %c %m %G"
			case byNode:
				format = "%N %D %P %t"
			case long:
				format = "%P %a %D %T %c %m %G %N"
			default:
				format = "%P %a %D %t %N"
			}
			return sinfoTable.print(e, format, noHead, "", rows)
		})
}
