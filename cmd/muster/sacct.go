package main

import (
	"cmp"
	"context"
	"fmt"
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

// slurmRecord is a job as sacct lists it: one that ended, or one that waits or runs.
type slurmRecord struct {
	nomadlike.AcctRecord
	state string
	now   time.Time
}

// slurmEnds are Slurm's names of how jobs end.
var slurmEnds = map[string]string{
	structs.ExitSuccess: "COMPLETED", structs.ExitFailed: "FAILED", structs.ExitStopped: "CANCELLED", structs.ExitPreempted: "PREEMPTED", structs.ExitLimit: "TIMEOUT",
	structs.ExitDeadline: "DEADLINE", structs.ExitLost: "NODE_FAIL",
}

var sacctTable = slurmTable[slurmRecord]{
	{"", "jobid", "JobID", func(r slurmRecord) string { return r.JobID }},
	{"", "jobname", "JobName", func(r slurmRecord) string { return r.Name }},
	{"", "user", "User", func(r slurmRecord) string { return orDash(r.User) }},
	{"", "partition", "Partition", func(r slurmRecord) string { return r.NodePool }},
	{"", "account", "Account", func(r slurmRecord) string { return cmp.Or(r.Queue, "default") }},
	{"", "state", "State", func(r slurmRecord) string { return r.state }},
	{"", "exitcode", "ExitCode", func(r slurmRecord) string { return strconv.FormatInt(r.ExitCode, 10) + ":0" }},
	{"", "elapsed", "Elapsed", func(r slurmRecord) string { return slurmClock(r.ran()) }},
	{"", "elapsedraw", "ElapsedRaw", func(r slurmRecord) string { return strconv.FormatInt(int64(r.ran()/time.Second), 10) }},
	{"", "submit", "Submit", func(r slurmRecord) string { return slurmDate(r.SubmitTime) }},
	{"", "start", "Start", func(r slurmRecord) string { return strings.Replace(slurmDate(r.StartTime), "N/A", "Unknown", 1) }},
	{"", "end", "End", func(r slurmRecord) string { return strings.Replace(slurmDate(r.EndTime), "N/A", "Unknown", 1) }},
	{"", "alloctres", "AllocTRES", func(r slurmRecord) string { return "gres/gpu=" + strconv.FormatFloat(r.GPUs, 'f', -1, 64) }},
	{"", "priority", "Priority", func(r slurmRecord) string { return strconv.Itoa(r.Priority) }},
}

// ran is how long a job ran, or has run.
func (r slurmRecord) ran() time.Duration {
	switch {
	case r.StartTime == 0:
		return 0
	case r.EndTime == 0:
		return r.now.Sub(time.Unix(0, r.StartTime))
	}
	return time.Duration(r.EndTime - r.StartTime)
}

var slurmAgo = regexp.MustCompile(`^now-([0-9]{1,6})(seconds?|minutes?|hours?|days?|weeks?)?$`)

// slurmWhen reads a time of -S or -E: 2026-01-31, 2026-01-31T08:00[:00], 08:00[:00], today, now, now-2days.
func slurmWhen(option, text string, now time.Time) (time.Time, error) {
	midnight := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	switch text {
	case "now":
		return now, nil
	case "today", "midnight":
		return midnight, nil
	}
	if m := slurmAgo.FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1]) // at most six digits
		unit := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour, 'w': 7 * 24 * time.Hour}[cmp.Or(m[2], "s")[0]]
		return now.Add(-time.Duration(n) * unit), nil
	}
	for _, layout := range []string{"2006-01-02", "2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	for _, layout := range []string{"15:04", "15:04:05"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return midnight.Add(time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute + time.Duration(t.Second())*time.Second), nil
		}
	}
	return time.Time{}, fmt.Errorf("%s %q: want a time as 2026-01-31, 2026-01-31T08:00, 08:00, today or now-2days", option, text)
}

type sacctOptions struct {
	*env
	pick                              slurmPick
	jobs, format, since, until, state string
	all, noHead, parsable, parsable2  bool
}

func newSacct(e *env) *cobra.Command {
	o := &sacctOptions{env: e}
	return e.slurmVerb("sacct [options]", "List jobs that ended or run as Slurm's sacct does",
		`List your jobs that ended since midnight, and those that wait or run, as Slurm's sacct does: -j ID, -u USER, -a (all users), -S and -E (since, until),
-s STATE, -n (no header), -P or -p, and -o or --format with the common fields. What a job used of its GPUs and memory is in muster eff.`, `
muster sacct -S now-2days
muster sacct -j train-1a2b -o JobID,State,ExitCode,Elapsed
muster sacct -a -X -n -P -S 2026-01-31`, "muster acct, muster eff JOB (what it used)",
		func(f *pflag.FlagSet) {
			f.StringVarP(&o.jobs, "jobs", "j", "", "")
			f.StringVarP(&o.pick.user, "user", "u", "", "")
			f.StringVar(&o.pick.name, "name", "", "")
			f.StringVarP(&o.pick.partition, "partition", "r", "", "")
			f.StringVarP(&o.pick.account, "accounts", "A", "", "")
			f.StringVarP(&o.format, "format", "o", "JobID,JobName,Partition,Account,AllocTRES,Elapsed,State,ExitCode", "")
			f.StringVarP(&o.since, "starttime", "S", "", "")
			f.StringVarP(&o.until, "endtime", "E", "", "")
			f.StringVarP(&o.state, "state", "s", "", "")
			f.BoolVarP(&o.all, "allusers", "a", false, "")
			f.BoolVarP(&o.noHead, "noheader", "n", false, "")
			f.BoolVarP(&o.parsable, "parsable", "p", false, "")
			f.BoolVarP(&o.parsable2, "parsable2", "P", false, "")
			f.BoolP("allocations", "X", false, "")
		}, o.run)
}

func (o *sacctOptions) run(ctx context.Context, a *api, words []string) error {
	if len(words) > 0 {
		return fmt.Errorf("sacct takes no arguments, got %q; one job:  sacct -j %s", words[0], word(words[0]))
	}
	o.pick.me = o.pick.user == "" && !o.all && o.jobs == ""
	if err := o.pick.users(ctx, a); err != nil {
		return err
	}
	now := o.now()
	q := ns(a.anyNamespace())
	if o.since == "" && o.jobs == "" {
		o.since = "today"
	}
	for _, t := range []struct{ key, option, text string }{{"since", "-S", o.since}, {"until", "-E", o.until}} {
		if t.text == "" {
			continue
		}
		at, err := slurmWhen(t.option, t.text, now)
		if err != nil {
			return err
		}
		q.Set(t.key, at.UTC().Format(time.RFC3339))
	}
	ended, err := pages[nomadlike.AcctRecord](ctx, a, "/v1/acct", q)
	if err != nil {
		return err
	}
	list, err := slurmJobs(ctx, a)
	if err != nil {
		return err
	}
	names := map[string]string{} // what the numbers in -j stand for
	for _, j := range list {
		for _, id := range strings.Split(o.jobs, ",") {
			if slurmIs(j, id) {
				names[id] = j.ID
			}
		}
	}
	var rows []slurmRecord
	for _, r := range ended {
		rows = append(rows, slurmRecord{r, cmp.Or(slurmEnds[r.Exit], strings.ToUpper(r.Exit)), now})
	}
	live := slices.DeleteFunc(list, func(j *wire.JobListStub) bool { return !slurmLive(j) })
	if o.until != "" {
		live = nil
	}
	jobs, err := o.squeueJobs(ctx, a, live)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		rows = append(rows, slurmRecord{nomadlike.AcctRecord{JobID: j.ID, Name: j.Name, Namespace: j.Namespace, User: j.User, Queue: j.Queue, NodePool: j.NodePool, Priority: j.Priority,
			SubmitTime: j.SubmitTime, StartTime: j.since, GPUs: float64(j.gpus)}, j.state(), now})
	}
	rows = slices.DeleteFunc(rows, func(r slurmRecord) bool {
		named := o.jobs == "" || slices.ContainsFunc(strings.Split(o.jobs, ","), func(id string) bool {
			id = cmp.Or(names[id], id)
			return r.JobID == id || strings.HasPrefix(r.JobID, id+"/")
		})
		stub := &wire.JobListStub{ID: r.JobID, Name: r.Name, User: r.User, NodePool: r.NodePool, Queue: r.Queue}
		return !named || !o.pick.picks(stub) || !amongStates(strings.ToUpper(o.state), r.state)
	})
	delimiter := ""
	if o.parsable || o.parsable2 {
		delimiter = "|"
	}
	return sacctTable.print(o.env, o.format, o.noHead, delimiter, rows)
}
