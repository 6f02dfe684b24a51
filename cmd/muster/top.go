package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type topOptions struct {
	*env
	form  format
	every time.Duration
	once  bool
}

// topRow is one task on one GPU, and its JSON form.
type topRow struct {
	JobID, AllocID, Task, Node, GPU string
	MemoryMiB, ShareMiB, PeakMiB    int64
	SMMillis, EnergyMJ, Refused     int64
	CPUPercent                      float64
	RSSBytes                        uint64
	Suspension                      string `json:",omitempty"` // "suspending", "suspended", "resuming"
}

// topMax limits the allocations that each refresh queries.
const topMax = 200

func newTop(e *env) *cobra.Command {
	o := &topOptions{env: e}
	c := e.verb("top [options]", "Watch what running tasks use: CPU, memory, GPU memory", "Watch what running tasks use, those with GPUs first: memory of each GPU with the task's share, the most it held, the time in which it had all multiprocessors, energy, and allocations that were refused. At most 200 allocations are asked.", `
muster top
muster top -once
muster top -once -json`, 0, 0, o.run)
	c.Flags().DurationVar(&o.every, "every", 2*time.Second, "time between looks")
	c.Flags().BoolVar(&o.once, "once", false, "look once")
	o.form.flags(c)
	return c
}

func (o *topOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	if o.every < 100*time.Millisecond {
		return fmt.Errorf("-every must be at least 100ms, got %s", o.every)
	}
	for {
		rows, left, err := o.look(ctx, a)
		if err != nil {
			return err
		}
		if done, err := o.form.done(o.env, rows); done || err != nil {
			return err
		}
		if !o.once {
			o.printf("\x1b[H\x1b[2J%s  every %s, Ctrl-C ends it\n", time.Now().Format(time.TimeOnly), o.every)
		}
		o.show(rows, left)
		if o.once {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(o.every):
		}
	}
}

func (o *topOptions) look(ctx context.Context, a *api) (rows []*topRow, left int, err error) {
	rows = []*topRow{}
	var allocs []*wire.AllocationListStub
	if _, err := a.get(ctx, "/v1/allocations", url.Values{"namespace": {"*"}, "filter": {`ClientStatus == "running"`}, "resources": {"true"}}, &allocs); err != nil {
		return nil, 0, err
	}
	var first, rest []*wire.AllocationListStub
	for _, al := range allocs {
		gpu := false
		if al.AllocatedResources != nil {
			for _, t := range al.AllocatedResources.Tasks {
				gpu = gpu || t != nil && len(t.Devices) > 0
			}
		}
		if gpu {
			first = append(first, al)
		} else {
			rest = append(rest, al)
		}
	}
	allocs = append(first, rest...)
	if len(allocs) > topMax {
		allocs, left = allocs[:topMax], len(allocs)-topMax
	}
	for _, al := range allocs {
		var use wire.AllocResourceUsage
		if _, err := a.get(ctx, "/v1/client/allocation/"+al.ID+"/stats", ns(al.Namespace), &use); err != nil {
			continue // it has ended, or its node does not answer
		}
		for _, task := range sortedKeys(use.Tasks) {
			t := use.Tasks[task]
			if t == nil || t.ResourceUsage == nil {
				continue
			}
			base := topRow{JobID: al.JobID, AllocID: al.ID, Task: task, Node: al.NodeName, Suspension: allocState("", al.Suspension)}
			if c := t.ResourceUsage.CpuStats; c != nil {
				base.CPUPercent = c.Percent
			}
			if m := t.ResourceUsage.MemoryStats; m != nil {
				base.RSSBytes = max(m.RSS, m.Usage)
			}
			n := len(rows)
			for _, g := range t.ResourceUsage.DeviceStats {
				for _, id := range sortedKeys(g.InstanceStats) {
					if s := g.InstanceStats[id]; s != nil && s.Stats != nil {
						row := base
						row.GPU = id
						row.fill(s.Stats.Attributes)
						rows = append(rows, &row)
					}
				}
			}
			if len(rows) == n {
				rows = append(rows, &base)
			}
		}
	}
	return rows, left, nil
}

func (r *topRow) fill(attrs map[string]*wire.StatValue) {
	num := func(name string) int64 {
		if v := attrs[name]; v != nil && v.IntNumeratorVal != nil {
			return *v.IntNumeratorVal
		}
		return 0
	}
	r.MemoryMiB, r.PeakMiB, r.SMMillis = num("Task memory"), num("Task memory, peak"), num("Task SM time")
	r.EnergyMJ, r.Refused = num("Task energy"), num("Task allocations refused")
	if v := attrs["Task memory"]; v != nil && v.IntDenominatorVal != nil {
		r.ShareMiB = *v.IntDenominatorVal
	}
}

func (o *topOptions) show(rows []*topRow, left int) {
	if len(rows) == 0 {
		o.println("No running tasks")
		return
	}
	table := [][]string{}
	for _, r := range rows {
		cpu := fmt.Sprintf("%.0f%%", r.CPUPercent)
		if r.Suspension != "" {
			cpu = r.Suspension
		}
		line := []string{r.JobID, shortID(r.AllocID, false), r.Task, r.Node, cpu, bytesText(r.RSSBytes), "", "", "", "", "", ""}
		if r.GPU != "" {
			id := strings.TrimPrefix(r.GPU, "GPU-")
			copy(line[6:], []string{id[:min(8, len(id))], mib(r.MemoryMiB) + " / " + mib(r.ShareMiB), mib(r.PeakMiB),
				(time.Duration(r.SMMillis) * time.Millisecond).Round(time.Second / 10).String(), strconv.FormatInt(r.EnergyMJ/1000, 10) + " J", strconv.FormatInt(r.Refused, 10)})
		}
		table = append(table, line)
	}
	o.table("JOB|ALLOC|TASK|NODE|CPU|MEMORY|GPU|GPU MEMORY|PEAK|SM TIME|ENERGY|REFUSED", table)
	if left > 0 {
		o.printf("... and %d more allocations\n", left)
	}
}
