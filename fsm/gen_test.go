package fsm

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// generator makes random commands that mostly make sense against the state they will meet.
type generator struct {
	r    *rand.Rand
	now  structs.LogTime
	n    int
	snap *state.Snapshot
	old  *state.Snapshot // an older state: plans are made from it now and then, and are refused
}

func newGenerator(seed uint64) *generator {
	return &generator{r: rand.New(rand.NewPCG(seed, 1)), now: 1_700_000_000_000_000_000}
}

func (g *generator) bytes() (b [16]byte) {
	binary.BigEndian.PutUint64(b[:8], g.r.Uint64())
	binary.BigEndian.PutUint64(b[8:], g.r.Uint64())
	return b
}

func (g *generator) chance(percent int) bool { return g.r.IntN(100) < percent }

func pick[T any](g *generator, from []T) (v T, ok bool) {
	if len(from) == 0 {
		return v, false
	}
	return from[g.r.IntN(len(from))], true
}

func isA[B structs.CommandBody](c structs.Command) bool {
	_, ok := c.Body.(B)
	return ok
}

// typeOf returns the number of a command.
func typeOf(c structs.Command) structs.CommandType { return commands.of(c.Body).typ }

func (g *generator) command(body structs.CommandBody) structs.Command {
	g.n++
	g.now += structs.LogTime(g.r.IntN(2_000_000_000) - 100_000_000) // a little backwards, too
	return structs.Command{Time: g.now, Seed: g.bytes(), By: structs.Submitter{Name: "gen", UID: -1, GID: -1}, Body: body}
}

func (g *generator) namespace() string {
	return []string{"default", "default", "team", "none"}[g.r.IntN(4)]
}
func (g *generator) pool() structs.PoolName {
	return []structs.PoolName{"default", "default", "default", "gpu", "all"}[g.r.IntN(5)]
}

func (g *generator) job() *structs.Job {
	id := fmt.Sprintf("job-%d", g.r.IntN(8))
	types := []structs.JobType{structs.JobService, structs.JobBatch, structs.JobBatch, structs.JobSystem, structs.JobSysBatch}
	j := &structs.Job{
		Namespace: g.namespace(), ID: id, Name: id, Type: types[(len(id)+int(id[4]))%len(types)], Priority: 1 + g.r.IntN(100),
		Datacenters: []string{"*"}, NodePool: g.pool(), Queue: []structs.QueuePath{"", "research", "research/nlp"}[g.r.IntN(3)],
		Groups: []*structs.Group{
			{Name: "a", Count: g.r.IntN(4), Tasks: []*structs.Task{{Name: "main", Driver: "exec", Resources: structs.Resources{CPU: 100, MemoryMiB: int64(64 * (1 + g.r.IntN(3)))}}},
				Scaling: &structs.Scaling{Min: 0, Max: 5, Enabled: true}},
			{Name: "b", Count: 1, Tasks: []*structs.Task{{Name: "main", Driver: "exec"}}, Disk: structs.EphemeralDisk{SizeMiB: 300}},
		},
		Meta: map[string]string{"v": fmt.Sprint(g.r.IntN(3))},
	}
	switch id {
	case "job-1":
		j.Type, j.Array, j.Groups = structs.JobBatch, &structs.Array{Count: 20, Concurrency: g.r.IntN(3)}, j.Groups[:1]
		j.Groups[0].Count, j.Groups[0].Scaling = 1, nil
	case "job-2", "job-3": // wait for each other, now and then
		j.Hold = g.chance(20)
		if g.chance(50) {
			j.Depends = []structs.Dependency{{Name: map[string]string{"job-2": "job-3", "job-3": "job-2"}[id], When: structs.WhenCompleted}}
		}
	case "job-4", "job-5": // gangs
		a := j.Groups[0]
		j.Type, a.Count = structs.JobBatch, 3+g.r.IntN(2)
		a.Gang = &structs.Gang{Min: 2, Timeout: time.Second, Standby: 1}
		if id == "job-5" {
			j.Type = structs.JobService
			a.Gang.OnFailure = structs.GangContinue
			a.Elastic = &structs.Elastic{Min: 2, Max: a.Count}
		} else if g.snap != nil && g.snap.Has(feature.JointJobs) && j.Meta["v"] != "0" { // no dice: others stay as they are without it
			j.AllAtOnce = true
			j.Join()
		}
	case "job-6":
		j.Type, j.Periodic = structs.JobBatch, &structs.Periodic{Enabled: true, Specs: []string{"@hourly"}, ProhibitOverlap: g.chance(70)}
	case "job-7":
		j.Type, j.Parameterized = structs.JobBatch, &structs.Parameterized{Payload: "optional"}
		j.Periodic = nil
	}
	return j
}

func (g *generator) node(i int) *structs.Node {
	r := rand.New(rand.NewPCG(uint64(i), 99))
	var id structs.NodeID
	var secret structs.SecretID
	binary.BigEndian.PutUint64(id[:], r.Uint64())
	binary.BigEndian.PutUint64(secret[:], r.Uint64())
	n := &structs.Node{
		ID: id, SecretID: secret, Name: fmt.Sprintf("node-%d", i), Datacenter: "dc1", Pool: []structs.PoolName{"default", "gpu"}[i%2],
		Attributes: map[string]string{"cpu.arch": "amd64", "unique.hostname": fmt.Sprint(i)},
		Resources:  structs.NodeResources{CPU: 4000, MemoryMiB: int64(4096 * (1 + g.r.IntN(2)))},
		Drivers:    map[string]*structs.DriverInfo{"exec": {Detected: true, Healthy: true, UpdatedAt: g.now}},
		// What follows is the server's; Apply must ignore it.
		Status: structs.NodeReady, Eligibility: structs.NodeIneligible, Drain: &structs.DrainStrategy{}, Epoch: 1 << 40,
	}
	if g.chance(5) {
		n.SecretID = g.bytes()
	}
	return n
}

func (g *generator) nodes() []*structs.Node        { return slices.Collect(g.snap.Nodes()) }
func (g *generator) allocs() []*structs.Allocation { return slices.Collect(g.snap.Allocs()) }
func (g *generator) evals() []*structs.Evaluation  { return slices.Collect(g.snap.Evals()) }
func (g *generator) jobs() []*structs.Job          { return slices.Collect(g.snap.Jobs("", "")) }

// plan decides for a random open evaluation, from the newest state or an older one.
func (g *generator) plan() *structs.PlanEntry {
	s := g.snap
	if g.old != nil && g.chance(25) {
		s = g.old
	}
	var open []*structs.Evaluation
	for e := range s.Evals() {
		if !e.Terminal() {
			open = append(open, e)
		}
	}
	ev, ok := pick(g, open)
	if !ok {
		return nil
	}
	k := ev.JobKey()
	j := s.JobByKey(k)
	p := &structs.PlanEntry{Namespace: k.Namespace, JobID: k.ID, EvalID: ev.ID, SnapshotIndex: s.Index(), LinkNext: true}
	allocs := s.AllocsByJob(k)
	done := *ev
	done.Status, done.SnapshotIndex = structs.EvalComplete, s.Index()
	if j == nil || j.Stop {
		for _, a := range allocs {
			if a.Desired == structs.DesiredRun {
				p.Parts = append(p.Parts, structs.PlanPart{Stops: []structs.PlanStop{{ID: a.ID, Desc: "job stopped", Desired: structs.DesiredStop}}})
			}
		}
		p.Evals = append(p.Evals, &done)
		return p
	}
	p.JobVersion, p.JobCreate = j.Version, j.CreateIndex
	if q := s.QueueByPath(j.QueueName()); q != nil {
		p.QueueEpoch = q.Epoch
	}
	if g.chance(20) {
		p.Reservation = &structs.Reservation{Domain: "default", Start: g.now * structs.LogTime(g.r.IntN(2)), Basis: structs.ReserveLimit}
	}
	nodes := slices.Collect(s.Nodes())
	for _, n := range nodes {
		p.Nodes = append(p.Nodes, structs.PlanNode{ID: n.ID, Epoch: n.Epoch})
	}
	for gi, grp := range j.Groups {
		p.Groups = append(p.Groups, grp.Name)
		if grp.IsGang() {
			g.gang(s, p, j, gi)
			continue
		}
		for i := range grp.Count {
			var have *structs.Allocation
			for _, a := range allocs {
				if a.Group == grp.Name && a.NameIndex == i && a.Desired == structs.DesiredRun && a.Client != structs.ClientLost {
					have = a
				}
			}
			if len(nodes) == 0 {
				continue
			}
			place := structs.PlanPlace{Group: gi, Node: g.r.IntN(len(nodes)), Index: i}
			switch {
			case have == nil:
				if g.chance(30) {
					place.Ports = []structs.PortGrant{{Label: "http", Value: 20000 + g.r.IntN(9), To: 80}}
					place.Grants = []structs.Grant{{Task: "main", Device: "nvidia/gpu/H100", Instance: gpuPrefix + structs.AllocID(g.bytes()).String()}}
					if i := g.bytes()[0]; i%2 == 0 { // a share
						place.Grants[0].MemoryMiB, place.Grants[0].Compute, place.Grants[0].Backend = 1+int64(i)*100, int64(i)%101, "none"
					}
				}
				p.Parts = append(p.Parts, structs.PlanPart{Places: []structs.PlanPlace{place}})
			case have.JobVersion != j.Version && g.chance(50):
				p.Parts = append(p.Parts, structs.PlanPart{Updates: []structs.PlanUpdate{{ID: have.ID}}})
			case have.JobVersion != j.Version || have.Client == structs.ClientFailed || have.Transition.Migrate:
				stop := structs.PlanStop{ID: have.ID, Desc: "replaced", Desired: structs.DesiredStop}
				place.Previous = have.ID
				if n := s.NodeByID(have.NodeID); n == nil || n.Status == structs.NodeDown {
					stop.Client = structs.ClientLost
				} else if !n.Ready() && ev.ID[1]%4 != 0 {
					// It drains: the new one starts elsewhere while it ends.
				} else if queues := slices.Collect(s.Queues()); len(queues) > 0 || len(have.WaitsOn) == 0 { // Apply refuses chains from the first queue on
					place.WaitsOn = []structs.AllocID{have.ID}
				}
				p.Parts = append(p.Parts, structs.PlanPart{Places: []structs.PlanPlace{place}, Stops: []structs.PlanStop{stop}})
			}
		}
	}
	if j.IsJoint() && ev.ID[0]%8 != 0 { // else only a part of it, which must be refused
		together(p)
	}
	if victim, ok := pick(g, slices.Collect(s.Allocs())); ok && g.chance(10) && len(p.Parts) > 0 && victim.JobKey() != k { // a job is never its own victim
		p.Parts[0].Stops = append(p.Parts[0].Stops, structs.PlanStop{ID: victim.ID, Desired: structs.DesiredEvict, Preempt: g.bytes()})
	}
	if g.chance(30) {
		blocked := structs.Evaluation{ID: g.bytes(), Namespace: k.Namespace, JobID: k.ID, Type: j.Type, Status: structs.EvalBlocked, Trigger: structs.TriggerQueued, PreviousEval: ev.ID}
		done.BlockedEval = blocked.ID
		p.Evals = append(p.Evals, &blocked)
		p.Workload = &structs.Workload{Namespace: k.Namespace, JobID: k.ID, BlockedEval: blocked.ID, Reason: structs.ReasonResources, Waiting: 1, SubmitIndex: 1 << 50, Priority: 7}
	}
	p.Evals = append(p.Evals, &done)
	return p
}

// together makes one part of all placements.
func together(p *structs.PlanEntry) {
	var all structs.PlanPart
	p.Parts = slices.DeleteFunc(p.Parts, func(x structs.PlanPart) bool {
		all.Places, all.Stops = append(all.Places, x.Places...), append(all.Stops, x.Stops...)
		return len(x.Places) > 0
	})
	if len(all.Places) > 0 {
		p.Parts = append(p.Parts, all)
	}
}

// gang places what is missing of a gang: the minimum in one part, now and then too little of it, the rest one by one.
func (g *generator) gang(s *state.Snapshot, p *structs.PlanEntry, j *structs.Job, gi int) {
	grp := j.Groups[gi]
	if len(p.Nodes) == 0 {
		return
	}
	r := &structs.Roster{Namespace: j.Namespace, JobID: j.ID, Group: grp.Name, Reason: structs.RosterPlaced}
	used, live := map[int]bool{}, 0
	for _, a := range s.AllocsByJob(j.Key()) {
		if a.Group == grp.Name && !a.Terminal() {
			if a.IsStandby() {
				used[a.NameIndex] = true
				continue
			}
			used[a.NameIndex] = true
			live++
			r.Members = append(r.Members, structs.RosterMember{Alloc: a.ID, Node: a.NodeID, Index: a.NameIndex})
		}
	}
	var places []structs.PlanPlace
	for i := range grp.Count {
		if used[i] {
			continue
		}
		place := structs.PlanPlace{Group: gi, Node: g.r.IntN(len(p.Nodes)), Index: i}
		places = append(places, place)
		r.Members = append(r.Members, structs.RosterMember{Alloc: structs.DeriveAllocID(p.EvalID, p.SnapshotIndex, grp.Name, i), Node: p.Nodes[place.Node].ID, Index: i})
	}
	n := max(0, grp.Least()-live)
	if at := grp.Most(); grp.IsStandby(at) && !used[at] { // its standby comes with the minimum, or behind everybody
		standby := structs.PlanPlace{Group: gi, Node: g.r.IntN(len(p.Nodes)), Index: at}
		if n > 0 && n <= len(places) {
			places = append([]structs.PlanPlace{standby}, places...)
			n++
		} else {
			places = append(places, standby)
		}
	}
	if n > 0 && g.chance(15) {
		n-- // too few: must be refused
	}
	if n > 0 && n <= len(places) {
		p.Parts = append(p.Parts, structs.PlanPart{Places: places[:n]})
		places = places[n:]
	}
	for i := range places {
		p.Parts = append(p.Parts, structs.PlanPart{Places: places[i : i+1]})
	}
	p.Rosters = append(p.Rosters, r)
}

func (g *generator) observe() *structs.AllocObservedCommand {
	c := &structs.AllocObservedCommand{}
	for _, a := range g.allocs() {
		if !g.chance(30) {
			continue
		}
		next := []structs.ClientStatus{structs.ClientRunning, structs.ClientRunning, structs.ClientComplete, structs.ClientFailed, structs.ClientUnknown}[g.r.IntN(5)]
		var use []structs.GPUUse
		for i, gr := range a.Grants {
			if n := int64(a.ID[i%16]); n%2 == 0 { // no dice: they are the same with and without
				use = append(use, structs.GPUUse{Task: gr.Task, GPU: gr.Instance, PeakMiB: n, MiBSeconds: 1000 * n, SMMillis: n - 100, EnergyMJ: int64(g.now) % 1000})
			}
		}
		var services []structs.ServiceRegistration
		for n := range (int(a.ID[3]) + int(g.now/1e9)) % 4 { // no dice here either
			s := structs.ServiceRegistration{ID: fmt.Sprint(a.ID, n), Service: []string{"web", "db"}[n%2], Address: "10.0.0.1", Port: 80 + n}
			s.Health = []structs.ServiceHealth{structs.HealthNone, structs.HealthPending, structs.HealthPassing, structs.HealthFailing}[(int(a.ID[4])+int(g.now/1e9))%4]
			if services = append(services, s); a.ID[5] == 7 {
				services = append(services, s) // twice: nothing of it counts
			}
		}
		c.Updates = append(c.Updates, structs.AllocObserved{
			ID: a.ID, Client: next, StartedAt: g.now, GPUUse: use, Services: services,
			TaskStates: structs.CompactTaskStates(map[string]*structs.TaskState{"main": {State: "running", StartedAt: g.now, Events: []structs.TaskEvent{{Type: "Started", Time: g.now}}}}),
		})
	}
	c.Updates = append(c.Updates, structs.AllocObserved{ID: g.bytes(), Client: structs.ClientRunning})
	return c
}

// next makes one command.
func (g *generator) next() structs.Command {
	c := g.one()
	if c.Body == nil {
		return g.command(&structs.JobRegisterCommand{Job: g.job(), Eval: true})
	}
	return c
}

func (g *generator) one() structs.Command {
	cmd := g.command
	job, hasJob := pick(g, g.jobs())
	node, hasNode := pick(g, g.nodes())
	if !hasNode {
		node = g.node(0)
	}
	if !hasJob {
		job = &structs.Job{Namespace: "default", ID: "job-0"}
	}
	switch w := g.r.IntN(146); {
	case w >= 139:
		c := &structs.SuspendCommand{Namespace: job.Namespace, JobID: job.ID, Resume: g.chance(50), Reason: "why not"}
		if a, ok := pick(g, g.allocs()); ok && g.chance(50) {
			c.Alloc = a.ID
		}
		return cmd(c)
	case w >= 137:
		return cmd(&structs.JobPriorityCommand{Namespace: job.Namespace, JobID: job.ID, Priority: g.r.IntN(104)})
	case w >= 133:
		for _, j := range g.jobs() { // what can be retried is rare: it is taken when it is there
			if _, failed := g.snap.ArrayByKey(j.Key()).Count(); failed > 0 && g.chance(50) {
				return cmd(&structs.WorkloadCommand{Namespace: j.Namespace, JobID: j.ID, Action: structs.ActionRetry})
			}
		}
		action, _ := pick(g, []string{structs.ActionHold, structs.ActionRelease, structs.ActionRequeue, structs.ActionRequeue, structs.ActionRetry, structs.ActionFail, "dance"})
		return cmd(&structs.WorkloadCommand{Namespace: job.Namespace, JobID: job.ID, Action: action, Reason: "why not"})
	case w >= 130:
		if r, ok := pick(g, slices.Collect(g.snap.Rosters())); ok {
			if r.Deadline != 0 && g.chance(70) {
				g.now = max(g.now, r.Deadline)
			}
			return cmd(&structs.RosterCommand{Namespace: r.Namespace, JobID: r.JobID, Group: r.Group, Epoch: r.Epoch - uint64(g.r.IntN(8)/7)})
		}
	case w < 14:
		in := g.job()
		if hasJob && !job.Dispatched && job.Groups[0].Gang == nil && g.chance(40) { // one more version of what is there
			next := *job
			next.Meta = map[string]string{"n": fmt.Sprint(g.n)}
			in = &next
		}
		c := &structs.JobRegisterCommand{Job: in, Eval: true, PreserveCounts: g.chance(20), EvalPriority: g.r.IntN(3)}
		if g.chance(20) {
			c.EnforceIndex, c.SpecIndex = true, job.SpecIndex
		}
		if g.chance(40) {
			c.Submission = &structs.JobSubmission{Source: fmt.Sprintf("job %q {}", in.ID), Format: "hcl2"}
		}
		return cmd(c)
	case w < 18:
		in := *g.job()
		in.ID, in.ParentID, in.Dispatched, in.Namespace = fmt.Sprintf("job-7/dispatch-%d", g.n), "job-7", true, job.Namespace
		in.Type, in.Periodic, in.Parameterized = structs.JobBatch, nil, &structs.Parameterized{Payload: "optional"}
		in.DispatchIdempotencyToken = []string{"", "x", "y"}[g.r.IntN(3)]
		return cmd(&structs.JobRegisterCommand{Job: &in, Eval: true})
	case w < 20:
		return cmd(&structs.JobDeregisterCommand{Namespace: job.Namespace, JobID: job.ID, Purge: g.chance(25), NoShutdownDelay: g.chance(30)})
	case w < 38:
		if p := g.plan(); p != nil {
			return cmd(p)
		}
	case w < 46:
		c := &structs.PlansCommand{}
		for range 1 + g.r.IntN(3) {
			if p := g.plan(); p != nil {
				c.Entries = append(c.Entries, p)
			}
		}
		if len(c.Entries) > 0 {
			return cmd(c)
		}
	case w < 54:
		c := &structs.NodeRegisterCommand{Node: g.node(g.r.IntN(8)), Unregister: g.chance(3)}
		hash := fmt.Sprint("hash", g.r.IntN(3))
		if g.chance(10) {
			return cmd(&structs.IntroduceCommand{Introduction: &structs.Introduction{Hash: hash, Pool: c.Node.Pool, ExpiresAt: g.now.Add(time.Duration(g.r.IntN(3)-1) * time.Hour)}})
		}
		if g.chance(10) {
			c.Introduction = hash
		}
		return cmd(c)
	case w < 62:
		st := []structs.NodeStatus{structs.NodeReady, structs.NodeReady, structs.NodeReady, structs.NodeDown, structs.NodeDisconnected, "odd"}[g.r.IntN(6)]
		return cmd(&structs.NodeStatusCommand{ID: node.ID, Status: st, Silent: st == structs.NodeDown || st == structs.NodeDisconnected, Event: &structs.NodeEvent{Message: "heartbeat", Subsystem: "Cluster"}})
	case w < 65:
		if g.chance(40) {
			return cmd(&structs.NodeTaintCommand{ID: node.ID, Add: []structs.Taint{{Key: "t", Value: fmt.Sprint(g.r.IntN(2)), Effect: []string{structs.TaintNoSchedule, structs.TaintNoExecute, "odd"}[g.r.IntN(3)]}}, Remove: []structs.Taint{{Key: "t"}}[:g.r.IntN(2)]})
		}
		return cmd(&structs.NodeEligibilityCommand{ID: node.ID, Eligibility: []structs.Eligibility{structs.NodeEligible, structs.NodeIneligible}[g.r.IntN(2)]})
	case w < 68:
		c := &structs.NodeDrainCommand{ID: node.ID, MarkEligible: g.chance(50), Complete: g.chance(50), Meta: map[string]string{"why": "test"}}
		if g.chance(50) {
			c.Strategy = &structs.DrainStrategy{Deadline: time.Duration(g.r.IntN(3)-1) * time.Hour}
		}
		return cmd(c)
	case w < 69:
		return cmd(&structs.NodePurgeCommand{IDs: []structs.NodeID{node.ID}})
	case w < 71:
		return cmd(&structs.NodeEventCommand{IDs: []structs.NodeID{node.ID, g.bytes()}, Events: []structs.NodeEvent{{Message: "disk slow", Subsystem: "Storage"}}})
	case w < 85:
		return cmd(g.observe())
	case w < 88:
		a, _ := pick(g, g.allocs())
		c := &structs.AllocTransitionCommand{IDs: []structs.AllocID{g.bytes()}, Transition: structs.Transition{Migrate: true}, Trigger: structs.TriggerNodeDrain}
		if a != nil {
			c.IDs = append(c.IDs, a.ID)
		}
		return cmd(c)
	case w < 91:
		e := &structs.Evaluation{Namespace: job.Namespace, JobID: job.ID, Type: job.Type, Trigger: structs.TriggerScheduled, WaitUntil: g.now}
		if old, ok := pick(g, g.evals()); ok && g.chance(50) {
			c := *old
			c.Status = []structs.EvalStatus{structs.EvalPending, structs.EvalFailed, structs.EvalCanceled}[g.r.IntN(3)]
			e = &c
		}
		return cmd(&structs.EvalUpsertCommand{Evals: []*structs.Evaluation{e}})
	case w < 92:
		if e, ok := pick(g, g.evals()); ok {
			return cmd(&structs.EvalDeleteCommand{IDs: []structs.EvalID{e.ID}})
		}
	case w < 94:
		n := int64(g.r.IntN(7))
		c := &structs.ScaleCommand{Namespace: job.Namespace, JobID: job.ID, Group: []structs.GroupName{"a", "a", "a", "zz"}[g.r.IntN(4)], Event: structs.ScalingEvent{Message: "by test"}}
		if g.chance(80) {
			c.Count = &n
		}
		return cmd(c)
	case w < 97:
		child := *g.job()
		child.ID, child.Type, child.Periodic, child.Parameterized = fmt.Sprintf("job-6/periodic-%d", g.n), structs.JobBatch, nil, nil
		c := &structs.PeriodicLaunchCommand{Namespace: job.Namespace, JobID: "job-6", Launch: g.now, Child: &child, Forced: g.chance(20)}
		if g.chance(10) {
			c.Child = nil
		}
		return cmd(c)
	case w < 99:
		c := &structs.JobStableCommand{Namespace: job.Namespace, JobID: job.ID, Version: uint64(g.r.IntN(3)), Stable: true}
		if g.chance(50) {
			c.Stable, c.Failed = false, "a group became healthy too late"
		}
		return cmd(c)
	case w < 101:
		c := &structs.JobTagCommand{Namespace: job.Namespace, JobID: job.ID, Name: "golden", Version: uint64(g.r.IntN(3))}
		if g.chance(70) {
			c.Tag = &structs.JobVersionTag{Name: "golden"}
		}
		return cmd(c)
	case w < 106:
		c := &structs.CollectCommand{}
		for _, a := range g.allocs() {
			if g.chance(50) {
				c.Allocs = append(c.Allocs, a.ID)
			}
		}
		for _, e := range g.evals() {
			if g.chance(50) {
				c.Evals = append(c.Evals, e.ID)
			}
		}
		for _, j := range g.jobs() {
			if g.chance(30) {
				c.Jobs = append(c.Jobs, j.Key())
			}
		}
		for _, n := range g.nodes() {
			if g.chance(10) {
				c.Nodes = append(c.Nodes, n.ID)
			}
		}
		for t := range g.snap.Tokens() {
			c.Tokens = append(c.Tokens, t.Accessor)
		}
		return cmd(c)
	}
	return g.small()
}

// variable makes commands on variables and the names of their keys.
func (g *generator) variable(name string) structs.Command {
	keys := slices.Collect(g.snap.SealKeys())
	if len(keys) == 0 || g.chance(4) {
		return g.command(&structs.SealKeyCommand{ID: fmt.Sprint("seal-", g.r.IntN(6))})
	}
	switch key, _ := pick(g, keys); {
	case g.chance(6):
		return g.command(&structs.SealRekeyCommand{ID: fmt.Sprint("seal-", g.r.IntN(12))})
	case g.chance(12):
		keys = slices.DeleteFunc(keys, func(k *structs.SealKey) bool { return k.Active })
		for v := range g.snap.Variables("*", "") {
			keys = slices.DeleteFunc(keys, func(k *structs.SealKey) bool { return k.ID == v.KeyID })
		}
		if free, ok := pick(g, keys); ok && g.chance(80) {
			key = free
		}
		return g.command(&structs.SealKeyDeleteCommand{ID: key.ID})
	case g.chance(15):
		c := &structs.VariableResealCommand{KeyID: key.ID}
		if g.chance(80) {
			c.KeyID = g.snap.ActiveSealKey()
		}
		for v := range g.snap.Variables("*", "") {
			if v.KeyID == c.KeyID {
				continue
			}
			r := structs.ResealedVariable{Namespace: v.Namespace, Path: v.Path, ModifyIndex: v.ModifyIndex, OldKeyID: v.KeyID, Sealed: make([]byte, len(v.Sealed))}
			if g.chance(10) {
				r.ModifyIndex++
			}
			c.Variables = append(c.Variables, r)
		}
		return g.command(c)
	}
	v := &structs.Variable{Namespace: "default", Path: []string{"a", "a/b", "nomad/jobs", "nomad/jobs/job-1/a", "nomad/no"}[g.r.IntN(5)], Sealed: make([]byte, 1+g.r.IntN(300))}
	if g.chance(10) {
		v.Namespace = name
	}
	key, _ := pick(g, keys)
	v.KeyID = key.ID
	if g.chance(4) {
		v.KeyID = "other"
	}
	var at structs.Index
	if old := g.snap.Variable(v.Namespace, v.Path); old != nil && g.chance(70) {
		at = old.ModifyIndex
	}
	if g.chance(30) {
		return g.command(&structs.VariableDeleteCommand{Namespace: v.Namespace, Path: v.Path, CAS: g.chance(50), CASIndex: at})
	}
	return g.command(&structs.VariableSetCommand{Variable: v, CAS: g.chance(50), CASIndex: at})
}

// small makes commands on the small tables.
func (g *generator) small() structs.Command {
	cmd := g.command
	names := []string{"team", "gpu", "default", "all", "extra"}
	name := names[g.r.IntN(len(names))]
	role, hasRole := pick(g, slices.Collect(g.snap.Roles()))
	token, _ := pick(g, slices.Collect(g.snap.Tokens()))
	switch g.r.IntN(36) {
	case 26, 27, 28, 31, 32, 33, 34, 35:
		return g.variable(name)
	case 29, 30:
		c := &structs.ServiceDeleteCommand{Namespace: "default", Service: "web", ID: "none"}
		if s, ok := pick(g, slices.Collect(g.snap.Services("*"))); ok && g.chance(80) {
			c.Namespace, c.Service, c.ID = s.Namespace, s.Service, s.ID
		}
		return cmd(c)
	case 20, 21:
		q := &structs.Queue{Path: []structs.QueuePath{"default", "research", "research/nlp", "root", "research/nlp/x", "research/nlp"}[g.r.IntN(6)], Weight: g.r.Int64N(3),
			HalfLife: time.Duration(g.r.IntN(3)) * time.Hour, Order: []structs.Order{"", structs.OrderWeighted, "odd"}[g.r.IntN(3)]}
		if g.chance(50) {
			q.Limit = &structs.Amount{GPUMilli: g.r.Int64N(4000), GPUMemoryMiB: structs.AmountNoLimit, CPU: 100 * g.r.Int64N(20), MemoryMiB: structs.AmountNoLimit}
		}
		if g.chance(25) {
			q.Billing = &structs.Billing{CPU: 1_000_000 * (1 + g.r.Int64N(3)), Memory: 500_000 * g.r.Int64N(2), GPU: 1_000_000}
			q.UserWeights = map[string]int64{"ada": 1 + g.r.Int64N(4)}
		}
		if g.chance(25) {
			q.Borrow = &structs.Amount{GPUMilli: g.r.Int64N(4000), GPUMemoryMiB: structs.AmountNoLimit, CPU: structs.AmountNoLimit, MemoryMiB: structs.AmountNoLimit}
		}
		if g.chance(14) && q.Path != structs.QueueRoot {
			q.UserLimit = &structs.Amount{GPUMilli: g.r.Int64N(4000), GPUMemoryMiB: structs.AmountNoLimit, CPU: 100 * g.r.Int64N(20), MemoryMiB: structs.AmountNoLimit}
		}
		if g.chance(20) {
			q.LimitModels = []structs.ModelAmount{{Model: "H100", Milli: 1000 * g.r.Int64N(4)}}
			if q.Path != structs.QueueRoot {
				q.UserLimitModels = []structs.ModelAmount{{Model: "h100", Milli: 1000 * g.r.Int64N(3)}}
			}
		}
		if g.chance(35) {
			q.RunningMax, q.RunningUserMax, q.SubmittedMax, q.SubmittedUserMax = g.r.Int64N(4), g.r.Int64N(4), g.r.Int64N(9), g.r.Int64N(9)
		}
		return cmd(&structs.QueueUpsertCommand{Queues: []*structs.Queue{q}})
	case 22:
		return cmd(&structs.QueueDeleteCommand{Paths: []structs.QueuePath{[]structs.QueuePath{"default", "research/nlp/x", "research/nlp/x", "root", "research"}[g.r.IntN(5)]}})
	case 23:
		if g.chance(40) {
			return cmd(&structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: name, Quota: []string{"q1", "q2", ""}[g.r.IntN(3)]}}})
		}
		var models []structs.ModelAmount
		if g.chance(30) {
			models = []structs.ModelAmount{{Model: "H100", Milli: 1000 * g.r.Int64N(4)}}
		}
		return cmd(&structs.QuotaUpsertCommand{Quotas: []*structs.QuotaSpec{{Name: []string{"q1", "q2"}[g.r.IntN(2)],
			Limits: []structs.QuotaLimit{{Region: "global", Hard: structs.Amount{GPUMilli: structs.AmountNoLimit, GPUMemoryMiB: structs.AmountNoLimit, CPU: 100 * g.r.Int64N(20), MemoryMiB: 64 * g.r.Int64N(40)}, HardModels: models}}}}})
	case 24:
		if g.chance(60) {
			return cmd(&structs.ReserveCommand{Reservations: []*structs.Reservation{{ID: fmt.Sprint("r", g.r.IntN(4)), Domain: "default", Start: 1, End: g.now + 1e12,
				Amount: &structs.Amount{GPUMilli: 1000}, Queues: []structs.QueuePath{"default"}}}})
		}
		return cmd(&structs.UnreserveCommand{IDs: []string{fmt.Sprint("r", g.r.IntN(4))}})
	case 25:
		return cmd(&structs.QuotaDeleteCommand{Names: []string{[]string{"q1", "q2"}[g.r.IntN(2)]}})
	case 0, 1:
		return cmd(&structs.PoolUpsertCommand{Pools: []*structs.NodePool{{Name: structs.PoolName(name)}}})
	case 2:
		return cmd(&structs.PoolDeleteCommand{Names: []structs.PoolName{structs.PoolName(name)}})
	case 3, 4:
		return cmd(&structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: name}}})
	case 5:
		return cmd(&structs.NamespaceDeleteCommand{Names: []string{name}})
	case 6:
		return cmd(&structs.PolicyUpsertCommand{Policies: []*structs.ACLPolicy{{Name: name, Rules: "namespace \"default\" {}"}}})
	case 7:
		return cmd(&structs.PolicyDeleteCommand{Names: []string{name}})
	case 8, 9:
		t := &structs.ACLToken{Accessor: g.bytes(), Secret: g.bytes(), Type: structs.TokenClient, Policies: []string{name}, ExpirationTTL: int64(g.r.IntN(2)) * 20e9}
		if hasRole && g.chance(50) {
			t.Roles = []structs.ACLTokenRole{{Name: role.Name}}
		}
		if g.chance(10) {
			t.Roles = []structs.ACLTokenRole{{ID: g.bytes()}}
		}
		return cmd(&structs.TokenUpsertCommand{Tokens: []*structs.ACLToken{t}})
	case 10:
		id := structs.AccessorID(g.bytes())
		if token != nil {
			id = token.Accessor
		}
		return cmd(&structs.TokenDeleteCommand{Accessors: []structs.AccessorID{id}})
	case 11:
		return cmd(&structs.ACLBootstrapCommand{Token: &structs.ACLToken{Accessor: g.bytes(), Secret: g.bytes()}, ResetIndex: structs.Index(g.r.IntN(2)) * g.snap.BootstrapIndex()})
	case 12:
		return cmd(&structs.RoleUpsertCommand{Roles: []*structs.ACLRole{{Name: "r-" + name, Policies: []string{name}}}})
	case 13:
		return cmd(&structs.RoleDeleteCommand{IDs: []structs.RoleID{func() structs.RoleID {
			if hasRole {
				return role.ID
			}
			return g.bytes()
		}()}})
	case 14:
		t := &structs.OneTimeToken{Secret: g.bytes(), ExpiresAt: g.now}
		if token != nil {
			t.Accessor = token.Accessor
		}
		return cmd(&structs.OneTimeUpsertCommand{Token: t})
	case 15:
		var ids []structs.SecretID
		for t := range g.snap.OneTimeTokens() {
			ids = append(ids, t.Secret)
		}
		if len(ids) == 0 {
			ids = append(ids, g.bytes())
		}
		return cmd(&structs.OneTimeDeleteCommand{Secrets: ids})
	case 16:
		return cmd(&structs.SchedulerConfigCommand{Config: &structs.SchedulerConfig{Algorithm: name}, CAS: g.chance(50), CASIndex: g.snap.SchedulerConfig().ModifyIndex})
	case 17:
		return cmd(&structs.AutopilotConfigCommand{Config: &structs.AutopilotConfig{MaxTrailingLogs: 9}, CAS: g.chance(50), CASIndex: 3})
	case 18:
		switch g.r.IntN(4) {
		case 0:
			if g.chance(50) {
				return cmd(&structs.UpgradeFinishCommand{Format: min(g.snap.Format()+1, feature.Newest), By: "test"})
			}
			return cmd(&structs.ClusterInitCommand{ID: g.bytes(), Format: feature.Newest, By: "test"})
		case 1:
			return cmd(&structs.RestoredCommand{Epoch: uint64(g.r.IntN(3) * g.r.IntN(1<<40))})
		case 2:
			return cmd(&structs.AcctCollectCommand{Before: g.now - structs.LogTime(g.r.IntN(100))*1e9, Keep: int64(g.r.IntN(4))})
		}
		return cmd(&structs.SigningKeyCommand{Key: &structs.SigningKey{ID: fmt.Sprint("key-", g.r.IntN(20)), Algorithm: "RS256", Public: []byte{2}}})
	}
	b := &structs.BatchCommand{}
	for range 1 + g.r.IntN(3) {
		c := g.next()
		if !isA[*structs.BatchCommand](c) {
			b.Commands = append(b.Commands, c)
		}
	}
	return cmd(b)
}
