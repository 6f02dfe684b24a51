package match

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

type wish struct {
	Cond   Condition
	weight int64
}

func abs(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}

// Fulfilled returns the weight of a wish that is met on a node. A negative wish is met where its condition is false.
func (w *wish) Fulfilled(holds bool) int64 {
	if holds == (w.weight > 0) {
		return abs(w.weight)
	}
	return 0
}

// DeviceAsk is one device block, or the GPUs, of one task.
type DeviceAsk struct {
	task    string
	Alts    []DeviceAlt // in order of preference; the first that a node can provide is taken
	PerNode bool        // some condition or wish is about device IDs
	tied    bool        // the task wants them on the NUMA node of its cores
}

// DeviceAlt is one way to serve a DeviceAsk.
type DeviceAlt struct {
	name       string // "type", "vendor/type" or "vendor/type/model"
	model      string // a word of the model's name; "" for any
	words      string // like model, for a device request with a condition on the model
	mig        string // profile of MIG instances; "" for whole devices
	Count      int64
	mem, Share int64 // MiB, or percent of the memory, of each; both 0: whole devices
	Compute    int64 // percent of each
	enforce    string
	watts      int64       // power limit to set on each; 0: none
	checks     []Condition // of the device group
	ids        []Condition // of each device: those about ${device.ids}
	wishes     []wish
	idWishes   []wish
	WishTotal  int64            // sum of the absolute weights of both
	Obstacle   structs.Obstacle // the obstacle if too few of them are free
}

func compileDevice(task string, r *structs.DeviceRequest, above byIDs) DeviceAsk {
	d := DeviceAsk{task: task}
	d.add(DeviceAlt{name: r.Name, Count: max(r.Count, 1)}, r.Constraints, r.Affinities, above)
	return d
}

// byIDs are the conditions on ${device.ids} of a job, a group and a task: they hold for all devices of the task.
type byIDs struct {
	constraints []structs.Constraint
	affinities  []structs.Affinity
}

// with adds the conditions of one more level.
func (b byIDs) with(cs []structs.Constraint, as []structs.Affinity) byIDs {
	if len(cs)+len(as) == 0 {
		return b
	}
	return byIDs{slices.Concat(b.constraints, DeviceConstraints(cs)), slices.Concat(b.affinities, deviceAffinities(as))}
}

// gpuName is the device name of a request for GPUs.
const gpuName = "nvidia/gpu"

func asksGPUs(r *structs.Resources) bool {
	return len(r.GPU) > 0 || slices.ContainsFunc(r.Devices, func(d structs.DeviceRequest) bool {
		return d.Name == "gpu" || d.Name == gpuName || strings.HasPrefix(d.Name, gpuName+"/")
	})
}

func compileGPU(task string, rs []structs.GPURequest, above byIDs) DeviceAsk {
	d := DeviceAsk{task: task}
	for i := range rs {
		r := &rs[i]
		d.add(DeviceAlt{name: gpuName, model: r.Model, mig: r.MIG, Count: max(r.Count, 1), mem: r.MemoryMiB, Share: r.Share, Compute: r.Compute, enforce: r.Enforce, watts: r.PowerLimitW}, slices.Concat(r.Constraints, powerRange(r.PowerLimitW), nearAdapter(r.RDMA)), append(slices.Clip(r.Affinities), nearAdapterWish(r.RDMA)...), above)
	}
	return d
}

// nearAdapter returns the condition for GPUs that must be near an RDMA adapter.
func nearAdapter(rdma string) []structs.Constraint {
	if rdma != structs.RDMARequired {
		return nil
	}
	return []structs.Constraint{{LTarget: "${" + structs.DeviceAdapters + "}", Operand: structs.OperandIsSet}}
}

// nearAdapterWish returns the wish for GPUs that are near an RDMA adapter.
func nearAdapterWish(rdma string) []structs.Affinity {
	if rdma != structs.RDMAPreferred {
		return nil
	}
	return []structs.Affinity{{LTarget: "${" + structs.DeviceAdapters + "}", Operand: structs.OperandIsSet, Weight: 100}}
}

// powerRange returns the conditions for GPUs whose power limit can be set to so many watts; none for 0.
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

// add appends one alternative with its conditions, and with those of the levels above it.
func (d *DeviceAsk) add(alt DeviceAlt, constraints []structs.Constraint, affinities []structs.Affinity, above byIDs) {
	if len(above.constraints)+len(above.affinities) > 0 {
		constraints, affinities = slices.Concat(constraints, above.constraints), slices.Concat(affinities, above.affinities)
	}
	for _, c := range constraints {
		x := compileCondition(c.LTarget, c.RTarget, c.Operand)
		if x.aboutIDs() {
			alt.ids, d.PerNode = append(alt.ids, x), true
			continue
		}
		if c.LTarget == structs.ModelTarget && c.Operand == structs.OperandRegexp && alt.model == "" {
			alt.words = structs.ModelWords(c.RTarget)
		}
		alt.checks = append(alt.checks, x)
	}
	for _, f := range affinities {
		x := compileCondition(f.LTarget, f.RTarget, f.Operand)
		alt.WishTotal += abs(f.Weight)
		if x.aboutIDs() {
			alt.idWishes, d.PerNode = append(alt.idWishes, wish{x, f.Weight}), true
			continue
		}
		alt.wishes = append(alt.wishes, wish{x, f.Weight})
	}
	d.Alts = append(d.Alts, alt)
}

// narrow ranks the requests of a group: the one that fewer devices can serve is served first.
func (d *DeviceAsk) narrow() int {
	n := 4 * strings.Count(d.Alts[0].name, "/")
	if d.Alts[0].model != "" {
		n += 2
	}
	if !d.Alts[0].Shared() {
		n++
	}
	return n
}

// plain reports whether the ask is for whole devices of one kind, as in a device block.
func (d *DeviceAsk) plain() bool { return len(d.Alts) == 1 && !d.Alts[0].Shared() }

// Shared reports whether shares of devices are requested, not whole ones.
func (d *DeviceAlt) Shared() bool { return d.mem > 0 || d.Share > 0 }

// MemoryOn returns how much is requested of a GPU with so much memory, in MiB.
func (d *DeviceAlt) MemoryOn(capacity int64) int64 {
	r := structs.GPURequest{MemoryMiB: d.mem, Share: d.Share}
	return r.MemoryOn(max(capacity, 0))
}

func (d *DeviceAlt) kind() string {
	if d.mig != "" {
		return "MIG " + d.mig
	}
	if d.model != "" && !strings.HasSuffix(d.name, "/"+d.model) {
		return d.name + " " + d.model
	}
	if d.words != "" {
		return d.name + " " + d.words
	}
	return d.name
}

// label names what an alternative asks for.
func (d *DeviceAlt) label() string {
	name := d.kind()
	if d.Shared() && d.enforce != "" && d.enforce != "auto" && d.enforce != structs.BackendNone {
		name += ", shares enforced: " + d.enforce
	}
	return name
}

// obstacle returns the obstacle if too few of what an alternative asks for are free.
func (d *DeviceAlt) obstacle() structs.Obstacle {
	out := structs.Obstacle{Dimension: structs.DimensionDevices, Subject: d.label()}
	if d.mig == "" && structs.IsGPUDevice(d.name) {
		out.Dimension = structs.DimensionGPU
	}
	return out
}

// Missing returns the obstacle of nodes that have none of what an alternative asks for.
func (d *DeviceAlt) Missing() structs.Obstacle {
	if d.mig != "" {
		return structs.Obstacle{Dimension: structs.DimensionMissingMIG, Subject: d.mig}
	}
	return structs.Obstacle{Dimension: structs.DimensionMissingDevice, Subject: d.label()}
}

// names reports whether a device request's name ("type", "vendor/type" or "vendor/type/model") matches a device group.
// MIG instances match only by profile or full name: a request for a GPU must not get a slice of one.
func (d *DeviceAlt) names(g *structs.DeviceGroup) bool {
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
func (d *DeviceAlt) enforceable(g *structs.DeviceGroup) bool {
	if !d.Shared() {
		return true
	}
	_, ok := structs.GPUBackend(d.enforce, g.Attributes[structs.GPUEnforceAttribute].Str)
	return ok
}

// DeviceChoice is a device group of a node that can serve a request.
type DeviceChoice struct {
	alt   int // into DeviceAsk.Alts
	Group int // into NodeResources.Devices
	First int // position of its first instance
	Count int // of its instances: equal in all nodes of a class
	Micro int64
}

// Choices lists the device groups of a node that can serve a request: by alternative, then by preference, then in the
// order of the node. It is equal for all nodes of a class: device IDs are not looked at (see on).
func (d *DeviceAsk) Choices(n *structs.Node) []DeviceChoice {
	var out []DeviceChoice
	for at := range d.Alts {
		alt := &d.Alts[at]
		first := 0
		for i := range n.Resources.Devices {
			g := &n.Resources.Devices[i]
			if alt.names(g) && alt.enforceable(g) && !slices.ContainsFunc(alt.checks, func(c Condition) bool { return !c.holdsOnDevice(g) }) {
				var got int64
				for k := range alt.wishes {
					got += alt.wishes[k].Fulfilled(alt.wishes[k].Cond.holdsOnDevice(g))
				}
				c := DeviceChoice{alt: at, Group: i, First: first, Count: len(g.Instances)}
				if alt.WishTotal > 0 {
					c.Micro = got * model.Micro / alt.WishTotal
				}
				out = append(out, c)
			}
			first += len(g.Instances)
		}
	}
	if len(out) > 1 {
		slices.SortStableFunc(out, func(a, b DeviceChoice) int { return cmp.Or(a.alt-b.alt, int(b.Micro-a.Micro)) })
	}
	return out
}

// Unlimitable returns the obstacle of a node that has the requested GPUs but none whose power limit can be set as
// requested; the zero value otherwise.
func (d *DeviceAsk) Unlimitable(n *structs.Node) structs.Obstacle {
	for i := range d.Alts {
		alt := &d.Alts[i]
		if alt.watts == 0 {
			continue
		}
		all := DeviceAsk{Alts: []DeviceAlt{*alt}}
		all.Alts[0].checks = alt.checks[:len(alt.checks)-len(powerRange(alt.watts))]
		have := all.Choices(n)
		if len(have) == 0 {
			continue
		}
		g := &n.Resources.Devices[have[0].Group]
		least, most := g.Attributes["power_min"].Int, g.Attributes["power_max"].Int
		if least <= 0 || most <= 0 {
			return structs.Obstacle{Dimension: structs.DimensionPowerLimit, Subject: alt.label(), Count: alt.watts}
		}
		return structs.Obstacle{Dimension: structs.DimensionPowerLimit, Subject: g.ID(), Count: alt.watts, Detail: fmt.Sprintf("%d to %d", least, most)}
	}
	return structs.Obstacle{}
}

// largestGPU returns how much memory an unused GPU of a group could give at most.
func largestGPU(g *structs.DeviceGroup, reserve int64) int64 {
	size := int64(0)
	for j := range g.Instances {
		size = max(size, g.Instances[j].MemoryMiB-reserve)
	}
	return size
}
