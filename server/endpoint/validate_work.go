package endpoint

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// Limits on the settings of a job's work.
const (
	jobDependsMax = 100
	jobParamsMax  = 100
)

// checkWork checks what Nomad's jobs do not have: deadlines, requeueing, dependencies, arrays and gangs. It does not
// repeat checks that the HTTP API does in more detail, such as spelling and ranges of single values.
func (s *Set) checkWork(p *problems, j *structs.Job) {
	now := s.env.Replica.Now()
	old := s.published().Snapshot.JobByKey(j.Key())
	if j.Deadline != 0 && j.Deadline <= now && (old == nil || old.Deadline != j.Deadline) {
		p.addf("deadline: %s is in the past; it is %s", j.Deadline.Time().Format(time.RFC3339), now.Time().Format(time.RFC3339))
	}
	if j.Deadline != 0 && j.Begin >= j.Deadline {
		p.addf("begin: %s is not before the deadline, %s", j.Begin.Time().Format(time.RFC3339), j.Deadline.Time().Format(time.RFC3339))
	}
	if j.Placement != "" && policy.Builtin[j.Placement] == nil {
		names := slices.Sorted(maps.Keys(policy.Builtin))
		p.addf("placement: there is no policy %.64q; want one of %s%s", j.Placement, strings.Join(names, ", "), suggest.DidYouMean(j.Placement, names))
	}
	if j.Runtime.Limit < 0 || j.Runtime.Expected < 0 {
		p.addf("runtime: durations must not be negative")
	}
	if q := j.Requeue; q != nil && (q.Max < 0 || j.Type != structs.JobBatch) {
		p.addf("requeue: want a batch job and a max of 0 or more")
	}
	s.checkDepends(p, j)
	if a := j.Array; a != nil {
		switch {
		case a.Count < 1 || a.Count > structs.ArrayCountMax:
			p.addf("array: count is %d; want 1 to %d", a.Count, structs.ArrayCountMax)
		case a.Concurrency < 0:
			p.addf("array: concurrency is %d; want 0 or more", a.Concurrency)
		case j.Type != structs.JobBatch || len(j.Groups) != 1 || j.Groups[0] == nil || j.Groups[0].Count != 1 || j.Groups[0].Gang != nil || j.Groups[0].Elastic != nil:
			p.addf("array: want a batch job with one group of count 1, without gang and elastic")
		case len(a.Params) > jobParamsMax:
			p.addf("array: %d parameters; the limit is %d", len(a.Params), jobParamsMax)
		}
		for k, v := range a.Params {
			if len(v) != a.Count {
				p.addf("array: parameter %.64q has %d values for %d indices", k, len(v), a.Count)
			}
		}
	}
	for _, g := range j.Groups {
		if g == nil {
			continue
		}
		if x := g.Gang; x != nil && (x.Min < 0 || x.Min > g.Count || x.Timeout < 0 || x.Standby < 0) {
			p.addf("Task group %q: gang needs a min of at most the count (%d), and a timeout and standbys of 0 or more", g.Name, g.Count)
		}
		if x := g.Topology; x != nil && x.Mode == structs.TopologyRequired && x.Across != "" {
			s.checkLevel(p, j, g, x.Across)
		}
		if x := g.Elastic; x != nil && (x.Min < 0 || x.Max < x.Min || x.Max > structs.GroupCountMax || g.Count < x.Min || g.Count > x.Max) {
			p.addf("Task group %q: count %d is not between elastic min %d and max %d", g.Name, g.Count, x.Min, x.Max)
		}
	}
}

// checkLevel refuses a required topology level that no node of the pool has. It accepts any level for a pool without
// nodes, which may get some.
func (s *Set) checkLevel(p *problems, j *structs.Job, g *structs.Group, level string) {
	names := map[string]bool{"node": true, "datacenter": true}
	nodes := 0
	for n := range s.published().Snapshot.Nodes() {
		if n.Pool != j.NodePool && j.NodePool != structs.NodePoolAll {
			continue
		}
		if model.LevelOf(n, level) != "" {
			return
		}
		nodes++
		for k := range n.Meta {
			names[k] = true
		}
	}
	if nodes > 0 {
		known := slices.Sorted(maps.Keys(names))
		p.addf("Task group %q: topology requires across = %.64q, but no node of pool %q has that level; set it in the nodes' meta%s", g.Name, level, j.NodePool, suggest.DidYouMean(level, known))
	}
}

// checkDepends checks the jobs that a job depends on, and names a circle. Apply checks for circles again, because two
// jobs may be registered at the same time.
func (s *Set) checkDepends(p *problems, j *structs.Job) {
	if len(j.Depends) > jobDependsMax {
		p.addf("depends_on: %d dependencies; the limit is %d", len(j.Depends), jobDependsMax)
		return
	}
	snap := s.published().Snapshot
	for i := range j.Depends {
		d := &j.Depends[i]
		k := d.On(j)
		if snap.Namespace(k.Namespace) == nil {
			p.addf("depends_on %q: there is no namespace %.64q", d.Name, k.Namespace)
		}
		switch d.When {
		case "", structs.WhenStarted, structs.WhenCompleted, structs.WhenSuccess, structs.WhenFailed, structs.WhenCheckpointed:
		default:
			p.addf("depends_on %q: when is %.64q; want started, completed, success, failed or checkpointed", d.Name, d.When)
		}
		other := snap.JobByKey(k)
		if other == nil {
			continue // it may be registered later
		}
		if other.IsPeriodic() || other.IsParameterized() {
			p.addf("depends_on %q: job %q is a template, which itself never runs; name one of its children", d.Name, k.ID)
		}
		if (d.When == "" || d.When == structs.WhenSuccess) && (other.Type == structs.JobService || other.Type == structs.JobSystem) {
			p.addf("depends_on %q: job %q is a %s, which does not end; want when = \"started\" or \"completed\"", d.Name, k.ID, other.Type)
		}
	}
	if circle := structs.DependencyCircle(j, snap.JobByKey); circle != nil {
		p.addf("depends_on: a circle: %s", structs.CircleText(circle))
	}
}
