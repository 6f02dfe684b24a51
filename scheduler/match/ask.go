package match

import (
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Ask is one group of a job compiled for placement: what it needs, requires and prefers.
type Ask struct {
	Job  *structs.Job
	Tg   *structs.Group
	Need structs.Vector

	stays bool // for an allocation that runs already (MayStay)

	drivers   []string
	checks    []Condition // checked once per class
	PerNode   []Condition // about an attribute unique to a node
	volumes   []structs.HostVolumeRequest
	networks  []string // host networks requested by name
	network   string   // mode of the network that each allocation gets, or ""
	badVolume string   // a volume that no node can provide

	Wishes      []wish // checked once per class
	WishPerNode []wish
	WishTotal   int64 // sum of the absolute weights

	Static  []structs.Port
	dynamic []structs.Port
	Devices []DeviceAsk // most specific first
	GPUFit  string      // structs.GPUFitBest, ...: how shares are fitted into the GPUs of a node
	AltsMax int64       // number of alternatives beyond the first ones
	Shares  bool        // some alternative is for a share
	ByID    bool        // some request is for particular devices

	Inside     string // level within a node that its devices should share; "" for islands, without preference
	insideOnly bool   // Inside is required

	IsSimple     bool      // see Simple
	PlainDevices bool      // one request for whole devices that only depends on the class: they can be counted the cheap way
	Cores        []coreAsk // tasks that reserve cores
	runs         []coreRun // the cores in sets that should each come from one NUMA node
	NUMAWish     bool      // some task prefers cores of one NUMA node
	Spreads      []SpreadAsk

	DistinctHostsJob   bool
	DistinctHostsGroup bool
	Distinct           []distinctAsk

	Weights structs.ScoreWeights // replace the policy's

	Closed []Closed // models that requests do without; see Without
	open   *Ask     // the ask without Closed; nil: this one
}

type coreAsk struct {
	task  string
	count int64
}

// SpreadAsk is one spread block.
type SpreadAsk struct {
	Target  string
	Weight  int64
	Targets []structs.SpreadTarget
	PerNode bool
}

// distinctAsk limits how many allocations may share a value.
type distinctAsk struct {
	Cond    Condition
	Target  string
	Limit   int64
	PerNode bool
	Job     bool // counts all groups of the job
}

// needsRDMA is the constraint of a task with rdma = true.
var needsRDMA = []structs.Constraint{{LTarget: "${attr." + structs.RDMAAttribute + "}", Operand: structs.OperandIsSet}}

// needsBundles is the constraint of a task that fetches a bundle: an agent of an older version would fail it.
var needsBundles = []structs.Constraint{{LTarget: "${attr." + structs.BundlesAttribute + "}", Operand: structs.OperandIsSet}}

// needsContainerGPUs is the constraint of a container with a GPU: not every container engine can use one.
var needsContainerGPUs = []structs.Constraint{{LTarget: "${attr." + structs.DockerGPUAttribute + "}", Operand: structs.OperandNotEqual, RTarget: structs.DockerGPUNone}}

// CompileAsk gathers everything that decides where a group may run.
func CompileAsk(job *structs.Job, tg *structs.Group, gpuFit string) *Ask {
	a := &Ask{Job: job, Tg: tg, GPUFit: gpuFit, Need: structs.GroupVector(tg)}
	a.constrain(job.Constraints, true)
	a.constrain(tg.Constraints, false)
	a.wish(job.Affinities)
	a.wish(tg.Affinities)
	above := byIDs{}.with(job.Constraints, job.Affinities).with(tg.Constraints, tg.Affinities)
	for _, t := range tg.Tasks {
		a.constrain(t.Constraints, false)
		if t.Resources.RDMA {
			a.constrain(needsRDMA, false)
		}
		if t.FetchesBundle() {
			a.constrain(needsBundles, false)
		}
		a.wish(t.Affinities)
		if t.Driver != "" && !slices.Contains(a.drivers, t.Driver) {
			a.drivers = append(a.drivers, t.Driver)
		}
		if t.Resources.Cores > 0 {
			a.Cores = append(a.Cores, coreAsk{t.Name, t.Resources.Cores})
		}
		ids := above.with(t.Constraints, t.Affinities)
		for i := range t.Resources.Devices {
			d := compileDevice(t.Name, &t.Resources.Devices[i], ids)
			d.tied = t.Resources.NUMA.Ties(d.Alts[0].name)
			a.Devices = append(a.Devices, d)
		}
		if len(t.Resources.GPU) > 0 {
			d := compileGPU(t.Name, t.Resources.GPU, ids)
			d.tied = t.Resources.NUMA.Ties(gpuName)
			a.Devices = append(a.Devices, d)
		}
		if t.Driver == structs.DockerDriver && asksGPUs(&t.Resources) {
			a.constrain(needsContainerGPUs, false)
		}
	}
	if t := tg.Topology; t != nil {
		a.Inside, a.insideOnly = t.Inside, t.Inside != "" && t.Mode == structs.TopologyRequired
	}
	slices.SortStableFunc(a.Devices, func(x, y DeviceAsk) int { return y.narrow() - x.narrow() })
	a.inGPUs()
	a.coreRuns()
	a.network = tg.OwnNetwork()
	for i := range tg.Networks {
		for _, p := range tg.Networks[i].StaticPorts {
			a.port(p, &a.Static)
		}
		for _, p := range tg.Networks[i].DynamicPorts {
			a.port(p, &a.dynamic)
		}
	}
	for i := range tg.Volumes {
		a.volume(&tg.Volumes[i])
	}
	for _, s := range slices.Concat(tg.Spreads, job.Spreads) {
		if s.Weight == 0 || slices.ContainsFunc(a.Spreads, func(x SpreadAsk) bool { return x.Target == s.Attribute }) {
			continue // the group's spread replaces the job's on the same attribute
		}
		a.Spreads = append(a.Spreads, SpreadAsk{Target: s.Attribute, Weight: s.Weight, Targets: s.Targets, PerNode: unique(s.Attribute)})
	}
	return a
}

func (a *Ask) constrain(cs []structs.Constraint, ofJob bool) {
	for _, c := range cs {
		switch c.Operand {
		case structs.OperandDistinctHosts:
			if c.RTarget == "false" {
				continue
			}
			if ofJob {
				a.DistinctHostsJob = true
			} else {
				a.DistinctHostsGroup = true
			}
		case structs.OperandDistinctProperty:
			d := distinctAsk{Cond: compileCondition(c.LTarget, c.RTarget, c.Operand), Target: c.LTarget, Limit: 1, PerNode: unique(c.LTarget), Job: ofJob}
			if n, ok := ParseDecimal(c.RTarget); ok && n.IsInt() && n.Num().IsInt64() {
				d.Limit = n.Num().Int64()
			}
			a.Distinct = append(a.Distinct, d)
		default:
			switch x := compileCondition(c.LTarget, c.RTarget, c.Operand); {
			case x.aboutIDs(): // of each device: see byIDs
			case x.unique():
				a.PerNode = append(a.PerNode, x)
			default:
				a.checks = append(a.checks, x)
			}
		}
	}
}

func (a *Ask) wish(as []structs.Affinity) {
	for _, f := range as {
		w := wish{compileCondition(f.LTarget, f.RTarget, f.Operand), f.Weight}
		if w.Cond.aboutIDs() {
			continue // of each device: see byIDs
		}
		a.WishTotal += abs(f.Weight)
		if w.Cond.unique() {
			a.WishPerNode = append(a.WishPerNode, w)
		} else {
			a.Wishes = append(a.Wishes, w)
		}
	}
}

// Liking returns how well a node meets the affinities: the sum of the weights of those that it meets.
func (a *Ask) Liking(n *structs.Node) (sum int64) {
	for _, list := range [2][]wish{a.Wishes, a.WishPerNode} {
		for i := range list {
			sum += list[i].Fulfilled(list[i].Cond.Holds(n))
		}
	}
	return sum
}

func (a *Ask) port(p structs.Port, to *[]structs.Port) {
	*to = append(*to, p)
	if p.HostNetwork != "" && p.HostNetwork != "default" && !slices.Contains(a.networks, p.HostNetwork) {
		a.networks = append(a.networks, p.HostNetwork)
	}
}

func (a *Ask) volume(v *structs.VolumeRequest) {
	host, err := v.Host()
	if err != nil {
		a.badVolume = v.Name
		return
	}
	a.volumes = append(a.volumes, host)
}

// inGPUs records what the device requests have in common.
func (a *Ask) inGPUs() {
	a.PlainDevices = a.Inside == "" && len(a.Devices) == 1 && a.Devices[0].plain() && !a.Devices[0].PerNode
	for i := range a.Devices {
		a.AltsMax += int64(len(a.Devices[i].Alts) - 1)
		a.ByID = a.ByID || a.Devices[i].PerNode
		for k := range a.Devices[i].Alts {
			alt := &a.Devices[i].Alts[k]
			a.Shares = a.Shares || alt.Shared()
			alt.Obstacle = alt.obstacle()
		}
	}
	a.IsSimple = a.Simple()
}

// Simple reports whether what the ask can get on a node depends only on the node and what is held there, with a single
// choice: no devices, whole ones of one kind, or a share of one.
func (a *Ask) Simple() bool {
	if len(a.Devices) == 0 {
		return true
	}
	if len(a.Devices) != 1 || len(a.Devices[0].Alts) != 1 || a.Devices[0].PerNode || a.Inside != "" {
		return false
	}
	return !a.Shares || a.Devices[0].Alts[0].Count == 1
}

// GPUKey is equal for simple asks that get the same GPUs of a node.
func (a *Ask) GPUKey() string {
	b := strconv.AppendInt(nil, a.Need.CPU, 10)
	b = strconv.AppendInt(append(b, ' '), a.Need.Cores, 10)
	for i := range a.Devices {
		d := &a.Devices[i].Alts[0]
		for _, n := range []int64{d.Count, d.mem, d.Share, d.Compute} {
			b = strconv.AppendInt(append(b, ' '), n, 10)
		}
		b = strconv.AppendQuote(strconv.AppendQuote(strconv.AppendQuote(b, d.name), d.model), d.mig)
		for k := range d.checks {
			c := &d.checks[k]
			b = strconv.AppendQuote(strconv.AppendQuote(strconv.AppendQuote(append(b, '?'), c.L), c.Op), c.R)
		}
		for k := range d.wishes {
			c := &d.wishes[k].Cond
			b = strconv.AppendQuote(strconv.AppendQuote(strconv.AppendQuote(append(b, '!'), c.L), c.Op), c.R)
			b = strconv.AppendInt(b, d.wishes[k].weight, 10)
		}
	}
	return string(b)
}

// PlainKey returns the no-fit key of a group that asks only for amounts and for GPUs without conditions; nil for other
// groups, which need the slower full key.
func (a *Ask) PlainKey(members int) []byte {
	job, tg := a.Job, a.Tg
	if tg.Topology != nil || len(a.Closed) > 0 || len(job.Constraints)+len(tg.Constraints)+len(tg.Networks)+len(tg.Volumes)+len(job.Tolerations) > 0 {
		return nil
	}
	b := make([]byte, 1, 64) // begins with 0, unlike the packed full key
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	number := func(n int64) { b = binary.AppendVarint(b, n) }
	need := &a.Need
	for _, n := range [...]int64{int64(members), need.CPU, need.Cores, need.MemoryMiB, need.DiskMiB} {
		number(n)
	}
	text(string(job.NodePool))
	number(int64(len(job.Datacenters)))
	for _, dc := range job.Datacenters {
		text(dc)
	}
	for _, t := range tg.Tasks {
		r := &t.Resources
		if len(t.Constraints)+len(r.Devices) > 0 || r.RDMA || r.NUMA.Wants() != structs.NUMANone {
			return nil
		}
		text(t.Driver)
		number(r.Cores)
		number(int64(len(r.GPU)))
		for i := range r.GPU {
			x := &r.GPU[i]
			if len(x.Constraints)+len(x.Affinities) > 0 || x.PowerLimitW != 0 {
				return nil
			}
			for _, n := range [...]int64{x.Count, x.MemoryMiB, x.Share, x.Compute} {
				number(n)
			}
			for _, s := range [...]string{x.Model, x.MIG, x.RDMA, x.Enforce} {
				text(s)
			}
		}
	}
	return b
}

// meansSelf reports whether some peer rule also matches the job itself.
func (a *Ask) meansSelf() bool {
	return slices.ContainsFunc(model.PeersOf(a.Job, a.Tg), func(r model.PeerRule) bool { return r.Self })
}

// CountsJob reports whether the ask depends on allocations of the job's other groups.
func (a *Ask) CountsJob() bool {
	return a.DistinctHostsJob || a.meansSelf() || slices.ContainsFunc(a.Distinct, func(d distinctAsk) bool { return d.Job })
}

// coreRun is a set of cores that should come from one NUMA node: those of one task, or of several tasks that require it
// and share cores because they run one after the other.
type coreRun struct {
	at   []int // places in the allocation's list of cores
	must bool
	wish bool  // preferred: nodes that can provide it score higher
	tied []int // device requests, into Ask.Devices, that should get devices of the same NUMA node
	near []int // device requests of the same tasks: the NUMA node of their devices is preferred
}

func (r *coreRun) hard() bool { return r.must || r.wish }

// coreRuns divides the cores of an allocation into runs. Tasks that require one NUMA node come first. If another task
// shares cores with them, the rest of its cores is a run too.
func (a *Ask) coreRuns() {
	owner := make([]int, a.Need.Cores) // 1 + the run
	for _, must := range [...]bool{true, false} {
		for _, t := range a.Tg.Tasks {
			wants := t.Resources.NUMA.Wants()
			if t.Resources.Cores == 0 || (wants == structs.NUMARequire) != must {
				continue
			}
			r, num := coreRun{must: must, wish: wants == structs.NUMAPrefer}, len(a.runs)+1
			for i := range a.Devices {
				if d := &a.Devices[i]; d.task == t.Name {
					r.near = append(r.near, i)
					if d.tied {
						r.tied = append(r.tied, i)
					}
				}
			}
			from, to := a.Tg.CoreSpan(t.Name)
			for p := from; p < min(to, a.Need.Cores); p++ {
				old := owner[p]
				switch {
				case old == 0:
					owner[p], r.at = num, append(r.at, int(p))
				case must && old != num:
					o := &a.runs[old-1]
					for _, q := range o.at {
						owner[q] = num
					}
					r.at, r.tied, r.near = append(r.at, o.at...), append(r.tied, o.tied...), append(r.near, o.near...)
					*o = coreRun{}
				}
			}
			a.runs = append(a.runs, r)
			a.NUMAWish = a.NUMAWish || r.wish
		}
	}
	a.runs = slices.DeleteFunc(a.runs, func(r coreRun) bool { return len(r.at) == 0 })
}
