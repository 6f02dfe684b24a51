package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
)

// objectOptions are the flags of commands on queues, quotas and reservations.
type objectOptions struct {
	*env
	form format
}

// escapePath escapes a queue's path or a name for a URL and keeps the slashes of a path.
func escapePath(p string) string { return strings.ReplaceAll(url.PathEscape(p), "%2F", "/") }

func newQueueApply(e *env) *cobra.Command {
	o := &objectOptions{env: e}
	c := e.verb("apply [options] FILE", "Make or change queues", "Make or change queues from a file in HCL or JSON; \"-\" is standard input. A file may hold several queues, parents before children.", `
muster queue apply queues.hcl`, 1, 1, o.queueApply)
	return files(c, "hcl", "json")
}

// queueSpecs reads the queues of a file.
func (e *env) queueSpecs(path string) ([]*wire.Queue, error) {
	specs, err := e.specBlocks(path, "queue")
	if err != nil {
		return nil, err
	}
	list := make([]*wire.Queue, len(specs))
	for i, s := range specs {
		list[i] = &wire.Queue{}
		if err := s.Decode("queue", list[i]); err != nil {
			return nil, err
		}
		if list[i].Path == "" {
			list[i].Path = list[i].Name
		}
		list[i].Name = ""
		q, err := list[i].ToStructs()
		if err != nil {
			return nil, s.At(err)
		}
		if err := q.Check(); err != nil {
			return nil, s.At(err)
		}
	}
	return list, nil
}

func (o *objectOptions) queueApply(ctx context.Context, args []string) error {
	list, err := o.queueSpecs(args[0])
	if err != nil {
		return err
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	var w nomadlike.QueueWritten
	if _, err := a.put(ctx, "/v1/queues", nil, list, &w); err != nil {
		return fmt.Errorf("apply queues: %w", err)
	}
	for _, q := range list {
		o.printf("Queue %q applied\n", q.Path)
	}
	o.warn(w.Warnings)
	return nil
}

func (o *objectOptions) warn(texts []string) {
	for _, text := range texts {
		o.printf("Warning: %s\n", text)
	}
}

func newQueueDelete(e *env) *cobra.Command {
	o := &objectOptions{env: e}
	return e.verb("delete [options] PATH", "Delete a queue without children and jobs", "", `muster queue delete research/nlp`, 1, 1, func(ctx context.Context, args []string) error {
		return o.remove(ctx, "queue", "/v1/queue/", args[0])
	})
}

// remove deletes an object by name.
func (o *objectOptions) remove(ctx context.Context, kind, at, name string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	if _, err := a.delete(ctx, at+escapePath(name), nil, nil); err != nil {
		return fmt.Errorf("delete %s %q: %w", kind, name, err)
	}
	o.printf("%s %q deleted\n", strings.ToUpper(kind[:1])+kind[1:], name)
	return nil
}

func newQueueObjects(e *env) *cobra.Command {
	o := &objectOptions{env: e}
	c := e.verb("list [options]", "List queue objects with what they hold", "", "muster queue list\nmuster queue list -o wide", 0, 0, o.queueList)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	return c
}

func (o *objectOptions) queueList(ctx context.Context, _ []string) error {
	list, done, err := fetchList(ctx, &o.form, o.env, "/v1/queues", nil, "", func(q nomadlike.QueueState) string { return q.Path })
	if done || err != nil {
		return err
	}
	head, rows := "PATH|ORDER|WEIGHT|GPUS|GUARANTEE|LIMIT|RUNNING|WAITING", [][]string{}
	if o.form.wide {
		head += "|BACKFILL|PREEMPT|PART|TARGET|GPU HOURS|OLDEST WAIT|ALLOCS|SUBMITTED|PREEMPTIONS|DESCRIPTION"
	}
	for i := range list {
		q := &list[i]
		r := []string{q.Path, string(q.Effective.Order), strconv.FormatInt(max(q.Weight, 1), 10), gpuText(q.Held), boundText(q.Guarantee), boundText(q.Limit),
			strconv.FormatInt(q.Jobs, 10), strconv.FormatInt(q.Waiting, 10)}
		if o.form.wide {
			r = append(r, backfillText(q.Effective), q.Effective.Preempt, percentText(q.Part), targetText(q.Target), budgetText(q), oldestText(q.Oldest))
			for _, n := range []int64{q.Allocs, q.Submitted, q.Preemptions} {
				r = append(r, strconv.FormatInt(n, 10))
			}
			r = append(r, orDash(q.Description))
		}
		rows = append(rows, r)
	}
	o.table(head, rows)
	return nil
}

// boundText is the GPUs of a guarantee or limit, or its other components where it has none of GPUs.
func boundText(a *wire.Amount) string {
	if a != nil && a.GPUs == nil {
		if text := amountText(a); text != "no limit" {
			return text
		}
	}
	return gpuText(a)
}

func gpuText(a *wire.Amount) string {
	if a == nil || a.GPUs == nil {
		return "-"
	}
	return strconv.FormatFloat(*a.GPUs, 'f', -1, 64)
}

// amountText formats an amount.
func amountText(a *wire.Amount) string {
	if a == nil {
		return "-"
	}
	var parts []string
	if a.GPUs != nil {
		parts = append(parts, gpuText(a)+" GPUs")
	}
	if a.GPUMemoryMB != nil {
		parts = append(parts, mib(*a.GPUMemoryMB)+" of GPU memory")
	}
	if a.CPU != nil {
		parts = append(parts, fmt.Sprintf("%d MHz", *a.CPU))
	}
	if a.MemoryMB != nil {
		parts = append(parts, mib(*a.MemoryMB))
	}
	for _, m := range slices.Sorted(maps.Keys(a.Models)) {
		n := a.Models[m]
		parts = append(parts, gpuText(&wire.Amount{GPUs: &n})+" of model "+m)
	}
	if a.Billed != nil {
		parts = append(parts, strconv.FormatFloat(*a.Billed, 'f', -1, 64)+" billing units")
	}
	if len(parts) == 0 {
		return "no limit"
	}
	return strings.Join(parts, ", ")
}

// heldText formats an amount that is held or guaranteed; components that are 0 are left out.
func heldText(a *wire.Amount) string {
	if a == nil {
		return "-"
	}
	c := *a
	if c.GPUs != nil && *c.GPUs == 0 {
		c.GPUs = nil
	}
	for _, p := range []**int64{&c.GPUMemoryMB, &c.CPU, &c.MemoryMB} {
		if *p != nil && **p == 0 {
			*p = nil
		}
	}
	if c.GPUs == nil && c.GPUMemoryMB == nil && c.CPU == nil && c.MemoryMB == nil && c.Billed == nil && len(c.Models) == 0 {
		return "nothing"
	}
	return amountText(&c)
}

// billingText formats billing weights.
func billingText(b *wire.Billing) string {
	if b == nil {
		return "none: by dominant share"
	}
	var parts []string
	add := func(name string, w float64) {
		parts = append(parts, name+" "+strconv.FormatFloat(w, 'f', -1, 64))
	}
	for _, m := range slices.Sorted(maps.Keys(b.Models)) {
		add(m, b.Models[m])
	}
	if b.GPU != nil {
		add("other GPUs", *b.GPU)
	}
	for _, c := range []struct {
		name string
		w    float64
	}{{"GB of GPU memory", b.GPUMemoryGB}, {"GHz", b.CPUGHz}, {"GB of memory", b.MemoryGB}} {
		if c.w != 0 {
			add(c.name, c.w)
		}
	}
	return strings.Join(parts, ", ")
}

func newQueueInspect(e *env) *cobra.Command {
	o := &objectOptions{env: e}
	return e.verb("inspect [options] PATH", "Show a queue as JSON", "", `muster queue inspect research`, 1, 1, func(ctx context.Context, args []string) error {
		var q nomadlike.QueueState
		return o.inspect(ctx, "queue", "/v1/queue/", args[0], &q)
	})
}

// objectInspect returns the verb that shows an object of a kind.
func objectInspect(e *env, kind, at, example string, shape func() any) *cobra.Command {
	o := &objectOptions{env: e}
	return e.verb("inspect [options] NAME", "Show a "+kind+" as JSON", "", "muster "+kind+" inspect "+example, 1, 1, func(ctx context.Context, args []string) error {
		return o.inspect(ctx, kind, at, args[0], shape())
	})
}

// objectDelete returns the verb that deletes an object of a kind.
func objectDelete(e *env, kind, at, example, short string) *cobra.Command {
	o := &objectOptions{env: e}
	return e.verb("delete [options] NAME", short, "", "muster "+kind+" delete "+example, 1, 1, func(ctx context.Context, args []string) error {
		return o.remove(ctx, kind, at, args[0])
	})
}

// inspect prints an object as JSON.
func (o *objectOptions) inspect(ctx context.Context, kind, at, name string, v any) error {
	if name == "" {
		return fmt.Errorf("the name of the %s is empty", kind)
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	if _, err := a.get(ctx, at+escapePath(name), nil, v); err != nil {
		return err // the error names the object
	}
	b, err := json.MarshalIndent(v, "", "    ")
	if err != nil {
		return err
	}
	o.println(string(b))
	return nil
}

// priorityText returns a setting of a queue's or namespace's priorities.
func priorityText(p int64) string {
	if p == 0 {
		return "-"
	}
	return strconv.FormatInt(p, 10)
}

// usersShown limits the submitters that one line names.
const usersShown = 8

// prioritiesText formats a setting of a queue's priorities: that of all submitters, and those of particular ones.
func prioritiesText(p int64, users map[string]int64) string {
	text := priorityText(p)
	if len(users) == 0 {
		return text
	}
	var parts []string
	for i, user := range slices.Sorted(maps.Keys(users)) {
		if i == usersShown {
			parts = append(parts, fmt.Sprintf("%d more", len(users)-i))
			break
		}
		parts = append(parts, fmt.Sprintf("%s %d", user, users[user]))
	}
	return text + " (" + strings.Join(parts, ", ") + ")"
}

// maxWaitText returns the bound on waiting in words; 0 stands for none.
func maxWaitText(d *wire.TextDuration) string {
	if d == nil || *d == 0 {
		return "no bound"
	}
	return time.Duration(*d).String()
}

func newQueueStatus(e *env) *cobra.Command {
	o := &objectOptions{env: e}
	c := e.verb("status [options] PATH", "Show a queue with its settings, usage and submitters", "", `muster queue status research`, 1, 1, o.queueStatus)
	o.form.flags(c)
	return c
}

func (o *objectOptions) queueStatus(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var q nomadlike.QueueState
	if _, err := a.get(ctx, "/v1/queue/"+escapePath(args[0]), nil, &q); err != nil {
		return err // the error names the queue
	}
	if done, err := o.form.done(o.env, &q); done || err != nil {
		return err
	}
	o.kv([][2]string{{"Path", q.Path}, {"Description", orNone(q.Description)}, {"Order", strings.ReplaceAll(string(q.Effective.Order), ",", ", then ")}, {"Backfill", backfillText(q.Effective)}, {"Preempt", q.Effective.Preempt},
		{"Weight", strconv.FormatInt(max(q.Weight, 1), 10)}, {"Billing", billingText(q.Effective.Billing)}, {"Longest wait", maxWaitText(q.Effective.MaxWait)}, {"Ends", cmp.Or(q.Effective.Ends, "predicted")}, {"Priority max", prioritiesText(q.Effective.PriorityMax, q.Effective.UserPriorityMax)}, {"Priority default", prioritiesText(q.Effective.PriorityDefault, q.Effective.UserPriorityDefault)}, {"Half-life", time.Duration(q.Effective.HalfLife).String()},
		{"Guarantee", heldText(q.Guarantee)}, {"Limit", amountText(q.Limit)}, {"Borrow", amountText(q.Borrow)}, {"Lend", amountText(q.Lend)}, {"User limit", amountText(q.UserLimit)}, {"Soft limit", amountText(q.SoftLimit)}})
	o.heading("Usage")
	o.kv([][2]string{{"Held", heldText(q.Held)}, {"Lately", heldText(q.Mean)}, {"Part of cluster", percentText(q.Part)}, {"Target", targetText(q.Target)}, {"Share by weight", percentText(q.Share)}, {"Fairness", jainText(q.Jain)},
		{"GPU hours", budgetText(&q)}, {"Running jobs", strconv.FormatInt(q.Jobs, 10)}, {"Waiting jobs", strconv.FormatInt(q.Waiting, 10)}, {"Oldest wait", oldestText(q.Oldest)}, {"Jobs", strconv.FormatInt(q.Submitted, 10)}, {"Preemptions", strconv.FormatInt(q.Preemptions, 10)}, {"GPU hours lost", lossText(q.Lost)}})
	if len(q.Users) > 0 {
		o.heading("Submitters")
		rows := [][]string{}
		for _, u := range q.Users {
			rows = append(rows, []string{u.Name, strconv.FormatInt(max(u.Weight, 1), 10), heldText(u.Held), heldText(u.Mean), percentText(u.Part), targetText(u.Target), hoursText(u.GPUHours), strconv.FormatInt(u.Jobs, 10), strconv.FormatInt(u.Waiting, 10), oldestText(u.Oldest),
				strconv.FormatInt(u.Preempted, 10), lossText(u.Lost)})
		}
		o.table("USER|WEIGHT|HELD|LATELY|PART|TARGET|GPU HOURS|RUNNING|WAITING|OLDEST WAIT|PREEMPTED|GPU HOURS LOST", rows)
	}
	return nil
}

// budgetText formats what is used of a budget.
func budgetText(q *nomadlike.QueueState) string {
	switch {
	case q.PeriodEnd == nil:
		return "no budget"
	case q.GPUHoursMax == 0:
		return fmt.Sprintf("%.1f, at most %d by each submitter; a new period begins at %s", q.GPUHours, q.GPUHoursUserMax, at(*q.PeriodEnd))
	}
	return fmt.Sprintf("%.1f of %d; a new period begins at %s", q.GPUHours, q.GPUHoursMax, at(*q.PeriodEnd))
}

// lossText formats the GPU hours that jobs lost, and by which causes.
func lossText(l nomadlike.QueueLoss) string {
	total := l.Preempt + l.Node + l.Drain
	if total == 0 {
		return "0"
	}
	var by []string
	for _, c := range []struct {
		seconds int64
		cause   string
	}{{l.Preempt, "preemptions"}, {l.Node, "lost nodes"}, {l.Drain, "drains"}} {
		if c.seconds > 0 {
			by = append(by, hours(c.seconds)+" by "+c.cause)
		}
	}
	if len(by) == 1 {
		return by[0]
	}
	return hours(total) + ": " + strings.Join(by, ", ")
}

func percentText(x float64) string { return fmt.Sprintf("%.2f %%", 100*x) }

// hoursText formats GPU hours of a budget; none where there is no budget.
func hoursText(h float64) string {
	if h == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", h)
}

// targetText formats the part of the cluster that a queue or a submitter is due; none where it holds and wants nothing.
func targetText(x float64) string {
	if x == 0 {
		return "-"
	}
	return percentText(x)
}

// jainText formats how even the parts are of those who take turns in a queue.
func jainText(x float64) string {
	if x == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f (Jain's index)", x)
}

// oldestText formats the longest wait, given in nanoseconds.
func oldestText(ns int64) string {
	if ns == 0 {
		return "-"
	}
	return time.Duration(ns).Truncate(time.Second).String()
}

func backfillText(q wire.Queue) string {
	if q.BackfillMaxJobs == 0 {
		return q.Backfill
	}
	return q.Backfill + ", at most " + plural(q.BackfillMaxJobs, "job") + " a pass"
}

func at(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}
