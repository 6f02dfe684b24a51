package main

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
)

type decisionsOptions struct {
	*env
	form                    format
	job, queue, kind, since string
	last                    int
}

func newOperatorDecisions(e *env) *cobra.Command {
	o := &decisionsOptions{env: e}
	c := e.verb("decisions [options]", "Show the decision log: what was placed, stopped, preempted, and when", "Show the decision log, the newest last: a row for each part of a plan that was accepted, how long its job had waited, why it was decided on,\nand which other jobs were preempted. -job shows also the decisions that preempted it. -o wide adds who caused it (who stopped, drained, held or\nchanged the job, else who submitted it), the policy in force (order, backfill, preemption, placement) and\nhow much of their work the preempted lost, in GPU seconds since their last checkpoints, and how many allocations may save their state first.\nUsers who suspend and resume work leave a row, too. The servers\nkeep the last 65,536 rows in their replicated state; with the setting decision_log they also write them to a file.", `
muster operator decisions
muster operator decisions -job train -since 1h
muster operator decisions -kind preempt -json`, 0, 0, o.run)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	c.Flags().StringVar(&o.job, "job", "", "only about this job")
	c.Flags().StringVar(&o.queue, "queue", "", "only of this queue and those below it")
	c.Flags().StringVar(&o.kind, "kind", "", "only place, gang, preempt, stop, update, requeue, reserve, resize, suspend or resume")
	c.Flags().StringVar(&o.since, "since", "", "only since a time (2026-01-31T12:00:00Z) or a span before now (1h, 7d)")
	c.Flags().IntVarP(&o.last, "last", "n", 50, "at most that many, the newest; 0 for all")
	return c
}

func (o *decisionsOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	q := ns(a.anyNamespace())
	if kinds := []string{"", "place", "gang", "preempt", "stop", "update", "requeue", "reserve", "resize", "suspend", "resume"}; !slices.Contains(kinds, o.kind) {
		return fmt.Errorf("-kind %q: want %s", o.kind, strings.Join(kinds[1:], ", "))
	}
	for _, x := range [][2]string{{"job", o.job}, {"queue", o.queue}, {"kind", o.kind}, {"since", days(o.since)}} {
		if x[1] != "" {
			q.Set(x[0], x[1])
		}
	}
	if o.last > 0 {
		q.Set("last", strconv.Itoa(o.last))
	}
	list, err := pages[nomadlike.Decision](ctx, a, "/v1/decisions", q)
	if err != nil {
		return err
	}
	if done, err := listed(&o.form, o.env, list, "", func(d nomadlike.Decision) string { return strconv.FormatUint(d.Seq, 10) }); done || err != nil {
		return err
	}
	if len(list) == 0 {
		o.println("No decisions")
		return nil
	}
	names := o.nodeNames(ctx, a)
	rows := [][]string{}
	for _, d := range list {
		job := d.JobID
		if d.Namespace != "default" {
			job = d.Namespace + "/" + job
		}
		node := "-"
		if d.NodeID != "" {
			node = shortID(d.NodeID, false)
			if n := names[d.NodeID]; n != "" {
				node = n
			}
			if d.Nodes > 1 {
				node += " +" + strconv.FormatInt(d.Nodes-1, 10)
			}
		}
		score := "-"
		if d.Score > 0 {
			score = strconv.FormatFloat(d.Score, 'f', 3, 64)
		}
		var victims, whys []string
		lost, saving := int64(0), int64(0)
		for _, v := range d.Victims {
			name := v.JobID
			if v.Namespace != d.Namespace {
				name = v.Namespace + "/" + name
			}
			if v.Allocs > 1 {
				name += " x" + strconv.FormatInt(v.Allocs, 10)
			}
			victims, whys = append(victims, name), append(whys, v.Why)
			lost, saving = lost+v.LostGPUSeconds, saving+v.Saving
		}
		row := []string{strconv.FormatUint(d.Seq, 10), time.Unix(0, d.Time).UTC().Format("2006-01-02 15:04:05.000"), d.Kind, job, orDash(d.Queue),
			strconv.FormatInt(d.Places, 10), strconv.FormatInt(d.Stops, 10), node, span(time.Duration(d.Wait)), score, orDash(d.Reason), orDash(strings.Join(victims, ", ")), shortID(d.EvalID, false)}
		if o.form.wide {
			row = append(row, orDash(d.Actor), orDash(d.Policy), strconv.FormatInt(lost, 10), strconv.FormatInt(saving, 10), orDash(strings.Join(slices.Compact(whys), "; ")))
		}
		rows = append(rows, row)
	}
	head := "SEQ|TIME|KIND|JOB|QUEUE|PLACES|STOPS|NODE|WAITED|SCORE|REASON|PREEMPTED|EVAL"
	if o.form.wide {
		head += "|ACTOR|POLICY|WORK LOST GPU-S|SAVE FIRST|WHY PREEMPTED"
	}
	o.table(head, rows)
	return nil
}

// nodeNames returns the names of nodes by id; empty when they may not be read.
func (o *decisionsOptions) nodeNames(ctx context.Context, a *api) map[string]string {
	var nodes []struct{ ID, Name string }
	names := map[string]string{}
	if _, err := a.get(ctx, "/v1/nodes", url.Values{}, &nodes); err == nil {
		for _, n := range nodes {
			names[n.ID] = n.Name
		}
	}
	return names
}
