package main

import (
	"cmp"
	"context"
	"fmt"
	"os/user"
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

func (j slurmJob) state() string {
	switch {
	case j.Status == "pending" || len(j.nodes) == 0:
		return "PENDING"
	case j.Stop:
		return "COMPLETING"
	}
	return "RUNNING"
}

// slurmStates are the short forms of states, as in -s.
var slurmStates = map[string]string{
	"COMPLETED": "CD", "FAILED": "F", "CANCELLED": "CA", "PREEMPTED": "PR", "TIMEOUT": "TO", "DEADLINE": "DL", "NODE_FAIL": "NF", "RUNNING": "R", "PENDING": "PD", "COMPLETING": "CG",
}

func slurmNumber(index uint64) string { return strconv.FormatUint(index, 10) }

var squeueTable = slurmTable[slurmJob]{
	{"i", "jobid", "JOBID", func(j slurmJob) string { return j.ID }},
	{"A", "jobarrayid", "JOBID", func(j slurmJob) string { return slurmNumber(j.CreateIndex) }},
	{"P", "partition", "PARTITION", func(j slurmJob) string { return j.NodePool }},
	{"j", "name", "NAME", func(j slurmJob) string { return j.Name }},
	{"u", "username", "USER", func(j slurmJob) string { return orDash(j.User) }},
	{"t", "statecompact", "ST", func(j slurmJob) string { return slurmStates[j.state()] }},
	{"T", "state", "STATE", func(j slurmJob) string { return j.state() }},
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

// amongStates is among for a state, which the list may have in its short form.
func amongStates(list, state string) bool {
	return among(list, state) || among(list, slurmStates[state])
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

// slurmLive reports whether squeue would list a job: it waits or runs by itself.
func slurmLive(j *wire.JobListStub) bool {
	return j.Status != "dead" && (j.ParentID != "" || !j.Periodic && !j.ParameterizedJob)
}

// slurmIs reports whether a job is the one with an id: its name, or the number in SLURM_JOB_ID or SLURM_ARRAY_JOB_ID,
// also of one index.
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
	if len(list) == 0 {
		return nil, nil // the lists of allocations and of the queue may be long
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
				states := strings.ToUpper(pick.states)
				return states != "ALL" && !amongStates(states, j.state()) || start && j.state() != "PENDING"
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
