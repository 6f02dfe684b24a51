package scheduler

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// ask is one group of a job compiled for placement: what it needs, must have and would like.
type ask struct {
	job  *structs.Job
	tg   *structs.Group
	need structs.Vector

	drivers   []string
	checks    []condition // asked once per class
	perNode   []condition // about something unique to a node
	volumes   []volumeAsk
	networks  []string // host networks asked for by name
	badVolume string   // a volume nobody here can give

	wishes      []wish // asked once per class
	wishPerNode []wish
	wishTotal   int64 // sum of the absolute weights

	static  []structs.Port
	dynamic []structs.Port
	devices []deviceAsk // most specific first
	cores   []coreAsk   // tasks that reserve cores
	spreads []spreadAsk

	distinctHostsJob   bool
	distinctHostsGroup bool
	distinct           []distinctAsk
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

// deviceAsk is one device block of one task.
type deviceAsk struct {
	task      string
	name      string
	count     int64
	checks    []condition
	wishes    []wish
	wishTotal int64
	perNode   bool // some condition looks at device ids
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

// compileAsk gathers everything that decides where a group may run.
func compileAsk(job *structs.Job, tg *structs.Group) *ask {
	a := &ask{job: job, tg: tg, need: structs.GroupVector(tg)}
	a.constrain(job.Constraints, true)
	a.constrain(tg.Constraints, false)
	a.wish(job.Affinities)
	a.wish(tg.Affinities)
	for _, t := range tg.Tasks {
		a.constrain(t.Constraints, false)
		a.wish(t.Affinities)
		if t.Driver != "" && !slices.Contains(a.drivers, t.Driver) {
			a.drivers = append(a.drivers, t.Driver)
		}
		if t.Resources.Cores > 0 {
			a.cores = append(a.cores, coreAsk{t.Name, t.Resources.Cores})
		}
		for i := range t.Resources.Devices {
			a.devices = append(a.devices, compileDevice(t.Name, &t.Resources.Devices[i]))
		}
	}
	slices.SortStableFunc(a.devices, func(x, y deviceAsk) int { return strings.Count(y.name, "/") - strings.Count(x.name, "/") })
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
	d := deviceAsk{task: task, name: r.Name, count: max(r.Count, 1)}
	for _, c := range r.Constraints {
		x := compileCondition(c.LTarget, c.RTarget, c.Operand)
		d.checks = append(d.checks, x)
		d.perNode = d.perNode || x.unique()
	}
	for _, f := range r.Affinities {
		x := compileCondition(f.LTarget, f.RTarget, f.Operand)
		d.wishes = append(d.wishes, wish{x, f.Weight})
		d.wishTotal += abs(f.Weight)
		d.perNode = d.perNode || x.unique()
	}
	return d
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

// names reports whether a device request's name means a device group: "type", "vendor/type" or "vendor/type/model".
func (d *deviceAsk) names(g *structs.DeviceGroup) bool {
	parts := strings.SplitN(d.name, "/", 3)
	switch len(parts) {
	case 1:
		return parts[0] == g.Type
	case 2:
		return parts[0] == g.Vendor && parts[1] == g.Type
	}
	return parts[0] == g.Vendor && parts[1] == g.Type && parts[2] == g.Name
}

// deviceChoice is a device group of a node that may serve a request.
type deviceChoice struct {
	group int // into NodeResources.Devices
	first int // position of its first instance
	micro int64
}

// choices lists the groups of a node that may serve a request, the best liked first, then in the order of the node.
func (d *deviceAsk) choices(n *structs.Node) []deviceChoice {
	var out []deviceChoice
	first := 0
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		if d.names(g) && !slices.ContainsFunc(d.checks, func(c condition) bool { return !c.holdsOnDevice(g) }) {
			var got int64
			for k := range d.wishes {
				got += d.wishes[k].fulfilled(d.wishes[k].cond.holdsOnDevice(g))
			}
			c := deviceChoice{group: i, first: first}
			if d.wishTotal > 0 {
				c.micro = got * Micro / d.wishTotal
			}
			out = append(out, c)
		}
		first += len(g.Instances)
	}
	slices.SortStableFunc(out, func(a, b deviceChoice) int { return int(b.micro - a.micro) })
	return out
}
