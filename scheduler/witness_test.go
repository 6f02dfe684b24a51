package scheduler_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/script"
	"github.com/muster-sched/muster/structs"
)

// effect is a field of the job w that is set, and the commands of a script in which that matters.
type effect struct {
	commands string // as in TestScripts; "": w alone, on three nodes
	set      func(j *structs.Job)
	base     func(j *structs.Job) // what the job has in both runs; nil: what the commands give it
}

// threeNodes has GPUs on two of its nodes, which differ in class, rack and datacenter.
const threeNodes = `cluster
a cpu=4000 mem=8000 disk=10000 gpus=4 islands=2+2 gpumib=81920 cores=4 dc=dc1 pool=default class=x attr.k=1 meta.rack=r1
b cpu=4000 mem=8000 disk=10000 gpus=4 islands=2+2 gpumib=81920 cores=4 dc=dc2 pool=default class=y attr.k=2 meta.rack=r2
c cpu=4000 mem=8000 disk=10000 cores=4 dc=dc2 pool=default class=y attr.k=2 meta.rack=r2

`

func constraint(l, op, r string) []structs.Constraint {
	return []structs.Constraint{{LTarget: l, Operand: op, RTarget: r}}
}

func affinity(weight int64) []structs.Affinity {
	return []structs.Affinity{{LTarget: "${node.class}", Operand: "=", RTarget: "y", Weight: weight}}
}

func onGroup(set func(g *structs.Group)) func(j *structs.Job) {
	return func(j *structs.Job) { set(j.Groups[0]) }
}

func onTask(set func(x *structs.Task)) func(j *structs.Job) {
	return func(j *structs.Job) { set(j.Groups[0].Tasks[0]) }
}

func onResources(set func(r *structs.Resources)) func(j *structs.Job) {
	return onTask(func(x *structs.Task) { set(&x.Resources) })
}

const (
	constrained = "job w\nconstraint ${node.class} = x\n\nschedule"
	preferring  = "job w\naffinity 50 ${node.class} = y\n\nschedule"
	spreading   = "job w count=4\nspread 100 ${node.datacenter} dc1=100 dc2=0\n\nschedule"
	sharing     = "job w count=3\ngpus 1 mem=20000\n\nschedule"
	devices     = "job w\ngpu nvidia/gpu 1\n\nschedule"
	ganging     = "job w count=9\ngpu nvidia/gpu 1\ngang min=9\n\nschedule"
	nearby      = "job o cpu=100\nconstraint ${node.unique.name} = c\n\njob p cpu=2000\nconstraint ${node.class} = x\n\nschedule\n\njob w\nnear job=o weight=50\n\nschedule"
)

// effects has rows for the fields of jobs, groups and tasks that decide where work goes.
var effects = map[string]effect{
	"Job.Type":        {commands: "job w\n\nschedule", set: func(j *structs.Job) { j.Type = structs.JobSystem }},
	"Job.AllAtOnce":   {commands: "job w count=30 cpu=1000\n\nschedule", set: func(j *structs.Job) { j.AllAtOnce = true }},
	"Job.Datacenters": {commands: "", set: func(j *structs.Job) { j.Datacenters = []string{"dc2"} }},
	"Job.NodePool":    {commands: "", set: func(j *structs.Job) { j.NodePool = "other" }},
	"Job.Constraints": {commands: "", set: func(j *structs.Job) { j.Constraints = constraint("${node.class}", "=", "y") }},
	"Job.Affinities":  {commands: "", set: func(j *structs.Job) { j.Affinities = affinity(100) }},
	"Job.Spreads": {commands: "job w count=4\n\nschedule", set: func(j *structs.Job) {
		j.Spreads = []structs.Spread{{Attribute: "${node.datacenter}", Weight: 100, Targets: []structs.SpreadTarget{{Value: "dc1", Percent: 100}}}}
	}},
	"Job.Groups": {commands: "", set: func(j *structs.Job) { j.Groups = nil }},
	"Job.Near": {commands: nearby, set: func(j *structs.Job) {
		j.Near = []structs.Peer{{JobID: "p", Level: "node", Required: true}}
		j.Groups[0].Near = nil
	}},
	"Job.Away":          {commands: "job o\n\nschedule\n\njob w\n\nschedule", set: func(j *structs.Job) { j.Away = []structs.Peer{{JobID: "o", Required: true}} }},
	"Job.Stop":          {commands: "", set: func(j *structs.Job) { j.Stop = true }},
	"Job.Weights":       {commands: preferring, set: func(j *structs.Job) { j.Weights.Affinity = structs.WeightOff }},
	"Group.Count":       {commands: "", set: onGroup(func(g *structs.Group) { g.Count = 2 })},
	"Group.Constraints": {commands: "", set: onGroup(func(g *structs.Group) { g.Constraints = constraint("${node.class}", "=", "y") })},
	"Group.Affinities":  {commands: "", set: onGroup(func(g *structs.Group) { g.Affinities = affinity(100) })},
	"Group.Spreads": {commands: "job w count=4\n\nschedule", set: onGroup(func(g *structs.Group) {
		g.Spreads = []structs.Spread{{Attribute: "${node.datacenter}", Weight: 100, Targets: []structs.SpreadTarget{{Value: "dc1", Percent: 100}}}}
	})},
	"Group.Networks": {commands: "job w count=2\n\nschedule", set: onGroup(func(g *structs.Group) {
		g.Networks = []structs.Network{{StaticPorts: []structs.Port{{Label: "p", Value: 80}}}}
	})},
	"Group.Volumes": {commands: "", set: onGroup(func(g *structs.Group) {
		g.Volumes = []structs.VolumeRequest{{Name: "v", Raw: structs.RawConfig(`{"Source":"v","Type":"host"}`)}}
	})},
	"Group.Gang":            {commands: "job w count=9\ngpu nvidia/gpu 1\n\nschedule", set: onGroup(func(g *structs.Group) { g.Gang = &structs.Gang{} })},
	"Group.Joint":           {commands: "job w count=9\ngpu nvidia/gpu 1\n\nschedule", set: onGroup(func(g *structs.Group) { g.Joint = true })},
	"Group.Elastic":         {commands: "job w count=2\ngang min=1\n\nschedule", set: onGroup(func(g *structs.Group) { g.Elastic = &structs.Elastic{Min: 1, Max: 4} })},
	"Group.Topology":        {commands: "job w count=2 cpu=2500\n\nschedule", set: onGroup(func(g *structs.Group) { g.Topology = &structs.Topology{Across: "rack", Mode: structs.TopologyRequired} })},
	"Group.Near":            {commands: nearby, set: onGroup(func(g *structs.Group) { g.Near = nil })},
	"Group.Away":            {commands: "job o\n\nschedule\n\njob w\n\nschedule", set: onGroup(func(g *structs.Group) { g.Away = []structs.Peer{{JobID: "o", Required: true}} })},
	"EphemeralDisk.SizeMiB": {commands: "", set: onGroup(func(g *structs.Group) { g.Disk.SizeMiB = 20000 })},
	"Task.Driver":           {commands: "", set: onTask(func(x *structs.Task) { x.Driver = "docker" })},
	"Task.Constraints":      {commands: "", set: onTask(func(x *structs.Task) { x.Constraints = constraint("${node.class}", "=", "y") })},
	"Task.Affinities":       {commands: "", set: onTask(func(x *structs.Task) { x.Affinities = affinity(100) })},
	"Resources.CPU":         {commands: "", set: onResources(func(r *structs.Resources) { r.CPU = 5000 })},
	"Resources.Cores":       {commands: "", set: onResources(func(r *structs.Resources) { r.CPU, r.Cores = 0, 9 })},
	"Resources.MemoryMiB":   {commands: "", set: onResources(func(r *structs.Resources) { r.MemoryMiB = 9000 })},
	"Resources.Devices":     {commands: "", set: onResources(func(r *structs.Resources) { r.Devices = []structs.DeviceRequest{{Name: "gpu", Count: 1}} })},
	"Resources.GPU":         {commands: "", set: onResources(func(r *structs.Resources) { r.GPU = []structs.GPURequest{{Count: 1, MemoryMiB: 1000}} })},
	"Resources.RDMA":        {commands: "", set: onResources(func(r *structs.Resources) { r.RDMA = true })},
	"Resources.NUMA":        {commands: "node a numa=0-1:2+2-3:2\n\nnode b numa=0-1:2+2-3:2\n\nnode c gpus=0 numa=0-1+2-3\n\njob w cores=3\n\nschedule", set: onResources(func(r *structs.Resources) { r.NUMA = &structs.NUMA{Affinity: "require"} })},
	"Constraint.LTarget":    {commands: constrained, set: onGroup(func(g *structs.Group) { g.Constraints[0].LTarget = "${meta.rack}" })},
	"Constraint.RTarget":    {commands: constrained, set: onGroup(func(g *structs.Group) { g.Constraints[0].RTarget = "y" })},
	"Constraint.Operand":    {commands: constrained, set: onGroup(func(g *structs.Group) { g.Constraints[0].Operand = "!=" })},
	"Affinity.LTarget":      {commands: preferring, set: onGroup(func(g *structs.Group) { g.Affinities[0].LTarget = "${meta.rack}" })},
	"Affinity.RTarget":      {commands: preferring, set: onGroup(func(g *structs.Group) { g.Affinities[0].RTarget = "x" })},
	"Affinity.Operand":      {commands: preferring, set: onGroup(func(g *structs.Group) { g.Affinities[0].Operand = "!=" })},
	"Affinity.Weight":       {commands: preferring, set: onGroup(func(g *structs.Group) { g.Affinities[0].Weight = -50 })},
	"Spread.Attribute":      {commands: spreading, set: onGroup(func(g *structs.Group) { g.Spreads[0].Attribute = "${node.unique.name}" })},
	"Spread.Weight":         {commands: spreading, set: onGroup(func(g *structs.Group) { g.Spreads[0].Weight = 0 })},
	"Spread.Targets":        {commands: spreading, set: onGroup(func(g *structs.Group) { g.Spreads[0].Targets[0].Percent, g.Spreads[0].Targets[1].Percent = 0, 100 })},
	"SpreadTarget.Value":    {commands: spreading, set: onGroup(func(g *structs.Group) { g.Spreads[0].Targets = []structs.SpreadTarget{{Value: "dc2", Percent: 100}} })},
	"SpreadTarget.Percent":  {commands: spreading, set: onGroup(func(g *structs.Group) { g.Spreads[0].Targets[0].Percent, g.Spreads[0].Targets[1].Percent = 0, 100 })},
	"DeviceRequest.Name":    {commands: devices, set: onResources(func(r *structs.Resources) { r.Devices[0].Name = "nvidia/gpu/A100" })},
	"DeviceRequest.Count":   {commands: devices, set: onResources(func(r *structs.Resources) { r.Devices[0].Count = 5 })},
	"DeviceRequest.Constraints": {commands: devices, set: onResources(func(r *structs.Resources) {
		r.Devices[0].Constraints = constraint("${device.attr.memory}", ">", "90 GiB")
	})},
	"DeviceRequest.Affinities": {commands: "node b model=A100\n\n" + devices, set: onResources(func(r *structs.Resources) {
		r.Devices[0].Affinities = []structs.Affinity{{LTarget: "${device.model}", Operand: "=", RTarget: "A100", Weight: 100}}
	})},
	"GPURequest.Count":       {commands: sharing, set: onResources(func(r *structs.Resources) { r.GPU[0].Count = 5 })},
	"GPURequest.MemoryMiB":   {commands: sharing, set: onResources(func(r *structs.Resources) { r.GPU[0].MemoryMiB = 60000 })},
	"GPURequest.Share":       {commands: sharing, set: onResources(func(r *structs.Resources) { r.GPU[0].MemoryMiB, r.GPU[0].Share = 0, 60 })},
	"GPURequest.Compute":     {commands: sharing, set: onResources(func(r *structs.Resources) { r.GPU[0].Compute = 60 })},
	"GPURequest.Model":       {commands: sharing, set: onResources(func(r *structs.Resources) { r.GPU[0].Model = "A100" })},
	"GPURequest.RDMA":        {commands: sharing, set: onResources(func(r *structs.Resources) { r.GPU[0].RDMA = structs.RDMARequired })},
	"GPURequest.MIG":         {commands: sharing, set: onResources(func(r *structs.Resources) { r.GPU[0].MemoryMiB, r.GPU[0].MIG = 0, "1g.10gb" })},
	"GPURequest.Constraints": {commands: sharing, set: onResources(func(r *structs.Resources) { r.GPU[0].Constraints = constraint("${device.attr.memory}", ">", "90 GiB") })},
	"GPURequest.Affinities": {commands: "node b model=A100\n\n" + sharing, set: onResources(func(r *structs.Resources) {
		r.GPU[0].Affinities = []structs.Affinity{{LTarget: "${device.model}", Operand: "=", RTarget: "A100", Weight: 100}}
	})},
	"GPURequest.PowerLimitW": {commands: "node a watts=700 budget=800\n\nnode b watts=700 budget=800\n\nnode c budget=800\n\njob w count=2\ngpus 1\n\nschedule", set: onResources(func(r *structs.Resources) { r.GPU[0].PowerLimitW = 300 })},
	"NUMA.Affinity":          {commands: "node a numa=0-1:2+2-3:2\n\nnode b numa=0-1:2+2-3:2\n\nnode c gpus=0 numa=0-1+2-3\n\njob w cores=3\nnuma none\n\nschedule", set: onResources(func(r *structs.Resources) { r.NUMA.Affinity = "require" })},
	"Gang.Min":               {commands: ganging, set: onGroup(func(g *structs.Group) { g.Gang.Min = 2 })},
	"Gang.Standby":           {commands: "job w count=2\ngpu nvidia/gpu 1\ngang min=2\n\nschedule", set: onGroup(func(g *structs.Group) { g.Gang.Standby = 1 })},
	"Elastic.Min":            {commands: "job w count=9\ngpu nvidia/gpu 1\ngang\nelastic min=9 max=12\n\nschedule", set: onGroup(func(g *structs.Group) { g.Elastic.Min = 2 })},
	"Elastic.Max":            {commands: "job w count=2\ngang min=1\nelastic min=1 max=2\n\nschedule", set: onGroup(func(g *structs.Group) { g.Elastic.Max = 5 })},
	"Topology.Inside":        {commands: "job w\ngpu nvidia/gpu 3\ntopology mode=required\n\nschedule", set: onGroup(func(g *structs.Group) { g.Topology.Inside = "nvlink" })},
	"Topology.Across":        {commands: "job w count=2 cpu=2500\ntopology mode=required\n\nschedule", set: onGroup(func(g *structs.Group) { g.Topology.Across = "node" })},
	"Topology.Mode":          {commands: "job w\ngpu nvidia/gpu 3\ntopology inside=nvlink\n\nschedule", set: onGroup(func(g *structs.Group) { g.Topology.Mode = structs.TopologyRequired })},
	"Peer.JobID":             {commands: nearby, set: onGroup(func(g *structs.Group) { g.Near[0].JobID = "other" })},
	"Peer.Label":             {commands: "job o cpu=100\nmeta m=1\nconstraint ${node.unique.name} = c\n\njob p cpu=2000\nconstraint ${node.class} = x\n\nschedule\n\njob w\nnear label=n\n\nschedule", set: onGroup(func(g *structs.Group) { g.Near[0].Label = "m" })},
	"Peer.Level":             {commands: "job o\nconstraint ${node.class} = x\n\nschedule\n\njob w cpu=3800\nnear job=o required\n\nschedule", set: onGroup(func(g *structs.Group) { g.Near[0].Level = "k9" })},
	"Peer.Required":          {commands: "job o cpu=3900\n\nschedule\n\njob w\nnear job=o\n\nschedule", set: onGroup(func(g *structs.Group) { g.Near[0].Required = true })},
	"ScoreWeights.Affinity":  {commands: preferring, set: func(j *structs.Job) { j.Weights.Affinity = structs.WeightOff }},
	"Port.Value":             {commands: "job w count=2\nstatic p=80\n\nschedule", set: onGroup(func(g *structs.Group) { g.Networks[0].StaticPorts[0].Value = 81 })},
	"Network.StaticPorts":    {commands: "job w count=2\nstatic p=80\n\nschedule", set: onGroup(func(g *structs.Group) { g.Networks[0].StaticPorts = nil })},
	"Network.DynamicPorts":   {commands: "job w\n\nschedule", set: onGroup(func(g *structs.Group) { g.Networks = []structs.Network{{DynamicPorts: []structs.Port{{Label: "p"}}}} })},
	"Reschedule.Attempts":    {commands: "job w type=batch\nreschedule attempts=0 interval=1h\n\nschedule\n\nclient w.g[0] failed exit=1\n\nschedule after=1s", set: onGroup(func(g *structs.Group) { g.Reschedule.Attempts = 1 })},
	"Reschedule.Unlimited":   {commands: "job w type=batch\nreschedule attempts=0 interval=1h\n\nschedule\n\nclient w.g[0] failed exit=1\n\nschedule after=1s", set: onGroup(func(g *structs.Group) { g.Reschedule.Unlimited = true })},
	"Reschedule.Delay":       {commands: "job w type=batch\nreschedule attempts=1 interval=1h\n\nschedule\n\nclient w.g[0] failed exit=1\n\nschedule after=1s", set: onGroup(func(g *structs.Group) { g.Reschedule.Delay = time.Minute })},
}

// tolerant gives the job one toleration.
func tolerant(x structs.Toleration) func(j *structs.Job) {
	return func(j *structs.Job) { j.Tolerations = []structs.Toleration{x} }
}

const tainted = "node a meta.taint.t=v:no-schedule\n\nnode b meta.taint.t=v:no-schedule\n\nnode c meta.taint.t=v:no-schedule\n\njob w\n\nschedule"

func init() {
	tolerated := tolerant(structs.Toleration{Key: "t"})
	for name, e := range map[string]effect{
		"Job.Tolerations":          {commands: tainted, set: tolerated},
		"Toleration.Key":           {commands: tainted, set: tolerant(structs.Toleration{Key: "u"}), base: tolerated},
		"Toleration.Value":         {commands: tainted, set: tolerant(structs.Toleration{Key: "t", Value: "w"}), base: tolerated},
		"Toleration.Effect":        {commands: tainted, set: tolerant(structs.Toleration{Key: "t", Effect: structs.TaintNoExecute}), base: tolerated},
		"Job.Hold":                 {commands: "", set: func(j *structs.Job) { j.Hold = true }},
		"Job.Begin":                {commands: "", set: func(j *structs.Job) { j.Begin = 1 << 62 }},
		"Job.Depends":              {commands: "", set: func(j *structs.Job) { j.Depends = []structs.Dependency{{Name: "o"}} }},
		"ScoreWeights.Load":        {commands: "job w count=3\n\nschedule", set: func(j *structs.Job) { j.Weights.Load = structs.WeightOff }},
		"ScoreWeights.Fit":         {commands: "job o\nconstraint ${node.unique.name} = c\n\nschedule\n\njob w\n\nschedule", set: func(j *structs.Job) { j.Weights.Fit = structs.WeightOff }},
		"ScoreWeights.Spread":      {commands: spreading, set: func(j *structs.Job) { j.Weights.Spread = structs.WeightOff }},
		"Update.MaxParallel":       {commands: "job w count=3\nupdate max_parallel=1\n\nschedule\n\nclient w.g[0] running\n\nclient w.g[1] running\n\nclient w.g[2] running\n\njob w count=3 cpu=600\nupdate max_parallel=1\n\nschedule", set: onGroup(func(g *structs.Group) { g.Update.MaxParallel = 2 })},
		"Group.Update":             {commands: "job w count=3\nupdate max_parallel=1\n\nschedule\n\nclient w.g[0] running\n\nclient w.g[1] running\n\nclient w.g[2] running\n\njob w count=3 cpu=600\nupdate max_parallel=1\n\nschedule", set: onGroup(func(g *structs.Group) { g.Update = nil })},
		"Gang.OnFailure":           {commands: "job w count=2 type=batch\ngang min=1\nreschedule attempts=3 interval=1h\n\nschedule\n\nclient w.g[0] running\n\nclient w.g[1] running\n\nclient w.g[0] failed exit=1\n\nschedule after=1s", set: onGroup(func(g *structs.Group) { g.Gang.OnFailure = structs.GangContinue })},
		"Reschedule.DelayFunction": {commands: "job w type=batch\nreschedule attempts=9 interval=24h delay=10s function=constant max=1h\n\nschedule\n\nclient w.g[0] failed exit=1\n\nschedule after=11s\n\nschedule after=11s\n\nclient w.g[0] failed exit=1\n\nschedule after=11s\n\nschedule after=1s", set: onGroup(func(g *structs.Group) { g.Reschedule.DelayFunction = structs.DelayExponential })},
		"Reschedule.Interval":      {commands: "job w type=batch\nreschedule attempts=9 interval=24h delay=10s function=constant max=1h\n\nschedule\n\nclient w.g[0] failed exit=1\n\nschedule after=11s\n\nschedule after=11s\n\nclient w.g[0] failed exit=1\n\nschedule after=11s\n\nschedule after=1s", set: onGroup(func(g *structs.Group) { g.Reschedule.Attempts, g.Reschedule.Interval = 1, time.Second }), base: onGroup(func(g *structs.Group) { g.Reschedule.Attempts = 1 })},
		"Reschedule.MaxDelay":      {commands: "job w type=batch\nreschedule attempts=9 interval=24h delay=10s function=constant max=1h\n\nschedule\n\nclient w.g[0] failed exit=1\n\nschedule after=11s\n\nschedule after=11s\n\nclient w.g[0] failed exit=1\n\nschedule after=11s\n\nschedule after=1s", set: onGroup(func(g *structs.Group) { g.Reschedule.MaxDelay = 11 * time.Second }), base: onGroup(func(g *structs.Group) { g.Reschedule.DelayFunction = structs.DelayExponential })},
		"Group.Disconnect":         {commands: "job w\ndisconnect lost_after=1h\n\nschedule\n\nclient w.g[0] running\n\nnode a status=disconnected\n\nschedule after=1s", set: onGroup(func(g *structs.Group) { g.Disconnect = nil })},
		"Disconnect.LostAfter":     {commands: "job w\ndisconnect lost_after=1h\n\nschedule\n\nclient w.g[0] running\n\nnode a status=disconnected\n\nschedule after=1s", set: onGroup(func(g *structs.Group) { g.Disconnect.LostAfter = time.Millisecond })},
		"Disconnect.Replace":       {commands: "job w\ndisconnect lost_after=1h\n\nschedule\n\nclient w.g[0] running\n\nnode a status=disconnected\n\nschedule after=1s", set: onGroup(func(g *structs.Group) { g.Disconnect.Replace = new(bool) })},
		"Requeue.Max":              {commands: "job w type=batch\nrequeue on=failure max=0\n\nschedule\n\nclient w.g[0] failed exit=1\n\nschedule after=1s\n\nschedule after=1h", set: func(j *structs.Job) { j.Requeue.Max = 3 }},
		"Requeue.On":               {commands: "job w type=batch\nrequeue on=preempt max=3\n\nschedule\n\nclient w.g[0] failed exit=1\n\nschedule after=1s\n\nschedule after=1h", set: func(j *structs.Job) { j.Requeue.On = []string{"failure"} }},
		"Job.Requeue":              {commands: "job w type=batch\n\nschedule\n\nclient w.g[0] failed exit=1\n\nschedule after=1s\n\nschedule after=1h", set: func(j *structs.Job) { j.Requeue = &structs.Requeue{On: []string{"failure"}, Max: 3} }},
		"Requeue.AvoidFailedNodes": {commands: "job w type=batch\nrequeue on=failure max=3\n\nschedule\n\nclient w.g[0] failed exit=1\n\nschedule after=1s\n\nschedule after=1h", set: func(j *structs.Job) { j.Requeue.AvoidFailedNodes = true }},
		"Job.Datasets":             {commands: "node c meta.datasets=imagenet\n\njob w\n\nschedule", set: func(j *structs.Job) { j.Datasets = []string{"imagenet"} }},
		"ScoreWeights.Locality":    {commands: "node c meta.datasets=imagenet\n\njob w\ndata imagenet\n\nschedule", set: func(j *structs.Job) { j.Weights.Locality = structs.WeightOff }},
		"ScoreWeights.Cost":        {commands: "node a meta.cost_per_hour=9\n\nnode b meta.cost_per_hour=9\n\nnode c meta.cost_per_hour=1\n\njob w\n\nschedule", set: func(j *structs.Job) { j.Weights.Cost = 100 }},
		"ScoreWeights.Reliability": {commands: "node a lost=5\n\njob w\n\nschedule", set: func(j *structs.Job) { j.Weights.Reliability = structs.WeightOff }},
		"Toleration.For":           {commands: strings.ReplaceAll(tainted, "no-schedule", "no-execute"), set: tolerant(structs.Toleration{Key: "t", Effect: structs.TaintNoExecute, For: time.Hour}), base: tolerant(structs.Toleration{Key: "t", Effect: structs.TaintNoExecute})},
	} {
		effects[name] = e
	}
}

const (
	running2 = "\n\nschedule\n\nclient w.g[0] running\n\nclient w.g[1] running\n\n"
	runs     = "job w\n\nschedule\n\nclient w.g[0] running\n\n"
	ended    = "job o type=batch\n\nschedule\n\nclient o.g[0] running\n\nclient o.g[0] complete\n\nschedule\n\n"
	updating = "job w count=2\nupdate max_parallel=1\nchecked" + running2 + "job w count=2 cpu=600\nupdate max_parallel=1\nchecked\n\nschedule\n\nclient w.g[0] running\n\nclient w.g[1] running\n\nschedule after=1m"
	urgent   = "queue default preempt=priority\n\njob w priority=10 count=3 cpu=3900\n\nschedule\n\nclient w.g[0] running\n\nclient w.g[1] running\n\nclient w.g[2] running\n\nschedule after=1h\n\njob h priority=90 cpu=3000\n\nschedule"
	between  = "job o cpu=100\nconstraint ${node.unique.name} = c\n\njob p cpu=100\nconstraint ${node.unique.name} = b\n\nschedule\n\njob w\nnear job=o\nnear job=p weight=40\n\nschedule"
	cornered = "node a numa=0-1:4+2-3:0\n\nnode b gpus=0\n\nnode c gpus=0\n\njob o cores=2\nconstraint ${node.unique.name} = a\nnuma require\n\nschedule\n\njob w cores=1\ngpu nvidia/gpu 1\nnuma require\n\nschedule"
)

// dearer has two victims to choose from: saving costs w 10 s, and o a minute.
const dearer = "queue default preempt=priority\n\njob w priority=10 cpu=3900\ncheckpoint cost=10s\nconstraint ${node.unique.name} = a\n\njob o priority=10 cpu=3900\ncheckpoint cost=1m\nconstraint ${node.unique.name} = b\n\n" +
	"job x priority=95 cpu=3900\nconstraint ${node.unique.name} = c\n\nschedule\n\nclient w.g[0] running\n\nclient o.g[0] running\n\nclient x.g[0] running\n\nschedule after=1h\n\nsaved w.g[0]\n\nsaved o.g[0]\n\njob h priority=90 cpu=3000\n\nschedule"

// after makes the job wait for others.
func after(list ...structs.Dependency) func(j *structs.Job) {
	return func(j *structs.Job) { j.Depends = list }
}

func onUpdate(set func(u *structs.Update)) func(j *structs.Job) {
	return onGroup(func(g *structs.Group) { set(g.Update) })
}

func init() {
	hour := time.Hour
	for name, e := range map[string]effect{
		"Dependency.Name":        {commands: ended + "job w\n\nschedule", set: after(structs.Dependency{Name: "p"}), base: after(structs.Dependency{Name: "o"})},
		"Dependency.JobID":       {commands: ended + "job w\n\nschedule", set: after(structs.Dependency{Name: "o", JobID: "p"}), base: after(structs.Dependency{Name: "o"})},
		"Dependency.Namespace":   {commands: ended + "job w\n\nschedule", set: after(structs.Dependency{Name: "o", Namespace: "other"}), base: after(structs.Dependency{Name: "o"})},
		"Dependency.When":        {commands: ended + "job w\n\nschedule", set: after(structs.Dependency{Name: "o", When: structs.WhenFailed}), base: after(structs.Dependency{Name: "o"})},
		"Dependency.Timeout":     {commands: "job w\n\nschedule\n\nschedule after=2h", set: after(structs.Dependency{Name: "o", OnTimeout: structs.OnTimeoutRun, Timeout: 3 * hour}), base: after(structs.Dependency{Name: "o", OnTimeout: structs.OnTimeoutRun, Timeout: hour})},
		"Dependency.OnTimeout":   {commands: "job w\n\nschedule\n\nschedule after=2h", set: after(structs.Dependency{Name: "o", OnTimeout: structs.OnTimeoutRun, Timeout: hour}), base: after(structs.Dependency{Name: "o", Timeout: hour})},
		"Dependency.Group":       {commands: ended + "job w\n\nschedule", set: after(structs.Dependency{Name: "o", Group: "x", AtLeast: 1}, structs.Dependency{Name: "p"}), base: after(structs.Dependency{Name: "o", Group: "x", AtLeast: 1}, structs.Dependency{Name: "p", Group: "x", AtLeast: 1})},
		"Dependency.AtLeast":     {commands: ended + "job w\n\nschedule", set: after(structs.Dependency{Name: "o", Group: "x", AtLeast: 2}, structs.Dependency{Name: "p", Group: "x", AtLeast: 2}), base: after(structs.Dependency{Name: "o", Group: "x", AtLeast: 1}, structs.Dependency{Name: "p", Group: "x", AtLeast: 1})},
		"Group.MaxClientDisc":    {commands: runs + "node a status=disconnected\n\nschedule after=1s", set: onGroup(func(g *structs.Group) { g.MaxClientDisc = &hour })},
		"Group.PreventLostResch": {commands: runs + "node a status=down\n\nschedule after=1s", set: onGroup(func(g *structs.Group) { g.PreventLostResch = true })},
		"Group.MaxRunDuration":   {commands: runs + "schedule after=2h", set: onGroup(func(g *structs.Group) { g.MaxRunDuration = hour })},
		"Runtime.Limit":          {commands: runs + "schedule after=2h", set: func(j *structs.Job) { j.Runtime.Limit = hour }},
		"Job.Preemptible":        {commands: urgent, set: func(j *structs.Job) { j.Preemptible = true }},
		"Group.Checkpoint":       {commands: urgent, set: onGroup(func(g *structs.Group) { g.Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1"} })},
		"Checkpoint.Cost":        {commands: dearer, set: onGroup(func(g *structs.Group) { g.Checkpoint.Cost = 10 * time.Minute })},
		"Port.IgnoreCollision":   {commands: "job w count=4\nstatic p=80\n\nschedule", set: onGroup(func(g *structs.Group) { g.Networks[0].StaticPorts[0].IgnoreCollision = true })},
		"Port.To":                {commands: "job w\nstatic p=80\n\nschedule", set: onGroup(func(g *structs.Group) { g.Networks[0].StaticPorts[0].To = 8080 })},
		"Resources.DiskMiB":      {commands: "", set: onResources(func(r *structs.Resources) { r.DiskMiB = 20000 })},
		"NUMA.Devices":           {commands: cornered, set: onResources(func(r *structs.Resources) { r.NUMA.Devices = []string{"nvidia/gpu"} })},
		"GPURequest.Enforce":     {commands: sharing, set: onResources(func(r *structs.Resources) { r.GPU[0].Enforce = "hard" })},
		"Peer.Weight":            {commands: between, set: onGroup(func(g *structs.Group) { g.Near[1].Weight = 60 })},
		"Job.Update":             {commands: "job w count=3" + running2 + "client w.g[2] running\n\njob w count=3 cpu=600\n\nschedule", set: func(j *structs.Job) { j.Update = &structs.Update{MaxParallel: 1} }},
		"Update.Stagger":         {commands: strings.NewReplacer("job w count=2", "job w type=system").Replace(updating), set: onUpdate(func(u *structs.Update) { u.Stagger = 7 * time.Second })},
		"Update.MinHealthyTime":  {commands: updating, set: onUpdate(func(u *structs.Update) { u.MinHealthyTime = hour })},
		"Update.HealthCheck":     {commands: updating, set: onUpdate(func(u *structs.Update) { u.HealthCheck = structs.HealthByChecks })},
		"Service.Checked":        {commands: updating, set: onGroup(func(g *structs.Group) { g.Services[0].Checked = false }), base: onUpdate(func(u *structs.Update) { u.HealthCheck = structs.HealthByChecks })},
		"Gang.Timeout":           {commands: "job w count=2\ngang\n\nschedule\n\nclient w.g[0] running\n\ntimeouts after=20m\n\nschedule", set: onGroup(func(g *structs.Group) { g.Gang.Timeout = time.Hour })},
		"EphemeralDisk.Sticky":   {commands: "job w\nconstraint ${node.unique.name} = b\n\nschedule\n\nclient w.g[0] running\n\njob o cpu=3000\nconstraint ${node.unique.name} = c\n\nschedule\n\njob w cpu=600\n\nschedule", set: onGroup(func(g *structs.Group) { g.Disk.Sticky = true })},
	} {
		effects[name] = e
	}
}

// command makes the case of one command.
func command(text string) *script.Case {
	first, rest, _ := strings.Cut(text, "\n")
	words := strings.Fields(first)
	c := &script.Case{Pos: words[0], Cmd: words[0], Input: rest}
	for _, word := range words[1:] {
		k, v, has := strings.Cut(word, "=")
		c.Args = append(c.Args, script.Arg{Key: k, Value: v, HasValue: has})
	}
	return c
}

// outcome returns what a scheduler decides on the commands, after a change of the job w.
func outcome(t *testing.T, commands string, set func(j *structs.Job)) string {
	t.Helper()
	w := newWorld(t, 1, map[string]int{})
	w.now = 1_000_000_000_000
	var b strings.Builder
	for text := range strings.SplitSeq(threeNodes+commands, "\n\n") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		c := command(text)
		said := runCommand(t, w, c)
		if c.Cmd == "job" && c.Args[0].Key == "w" {
			set(w.jobs[structs.JobKey{Namespace: "default", ID: "w"}])
		}
		b.WriteString(said + "\n")
	}
	for _, a := range values(w.allocs, func(a *structs.Allocation) structs.AllocID { return a.ID }) {
		for _, p := range a.Ports {
			fmt.Fprintf(&b, "%s: port %s is %d in the task\n", a.Name(), p.Label, p.To)
		}
	}
	return b.String()
}

// TestWitnessesOfJobs: each field of a job that decides where its work goes changes a decision.
// internal/lint/testdata/witnesses.txt has the rows of all fields.
func TestWitnessesOfJobs(t *testing.T) {
	var names []string
	for name := range effects {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			e := effects[name]
			if e.commands == "" {
				e.commands = "job w\n\nschedule"
			}
			base := func(j *structs.Job) {
				if e.base != nil {
					e.base(j)
				}
			}
			before, after := outcome(t, e.commands, base), outcome(t, e.commands, func(j *structs.Job) {
				base(j)
				e.set(j)
			})
			if again := outcome(t, e.commands, base); again != before {
				t.Errorf("two runs differ:\n%s%s", before, again)
			}
			if before == after {
				t.Errorf("%s changes nothing: it is inert, or its row sets it where it does not matter:\n%s", name, before)
			}
		})
	}
}

// TestWitnessesOfPreemption: each switch of the operator lets work of one kind take the place of less urgent work.
func TestWitnessesOfPreemption(t *testing.T) {
	for name, c := range map[string]struct {
		kind string
		set  func(c *structs.SchedulerConfig)
	}{
		"SchedulerConfig.PreemptService":  {"service", func(c *structs.SchedulerConfig) { c.PreemptService = true }},
		"SchedulerConfig.PreemptSystem":   {"system", func(c *structs.SchedulerConfig) { c.PreemptSystem = true }},
		"SchedulerConfig.PreemptSysBatch": {"sysbatch", func(c *structs.SchedulerConfig) { c.PreemptSysBatch = true }},
	} {
		decide := func(set func(c *structs.SchedulerConfig)) string {
			w := newWorld(t, 1, map[string]int{})
			w.now = 1_000_000_000_000
			set(&w.config)
			var b strings.Builder
			for text := range strings.SplitSeq(threeNodes+"job low priority=10 count=3 cpu=3900\n\nschedule\n\njob w priority=90 cpu=3000 type="+c.kind+"\n\nschedule after=1h", "\n\n") {
				b.WriteString(runCommand(t, w, command(strings.TrimSpace(text))) + "\n")
			}
			return b.String()
		}
		if before, after := decide(func(*structs.SchedulerConfig) {}), decide(c.set); before == after {
			t.Errorf("%s changes nothing:\n%s", name, before)
		}
	}
}
