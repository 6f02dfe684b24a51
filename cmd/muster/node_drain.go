package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

const drainDeadline = time.Hour // default of -deadline

type nodeDrainOptions struct {
	*env
	form                               format
	enable, disable, self, yes         bool
	detach, monitor, force, noDeadline bool
	ignoreSystem, keepIneligible       bool
	deadline                           string
	message                            string
	meta                               []string
	verbose                            bool
}

func newNodeDrain(e *env) *cobra.Command {
	o := &nodeDrainOptions{env: e}
	c := e.verb("drain [options] NODE", "Move everything off a node",
		`Move everything off a node, each group as fast as its migrate block allows, and follow it. What has not moved by the
deadline is stopped. Ctrl-C detaches; the drain continues.`, `
muster node drain -enable 46f1c6c4
muster node drain -enable -deadline 30m -m "new fans" -yes gpu-07
muster node drain -disable 46f1c6c4
muster node drain -self -monitor`, 0, 1, o.run)
	o.form.flags(c)
	f := c.Flags()
	f.BoolVar(&o.enable, "enable", false, "begin to drain")
	f.BoolVar(&o.disable, "disable", false, "end draining; the node becomes eligible unless -keep-ineligible is given")
	f.BoolVar(&o.monitor, "monitor", false, "only follow a drain that is on its way")
	f.BoolVar(&o.detach, "detach", false, "only begin; do not follow")
	f.StringVar(&o.deadline, "deadline", "", "by when everything must be off, such as 30m (default 1h)")
	f.BoolVar(&o.force, "force", false, "stop everything at once")
	f.BoolVar(&o.noDeadline, "no-deadline", false, "wait as long as it takes")
	f.BoolVar(&o.ignoreSystem, "ignore-system", false, "leave system jobs running")
	f.BoolVar(&o.keepIneligible, "keep-ineligible", false, "with -disable: the node gets no new work")
	f.BoolVar(&o.self, "self", false, "the agent's own node")
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	f.StringVarP(&o.message, "message", "m", "", "why, kept with the drain")
	f.StringArrayVar(&o.meta, "meta", nil, "metadata kept with the drain, as key=value; may be repeated")
	f.BoolVar(&o.verbose, "verbose", false, "long ids")
	return c
}

func (o *nodeDrainOptions) spec() (*wire.DrainSpec, error) {
	if o.disable {
		return nil, nil
	}
	n := 0
	for _, on := range []bool{o.deadline != "", o.force, o.noDeadline} {
		if on {
			n++
		}
	}
	if n > 1 {
		return nil, errors.New("-deadline, -force and -no-deadline exclude each other: choose one")
	}
	spec := &wire.DrainSpec{Deadline: drainDeadline, IgnoreSystemJobs: o.ignoreSystem}
	switch {
	case o.force:
		spec.Deadline = -time.Second
	case o.noDeadline:
		spec.Deadline = 0
	case o.deadline != "":
		d, err := time.ParseDuration(o.deadline)
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("-deadline %q is not a duration above zero, such as 30m", o.deadline)
		}
		spec.Deadline = d
	}
	return spec, nil
}

func (o *nodeDrainOptions) run(ctx context.Context, args []string) error {
	if n := b2i(o.enable) + b2i(o.disable) + b2i(o.monitor); n == 0 || (o.enable && o.disable) || (o.monitor && o.disable) {
		return errors.New("give one of -enable, -disable or -monitor")
	}
	if o.disable && (o.deadline != "" || o.force || o.noDeadline || o.ignoreSystem) {
		return errors.New("-disable ends a drain; -deadline, -force, -no-deadline and -ignore-system belong to -enable")
	}
	if o.keepIneligible && !o.disable {
		return errors.New("-keep-ineligible belongs to -disable")
	}
	arg, err := oneOrSelf(args, o.self)
	if err != nil {
		return err
	}
	metaMap, err := varMap("-meta", o.meta)
	if err != nil {
		return err
	}
	if o.message != "" {
		metaMap["message"] = o.message
	}
	spec, err := o.spec()
	if err != nil {
		return err
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	n, err := a.node(ctx, arg, o.self)
	if err != nil {
		return err
	}
	if !o.enable && !o.disable {
		if n.DrainStrategy == nil {
			o.printf("Node %q is not draining\n", n.ID)
			return nil
		}
		return o.watch(ctx, a, n)
	}
	if o.enable {
		blast, sure, err := o.blast(ctx, a, n.ID)
		if err != nil {
			return err
		}
		if err := sure(ctx, o.yes, "Drain node %q (%s), which has %s?", n.Name, shortID(n.ID, false), blast); err != nil {
			return err
		}
	}
	req := wire.NodeUpdateDrainRequest{NodeID: n.ID, DrainSpec: spec, MarkEligible: o.disable && !o.keepIneligible, Meta: metaMap}
	var resp wire.NodeUpdateResponse
	if _, err := a.put(ctx, "/v1/node/"+n.ID+"/drain", nil, req, &resp); err != nil {
		return fmt.Errorf("drain node %q: %w", n.Name, err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	if o.disable {
		o.printf("Node %q drain ended\n", n.ID)
		return nil
	}
	o.printf("Node %q drain strategy set\n", n.ID)
	if o.detach {
		o.hint("Follow it with:  muster node drain -monitor %s", shortID(n.ID, false))
		return nil
	}
	return o.watch(ctx, a, n)
}

// checkpointEvents returns the checkpoint events of an allocation's tasks, oldest first.
func checkpointEvents(al *wire.Allocation) (out []*wire.TaskEvent) {
	for _, name := range sortedKeys(al.TaskStates) {
		for _, e := range al.TaskStates[name].Events {
			if e.Type == structs.TaskEventCheckpoint {
				out = append(out, e)
			}
		}
	}
	return out
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// watch follows a drain until it has ended.
func (o *nodeDrainOptions) watch(ctx context.Context, a *api, n *wire.Node) error {
	err := o.follow(ctx, a, n)
	if err != nil && ctx.Err() != nil {
		o.hint("\nDetached: the drain continues. Follow it with:  muster node drain -monitor %s", shortID(n.ID, false))
		return exitCode(130)
	}
	return err
}

func (o *nodeDrainOptions) follow(ctx context.Context, a *api, n *wire.Node) error {
	say := func(f string, args ...any) {
		o.printf("%s: %s\n", o.now().Format(time.RFC3339), fmt.Sprintf(f, args...))
	}
	say("Ctrl-C detaches; the drain continues")
	seen := map[string]string{}
	told, before := false, 0
	held := heldUp{rounds: map[drainGroup]int{}, said: map[drainGroup]string{}}
	begun := int64(0)
	if n.DrainStrategy != nil {
		begun = n.DrainStrategy.StartedAt.UnixNano()
	}
	var all []string // of all allocations seen, for their short ids
	for {
		var node wire.Node
		if _, err := a.get(ctx, "/v1/node/"+n.ID, nil, &node); err != nil {
			return fmt.Errorf("read node %q: %w", n.Name, err)
		}
		var allocs []*wire.Allocation
		m, err := a.get(ctx, "/v1/node/"+n.ID+"/allocations", nil, &allocs)
		if err != nil {
			return fmt.Errorf("read the allocations of node %q: %w", n.Name, err)
		}
		for _, al := range allocs {
			all = append(all, al.ID)
		}
		cut := abbreviate(o.verbose, all)
		left := 0
		waits := map[drainGroup]int64{}
		for _, al := range allocs {
			state := al.DesiredStatus + "/" + al.ClientStatus
			if val(al.DesiredTransition.Migrate) {
				state += "/migrate"
			}
			was, known := seen[al.ID]
			switch {
			case !known && !liveAlloc(al.ClientStatus):
			case !strings.HasSuffix(was, "/migrate") && strings.HasSuffix(state, "/migrate"):
				say("Alloc %q of job %q marked for migration", cut(al.ID), al.JobID)
			case was != state && !liveAlloc(al.ClientStatus):
				say("Alloc %q is off: %s", cut(al.ID), al.ClientStatus)
			case was != state && al.DesiredStatus != "run" && known:
				say("Alloc %q is stopping", cut(al.ID))
			}
			for _, e := range checkpointEvents(al) {
				if key := al.ID + strconv.FormatInt(e.Time, 10); e.Time >= begun && seen[key] == "" {
					seen[key] = "said"
					say("Alloc %q: %s", cut(al.ID), e.DisplayMessage)
				}
			}
			if al.DesiredStatus == "run" && liveAlloc(al.ClientStatus) && strings.HasSuffix(state, "/migrate") {
				waits[drainGroup{al.Namespace, al.JobID, al.TaskGroup}]++
			}
			seen[al.ID] = state
			system := al.Job != nil && (val(al.Job.Type) == "system" || val(al.Job.Type) == "sysbatch")
			if liveAlloc(al.ClientStatus) && !(system && node.DrainStrategy != nil && node.DrainStrategy.IgnoreSystemJobs) {
				left++
			}
		}
		if left != before && left > 0 {
			say("%s left", plural(int64(left), "allocation"))
		}
		before = left
		held.round(ctx, a, waits, say)
		if node.Status == "down" {
			say("Node %q is down", node.Name)
			return exitCode(exitError)
		}
		if node.DrainStrategy == nil && !told {
			told = true
			say("Drain of node %q complete", node.Name)
		}
		if node.DrainStrategy == nil && left == 0 {
			say("All allocations on node %q have stopped", node.Name)
			o.hint("The node gets no new work until:  muster node eligibility -enable %s", shortID(node.ID, false))
			return nil
		}
		if node.DrainStrategy == nil && node.LastDrain != nil && node.LastDrain.Status == "canceled" {
			say("The drain was canceled")
			return nil
		}
		q := ns("")
		q.Set("index", strconv.FormatUint(m.Index, 10))
		q.Set("wait", pollWait.String())
		if m.Index > 0 {
			if _, err := a.get(ctx, "/v1/node/"+n.ID+"/allocations", q, &allocs); err != nil {
				return err
			}
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// drainGroup is a group with allocations on a node that drains.
type drainGroup struct{ namespace, job, group string }

// Limits of how often a drain asks why work does not move.
const (
	drainAskRounds = 5 // a group is asked about in the second round in which it waits, then every so many
	drainAskJobs   = 4 // in one round
)

// heldUp says why allocations that are marked for migration do not move, once per change of the reason.
type heldUp struct {
	rounds map[drainGroup]int    // for how many rounds some of a group has waited
	said   map[drainGroup]string // the last reason
}

// round says for each group of which allocations wait why they do, if that has changed. Each read of a reason is a request, so
// a group is not asked about in every round. Without an answer it says nothing, and the drain is followed further.
func (h *heldUp) round(ctx context.Context, a *api, waits map[drainGroup]int64, say func(string, ...any)) {
	maps.DeleteFunc(h.rounds, func(g drainGroup, _ int) bool { return waits[g] == 0 })
	maps.DeleteFunc(h.said, func(g drainGroup, _ string) bool { return waits[g] == 0 })
	asked := map[drainGroup]*nomadlike.Why{} // by job: without the group
	for _, g := range slices.SortedFunc(maps.Keys(waits), func(x, y drainGroup) int {
		return cmp.Or(cmp.Compare(x.namespace, y.namespace), cmp.Compare(x.job, y.job), cmp.Compare(x.group, y.group))
	}) {
		job := drainGroup{namespace: g.namespace, job: g.job}
		if _, have := asked[job]; !have && len(asked) >= drainAskJobs {
			continue // in the next round
		}
		h.rounds[g]++
		if h.rounds[g]%drainAskRounds != 2 {
			continue
		}
		if _, have := asked[job]; !have {
			var w nomadlike.Why
			if _, err := a.get(ctx, jobPath(g.job, "/why"), ns(g.namespace), &w); err != nil {
				asked[job] = nil
				continue
			}
			asked[job] = &w
		}
		if key, why := staysFor(asked[job], g.group); why != "" && h.said[g] != key {
			h.said[g] = key
			say("%s of job %q cannot move yet: %s", plural(waits[g], "allocation"), g.job, why)
		}
	}
}

// staysFor returns why a group finds no place elsewhere, or "" if that is not known, and a key that is equal for reasons that
// differ only in figures. That the node drains is no reason.
func staysFor(w *nomadlike.Why, group string) (key, text string) {
	if w == nil {
		return "", ""
	}
	for i := range w.Groups {
		g := &w.Groups[i]
		if g.Name != group || g.Placed >= g.Wanted || g.Reason == "" {
			continue
		}
		key, text = string(g.Reason), fmt.Sprintf("%d of group %q found no place [%s]", g.Wanted-g.Placed, group, g.Reason)
		var lines, cures []string
		for _, r := range g.Refusals {
			x := r.ToStructs()
			if x.Code == structs.ReasonNodeIneligible && len(g.Refusals) > 1 {
				continue
			}
			key += fmt.Sprint(" ", x.Code, x.Dimension, x.Holder, x.Subject)
			lines = append(lines, refusalLine(x))
			if c := cure(x); c != "" && !slices.Contains(cures, c) {
				cures = append(cures, c)
			}
		}
		if len(lines) > 0 {
			text += ": " + strings.Join(lines, "; ")
		}
		if len(cures) > 0 {
			text += "; until " + strings.Join(cures, ", or ")
		}
		return key, text
	}
	return "", ""
}
