package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
)

type acctOptions struct {
	*env
	form                      format
	csv                       bool
	user, queue, since, until string
	by                        string
}

func newAcct(e *env) *cobra.Command {
	o := &acctOptions{env: e}
	c := e.verb("acct [options] [JOB]", "List the jobs that ended, with what they used", "List the jobs that ended, the oldest first: who, which queue, when, what they asked for and used, and how they ended. With JOB each time that\nthis job ended, and its launches; the beginning of an id is enough. With -by the totals of users, queues, namespaces or ways\nto end. -csv can be replayed: muster sim -trace. Records are kept for 30 days, at most 100,000.", `
muster acct -since 24h
muster acct train
muster acct -since 7d -by user
muster acct -queue research -csv > jobs.csv`, 0, 1, o.run)
	o.form.listFlags(c)
	c.Flags().BoolVar(&o.csv, "csv", false, "print comma-separated values with a header, as the simulator reads them")
	c.Flags().StringVar(&o.user, "user", "", "only jobs of this submitter")
	c.Flags().StringVar(&o.queue, "queue", "", "only jobs of this queue and those below it")
	c.Flags().StringVar(&o.since, "since", "", "only jobs that ended since: a time (2026-01-31T12:00:00Z) or a span before now (24h, 7d)")
	c.Flags().StringVar(&o.until, "until", "", "only jobs that ended before, as -since")
	c.Flags().StringVar(&o.by, "by", "", "totals by user, queue, namespace or exit")
	return c
}

// days converts "7d" to hours for the API.
func days(v string) string {
	if n, ok := strings.CutSuffix(v, "d"); ok {
		if d, err := strconv.Atoi(n); err == nil {
			return strconv.Itoa(24*d) + "h"
		}
	}
	return v
}

// pages reads every page of a list.
func pages[T any](ctx context.Context, a *api, path string, q url.Values) ([]T, error) {
	all := []T{}
	for {
		var page []T
		m, err := a.get(ctx, path, q, &page)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if m.NextToken == "" {
			return all, nil
		}
		q.Set("next_token", m.NextToken)
	}
}

// recordsOf returns the records of a job and of what it launched or, if there are none, of the jobs whose ids begin with the name.
func recordsOf(list []nomadlike.AcctRecord, job string) []nomadlike.AcctRecord {
	var own, begin []nomadlike.AcctRecord
	for _, r := range list {
		switch {
		case r.JobID == job || strings.HasPrefix(r.JobID, job+"/"):
			own = append(own, r)
		case strings.HasPrefix(r.JobID, job):
			begin = append(begin, r)
		}
	}
	if len(own) > 0 {
		return own
	}
	return begin
}

func (o *acctOptions) run(ctx context.Context, args []string) error {
	key, ok := map[string]func(*nomadlike.AcctRecord) string{
		"": nil, "user": func(r *nomadlike.AcctRecord) string { return orDash(r.User) }, "queue": func(r *nomadlike.AcctRecord) string { return r.Queue },
		"namespace": func(r *nomadlike.AcctRecord) string { return r.Namespace }, "exit": func(r *nomadlike.AcctRecord) string { return r.Exit },
	}[o.by]
	if !ok {
		return fmt.Errorf("-by %q: want user, queue, namespace or exit", o.by)
	}
	if o.csv && o.form.quiet {
		return errors.New("-csv and -q exclude each other: choose one")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	q := ns(a.anyNamespace())
	for name, v := range map[string]string{"user": o.user, "queue": o.queue, "since": days(o.since), "until": days(o.until)} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if len(args) > 0 {
		q.Set("prefix", args[0])
	}
	list, err := pages[nomadlike.AcctRecord](ctx, a, "/v1/acct", q)
	if err != nil {
		return err
	}
	if len(args) > 0 {
		if list = recordsOf(list, args[0]); len(list) == 0 {
			return noJob(fmt.Sprintf("no job has ended whose id is or begins with %q (muster job status %s shows one that runs)", args[0], word(args[0])))
		}
	}
	if key != nil {
		return o.totals(list, key)
	}
	if done, err := listed(&o.form, o.env, list, "", func(r nomadlike.AcctRecord) string { return r.JobID }); done || err != nil {
		return err
	}
	if err := a.inNoNamespace(ctx, len(list)); err != nil {
		return err
	}
	if o.csv {
		return o.writeCSV(list)
	}
	if len(list) == 0 {
		o.println("No job has ended")
		return nil
	}
	rows := [][]string{}
	measured := slices.ContainsFunc(list, func(r nomadlike.AcctRecord) bool { return r.GPUUse != nil })
	for i := range list {
		r := &list[i]
		job := r.JobID
		if r.Namespace != "default" {
			job = r.Namespace + "/" + job
		}
		ran := "-"
		if r.StartTime > 0 {
			ran = span(time.Duration(r.EndTime - r.StartTime))
		}
		exit := r.Exit
		if r.DeadlineMissed {
			exit += ", late"
		}
		if r.ExitCode != 0 {
			exit += fmt.Sprintf(" (%d)", r.ExitCode)
		}
		row := []string{job, orDash(r.User), r.Queue, time.Unix(0, r.EndTime).UTC().Format("2006-01-02 15:04:05"), span(acctWaited(r)), ran,
			acctGPUs(r), hours(r.GPUSeconds)}
		if measured {
			row = append(row, gpuUsedCells(r.GPUUse)...)
		}
		rows = append(rows, append(row, strconv.FormatInt(r.Preemptions, 10), exit))
	}
	head := "JOB|USER|QUEUE|ENDED|WAITED|RAN|GPUS|GPU-HOURS|"
	if measured {
		head += gpuUsedHead
	}
	o.table(head+"PREEMPTED|EXIT", rows)
	return nil
}

// acctGPUs returns how many GPUs a job asked for; for shares requested in memory alone, the memory.
func acctGPUs(r *nomadlike.AcctRecord) string {
	if r.GPUs == 0 && r.GPUMemoryMiB > 0 {
		return mib(r.GPUMemoryMiB)
	}
	return strconv.FormatFloat(r.GPUs, 'f', -1, 64)
}

// gpuUsedHead are the columns of GPU measurements; they are shown if there are any.
const gpuUsedHead = "SM-HOURS|SM ACTIVE|GIB-HOURS|GPU PEAK|GPU WH|"

func gpuUsedCells(u *wire.GPUUse) []string {
	if u == nil {
		return []string{"-", "-", "-", "-", "-"}
	}
	return []string{strconv.FormatFloat(u.SMSeconds/3600, 'f', 2, 64), smActive(u), gibHours(u.MiBSeconds), mib(u.PeakMiB), strconv.FormatFloat(u.EnergyJoules/3600, 'f', 2, 64)}
}

// gibHours formats MiB-seconds as GiB-hours.
func gibHours(mibSeconds int64) string {
	return strconv.FormatFloat(float64(mibSeconds)/1024/3600, 'f', 2, 64)
}

// hours formats seconds as hours.
func hours(seconds int64) string { return strconv.FormatFloat(float64(seconds)/3600, 'f', 2, 64) }

// acctTotal is the total of some jobs; also its JSON form.
type acctTotal struct {
	Name        string
	Jobs        int64
	Failed      int64 // jobs that did not succeed
	GPUSeconds  int64
	CPUSeconds  int64
	Preemptions int64
	MeanWait    int64        // nanoseconds
	GPUUse      *wire.GPUUse `json:",omitempty"` // measured; the peak is the largest of all
}

func (o *acctOptions) totals(list []nomadlike.AcctRecord, key func(*nomadlike.AcctRecord) string) error {
	by := map[string]*acctTotal{}
	for i := range list {
		r := &list[i]
		t := by[key(r)]
		if t == nil {
			t = &acctTotal{Name: key(r)}
			by[t.Name] = t
		}
		t.Jobs++
		if r.Exit != "success" {
			t.Failed++
		}
		t.GPUSeconds += r.GPUSeconds
		t.CPUSeconds += r.CPUSeconds
		t.Preemptions += r.Preemptions
		t.GPUUse = addGPUUse(t.GPUUse, r.GPUUse)
		t.MeanWait += (int64(acctWaited(r)) - t.MeanWait) / t.Jobs
	}
	out := []*acctTotal{}
	for _, k := range sortedKeys(by) {
		out = append(out, by[k])
	}
	slices.SortStableFunc(out, func(a, b *acctTotal) int { return int(min(max(b.GPUSeconds-a.GPUSeconds, -1), 1)) })
	if done, err := listed(&o.form, o.env, out, "", func(t *acctTotal) string { return t.Name }); done || err != nil {
		return err
	}
	rows := [][]string{}
	measured := slices.ContainsFunc(out, func(t *acctTotal) bool { return t.GPUUse != nil })
	for _, t := range out {
		row := []string{t.Name, strconv.FormatInt(t.Jobs, 10), strconv.FormatInt(t.Failed, 10), hours(t.GPUSeconds)}
		if measured {
			row = append(row, gpuUsedCells(t.GPUUse)...)
		}
		rows = append(rows, append(row, hours(t.CPUSeconds), span(time.Duration(t.MeanWait)), strconv.FormatInt(t.Preemptions, 10)))
	}
	head := strings.ToUpper(o.by) + "|JOBS|NOT OK|GPU-HOURS|"
	if measured {
		head += gpuUsedHead
	}
	o.table(head+"GHZ-HOURS|MEAN WAIT|PREEMPTED", rows)
	return nil
}

func addGPUUse(sum, u *wire.GPUUse) *wire.GPUUse {
	switch {
	case u == nil:
		return sum
	case sum == nil:
		sum = &wire.GPUUse{}
	}
	sum.PeakMiB = max(sum.PeakMiB, u.PeakMiB)
	sum.MiBSeconds += u.MiBSeconds
	sum.SMSeconds += u.SMSeconds
	sum.EnergyJoules += u.EnergyJoules
	sum.Refused += u.Refused
	if u.SMActivity != nil {
		mean := *u.SMActivity
		if sum.SMActivity != nil {
			mean = (*sum.SMActivity*sum.SMActivitySeconds + mean*u.SMActivitySeconds) / max(sum.SMActivitySeconds+u.SMActivitySeconds, 1e-9)
		}
		sum.SMActivity = &mean
		sum.SMActivitySeconds += u.SMActivitySeconds
	}
	return sum
}

// acctWaited returns the time from the submission to the first start, or to the end of a job that never started.
func acctWaited(r *nomadlike.AcctRecord) time.Duration {
	if r.StartTime == 0 {
		return time.Duration(r.EndTime - r.SubmitTime)
	}
	return time.Duration(r.StartTime - r.SubmitTime)
}

// writeCSV prints jobs in the simulator's csv format, with additional columns behind. Jobs that never started have no
// run time to replay and are left out.
func (o *acctOptions) writeCSV(list []nomadlike.AcctRecord) error {
	w := csv.NewWriter(o.out)
	seconds := func(ns int64) string {
		if ns <= 0 {
			return ""
		}
		return strconv.FormatFloat(float64(ns)/1e9, 'f', -1, 64)
	}
	left := 0
	rows := [][]string{{"job", "submit", "runtime", "gpus", "cpus", "memory", "estimate", "limit", "user", "queue", "priority",
		"namespace", "pool", "start", "end", "gpu_seconds", "cpu_seconds", "preemptions", "requeues", "exit", "exit_code",
		"gpu_peak_mib", "gpu_mib_seconds", "gpu_sm_seconds", "gpu_joules", "deadline", "missed", "gpu_sm_active_percent"}}
	for i := range list {
		r := &list[i]
		if r.StartTime == 0 {
			left++
			continue
		}
		ran := r.EndTime - r.StartTime
		if r.Longest > 0 {
			ran = r.Longest
		}
		used, active := wire.GPUUse{}, ""
		if r.GPUUse != nil {
			used = *r.GPUUse
		}
		if used.SMActivity != nil {
			active = strconv.FormatFloat(*used.SMActivity, 'f', 1, 64)
		}
		rows = append(rows, []string{r.JobID, seconds(r.SubmitTime), seconds(max(ran, 1e6)), strconv.FormatFloat(r.GPUs, 'f', -1, 64),
			strconv.FormatInt(max(1, (r.CPU+999)/1000), 10), strconv.FormatInt(r.MemoryMiB, 10), seconds(r.Expected), seconds(r.Limit), r.User, r.Queue, strconv.Itoa(r.Priority),
			r.Namespace, r.NodePool, seconds(r.StartTime), seconds(r.EndTime), strconv.FormatInt(r.GPUSeconds, 10), strconv.FormatInt(r.CPUSeconds, 10),
			strconv.FormatInt(r.Preemptions, 10), strconv.FormatInt(r.Requeues, 10), r.Exit, strconv.FormatInt(r.ExitCode, 10),
			strconv.FormatInt(used.PeakMiB, 10), strconv.FormatInt(used.MiBSeconds, 10), strconv.FormatFloat(used.SMSeconds, 'f', -1, 64), strconv.FormatFloat(used.EnergyJoules, 'f', -1, 64),
			seconds(r.Deadline), map[bool]string{true: "true"}[r.DeadlineMissed], active})
	}
	if err := w.WriteAll(rows); err != nil {
		return err
	}
	if left > 0 {
		o.hint("%s never started and %s left out", plural(int64(left), "job"), map[bool]string{true: "is", false: "are"}[left == 1])
	}
	return nil
}
