package scheduler

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// ask is one group of a job compiled for placement: what it needs, must have and would like.
type ask struct {
	job  *structs.Job
	tg   *structs.Group
	need structs.Vector

	stays bool // asked for what runs already (mayStay)

	drivers   []string
	checks    []condition // asked once per class
	perNode   []condition // about something unique to a node
	volumes   []volumeAsk
	networks  []string // host networks asked for by name
	network   string   // mode of the network of its own that each allocation needs, or ""
	badVolume string   // a volume nobody here can give

	wishes      []wish // asked once per class
	wishPerNode []wish
	wishTotal   int64 // sum of the absolute weights

	static  []structs.Port
	dynamic []structs.Port
	devices []deviceAsk // most specific first
	gpuFit  string      // structs.GPUFitBest, ...: which GPU of a node gives a share
	altsMax int64       // how many alternatives beyond the first ones there are
	shares  bool        // some alternative is for a share

	inside     string // level within a node that its devices should share; "" for islands, and no wish
	insideOnly bool   // it is a must

	device       structs.Obstacle // that too few of the first request's devices are free
	isSimple     bool             // see simple
	plainDevices bool             // one request for whole devices that a class can answer: the cheap way to count serves
	cores        []coreAsk        // tasks that reserve cores
	runs         []coreRun        // of cores, by the NUMA node that each should come from
	numaWish     bool             // some task prefers cores of one NUMA node
	spreads      []spreadAsk

	distinctHostsJob   bool
	distinctHostsGroup bool
	distinct           []distinctAsk

	weights structs.ScoreWeights // in place of the policy's
}

type wish struct {
	cond   condition
	weight int64
}

type volumeAsk struct {
	source   string
	readOnly bool
}

type coreAsk struct {
	task  string
	count int64
}

// deviceAsk is one device block, or the GPUs, of one task.
type deviceAsk struct {
	task    string
	alts    []deviceAlt // in order of preference; the first that can be had on a node is taken
	perNode bool        // some condition looks at device ids
	tied    bool        // the task wants them on the NUMA node of its cores
}

// deviceAlt is one way to serve a deviceAsk.
type deviceAlt struct {
	name       string // "type", "vendor/type" or "vendor/type/model"
	model      string // a word of the model's name; "" for any
	words      string // the same of a request for devices, whose condition on the model is among the checks
	mig        string // profile of MIG instances; "" for whole devices
	count      int64
	mem, share int64 // MiB, or percent of the memory, of each; both 0: whole devices
	compute    int64 // percent of each
	enforce    string
	watts      int64 // power limit that is to be set on each; 0: none
	checks     []condition
	wishes     []wish
	wishTotal  int64
}

type spreadAsk struct {
	target  string
	weight  int64
	targets []structs.SpreadTarget
	perNode bool
}

// distinctAsk limits how many allocations may share a value.
type distinctAsk struct {
	cond    condition
	target  string
	limit   int64
	perNode bool
	job     bool // counts all groups of the job
}

// needsRDMA is what a task asks for by rdma = true.
var needsRDMA = []structs.Constraint{{LTarget: "${attr." + structs.RDMAAttribute + "}", Operand: structs.OperandIsSet}}

// needsContainerGPUs is what a container asks for with a GPU: not every engine can be given one.
var needsContainerGPUs = []structs.Constraint{{LTarget: "${attr." + structs.DockerGPUAttribute + "}", Operand: structs.OperandNotEqual, RTarget: structs.DockerGPUNone}}

// compileAsk gathers everything that decides where a group may run.
func compileAsk(job *structs.Job, tg *structs.Group, gpuFit string) *ask {
	a := &ask{job: job, tg: tg, gpuFit: gpuFit, need: structs.GroupVector(tg)}
	a.constrain(job.Constraints, true)
	a.constrain(tg.Constraints, false)
	a.wish(job.Affinities)
	a.wish(tg.Affinities)
	for _, t := range tg.Tasks {
		a.constrain(t.Constraints, false)
		if t.Resources.RDMA {
			a.constrain(needsRDMA, false)
		}
		a.wish(t.Affinities)
		if t.Driver != "" && !slices.Contains(a.drivers, t.Driver) {
			a.drivers = append(a.drivers, t.Driver)
		}
		if t.Resources.Cores > 0 {
			a.cores = append(a.cores, coreAsk{t.Name, t.Resources.Cores})
		}
		for i := range t.Resources.Devices {
			d := compileDevice(t.Name, &t.Resources.Devices[i])
			d.tied = t.Resources.NUMA.Ties(d.alts[0].name)
			a.devices = append(a.devices, d)
		}
		if len(t.Resources.GPU) > 0 {
			d := compileGPU(t.Name, t.Resources.GPU)
			d.tied = t.Resources.NUMA.Ties(gpuName)
			a.devices = append(a.devices, d)
		}
		if t.Driver == structs.DockerDriver && asksGPUs(&t.Resources) {
			a.constrain(needsContainerGPUs, false)
		}
	}
	if t := tg.Topology; t != nil {
		a.inside, a.insideOnly = t.Inside, t.Inside != "" && t.Mode == structs.TopologyRequired
	}
	slices.SortStableFunc(a.devices, func(x, y deviceAsk) int { return y.narrow() - x.narrow() })
	a.inGPUs()
	a.coreRuns()
	a.network = tg.OwnNetwork()
	for i := range tg.Networks {
		for _, p := range tg.Networks[i].StaticPorts {
			a.port(p, &a.static)
		}
		for _, p := range tg.Networks[i].DynamicPorts {
			a.port(p, &a.dynamic)
		}
	}
	for i := range tg.Volumes {
		a.volume(&tg.Volumes[i])
	}
	for _, s := range slices.Concat(tg.Spreads, job.Spreads) {
		if s.Weight == 0 || slices.ContainsFunc(a.spreads, func(x spreadAsk) bool { return x.target == s.Attribute }) {
			continue // the group's spread wins over the job's on one attribute
		}
		a.spreads = append(a.spreads, spreadAsk{target: s.Attribute, weight: s.Weight, targets: s.Targets, perNode: unique(s.Attribute)})
	}
	return a
}

func (a *ask) constrain(cs []structs.Constraint, ofJob bool) {
	for _, c := range cs {
		switch c.Operand {
		case structs.OperandDistinctHosts:
			if c.RTarget == "false" {
				continue
			}
			if ofJob {
				a.distinctHostsJob = true
			} else {
				a.distinctHostsGroup = true
			}
		case structs.OperandDistinctProperty:
			d := distinctAsk{cond: compileCondition(c.LTarget, c.RTarget, c.Operand), target: c.LTarget, limit: 1, perNode: unique(c.LTarget), job: ofJob}
			if n, ok := parseDecimal(c.RTarget); ok && n.IsInt() && n.Num().IsInt64() {
				d.limit = n.Num().Int64()
			}
			a.distinct = append(a.distinct, d)
		default:
			x := compileCondition(c.LTarget, c.RTarget, c.Operand)
			if x.unique() {
				a.perNode = append(a.perNode, x)
			} else {
				a.checks = append(a.checks, x)
			}
		}
	}
}

func (a *ask) wish(as []structs.Affinity) {
	for _, f := range as {
		w := wish{compileCondition(f.LTarget, f.RTarget, f.Operand), f.Weight}
		a.wishTotal += abs(f.Weight)
		if w.cond.unique() {
			a.wishPerNode = append(a.wishPerNode, w)
		} else {
			a.wishes = append(a.wishes, w)
		}
	}
}

func (a *ask) port(p structs.Port, to *[]structs.Port) {
	*to = append(*to, p)
	if p.HostNetwork != "" && p.HostNetwork != "default" && !slices.Contains(a.networks, p.HostNetwork) {
		a.networks = append(a.networks, p.HostNetwork)
	}
}

func (a *ask) volume(v *structs.VolumeRequest) {
	var raw struct {
		Type     string
		Source   string
		ReadOnly bool
	}
	if err := json.Unmarshal(v.Raw, &raw); err != nil || raw.Source == "" || raw.Type != "" && raw.Type != "host" {
		a.badVolume = v.Name
		return
	}
	a.volumes = append(a.volumes, volumeAsk{raw.Source, raw.ReadOnly})
}

func compileDevice(task string, r *structs.DeviceRequest) deviceAsk {
	d := deviceAsk{task: task}
	d.add(deviceAlt{name: r.Name, count: max(r.Count, 1)}, r.Constraints, r.Affinities)
	return d
}

// gpuName is what a request for GPUs means in terms of devices.
const gpuName = "nvidia/gpu"

func asksGPUs(r *structs.Resources) bool {
	return len(r.GPU) > 0 || slices.ContainsFunc(r.Devices, func(d structs.DeviceRequest) bool {
		return d.Name == "gpu" || d.Name == gpuName || strings.HasPrefix(d.Name, gpuName+"/")
	})
}

func compileGPU(task string, rs []structs.GPURequest) deviceAsk {
	d := deviceAsk{task: task}
	for i := range rs {
		r := &rs[i]
		d.add(deviceAlt{name: gpuName, model: r.Model, mig: r.MIG, count: max(r.Count, 1), mem: r.MemoryMiB, share: r.Share, compute: r.Compute, enforce: r.Enforce, watts: r.PowerLimitW}, append(slices.Clip(r.Constraints), powerRange(r.PowerLimitW)...), r.Affinities)
	}
	return d
}

// powerRange are the conditions for GPUs whose power limit can be set to so many watts; none for 0.
func powerRange(watts int64) []structs.Constraint {
	if watts == 0 {
		return nil
	}
	w := strconv.FormatInt(watts, 10) + " W"
	return []structs.Constraint{
		{LTarget: "${device.attr.power_min}", Operand: "<=", RTarget: w},
		{LTarget: "${device.attr.power_max}", Operand: ">=", RTarget: w},
	}
}

// add appends one alternative with its conditions.
func (d *deviceAsk) add(alt deviceAlt, constraints []structs.Constraint, affinities []structs.Affinity) {
	for _, c := range constraints {
		x := compileCondition(c.LTarget, c.RTarget, c.Operand)
		if c.LTarget == structs.ModelTarget && c.Operand == structs.OperandRegexp && alt.model == "" {
			alt.words = structs.ModelWords(c.RTarget)
		}
		alt.checks = append(alt.checks, x)
		d.perNode = d.perNode || x.unique()
	}
	for _, f := range affinities {
		x := compileCondition(f.LTarget, f.RTarget, f.Operand)
		alt.wishes = append(alt.wishes, wish{x, f.Weight})
		alt.wishTotal += abs(f.Weight)
		d.perNode = d.perNode || x.unique()
	}
	d.alts = append(d.alts, alt)
}

// narrow orders the requests of a group: what can be served by fewer devices is served first.
func (d *deviceAsk) narrow() int {
	n := 4 * strings.Count(d.alts[0].name, "/")
	if d.alts[0].model != "" {
		n += 2
	}
	if !d.alts[0].shared() {
		n++
	}
	return n
}

// plain reports whether the ask is for whole devices of one kind, as a device block is.
func (d *deviceAsk) plain() bool { return len(d.alts) == 1 && !d.alts[0].shared() }

// inGPUs notes what the requests for devices have in common.
func (a *ask) inGPUs() {
	if len(a.devices) > 0 {
		a.device = a.devices[0].alts[0].obstacle()
	}
	a.plainDevices = a.inside == "" && len(a.devices) == 1 && a.devices[0].plain() && !a.devices[0].perNode
	for i := range a.devices {
		a.altsMax += int64(len(a.devices[i].alts) - 1)
		for k := range a.devices[i].alts {
			a.shares = a.shares || a.devices[i].alts[k].shared()
		}
	}
	a.isSimple = a.simple()
}

func abs(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}

// fulfilled is the weight of a wish that came true on a node: a negative wish comes true where its condition is false.
func (w *wish) fulfilled(holds bool) int64 {
	if holds == (w.weight > 0) {
		return abs(w.weight)
	}
	return 0
}

// Names reports whether a device request's name means a device group: "type", "vendor/type" or "vendor/type/model". A
// group of MIG instances is meant only by its profile or its full name: who asks for a GPU does not want a slice of one.
func (d *deviceAlt) names(g *structs.DeviceGroup) bool {
	if d.model != "" && !structs.IsModel(g.Name, d.model) {
		return false
	}
	first, rest, two := strings.Cut(d.name, "/")
	second, third, three := strings.Cut(rest, "/")
	if profile := g.MIGProfile(); profile != d.mig && (d.mig != "" || !three) {
		return false
	}
	switch {
	case !two:
		return first == g.Type
	case !three:
		return first == g.Vendor && second == g.Type
	}
	return first == g.Vendor && second == g.Type && third == g.Name
}

// enforceable reports whether the node of a group has a backend that the request accepts. Whole devices need none.
func (d *deviceAlt) enforceable(g *structs.DeviceGroup) bool {
	if !d.shared() {
		return true
	}
	_, ok := structs.GPUBackend(d.enforce, g.Attributes[structs.GPUEnforceAttribute].Str)
	return ok
}

// deviceChoice is a device group of a node that may serve a request.
type deviceChoice struct {
	alt   int // into deviceAsk.alts
	group int // into NodeResources.Devices
	first int // position of its first instance
	count int // of its instances: equal in all nodes of a class
	micro int64
}

// choices lists the groups of a node that may serve a request, by alternative, then the best liked first, then in the
// order of the node.
func (d *deviceAsk) choices(n *structs.Node) []deviceChoice {
	var out []deviceChoice
	for at := range d.alts {
		alt := &d.alts[at]
		first := 0
		for i := range n.Resources.Devices {
			g := &n.Resources.Devices[i]
			if alt.names(g) && alt.enforceable(g) && !slices.ContainsFunc(alt.checks, func(c condition) bool { return !c.holdsOnDevice(g) }) {
				var got int64
				for k := range alt.wishes {
					got += alt.wishes[k].fulfilled(alt.wishes[k].cond.holdsOnDevice(g))
				}
				c := deviceChoice{alt: at, group: i, first: first, count: len(g.Instances)}
				if alt.wishTotal > 0 {
					c.micro = got * model.Micro / alt.wishTotal
				}
				out = append(out, c)
			}
			first += len(g.Instances)
		}
	}
	if len(out) > 1 {
		slices.SortStableFunc(out, func(a, b deviceChoice) int { return cmp.Or(a.alt-b.alt, int(b.micro-a.micro)) })
	}
	return out
}

// simple reports whether what the ask may get on a node depends on nothing but the node and what is held there, in one
// way: no devices, some whole ones of a kind, or a share of one.
func (a *ask) simple() bool {
	if len(a.devices) == 0 {
		return true
	}
	if len(a.devices) != 1 || len(a.devices[0].alts) != 1 || a.devices[0].perNode || a.inside != "" {
		return false
	}
	return !a.shares || a.devices[0].alts[0].count == 1
}

// gpuKey is equal for simple asks that get the same GPUs of a node.
func (a *ask) gpuKey() string {
	b := strconv.AppendInt(nil, a.need.CPU, 10)
	b = strconv.AppendInt(append(b, ' '), a.need.Cores, 10)
	for i := range a.devices {
		d := &a.devices[i].alts[0]
		for _, n := range []int64{d.count, d.mem, d.share, d.compute} {
			b = strconv.AppendInt(append(b, ' '), n, 10)
		}
		b = strconv.AppendQuote(strconv.AppendQuote(strconv.AppendQuote(b, d.name), d.model), d.mig)
		for k := range d.checks {
			c := &d.checks[k]
			b = strconv.AppendQuote(strconv.AppendQuote(strconv.AppendQuote(append(b, '?'), c.l), c.op), c.r)
		}
		for k := range d.wishes {
			c := &d.wishes[k].cond
			b = strconv.AppendQuote(strconv.AppendQuote(strconv.AppendQuote(append(b, '!'), c.l), c.op), c.r)
			b = strconv.AppendInt(b, d.wishes[k].weight, 10)
		}
	}
	return string(b)
}

// plainKey is hopeKey for a group that asks for amounts, and in its tasks for GPUs without conditions; nil for others.
// Packing what most groups do not have takes longer than the rest of refusing them.
func (a *ask) plainKey(members int) []byte {
	job, tg := a.job, a.tg
	if tg.Topology != nil || len(job.Constraints)+len(tg.Constraints)+len(tg.Networks)+len(tg.Volumes)+len(job.Tolerations) > 0 {
		return nil
	}
	b := make([]byte, 1, 64) // begins with 0, as nothing that is packed does
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	number := func(n int64) { b = binary.AppendVarint(b, n) }
	need := &a.need
	for _, n := range [...]int64{int64(members), need.CPU, need.Cores, need.MemoryMiB, need.DiskMiB} {
		number(n)
	}
	text(job.NodePool)
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

// meansSelf reports whether some rule means the job itself, too.
func (a *ask) meansSelf() bool {
	return slices.ContainsFunc(model.PeersOf(a.job, a.tg), func(r model.PeerRule) bool { return r.Self })
}

// countsJob reports whether allocations of the job's other groups matter to the ask.
func (a *ask) countsJob() bool {
	return a.distinctHostsJob || a.meansSelf() || slices.ContainsFunc(a.distinct, func(d distinctAsk) bool { return d.job })
}
