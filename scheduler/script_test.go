package scheduler_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/script"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

// TestScripts decides what the scripts of testdata/scripts ask for. Commands:
//
//	cluster            one node per line: NAME cpu= mem= disk= cores= dc= pool= class= gpus= gpumib= model= islands= numa= sick= lost= faults= attr.K=V meta.K=V
//	node NAME ...      changes a node: status= eligible=yes|no drain=DURATION|no, or any of the above; silent (it missed its heartbeat); gone removes it
//	job ID ...         registers a job (a new version when it exists): type= count= cpu= mem= cores= driver= priority= all_at_once dc= pool= env= meta=
//	                   stop, purge; lines: constraint L OP R, affinity W L OP R, spread W ATTR [VALUE=PERCENT...], gpu NAME COUNT [L OP R],
//	                   gpus COUNT mem=MIB share=PERCENT compute=PERCENT model=WORD (each line an alternative), numa AFFINITY DEVICE...,
//	                   static LABEL=PORT, dynamic LABEL, volume SOURCE, distinct_hosts, distinct_property ATTR LIMIT, update max_parallel= stagger= health_check= min_healthy=, checked (a service with a check),
//	                   reschedule attempts= interval= delay= function= max= unlimited, disconnect lost_after= stop_on_client_after= [replace=no], max_run DURATION,
//	                   gang min= on_failure= timeout= standby=, elastic min= max=, topology inside= across= mode=, checkpoint grace= cost= interval= signal=- on=,
//	                   requeue avoid_failed_nodes, second NAME [count=] [cpu=] (another group like the first; with cpu= one without GPUs and gang); with preemptible queue= expected= deadline=
//	client NAME ST...  the agent reports a status for the live allocations of that name: node= exit= gpu_error[=before] ending (of those that are told to stop)
//	                   healthy (its checks pass), restarts=N (its task, which runs or, with crashed, waits for that restart)
//	saved NAME ago=D   the agent reports a checkpoint of the live allocations of that name; took=D after a notice
//	rosters            who is in the gangs, by rank
//	timeouts after=D   ends the assembly of gangs whose time is over
//	queue PATH ...     a queue: preempt= rate= min_runtime= max= after= delta= guarantee=GPUS borrow=GPUS lend=GPUS; used=GPUS
//	quota NAME ...     the quota of the namespace default: soft=GPUS hard=GPUS
//	force ID           an evaluation that reschedules failed allocations now
//	schedule [after=DURATION] [policy=NAME] [gpu_fit=RULE] [preempt_batch] [typical=DURATION] [scores] [explain]
func TestScripts(t *testing.T) {
	script.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		w := newWorld(t, 1, map[string]int{})
		w.now = 1_000_000_000_000
		script.Run(t, path, func(t *testing.T, c *script.Case) string {
			w.t = t
			return runCommand(t, w, c)
		})
	})
}

func nodeID(name string) structs.NodeID {
	var n structs.NodeID
	copy(n[:], name)
	return n
}

func nodeName(n structs.NodeID) string { return strings.TrimRight(string(n[:]), "\x00") }

func runCommand(t *testing.T, w *world, c *script.Case) string {
	switch c.Cmd {
	case "cluster":
		for line := range strings.Lines(c.Input) {
			words := strings.Fields(line)
			n := node(0)
			n.ID, n.Name = nodeID(words[0]), words[0]
			n.Attributes["unique.hostname"] = n.Name
			n.Meta = map[string]string{}
			changeNode(t, n, words[1:])
			w.putNode(n)
		}
		w.commit()
		return "ok"
	case "node":
		id := nodeID(c.Args[0].Key)
		if c.Has("gone") {
			w.delta.Nodes = append(w.delta.Nodes, structs.Changed[structs.Node]{Before: w.nodes[id]})
			delete(w.nodes, id)
		} else {
			n := *w.nodes[id]
			n.Attributes, n.Meta = maps.Clone(n.Attributes), maps.Clone(n.Meta)
			n.Drivers = maps.Clone(n.Drivers)
			var words []string
			for _, a := range c.Args[1:] {
				if a.Key != "silent" {
					words = append(words, a.Key+"="+a.Value)
				}
			}
			changeNode(t, &n, words)
			switch { // as Apply does
			case !c.Has("silent"):
				n.SilentAt = 0
			case n.SilentAt == 0:
				n.SilentAt = w.now
			}
			if n.Drain != nil {
				for _, a := range w.allocs {
					if a.NodeID == id && !a.Terminal() {
						b := *a
						b.Transition.Migrate = true
						w.putAlloc(&b)
					}
				}
			}
			w.putNode(&n)
		}
		for _, k := range sortedJobs(w.jobs) {
			w.addEval(k, structs.TriggerNodeUpdate)
		}
		w.commit()
		return "ok"
	case "job":
		return registerJob(t, w, c)
	case "client":
		for _, a := range values(w.allocs, func(a *structs.Allocation) structs.AllocID { return a.ID }) {
			if a.Name() != c.Args[0].Key || a.ClientTerminal() || c.Has("node") && nodeName(a.NodeID) != c.String("node", "") || c.Has("ending") && !a.ServerTerminal() {
				continue
			}
			b := *a
			b.Client = structs.ClientStatus(c.Args[1].Key)
			switch b.Client {
			case structs.ClientRunning:
				if b.StartedAt == 0 || !c.Has("healthy") {
					b.StartedAt = w.now
				}
				if n := int64(c.Int(t, "restarts", 0)); n > 0 { // the first start remains the allocation's
					b.StartedAt = max(a.StartedAt, 1)
					s := &structs.TaskState{State: "running", Restarts: n, StartedAt: w.now}
					if c.Has("crashed") {
						s.State = "pending"
					}
					b.TaskStates = structs.CompactTaskStates(map[string]*structs.TaskState{"t": s})
				}
				if b.HealthySince = 0; c.Has("healthy") {
					b.HealthySince = w.now
				}
			case structs.ClientFailed, structs.ClientComplete:
				b.FinishedAt = w.now
			}
			if code := c.Int(t, "exit", 0); code != 0 {
				b.TaskStates = structs.CompactTaskStates(map[string]*structs.TaskState{"t": {State: "dead", Failed: true, Events: []structs.TaskEvent{{Type: "Terminated", ExitCode: int64(code)}}}})
			}
			if c.Has("gpu_error") { // its GPU was reported, then it ended: in this run, or in the one before
				s := &structs.TaskState{State: "dead", Failed: true, StartedAt: b.StartedAt, Events: []structs.TaskEvent{{Type: structs.TaskEventGPUError, Time: w.now}, {Type: "Terminated", Time: w.now, ExitCode: 1}}}
				if c.String("gpu_error", "") == "before" {
					s.StartedAt = w.now.Add(time.Second)
				}
				b.TaskStates = structs.CompactTaskStates(map[string]*structs.TaskState{"t": s})
			}
			w.putAlloc(&b)
			w.addEval(a.JobKey(), structs.TriggerRetryFailed)
		}
		w.commit()
		return "ok"
	case "saved": // the agent reports a checkpoint of the live allocations of that name
		for _, a := range values(w.allocs, func(a *structs.Allocation) structs.AllocID { return a.ID }) {
			if a.Name() == c.Args[0].Key && !a.ClientTerminal() {
				b := *a
				b.Saved = &structs.Saved{Time: w.now.Add(-duration(t, c.String("ago", "0s"))), Took: duration(t, c.String("took", "0s"))}
				w.putAlloc(&b)
				find := func(id structs.AllocID) *structs.Allocation { return w.allocs[id] }
				if ro := w.gangs[structs.RosterKey{Job: a.JobKey(), Group: a.Group}]; ro != nil && a.Job.Group(a.Group).SavesAsOne() {
					if next := ro.Saving(a.Job.Group(a.Group).Checkpoint, find); next != nil {
						w.gangs[ro.Key()] = next
					}
				}
			}
		}
		w.commit()
		return "ok"
	case "rosters":
		return rosters(w)
	case "queue":
		q := &structs.Queue{Path: structs.QueuePath(c.Args[0].Key), Preempt: c.String("preempt", ""), PreemptRate: int64(c.Int(t, "rate", 0)), PreemptMax: int64(c.Int(t, "max", 0)),
			PreemptMinRuntime: duration(t, c.String("min_runtime", "0s")), Backfill: structs.BackfillGreedy,
			PreemptAfter: duration(t, c.String("after", "0s")), PreemptDelta: int64(c.Int(t, "delta", 0))}
		if c.Has("guarantee") {
			q.Guarantee = &structs.Amount{GPUMilli: 1000 * int64(c.Int(t, "guarantee", 0))}
		}
		for name, to := range map[string]**structs.Amount{"borrow": &q.Borrow, "lend": &q.Lend} {
			if c.Has(name) {
				a := structs.Unlimited
				a.GPUMilli = 1000 * int64(c.Int(t, name, 0))
				*to = &a
			}
		}
		w.putQueue(q)
		if q.Lend != nil { // what is lent depends on what the cluster has
			w.queues.Total = structs.Amount{}
			for _, n := range w.nodes {
				for i := range n.Resources.Devices {
					w.queues.Total.GPUMilli += 1000 * int64(len(n.Resources.Devices[i].Instances))
				}
			}
		}
		return "ok"
	case "quota": // soft=GPUS hard=GPUS of the namespace default
		soft := structs.Unlimited
		soft.GPUMilli = 1000 * int64(c.Int(t, "soft", 0))
		q := contend.Tenant{Namespace: "default", Quota: c.Args[0].Key, Hard: structs.Unlimited, Soft: &soft}
		if !c.Has("soft") {
			q.Soft = nil
		}
		if c.Has("hard") {
			q.Hard.GPUMilli = 1000 * int64(c.Int(t, "hard", 0))
		}
		w.queues.Tenants = []contend.Tenant{q}
		return "ok"
	case "timeouts": // after=DURATION; assemblies that took too long are ended
		w.now = w.now.Add(duration(t, c.String("after", "0s")))
		n := w.timeouts()
		w.commit()
		return fmt.Sprintf("%d gangs dissolved\n", n)
	case "hold", "release", "requeue":
		key := structs.JobKey{Namespace: "default", ID: c.Args[0].Key}
		return workloadCommand(w, c.Cmd, key)
	case "force":
		w.addEval(structs.JobKey{Namespace: "default", ID: c.Args[0].Key}, structs.TriggerRetryFailed)
		for _, e := range w.evals {
			if e.Status == structs.EvalPending && e.JobID == c.Args[0].Key && e.WaitUntil == 0 {
				e.ForceResch = true
			}
		}
		return "ok"
	case "weights":
		var words []string
		for _, a := range c.Args {
			words = append(words, a.Key+"="+a.Value)
		}
		w.config.Weights = weightsOf(t, words)
		return "ok"
	case "levels": // KEY... from near to far, of the topology
		w.config.TopologyLevels = nil
		for _, a := range c.Args {
			w.config.TopologyLevels = append(w.config.TopologyLevels, a.Key)
		}
		return "ok"
	case "schedule":
		return schedule(t, w, c)
	case "suggest":
		return suggestion(t, w, c)
	}
	t.Fatalf("%s: unknown command %q", c.Pos, c.Cmd)
	return ""
}

// weightsOf reads "cost=50"; 0 is off.
func weightsOf(t *testing.T, words []string) (out structs.ScoreWeights) {
	for _, word := range words {
		k, v, _ := strings.Cut(word, "=")
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			t.Fatalf("%q: want a number", word)
		}
		if n == 0 {
			n = structs.WeightOff
		}
		for _, x := range out.Terms() {
			if x.Name == k {
				*x.Value = n
			}
		}
	}
	return out
}

func changeNode(t *testing.T, n *structs.Node, words []string) {
	num := func(s string) int64 {
		v, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			t.Fatalf("%q: want a number", s)
		}
		return v
	}
	for _, word := range words {
		k, v, _ := strings.Cut(word, "=")
		switch {
		case k == "cpu":
			n.Resources.CPU = num(v)
		case k == "mem":
			n.Resources.MemoryMiB = num(v)
		case k == "disk":
			n.Resources.DiskMiB = num(v)
		case k == "cores":
			n.Resources.Cores = num(v)
			n.Resources.MHzPerCore = n.Resources.CPU / n.Resources.Cores
		case k == "overcommit": // percent of memory
			n.Overcommit.Memory = num(v)
		case k == "lost": // it was lost so often in the last 30 days, after a day each time
			n.Periods = nil
			for range num(v) {
				n.Periods = append(n.Periods, structs.ReadyPeriod{From: structs.LogTime(0).Add(-24 * time.Hour), Lost: true})
			}
		case k == "faults": // so often one of its GPUs failed in the last 30 days, during all of which it was ready
			n.GPUFaults, n.StatusAt = nil, structs.LogTime(0).Add(-structs.ReadyPeriodsAge)
			for range num(v) {
				n.GPUFaults = append(n.GPUFaults, structs.LogTime(0).Add(-24*time.Hour))
			}
		case k == "reserved":
			n.Reserved.MemoryMiB = num(v)
		case k == "reserved_port":
			n.Reserved.Ports = []int{int(num(v))}
		case k == "dc":
			n.Datacenter = v
		case k == "pool":
			n.Pool = structs.PoolName(v)
		case k == "class":
			n.Class = v
		case k == "volume":
			n.HostVolumes = map[string]structs.HostVolume{v: {Path: "/v"}}
		case k == "driver":
			name, state, _ := strings.Cut(v, ":")
			n.Drivers[name] = &structs.DriverInfo{Detected: state != "none", Healthy: state == ""}
		case k == "gpus":
			g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100", Attributes: map[string]structs.Attribute{"memory": {Kind: "int", Int: 80, Unit: "GiB"}}}
			for i := range num(v) {
				g.Instances = append(g.Instances, structs.DeviceInstance{ID: strconv.Itoa(int(i)), Healthy: true})
			}
			n.Resources.Devices = []structs.DeviceGroup{g}
		case k == "mig": // all of its GPUs are instances of a profile; they could also be of 3g.40gb
			n.Resources.Devices[0].Name += " MIG " + v
			n.Resources.Devices[0].Attributes["mig_profile"] = structs.Attribute{Kind: "string", Str: v}
			n.Resources.MIG = []structs.MIGGeometry{{GPU: "GPU-0", Profiles: []structs.MIGProfile{{Name: v, Slots: 1, Max: 7}, {Name: "3g.40gb", Slots: 4, Max: 2, Starts: []int64{0, 4}}}}}
		case k == "watts": // what each of its GPUs may draw
			n.Resources.Devices[0].Attributes["power"] = structs.Attribute{Kind: "int", Int: num(v), Unit: "W"}
		case k == "budget": // of its pool, in watts
			n.PowerBudgetW = num(v)
		case k == "model":
			n.Resources.Devices[0].Name = v
		case k == "gpumem":
			n.Resources.Devices[0].Attributes = map[string]structs.Attribute{"memory": {Kind: "int", Int: num(v), Unit: "GiB"}}
		case k == "numa": // cores and GPUs of each NUMA node: 0-3:2+4-7:2
			n.Attributes = maps.Clone(n.Attributes)
			list, at := strings.Split(v, "+"), 0
			n.Attributes[structs.NUMACountAttribute] = strconv.Itoa(len(list))
			for i, x := range list {
				cores, gpus, _ := strings.Cut(x, ":")
				n.Attributes[structs.NUMACoresAttribute(i)] = cores
				for to := at + int(num(cmp.Or(gpus, "0"))); at < to; at++ {
					n.Resources.Devices[0].Instances[at].NUMANode = int64(i)
				}
			}
		case k == "gpumib":
			for i := range n.Resources.Devices[0].Instances {
				n.Resources.Devices[0].Instances[i].MemoryMiB = num(v)
			}
		case k == "islands": // sizes: 4+4
			i := 0
			for at, size := range strings.Split(v, "+") {
				for range num(size) {
					n.Resources.Devices[0].Instances[i].Island = fmt.Sprintf("i%d", at)
					i++
				}
			}
		case k == "sick":
			for _, s := range strings.Split(v, ",") {
				n.Resources.Devices[0].Instances[num(s)].Healthy = false
			}
		case k == "status":
			n.Status = structs.NodeStatus(v)
		case k == "eligible":
			n.Eligibility = map[string]structs.Eligibility{"yes": structs.NodeEligible, "no": structs.NodeIneligible}[v]
		case k == "drain":
			n.Drain = nil
			if v != "no" {
				d, err := time.ParseDuration(v)
				if err != nil {
					t.Fatal(err)
				}
				n.Drain = &structs.DrainStrategy{Deadline: d}
			}
		case strings.HasPrefix(k, "attr."):
			n.Attributes[k[5:]] = v
		case strings.HasPrefix(k, "meta."):
			n.Meta[k[5:]] = v
		default:
			t.Fatalf("unknown node setting %q", word)
		}
	}
}

func duration(t *testing.T, s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func atoi(t *testing.T, c *script.Case, s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %q: want a number", c.Pos, s)
	}
	return n
}

func registerJob(t *testing.T, w *world, c *script.Case) string {
	name := c.Args[0].Key
	key := structs.JobKey{Namespace: "default", ID: name}
	old := w.jobs[key]
	w.addEval(key, structs.TriggerJobRegister)
	if c.Has("purge") {
		delete(w.jobs, key)
		return "ok"
	}
	if c.Has("stop") {
		j := *old
		j.Stop = true
		w.jobs[key] = &j
		return "ok"
	}
	j := job(name, c.Int(t, "count", 1))
	j.Type = structs.JobType(c.String("type", "service"))
	j.Priority = c.Int(t, "priority", 50)
	j.AllAtOnce = c.Has("all_at_once")
	j.Preemptible = c.Has("preemptible")
	j.Queue = structs.QueuePath(c.String("queue", ""))
	j.Runtime.Expected = duration(t, c.String("expected", "0s"))
	if c.Has("deadline") {
		j.Deadline = w.now.Add(duration(t, c.String("deadline", "0s")))
	}
	j.NodePool = structs.PoolName(c.String("pool", string(structs.NodePoolDefault)))
	j.Datacenters = strings.Split(c.String("dc", "*"), ",")
	j.SpecIndex, j.SubmitTime = w.index, w.now
	if c.Has("meta") {
		j.Meta = map[string]string{"m": c.String("meta", "")}
	}
	if old != nil {
		j.Version = old.Version + 1
	}
	g := j.Groups[0]
	g.Disk.Sticky = c.Has("sticky")
	task := g.Tasks[0]
	task.Driver = c.String("driver", "exec")
	task.Resources.CPU = int64(c.Int(t, "cpu", 500))
	task.Resources.MemoryMiB = int64(c.Int(t, "mem", 256))
	if n := c.Int(t, "cores", 0); n > 0 {
		task.Resources.CPU, task.Resources.Cores = 0, int64(n)
	}
	if c.Has("env") {
		task.Env = map[string]string{"E": c.String("env", "")}
	}
	net := structs.Network{}
	var second []string // NAME, count=
	for line := range strings.Lines(c.Input) {
		f := strings.Fields(line)
		opt := func(k, def string) string {
			for _, x := range f[1:] {
				if a, b, _ := strings.Cut(x, "="); a == k {
					return b
				}
			}
			return def
		}
		atoi := func(s string) int64 { return atoi(t, c, s) }
		at := func(i int) string {
			if i < len(f) {
				return strings.Join(f[i:], " ")
			}
			return ""
		}
		switch f[0] {
		case "constraint":
			g.Constraints = append(g.Constraints, structs.Constraint{LTarget: f[1], Operand: f[2], RTarget: at(3)})
		case "affinity":
			g.Affinities = append(g.Affinities, structs.Affinity{Weight: atoi(f[1]), LTarget: f[2], Operand: f[3], RTarget: at(4)})
		case "near", "away":
			p := structs.Peer{JobID: opt("job", ""), Label: opt("label", ""), Level: opt("level", ""), Required: slices.Contains(f, "required"), Weight: atoi(opt("weight", "50"))}
			if f[0] == "near" {
				g.Near = append(g.Near, p)
			} else {
				j.Away = append(j.Away, p)
			}
		case "meta":
			k, v, _ := strings.Cut(f[1], "=")
			j.Meta = map[string]string{k: v}
		case "data":
			j.Datasets = f[1:]
		case "weights":
			j.Weights = weightsOf(t, f[1:])
		case "spread":
			s := structs.Spread{Weight: atoi(f[1]), Attribute: f[2]}
			for _, x := range f[3:] {
				v, p, _ := strings.Cut(x, "=")
				s.Targets = append(s.Targets, structs.SpreadTarget{Value: v, Percent: atoi(p)})
			}
			g.Spreads = append(g.Spreads, s)
		case "gpu":
			d := structs.DeviceRequest{Name: f[1], Count: atoi(f[2])}
			if len(f) > 3 {
				d.Constraints = []structs.Constraint{{LTarget: f[3], Operand: f[4], RTarget: at(5)}}
			}
			task.Resources.Devices = append(task.Resources.Devices, d)
		case "gpus": // each line is one alternative
			r := structs.GPURequest{Count: atoi(f[1]), MemoryMiB: atoi(opt("mem", "0")), Share: atoi(opt("share", "0")), Compute: atoi(opt("compute", "0")), Model: opt("model", ""), MIG: opt("mig", "")}
			task.Resources.GPU = append(task.Resources.GPU, r)
		case "numa": // AFFINITY, then devices that should also be there
			task.Resources.NUMA = &structs.NUMA{Affinity: f[1], Devices: f[2:]}
		case "static":
			l, p, _ := strings.Cut(f[1], "=")
			net.StaticPorts = append(net.StaticPorts, structs.Port{Label: l, Value: int(atoi(p))})
		case "dynamic":
			net.DynamicPorts = append(net.DynamicPorts, structs.Port{Label: f[1], To: -1})
		case "volume":
			g.Volumes = append(g.Volumes, structs.VolumeRequest{Name: f[1], Raw: structs.RawConfig(`{"Source":"` + f[1] + `","Type":"host"}`)})
		case "distinct_hosts":
			j.Constraints = append(j.Constraints, structs.Constraint{Operand: structs.OperandDistinctHosts})
		case "distinct_property":
			g.Constraints = append(g.Constraints, structs.Constraint{Operand: structs.OperandDistinctProperty, LTarget: f[1], RTarget: at(2)})
		case "update":
			g.Update = &structs.Update{MaxParallel: int(atoi(opt("max_parallel", "1"))), Stagger: duration(t, opt("stagger", "30s")),
				HealthCheck: opt("health_check", ""), MinHealthyTime: duration(t, opt("min_healthy", "0s"))}
		case "checked":
			g.Services = append(g.Services, structs.Service{Name: "s", Checked: true})
		case "reschedule":
			g.Reschedule = structs.Reschedule{Attempts: int(atoi(opt("attempts", "0"))), Interval: duration(t, opt("interval", "0s")), Delay: duration(t, opt("delay", "0s")),
				DelayFunction: structs.DelayFunction(opt("function", "constant")), MaxDelay: duration(t, opt("max", "1h")), Unlimited: slices.Contains(f, "unlimited")}
		case "disconnect":
			g.Disconnect = &structs.Disconnect{LostAfter: duration(t, opt("lost_after", "0s")), Reconcile: opt("reconcile", "")}
			if opt("replace", "") == "no" {
				g.Disconnect.Replace = new(bool)
			}
			if s := opt("stop_on_client_after", ""); s != "" {
				d := duration(t, s)
				g.Disconnect.StopOnClientAfter = &d
			}
		case "max_run":
			g.MaxRunDuration = duration(t, f[1])
		case "gang":
			g.Gang = &structs.Gang{Min: int(atoi(opt("min", "0"))), OnFailure: opt("on_failure", ""), Timeout: duration(t, opt("timeout", "0s")), Standby: int(atoi(opt("standby", "0")))}
		case "elastic":
			g.Elastic = &structs.Elastic{Min: int(atoi(opt("min", "0"))), Max: int(atoi(opt("max", "0")))}
		case "topology":
			g.Topology = &structs.Topology{Inside: opt("inside", ""), Across: opt("across", ""), Mode: opt("mode", "")}
		case "checkpoint":
			g.Checkpoint = &structs.Checkpoint{Signal: strings.Trim(opt("signal", "SIGUSR1"), "-"), Grace: duration(t, opt("grace", "30s")), Cost: duration(t, opt("cost", "0s")), Interval: duration(t, opt("interval", "0s")), Members: int(atoi(opt("members", "0"))), On: strings.Fields(opt("on", ""))}
		case "limit":
			j.Runtime.Limit = duration(t, f[1])
		case "hold":
			j.Hold = true
		case "begin":
			j.Begin = w.now.Add(duration(t, f[1]))
		case "requeue":
			j.Requeue = &structs.Requeue{On: strings.Split(opt("on", ""), ","), Max: int(atoi(opt("max", "3"))), AvoidFailedNodes: slices.Contains(f, "avoid_failed_nodes")}
		case "depends":
			j.Depends = append(j.Depends, structs.Dependency{Name: f[1], When: opt("when", ""), Timeout: duration(t, opt("timeout", "0s")),
				OnTimeout: structs.OnTimeout(opt("on_timeout", "")), Group: opt("group", ""), AtLeast: int(atoi(opt("at_least", "0")))})
		case "second":
			second = f[1:]
		default:
			t.Fatalf("%s: unknown job line %q", c.Pos, line)
		}
	}
	if len(net.StaticPorts)+len(net.DynamicPorts) > 0 {
		g.Networks = []structs.Network{net}
	}
	if len(second) > 0 {
		g2 := *g
		g2.Name = structs.GroupName(second[0])
		for _, x := range second[1:] {
			switch k, v, _ := strings.Cut(x, "="); k {
			case "count":
				g2.Count = int(atoi(t, c, v))
			case "cpu":
				own := *task
				own.Resources.CPU, own.Resources.Devices, g2.Tasks, g2.Gang = atoi(t, c, v), nil, []*structs.Task{&own}, nil
			}
		}
		j.Groups = append(j.Groups, &g2)
	}
	j.Join()
	w.jobs[key] = j
	return "ok"
}

// rosters prints the members of the gangs.
func rosters(w *world) string {
	var b strings.Builder
	for _, j := range sortedJobs(w.jobs) {
		for _, g := range w.jobs[j].Groups {
			ro := w.gangs[structs.RosterKey{Job: j, Group: g.Name}]
			if ro == nil {
				continue
			}
			fmt.Fprintf(&b, "%s.%s epoch %d, %s, restarts %d:", j.ID, g.Name, ro.Epoch, ro.Reason, ro.Restarts)
			for rank, m := range ro.Members {
				fmt.Fprintf(&b, " %d=[%d]@%s", rank, m.Index, m.Name)
			}
			for _, n := range ro.AvoidNodes {
				fmt.Fprintf(&b, " avoid %s", nodeName(n))
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// schedule decides about everything pending, prints the plan and applies it.
func schedule(t *testing.T, w *world, c *script.Case) string {
	if c.Has("after") {
		w.now = w.now.Add(duration(t, c.String("after", "0s")))
	}
	p := policy.Builtin[c.String("policy", "binpack")]
	if p == nil {
		t.Fatalf("%s: no such policy", c.Pos)
	}
	var b strings.Builder
	in := scheduler.Input{View: w.view, Pending: w.pending(), Now: w.now, Cursor: w.cursor, Config: structs.SchedulerConfig{GPUFit: c.String("gpu_fit", ""), PreemptBatch: c.Has("preempt_batch"), Weights: w.config.Weights, TopologyLevels: w.config.TopologyLevels,
		PreemptService: w.config.PreemptService, PreemptSystem: w.config.PreemptSystem, PreemptSysBatch: w.config.PreemptSysBatch}, Queues: w.queueTable(), Evicted: w.taken, Power: w.powered(), Typical: duration(t, c.String("typical", "0s"))}
	if p.Rotates() {
		defer func() { w.cursor = in.Cursor }()
	}
	gates(w, &in)
	in.GangTimes = contend.NewGangTimes(maps.Values(w.gangs))
	plan, rep := scheduler.Schedule(in, p)
	in.Cursor = plan.Cursor
	name := func(id structs.AllocID) string {
		if a := w.allocs[id]; a != nil {
			return a.Name() + "@" + nodeName(a.NodeID)
		}
		return id.Short()
	}
	flight := model.Overlay{}
	for i, e := range plan.Entries {
		if v := verify.Verify(w.view, flight, e); !v.All() {
			t.Errorf("%s: Verify refuses: %+v", c.Pos, v.Refused)
		}
		flight = flight.Add(uint64(i), e, nil)
		for _, part := range e.Parts {
			var words []string
			for _, s := range part.Stops {
				x := "stop " + name(s.ID)
				switch {
				case s.Client != "":
					x = string(s.Client) + " " + name(s.ID)
				case s.Desired == "":
					x = "note " + name(s.ID)
				case s.Desired == structs.DesiredEvict:
					x = "evict " + name(s.ID)
				default:
					x += " (" + s.Desc + ")"
				}
				if s.Cause != "" {
					x += " for a " + s.Cause
				}
				words = append(words, x)
			}
			for _, u := range part.Updates {
				words = append(words, "update "+name(u.ID))
			}
			for _, pl := range part.Places {
				x := fmt.Sprintf("place %s.%s[%d] on %s", e.JobID, e.Groups[pl.Group], pl.Index, nodeName(e.Nodes[pl.Node].ID))
				x += grantsText(pl.Grants)
				for _, q := range pl.Ports {
					x += fmt.Sprintf(" %s=%d", q.Label, q.Value)
				}
				for _, q := range pl.Cores {
					x += fmt.Sprintf(" core:%d", q)
				}
				for _, q := range pl.WaitsOn {
					x += " waits on " + name(q)
				}
				if n := len(pl.Resched); n > 0 {
					x += fmt.Sprintf(" attempt %d after %v", n+1, pl.Resched[n-1].Delay)
				}
				if pl.Requeues > 0 {
					x += fmt.Sprintf(" requeue %d, restart %d (%s)", pl.Requeues, pl.Restarts, pl.Reason)
				}
				words = append(words, x)
			}
			fmt.Fprintf(&b, "%s\n", joinShort(words))
		}
		if e.Workload != nil && e.Workload.Spent != "" {
			fmt.Fprintf(&b, "%s: %s\n", e.JobID, e.Workload.Spent)
		}
		for _, ev := range e.Evals {
			switch {
			case ev.Status == structs.EvalCanceled:
			case ev.WaitUntil != 0 && ev.Status == structs.EvalPending:
				fmt.Fprintf(&b, "%s: %s in %v\n", ev.JobID, ev.Trigger, ev.WaitUntil.Sub(w.now))
			case ev.Status != structs.EvalComplete:
				what := fmt.Sprintf("%s: evaluation %s: ", ev.JobID, ev.Status)
				if len(what)+len(ev.StatusDesc) > lineMax {
					what += "\n  "
				}
				b.WriteString(what + ev.StatusDesc)
				if ev.WaitUntil != 0 {
					fmt.Fprintf(&b, ", looked at again in %v", ev.WaitUntil.Sub(w.now))
				}
				b.WriteString("\n")
			}
		}
	}
	for _, r := range rep.Workloads {
		if r.Refused != "" {
			fmt.Fprintf(&b, "%s: refused: %s\n", r.Key.ID, r.Refused)
		}
		for _, g := range r.Groups {
			if c.Has("scores") {
				for _, s := range g.Scores {
					fmt.Fprintf(&b, "%s.%s: %s %d:", r.Key.ID, g.Group, nodeName(s.NodeID), s.Micro)
					for _, term := range s.Terms {
						fmt.Fprintf(&b, " %s=%d", term.Name, term.Micro)
					}
					b.WriteString("\n")
				}
			}
			if g.Placed == g.Wanted && !c.Has("explain") {
				continue
			}
			fmt.Fprintf(&b, "%s.%s: %d of %d placed, %s; pool %d, looked at %d, filtered %d, exhausted %d\n", r.Key.ID, g.Group, g.Placed, g.Wanted, g.Code, g.InPool, g.Considered, g.Filtered, g.Exhausted)
			for _, x := range g.Refusals {
				at := " "
				if x.Dimension == structs.DimensionPreemptCost && strings.Contains(x.Subject, "(") { // a long line
					at = "\n    "
				}
				fmt.Fprintf(&b, "  %s %s:%s%d nodes", x.Code, x.Text(), at, x.Nodes)
				if x.Short > 0 {
					fmt.Fprintf(&b, ", short by %d %s", x.Short, x.Unit)
				}
				if x.Largest > 0 {
					fmt.Fprintf(&b, ", largest free %d", x.Largest)
				}
				if x.Dimension == structs.DimensionGrowth && x.Count > 0 {
					fmt.Fprintf(&b, ", %d %s lost for %d", x.Count, x.Detail, x.Of)
				}
				fmt.Fprintf(&b, ", cured by %s\n", x.CuredBy)
			}
		}
	}
	for _, e := range plan.Entries {
		w.nextID++
		w.wait = append(w.wait, inFlight{id: uint64(w.nextID), entry: e})
	}
	w.land()
	if b.Len() == 0 {
		return "nothing"
	}
	return b.String()
}

// groupText returns the reports of a decision in words, one line per reason, for people.
func groupText(groups []*structs.GroupReport) string {
	var b strings.Builder
	for _, g := range groups {
		fmt.Fprintf(&b, "%s: %d of %d placed", g.Group, g.Placed, g.Wanted)
		if g.Code != structs.ReasonNone {
			fmt.Fprintf(&b, ", %s", g.Code)
		}
		b.WriteString("\n")
		for _, r := range g.Refusals {
			fmt.Fprintf(&b, "  %s %s: %d nodes", r.Code, r.Text(), r.Nodes)
			if r.Short > 0 {
				fmt.Fprintf(&b, ", short by %d %s", r.Short, r.Unit)
			}
			if r.Largest > 0 {
				fmt.Fprintf(&b, ", largest free %d", r.Largest)
			}
			fmt.Fprintf(&b, ", cured by %s\n", r.CuredBy)
		}
	}
	return b.String()
}

// lineMax is the longest line of a script, so that a person can review it.
const lineMax = 160

// joinShort puts parts on one line, or on one line each when that would be too long.
func joinShort(words []string) string {
	if line := strings.Join(words, "; "); len(line) <= lineMax {
		return line
	}
	return strings.Join(words, ";\n  ")
}

// grantsText lists devices; whole ones of a kind with consecutive numbers as a range, "nvidia/gpu/H100:0-7".
func grantsText(grants []structs.Grant) string {
	text := ""
	for i := 0; i < len(grants); i++ {
		g := grants[i]
		text += " " + g.Device + ":" + g.Instance
		if g.MemoryMiB > 0 {
			text += fmt.Sprintf("(%d MiB, %d%%)", g.MemoryMiB, g.Compute)
			continue
		}
		from, err := strconv.Atoi(g.Instance)
		to := from
		for err == nil && i+1 < len(grants) && grants[i+1].Device == g.Device && grants[i+1].MemoryMiB == 0 && grants[i+1].Instance == strconv.Itoa(to+1) {
			to++
			i++
		}
		if to > from {
			text += "-" + strconv.Itoa(to)
		}
	}
	return text
}
