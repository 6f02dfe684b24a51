package scheduler_test

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// choice is a field of the job w with a set of values (structs.Enums), and scripts in which its values differ.
type choice struct {
	scripts []string
	none    bool     // "" is a value, too
	same    []string // "A B": two spellings of one value
	set     func(j *structs.Job, v string)
}

const (
	again4 = "job w type=batch\nreschedule attempts=9 interval=24h delay=10s function=constant max=10h\n\nschedule" +
		"\n\nclient w.g[0] failed exit=1\n\nschedule after=1s\n\nschedule after=1h\n\nclient w.g[0] failed exit=1\n\nschedule after=1s\n\nschedule after=1h" +
		"\n\nclient w.g[0] failed exit=1\n\nschedule after=1s\n\nschedule after=1h\n\nclient w.g[0] failed exit=1\n\nschedule after=1s\n\nschedule after=1h"
	afterO  = "\n\njob w\n\nschedule"
	ran     = "job o type=batch\n\nschedule\n\nclient o.g[0] running\n\n"
	listed  = "node a attr.v=1.10.0 attr.s=x,y\n\nnode b attr.v=1.2.0 attr.s=y\n\nnode c attr.v=1.2.0-rc1 attr.s=1.2.0\n\ncluster\nd attr.k=3\ne attr.v=1.9.0 attr.s=x,y,z\n\njob w type=system cpu=10 mem=10\n\nschedule"
	requeue = "job w type=batch\nrequeue on=x max=1\n\nschedule\n\nclient w.g[0] running\n\n"
)

func operand(j *structs.Job, op string) {
	for _, c := range []structs.Constraint{{LTarget: "${attr.v}", RTarget: "1.2.0"}, {LTarget: "${attr.s}", RTarget: "x,y"}, {LTarget: "${attr.v}", RTarget: ">= 1.2.0"}, {LTarget: "${attr.v}", RTarget: "> 1.1.0"}, {LTarget: "${attr.v}", RTarget: "9.*0$"}, {LTarget: "${attr.nope}"}} {
		g := *j.Groups[0]
		g.Name = structs.GroupName(c.LTarget + " " + c.RTarget)
		c.Operand = op
		g.Constraints = []structs.Constraint{c}
		j.Groups = append(j.Groups, &g)
	}
}

var choices = map[string]choice{
	"Job.Type": {set: func(j *structs.Job, v string) { j.Type = structs.JobType(v) },
		scripts: []string{"job w\n\nschedule\n\nclient w.g[0] complete\n\nclient w.g[1] complete\n\nschedule after=1h"}},
	"Affinity.Operand": {
		same: []string{"set_contains set_contains_all"}, scripts: []string{listed}, set: operand},
	"Reschedule.DelayFunction": {scripts: []string{again4},
		set: func(j *structs.Job, v string) { j.Groups[0].Reschedule.DelayFunction = structs.DelayFunction(v) }},
	"NUMA.Affinity": {set: func(j *structs.Job, v string) { j.Groups[0].Tasks[0].Resources.NUMA.Affinity = v },
		scripts: []string{
			"node a numa=0-1:2+2-3:2\n\nnode b gpus=0\n\nnode c gpus=0\n\njob w cores=3\nconstraint ${node.unique.name} = a\nnuma none\n\nschedule",
			"node a numa=0-1:2+2-3:2\n\nnode b numa=0-3:4\n\nnode c gpus=0\n\njob w cores=3\nnuma none\n\nschedule"}},
	"Toleration.Effect": {none: true,
		set: func(j *structs.Job, v string) { j.Tolerations = []structs.Toleration{{Key: "t", Effect: v}} },
		scripts: []string{
			"node a meta.taint.t=v:no-schedule\n\nnode b meta.taint.t=v:no-execute\n\nnode c meta.taint.t=v:no-schedule\n\njob w type=system\n\nschedule",
			"node a meta.taint.t=v:prefer-no-schedule\n\njob w\n\nschedule"}},
	"Dependency.When": {
		set:     func(j *structs.Job, v string) { j.Depends = []structs.Dependency{{Name: "o", When: v}} },
		scripts: []string{ran + "schedule" + afterO, ran + "client o.g[0] complete\n\nschedule" + afterO, ran + "client o.g[0] failed exit=1\n\nschedule" + afterO, ran + "saved o.g[0]\n\nschedule" + afterO}},
	"Dependency.OnTimeout": {none: true, same: []string{" fail"}, scripts: []string{"job w\ndepends o timeout=1h\n\nschedule\n\nschedule after=2h"},
		set: func(j *structs.Job, v string) { j.Depends[0].OnTimeout = structs.OnTimeout(v) }},
	"Gang.OnFailure": {none: true, same: []string{" restart_all"}, set: func(j *structs.Job, v string) { j.Groups[0].Gang.OnFailure = v },
		scripts: []string{"job w count=2 type=batch\ngang min=1\nreschedule attempts=3 interval=1h\n\nschedule\n\nclient w.g[0] running\n\nclient w.g[1] running\n\nclient w.g[0] failed exit=1\n\nschedule after=1s"}},
	"Topology.Inside": {none: true, set: func(j *structs.Job, v string) { j.Groups[0].Topology.Inside = v },
		scripts: []string{"node a numa=0-1:3+2-3:1\n\nnode b gpus=0\n\njob w\ngpu nvidia/gpu 3\ntopology mode=required\n\nschedule", "node a numa=0-1:1+2-3:3\n\nnode b gpus=0\n\njob w\ngpu nvidia/gpu 2\ntopology mode=required\n\nschedule"}},
	"Topology.Mode": {none: true, same: []string{" preferred"}, set: func(j *structs.Job, v string) { j.Groups[0].Topology.Mode = v },
		scripts: []string{"job w\ngpu nvidia/gpu 3\ntopology inside=nvlink\n\nschedule"}},
	"Requeue.On": {set: func(j *structs.Job, v string) { j.Requeue.On = []string{v} },
		scripts: []string{requeue + "client w.g[0] failed exit=1\n\nschedule after=1s\n\nschedule after=1h", requeue + "node a status=down\n\nschedule after=1s\n\nschedule after=1h",
			requeue + "client w.g[0] failed exit=1 gpu_error\n\nschedule after=1s\n\nschedule after=1h",
			"job w type=batch\nrequeue on=x max=1\nlimit 1h\n\nschedule\n\nclient w.g[0] running\n\nschedule after=2h\n\nclient w.g[0] failed\n\nschedule after=1h",
			"queue default preempt=priority\n\njob w priority=10 type=batch preemptible cpu=3900\nrequeue on=x max=1\nconstraint ${node.unique.name} = a\n\nschedule\n\nclient w.g[0] running\n\njob h priority=90 cpu=3000\nconstraint ${node.unique.name} = a\n\nschedule after=1h\n\nclient w.g[0] complete\n\njob h stop\n\nclient h.g[0] complete\n\nschedule after=1h"}},
}

// TestWitnessesOfValues: each value of a field that decides where work goes, or whether, decides otherwise than each other
// value, in some script.
func TestWitnessesOfValues(t *testing.T) {
	for name, c := range choices {
		t.Run(name, func(t *testing.T) {
			seen, values := map[string]string{}, structs.Enums[name]
			if c.none {
				values = append([]string{""}, values...)
			}
			for _, v := range values {
				said := ""
				for _, script := range c.scripts {
					said += outcome(t, script, func(j *structs.Job) { c.set(j, v) })
				}
				if v != "" { // a message that repeats the value is no effect
					said = strings.ReplaceAll(said, " "+v+" ", " VALUE ")
				}
				if other, has := seen[said]; has && !isSame(c.same, other, v) {
					t.Errorf("%q does what %q does:\n%s", v, other, said)
				}
				seen[said] = v
			}
			if want := len(values) - len(c.same); len(seen) != want && !t.Failed() {
				t.Errorf("%d outcomes of %d values: spellings of one value differ", len(seen), len(values))
			}
		})
	}
}

func isSame(pairs []string, a, b string) bool {
	for _, p := range pairs {
		x, y, _ := strings.Cut(p, " ")
		if x == a && y == b || x == b && y == a {
			return true
		}
	}
	return false
}

// TestPlacementSearch: the policy search continues to move what a decision has placed where the default policy gives up. Of
// w's groups, many can go only to a; one takes the place on c that the last one needs, and could go to b.
func TestPlacementSearch(t *testing.T) {
	group := func(j *structs.Job, name, node string, count int, cpu int64) *structs.Group {
		g := *j.Groups[0]
		task := *g.Tasks[0]
		task.Resources = structs.Resources{CPU: cpu, MemoryMiB: 1}
		g.Name, g.Count, g.Tasks, g.Disk = structs.GroupName(name), count, []*structs.Task{&task}, structs.EphemeralDisk{}
		if node != "" {
			g.Constraints = constraint("${node.unique.name}", structs.OperandEqual, node)
		}
		return &g
	}
	run := func(placement string) string {
		return outcome(t, "job w\n\nschedule policy="+placement, func(j *structs.Job) {
			j.Groups = []*structs.Group{group(j, "many", "a", 300, 5), group(j, "other", "", 1, 3000), group(j, "last", "c", 1, 2000)}
		})
	}
	if a, b := run(structs.AlgorithmDefault), run("search"); a == b {
		t.Errorf("%q and %q do the same:\n%s", structs.AlgorithmDefault, "search", a)
	}
}
