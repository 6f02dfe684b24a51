package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/histories"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/structs"
)

// What operators and users do in a history on servers (histories.Operations), and what must hold then:
//
//	drain    ends by its deadline and the time that tasks take to stop; nothing is placed on the node until it takes work
//	         again; what it moved runs again, has ended, or is shown as waiting with a reason
//	update   stops nothing old while fewer run than count - max_parallel; it is done, stopped or taken back within its deadlines, a
//	         version that fails is never done, and one that does not is
//	storage  no save begins beyond the limit, and all work saves at its interval, later only by what its turn takes

// Times of tasks on servers.
const (
	servedStop = time.Second     // of a task
	servedSave = 2 * time.Second // to save its state, alone
)

// operations carries out the operations of a history.
type operations struct {
	*servedHistory
	drains   []histories.Drain
	away     map[structs.NodeID]*servedDrain
	services []*servedService
	savers   *servedSavers
	uneasy   time.Time // when a node last was not ready, or there was no leader
	tick     time.Time
	moved    map[structs.AllocID]time.Time // by drains, and when
}

// servedDrain is a drain, until its node takes work again.
type servedDrain struct {
	histories.Drain
	began, ended time.Time
	index        structs.Index
}

// servedService is a service and its newest update.
type servedService struct {
	*histories.Service
	begun, bad bool
	version    uint64
	calm       time.Duration // since it was submitted, with all nodes ready and a place for all of it
	reverted   bool
	ended      bool
	seen       map[structs.AllocID]bool // stopped for an update
}

func newOperations(r *servedHistory) *operations {
	o := &operations{servedHistory: r, drains: r.h.Drains, away: map[structs.NodeID]*servedDrain{}, moved: map[structs.AllocID]time.Time{}}
	for _, s := range r.h.Services {
		o.services = append(o.services, &servedService{Service: s, seen: map[structs.AllocID]bool{}})
	}
	if most := r.h.StorageLimit(); most > 0 {
		limitSaving(r.t, r.s(), 0, map[string]int64{histories.Storage: most})
		o.savers = newServedSavers(o, int(most))
	}
	r.fleet.set(func() {
		if r.h.Is["drains"] != "no" || o.savers != nil {
			r.fleet.kill = servedStop
		}
		if o.savers != nil {
			r.fleet.kill, r.fleet.asks = servedSave, true
		}
	})
	return o
}

// step does what is due, and checks.
func (o *operations) step() {
	since := time.Since(o.begin)
	if len(o.down)+len(o.away) > 0 {
		o.uneasy = time.Now()
	}
	passed := time.Since(o.tick)
	o.tick = time.Now()
	for len(o.drains) > 0 && o.drains[0].At/historyScale <= since {
		o.drain(o.drains[0])
		o.drains = o.drains[1:]
	}
	snap := o.s().Published().Snapshot
	for _, n := range o.fleet.nodes { // in order
		if d := o.away[n.ID]; d != nil {
			o.draining(snap, n.ID, d)
		}
	}
	for _, s := range o.services {
		o.update(snap, s, since, passed)
	}
}

// idle reports whether nothing that was begun has still to end.
func (o *operations) idle() bool {
	return len(o.away) == 0 && !slices.ContainsFunc(o.services, func(s *servedService) bool { return s.begun && !s.ended })
}

// close stops the services.
func (o *operations) close() {
	for _, s := range o.services {
		o.call("DELETE", "/v1/job/"+s.ID, o.root, nil)
	}
}

// drain begins a drain, unless its node is away or down.
func (o *operations) drain(d histories.Drain) {
	n := o.fleet.nodes[d.Node]
	if o.away[n.ID] != nil || !o.down[n.ID].IsZero() {
		return
	}
	deadline := d.Deadline
	if deadline > 0 {
		deadline /= historyScale
	}
	o.call("PUT", "/v1/node/"+n.ID.String()+"/drain", o.root, map[string]any{"DrainSpec": map[string]any{"Deadline": deadline}})
	o.away[n.ID] = &servedDrain{Drain: d, began: time.Now(), index: o.s().Published().Snapshot.NodeByID(n.ID).ModifyIndex}
}

// draining checks a drain, and lets the node take work again when its time has come.
func (o *operations) draining(snap *state.Snapshot, id structs.NodeID, d *servedDrain) {
	n := snap.NodeByID(id)
	now := time.Now()
	for _, a := range snap.AllocsByNode(id) {
		if a.CreateIndex > d.index {
			o.failf("allocation %s of %s is placed on node %s, which is draining since %v", a.ID.Short(), a.JobID, n.Name, d.began.Sub(o.begin))
		}
		if a.Transition.Migrate && a.ServerTerminal() && o.moved[a.ID].IsZero() {
			o.moved[a.ID] = now
			o.judge.Counts["allocations moved by drains"]++
		}
	}
	switch {
	case n.Drain != nil:
		most := max(d.Deadline/historyScale, 0) + o.fleet.kill + 3*time.Second // the pauses of the duty, and of agents
		if o.judge.Counts["leaders stopped"] > 0 {
			most += 15 * time.Second
		}
		if now.Sub(d.began) > most {
			left := []string{}
			for _, a := range snap.AllocsByNode(id) {
				if !a.ClientTerminal() {
					left = append(left, fmt.Sprintf("%s of %s (%s %s, migrate %v)", a.ID.Short(), a.JobID, a.Desired, a.Client, a.Transition.Migrate))
				}
			}
			o.failf("node %s drains for %v, and its deadline was %v: %v", n.Name, now.Sub(d.began), d.Deadline/historyScale, left)
		}
	case d.ended.IsZero():
		d.ended = now
		o.judge.Counts["drains ended"]++
		for _, a := range snap.AllocsByNode(id) {
			if !a.ClientTerminal() {
				o.failf("the drain of node %s has ended, and %s of %s runs there", n.Name, a.ID.Short(), a.JobID)
			}
		}
	case now.Sub(d.ended) >= d.Away/historyScale:
		o.call("PUT", "/v1/node/"+id.String()+"/eligibility", o.root, map[string]any{"Eligibility": "eligible"})
		delete(o.away, id)
	}
}

// placedAgain checks that what a drain moved is placed again, has ended, or says why it waits. shown are the jobs in the queue.
func (o *operations) placedAgain(shown map[string]int) {
	snap := o.s().Published().Snapshot
	for _, id := range sortedIDs(o.moved) {
		a := snap.AllocByID(id)
		if time.Since(o.moved[id]) < 10*time.Second {
			continue
		}
		delete(o.moved, id)
		if a == nil {
			continue
		}
		job := snap.JobByKey(a.JobKey())
		switch {
		case job == nil || job.Status == structs.JobDead:
		case len(live(o.s(), a.JobID)) > 0, slices.ContainsFunc(snap.AllocsByJob(a.JobKey()), func(b *structs.Allocation) bool { return b.CreateIndex > a.CreateIndex }):
			o.judge.Counts["moved work placed again"]++
		case shown[a.JobID] == 0:
			o.failf("%s was moved off its node by a drain, does not run and is not in the queue: %s", a.JobID, o.jobState(snap, job))
		default:
			why := o.call("GET", "/v1/job/"+a.JobID+"/why", o.root, nil)
			groups, _ := why["Groups"].([]any)
			if len(groups) == 0 && why["Starts"] == nil {
				text, _ := json.Marshal(why)
				o.failf("%s was moved off its node by a drain, and does not say why it waits: %s", a.JobID, text)
			}
			o.judge.Counts["moved work that says why it waits"]++
		}
	}
}

// jobState describes a job with its allocations and open evaluations, for messages.
func (o *operations) jobState(snap *state.Snapshot, job *structs.Job) string {
	var b strings.Builder
	fmt.Fprintf(&b, "version %d, stable %v, %q; ", job.Version, job.Stable, job.UpdateFailed)
	for _, a := range snap.AllocsByJob(job.Key()) {
		fmt.Fprintf(&b, "%s of version %d: %s %s %q since %v, migrate %v, next %s; ", a.ID.Short(), a.JobVersion, a.Desired, a.Client, a.DesiredDesc, a.CreateTime.Time().Sub(o.begin), a.Transition.Migrate, a.Lineage().Next.Short())
	}
	for e := range snap.Evals() {
		if e.JobID == job.ID && !e.Terminal() {
			fmt.Fprintf(&b, "%s %s until %v; ", e.Trigger, e.Status, e.WaitUntil.Time().Sub(o.begin))
		}
	}
	return b.String()
}

func sortedIDs[T any](m map[structs.AllocID]T) (out []structs.AllocID) {
	for id := range m {
		out = append(out, id)
	}
	slices.SortFunc(out, func(a, b structs.AllocID) int { return slices.Compare(a[:], b[:]) })
	return out
}

// submitService submits a version of a service.
func (o *operations) submitService(s *servedService, version int, bad bool) {
	c := *s.Job
	g := *c.Groups[0]
	u, task := *g.Update, *g.Tasks[0]
	u.Stagger, u.MinHealthyTime, u.HealthyDeadline, u.ProgressDeadline = faster(u.Stagger), faster(u.MinHealthyTime), faster(u.HealthyDeadline), faster(u.ProgressDeadline)
	task.Driver, task.Env = "exec", map[string]string{"VERSION": fmt.Sprint(version)}
	if bad {
		task.Env[fleetFails] = "1"
	}
	c.Region, c.Namespace, c.Name = structs.RegionDefault, structs.NamespaceDefault, c.ID
	g.Update, g.Tasks, c.Groups = &u, []*structs.Task{&task}, []*structs.Group{&g}
	w := wire.JobFromStructs(&c)
	for _, g := range w.TaskGroups {
		g.RestartPolicy, g.ReschedulePolicy, g.EphemeralDisk = nil, nil, nil
		g.Tasks[0].RestartPolicy, g.Tasks[0].LogConfig = nil, nil
		g.Tasks[0].Config = map[string]any{"command": "/bin/true"}
	}
	o.call("PUT", "/v1/jobs", o.users["ann"], map[string]any{"Job": w})
	was := s.version
	s.begun, s.ended, s.bad, s.reverted, s.calm = true, false, bad, false, 0
	s.version = o.s().Published().Snapshot.JobByKey(c.Key()).Version
	if version > 0 && s.version == was {
		o.failf("%s has version %d after an update of it", s.ID, was)
	}
}

// update submits the next version of a service once the last has ended, and checks how it goes.
func (o *operations) update(snap *state.Snapshot, s *servedService, since, passed time.Duration) {
	if !s.begun {
		o.submitService(s, 0, false)
		return
	}
	if s.ended {
		if len(s.Updates) > 0 && s.Updates[0].At/historyScale <= since {
			o.submitService(s, int(s.version)+1, s.Updates[0].Bad)
			s.Updates = s.Updates[1:]
		}
	}
	job := snap.JobByKey(structs.JobKey{Namespace: structs.NamespaceDefault, ID: s.ID})
	o.runsEnough(snap, job, s)
	if s.ended || job.Version < s.version {
		return
	}
	w := snap.Workload(job.Key())
	if time.Since(o.uneasy) >= 5*time.Second && (w == nil || w.Waiting == 0) { // for room, which an operator may have reserved
		s.calm += passed
	}
	u := job.Groups[0].Update
	switch most := time.Duration(job.Groups[0].Count+1)*u.ProgressDeadline + u.HealthyDeadline; {
	case job.Version > s.version+1 || job.Version > s.version && (!u.AutoRevert || s.reverted):
		o.failf("%s is at version %d, and %d was submitted", s.ID, job.Version, s.version)
	case job.Version > s.version: // taken back, which has the same time again
		if s.reverted = true; !s.bad {
			o.failf("version %d of %s is taken back, and none of its tasks failed: %s", s.version, s.ID, o.jobState(snap, job))
		}
		s.version, s.bad, s.calm = job.Version, false, 0
	case job.Stable && s.bad:
		o.failf("version %d of %s is stable, and all of its tasks fail", s.version, s.ID)
	case job.Stable:
		s.ended = true
		o.judge.Counts[map[bool]string{false: "updates done", true: "updates taken back"}[s.reverted]]++
		for _, a := range snap.AllocsByJob(job.Key()) {
			if reconcile.OlderThan(a, job) && !a.Terminal() {
				o.failf("version %d of %s is stable, and version %d runs", s.version, s.ID, a.JobVersion)
			}
		}
	case job.UpdateFailed != "" && (!u.AutoRevert || s.reverted):
		if s.ended = true; !s.bad {
			o.failf("version %d of %s stops, and none of its tasks failed: %s", s.version, s.ID, o.jobState(snap, job))
		}
		o.judge.Counts["updates stopped"]++
	case s.calm > most:
		o.failf("the update of %s to version %d has not ended after %v: %q", s.ID, s.version, s.calm, job.UpdateFailed)
	}
}

// runsEnough checks that an update stops an old allocation only while enough others run. A drain may take one more.
func (o *operations) runsEnough(snap *state.Snapshot, job *structs.Job, s *servedService) {
	runs, stops := 0, 0
	for _, a := range snap.AllocsByJob(job.Key()) {
		switch {
		case a.Desired == structs.DesiredRun && a.Client == structs.ClientRunning:
			runs++
		case a.DesiredDesc == "alloc is being updated due to job update" && !s.seen[a.ID]:
			s.seen[a.ID] = true
			stops++
		}
	}
	least := job.Groups[0].Count - job.Groups[0].Update.MaxParallel
	switch {
	case len(o.down) > 0 || o.h.Is["failures"] == "some" || o.h.Is["drains"] == "at once":
		return
	case len(o.away) > 0 || time.Since(o.uneasy) < 10*time.Second:
		least--
		o.judge.Counts["stops by updates during drains"] += stops
	}
	if stops > 0 && runs < least {
		o.failf("an update of %s stops an allocation, and %d others run; its count is %d and max_parallel %d", s.ID, runs, job.Groups[0].Count, job.Groups[0].Update.MaxParallel)
	}
	o.judge.Counts["stops by updates"] += stops
}
