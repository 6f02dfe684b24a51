package wire

import (
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Muster's extension blocks. Each is written as x = { } or as x { }, and has a spelling in meta for clients that know
// only Nomad's fields (see extension.go).

// Runtime is how long a job is expected to run, and how long it may run.
type Runtime struct {
	Expected *Duration `hcl:"expected"`
	Limit    *Duration `hcl:"limit"`
}

// Requeue says after which ends a job returns to the queue.
type Requeue struct {
	On               []string `hcl:"on"`
	Max              *int     `hcl:"max"`
	AvoidFailedNodes *bool    `hcl:"avoid_failed_nodes"`
}

// DependsOn makes a job wait for another.
type DependsOn struct {
	Name      string    `hcl:"name,label"`
	Job       string    `hcl:"job" json:",omitempty"` // "" for the name
	Namespace string    `hcl:"namespace" json:",omitempty"`
	When      string    `hcl:"when"`
	Timeout   *Duration `hcl:"timeout" json:",omitempty"`
	OnTimeout string    `hcl:"on_timeout" json:",omitempty"`
	Group     string    `hcl:"group" json:",omitempty"`
	AtLeast   *int      `hcl:"at_least" json:",omitempty"`
}

// Priorities are names that a job file may use instead of a number.
var Priorities = map[string]int{"critical": 90, "high": 70, "normal": 50, "low": 30, "scavenger": 10}

// JobPriorityRequest is the body of PUT /v1/job/:id/priority.
type JobPriorityRequest struct{ Priority *int }

// SuspendRequest is the optional body of PUT /v1/job/:id/suspend and /v1/allocation/:id/suspend.
type SuspendRequest struct{ Reason string }

// SuspendResponse answers suspend and resume: the affected allocations, and what they hold together. They keep it while
// they are suspended.
type SuspendResponse struct {
	Index       uint64
	EvalID      string
	AllocIDs    []string
	GPUs        float64
	GPUMemoryMB int64
	CPU         int64 // MHz
	MemoryMB    int64
}

// Suspension describes whether an allocation is frozen.
type Suspension struct {
	State    string // "suspending", "suspended", "resuming"; "" if it runs
	Since    int64  // Unix nanoseconds; 0: not suspended
	By       string // the last user who suspended or resumed it
	Reason   string
	Total    time.Duration // total nanoseconds of the suspensions that are over
	FrozenAt int64         // Unix nanoseconds since when all its processes are frozen; 0: they are not
}

func suspensionFrom(a *structs.Allocation) *Suspension {
	s := a.Suspension
	if s == nil {
		return nil
	}
	return &Suspension{State: a.Standing(), Since: int64(s.Since), By: s.By, Reason: s.Reason, Total: s.Total, FrozenAt: int64(a.Frozen)}
}

// Toleration lets a job be placed on nodes with a taint.
type Toleration struct {
	Key    string    `hcl:"key"`
	Value  string    `hcl:"value"`
	Effect string    `hcl:"effect"`
	For    *Duration `hcl:"for" json:",omitempty"` // how long work may stay; 0: for ever
}

// Array makes one job of many similar tasks.
type Array struct {
	Count       *int                `hcl:"count"`
	Concurrency *int                `hcl:"concurrency" json:",omitempty"`
	Params      map[string][]string `hcl:"params" json:",omitempty"`
}

// Gang makes the allocations of a group start together or not at all.
type Gang struct {
	Min       *int      `hcl:"min" json:",omitempty"`
	Timeout   *Duration `hcl:"timeout" json:",omitempty"`
	OnFailure string    `hcl:"on_failure" json:",omitempty"`
	Standby   *int      `hcl:"standby" json:",omitempty"`
}

// Elastic lets the count of a group vary.
type Elastic struct {
	Min *int `hcl:"min"`
	Max *int `hcl:"max"`
}

// Topology says how near the allocations of a group should be.
type Topology struct {
	Inside string `hcl:"inside"`
	Across string `hcl:"across"`
	Mode   string `hcl:"mode"`
}

// Launch says who starts the ranks of a group.
type Launch struct {
	Mode   string   `hcl:"mode"`
	Ranks  *int     `hcl:"ranks" json:",omitempty"`
	Compat []string `hcl:"compat"`
	Port   *int     `hcl:"port" json:",omitempty"`
	GPUs   string   `hcl:"gpus" json:",omitempty"`
}

// Checkpoint says how a group saves its state.
type Checkpoint struct {
	Signal  string    `hcl:"signal"`
	Command []string  `hcl:"command" json:",omitempty"`
	URL     string    `hcl:"url" json:",omitempty"`
	To      string    `hcl:"to"`
	On      []string  `hcl:"on"`
	Before  *Duration `hcl:"before" json:",omitempty"`
	Grace   *Duration `hcl:"grace" json:",omitempty"`
	Dir     string    `hcl:"dir"`
	Cost    *Duration `hcl:"cost" json:",omitempty"`

	Storage  string    `hcl:"storage" json:",omitempty"`
	Path     string    `hcl:"path" json:",omitempty"`
	Poll     *Duration `hcl:"poll" json:",omitempty"`
	Interval *Duration `hcl:"interval" json:",omitempty"`
	Members  *int      `hcl:"members" json:",omitempty"`
}

// Defaults of an empty requeue block.
const requeueMaxDefault = 10

var requeueOnDefault = []string{structs.RequeuePreempt, structs.RequeueNodeLost, structs.RequeueGPUError}

// canonicalizeOwn fills in the defaults of extension blocks. Defaults of the scheduler (a gang's timeout) are not
// filled in.
func (j *Job) canonicalizeOwn() {
	j.takeMeta(nil)
	if r := j.Requeue; r != nil {
		if len(r.On) == 0 {
			r.On = slices.Clone(requeueOnDefault)
		}
		def(&r.Max, requeueMaxDefault)
	}
	for _, d := range j.DependsOn {
		if d != nil && d.When == "" {
			d.When = structs.WhenSuccess
		}
	}
}

// parseTime reads a time of the job language.
func parseTime(s *string) (structs.LogTime, error) {
	if val(s) == "" {
		return 0, nil
	}
	t, err := time.Parse(time.RFC3339Nano, *s)
	return structs.LogTimeOf(t), err
}

func timeFrom(t structs.LogTime) *string {
	if t == 0 {
		return nil
	}
	return ptr(t.Time().Format(time.RFC3339Nano))
}

// ownTo converts the extension fields of a job.
func (c *converter) ownTo(j *Job, out *structs.Job) {
	var err error
	out.Placement, out.Preemptible, out.Hold = val(j.Placement), val(j.Preemptible), val(j.Hold)
	if r := j.Runtime; r != nil {
		out.Runtime = structs.Runtime{Expected: dur(r.Expected), Limit: dur(r.Limit)}
	}
	out.Deadline, err = parseTime(j.Deadline)
	c.fail("deadline", err)
	out.Begin, err = parseTime(j.Begin)
	c.fail("begin", err)
	if r := j.Requeue; r != nil {
		out.Requeue = &structs.Requeue{On: slices.Clone(r.On), Max: val(r.Max), AvoidFailedNodes: val(r.AvoidFailedNodes)}
	}
	for _, d := range j.DependsOn {
		if d != nil {
			out.Depends = append(out.Depends, structs.Dependency{Name: d.Name, JobID: d.Job, Namespace: d.Namespace, When: d.When,
				Timeout: dur(d.Timeout), OnTimeout: structs.OnTimeout(d.OnTimeout), Group: d.Group, AtLeast: val(d.AtLeast)})
		}
	}
	for _, t := range j.Tolerations {
		if t != nil {
			out.Tolerations = append(out.Tolerations, structs.Toleration{Key: t.Key, Value: t.Value, Effect: t.Effect, For: dur(t.For)})
		}
	}
	out.Near, out.Away, out.Datasets, out.Weights = peersTo(j.Near), peersTo(j.Away), slices.Clone(j.Datasets), j.Weights.toStructs()
	if a := j.Array; a != nil {
		out.Array = &structs.Array{Count: val(a.Count), Concurrency: val(a.Concurrency), Params: cloneLists(a.Params)}
	}
}

func (j *Job) ownFrom(in *structs.Job) {
	if in.Queue != "" {
		j.Queue = ptr(string(in.Queue))
	}
	if in.Placement != "" {
		j.Placement = ptr(in.Placement)
	}
	if in.Preemptible {
		j.Preemptible = ptr(true)
	}
	if in.Hold {
		j.Hold = ptr(true)
	}
	if r := in.Runtime; r != (structs.Runtime{}) {
		j.Runtime = &Runtime{Expected: wdurSet(r.Expected), Limit: wdurSet(r.Limit)}
	}
	j.Deadline, j.Begin = timeFrom(in.Deadline), timeFrom(in.Begin)
	if r := in.Requeue; r != nil {
		j.Requeue = &Requeue{On: r.On, Max: ptr(r.Max), AvoidFailedNodes: ptr(r.AvoidFailedNodes)}
	}
	for _, d := range in.Depends {
		w := &DependsOn{Name: d.Name, Job: d.JobID, Namespace: d.Namespace, When: d.When, Timeout: wdurSet(d.Timeout), OnTimeout: string(d.OnTimeout), Group: d.Group}
		if d.AtLeast != 0 {
			w.AtLeast = ptr(d.AtLeast)
		}
		j.DependsOn = append(j.DependsOn, w)
	}
	for _, t := range in.Tolerations {
		j.Tolerations = append(j.Tolerations, &Toleration{Key: t.Key, Value: t.Value, Effect: t.Effect, For: wdurSet(t.For)})
	}
	j.Near, j.Away, j.Datasets, j.Weights = peersFrom(in.Near), peersFrom(in.Away), in.Datasets, weightsFrom(in.Weights)
	if a := in.Array; a != nil {
		j.Array = &Array{Count: ptr(a.Count), Concurrency: set(a.Concurrency), Params: cloneLists(a.Params)}
	}
}

// groupOwnTo converts the extension fields of a group.
func groupOwnTo(g *TaskGroup, out *structs.Group) {
	out.Near, out.Away = peersTo(g.Near), peersTo(g.Away)
	if x := g.Gang; x != nil {
		out.Gang = &structs.Gang{Min: val(x.Min), Timeout: dur(x.Timeout), OnFailure: x.OnFailure, Standby: val(x.Standby)}
	}
	if x := g.Elastic; x != nil {
		out.Elastic = &structs.Elastic{Min: val(x.Min), Max: val(x.Max)}
	}
	if x := g.Topology; x != nil {
		out.Topology = &structs.Topology{Inside: x.Inside, Across: x.Across, Mode: x.Mode}
	}
	if x := g.Launch; x != nil {
		out.Launch = &structs.Launch{Mode: x.Mode, Ranks: val(x.Ranks), Compat: slices.Clone(x.Compat), Port: val(x.Port), GPUs: x.GPUs}
	}
	if x := g.Checkpoint; x != nil {
		out.Checkpoint = &structs.Checkpoint{Signal: x.Signal, Command: slices.Clone(x.Command), URL: x.URL, To: x.To, On: slices.Clone(x.On),
			Before: dur(x.Before), Grace: dur(x.Grace), Dir: x.Dir, Storage: x.Storage, Cost: dur(x.Cost),
			Path: x.Path, Poll: dur(x.Poll), Interval: dur(x.Interval), Members: val(x.Members)}
	}
}

func groupOwnFrom(g *structs.Group, out *TaskGroup) {
	out.Near, out.Away = peersFrom(g.Near), peersFrom(g.Away)
	if x := g.Gang; x != nil {
		out.Gang = &Gang{Min: set(x.Min), Timeout: wdurSet(x.Timeout), OnFailure: x.OnFailure, Standby: set(x.Standby)}
	}
	if x := g.Elastic; x != nil {
		out.Elastic = &Elastic{Min: ptr(x.Min), Max: ptr(x.Max)}
	}
	if x := g.Topology; x != nil {
		out.Topology = &Topology{Inside: x.Inside, Across: x.Across, Mode: x.Mode}
	}
	if x := g.Launch; x != nil {
		out.Launch = &Launch{Mode: x.Mode, Ranks: set(x.Ranks), Compat: x.Compat, Port: set(x.Port), GPUs: x.GPUs}
	}
	if x := g.Checkpoint; x != nil {
		out.Checkpoint = &Checkpoint{Signal: x.Signal, Command: x.Command, URL: x.URL, To: x.To, On: x.On,
			Before: wdurSet(x.Before), Grace: wdurSet(x.Grace), Dir: x.Dir, Storage: x.Storage, Cost: wdurSet(x.Cost),
			Path: x.Path, Poll: wdurSet(x.Poll), Interval: wdurSet(x.Interval), Members: set(x.Members)}
	}
}

// set returns a pointer to n; nil for 0.
func set(n int) *int {
	if n == 0 {
		return nil
	}
	return &n
}

// wdurSet returns a pointer to a duration; nil for 0.
func wdurSet(d time.Duration) *Duration {
	if d == 0 {
		return nil
	}
	return wdur(d)
}

func cloneLists(m map[string][]string) map[string][]string {
	if len(m) == 0 {
		return nil
	}
	out := make(map[string][]string, len(m))
	for k, v := range m {
		out[k] = slices.Clone(v)
	}
	return out
}
