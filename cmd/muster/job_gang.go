package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
)

// statusJSON is the output of `job status -json`: the job, and its gangs if it has any.
type statusJSON struct {
	*wire.Job
	Gangs []nomadlike.Gang `json:",omitempty"`
}

// gangsOf reads the gangs of a job; nil if it has none.
func (a *api) gangsOf(ctx context.Context, stub *wire.JobListStub, job *wire.Job) ([]nomadlike.Gang, error) {
	if !slices.ContainsFunc(job.TaskGroups, func(g *wire.TaskGroup) bool { return g.Gang != nil }) {
		return nil, nil
	}
	return a.gangs(ctx, stub)
}

// gangStatus prints the state of a gang: what it waits for, its members, and the missing ones.
func (o *jobStatusOptions) gangStatus(g *nomadlike.Gang) {
	o.heading("Gang " + strconv.Quote(g.Group))
	state := g.State
	if g.Deadline > 0 {
		state += fmt.Sprintf(" (%d of its members must run within %s)", g.Min, span(time.Unix(0, g.Deadline).Sub(o.now())))
	}
	asked := strconv.Itoa(g.Asked)
	if most := max(g.Max, g.Asked); g.Min < most { // it may shrink or grow
		asked = fmt.Sprintf("%d to %d", g.Min, most)
	}
	rows := [][2]string{{"State", state}, {"Members", fmt.Sprintf("%d running of %s asked", g.Running, asked)}}
	if g.Epoch > 0 {
		epoch := strconv.FormatUint(g.Epoch, 10)
		if g.Reason != "" {
			epoch += " (" + g.Reason + ")"
		}
		if g.Restarts > 0 {
			epoch += ", started again " + plural(g.Restarts, "time")
		}
		rows = append(rows, [2]string{"Epoch", epoch})
	}
	if r := g.Resizes; r != nil {
		rows = append(rows, [2]string{"Resizes", fmt.Sprintf("grown %s, shrunk %s; last %s ago from %d to %s",
			plural(r.Grown, "time"), plural(r.Shrunk, "time"), span(o.now().Sub(time.Unix(0, r.Time))), r.From, plural(int64(r.To), "member"))})
	}
	if len(g.Members) > 0 {
		at := "not yet: node rank 0 has reserved no port"
		if g.MasterPort > 0 {
			at = fmt.Sprintf("%s:%d", g.MasterAddr, g.MasterPort)
		}
		rows = append(rows, [2]string{"Rendezvous", at}, [2]string{"World Size", strconv.Itoa(g.WorldSize)})
	}
	if g.Topology != "" {
		rows = append(rows, [2]string{"Topology", g.Topology})
	}
	if c := g.Checkpoint; c != nil {
		rows = append(rows, [2]string{"Checkpoint", o.gangSaved(c, int64(len(g.Members)))})
	}
	if g.Standby > 0 {
		text := fmt.Sprintf("%d of %d held", len(g.Standbys), g.Standby)
		var on []string
		for _, s := range g.Standbys {
			on = append(on, s.NodeName)
		}
		if len(on) > 0 {
			text += " on " + commaList(on)
		}
		rows = append(rows, [2]string{"Standby", text})
	}
	for i := range g.Missing {
		rows = append(rows, [2]string{"Missing", missingText(&g.Missing[i])})
	}
	if n := len(g.AvoidNodes); n > 0 {
		var ids []string
		for _, id := range g.AvoidNodes {
			ids = append(ids, shortID(id, o.verbose))
		}
		rows = append(rows, [2]string{"Avoids", fmt.Sprintf("%s where members failed: %s", plural(int64(n), "node"), commaList(ids))})
	}
	o.kv(rows)
	if len(g.Members) == 0 {
		return
	}
	o.println()
	table := [][]string{}
	for _, m := range g.Members {
		ranks := strconv.Itoa(m.FirstRank)
		if m.Ranks > 1 {
			ranks += "-" + strconv.Itoa(m.FirstRank+m.Ranks-1)
		}
		status := orNone(m.Status)
		if m.StartTime > 0 && m.Status == "running" {
			status += " for " + span(o.now().Sub(time.Unix(0, m.StartTime)))
		}
		table = append(table, []string{strconv.Itoa(m.NodeRank), ranks, m.NodeName, m.Address, shortID(m.AllocID, o.verbose), strconv.FormatInt(m.GPUs, 10), status})
	}
	o.table("Node Rank|Ranks|Node|Address|Allocation|GPUs|Status", table)
}

// gangSaved describes the newest checkpoint of a gang, and how far the next one is.
func (o *env) gangSaved(c *nomadlike.GangCheckpoint, members int64) string {
	next := fmt.Sprintf("%d of %s", c.Newer, plural(members, "member"))
	if c.Complete == nil {
		return "none is complete: " + next + " wrote one"
	}
	text := o.saved(c.Complete) + ", written by " + plural(int64(c.Parts), "member")
	if c.Newer > 0 {
		text += "; " + next + " wrote a newer one"
	}
	return text
}

// missingText describes missing members of a gang, and why they do not run.
func missingText(m *nomadlike.GangMissing) string {
	who := plural(int64(m.Members), "member") + " without a place"
	if m.NodeRank >= 0 {
		who = fmt.Sprintf("node rank %d on %s", m.NodeRank, m.NodeName)
	}
	if m.Report == nil {
		return who + ": " + m.Why
	}
	for i, r := range m.Report.Refusals {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		who += sep + refusalLine(r.ToStructs())
	}
	return who + " [" + string(m.Report.Reason) + "]"
}

// listShown limits the ids that are printed of a list.
const listShown = 5

// commaList joins a list with commas and cuts a long one.
func commaList(list []string) string {
	text := ""
	for i, s := range list {
		if i == listShown {
			return text + fmt.Sprintf(" and %d more", len(list)-i)
		}
		if i > 0 {
			text += ", "
		}
		text += s
	}
	return text
}
