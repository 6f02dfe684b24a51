package scheduler

import (
	"slices"
	"strconv"

	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// hopeless remembers, within a pass, asks for which the whole cluster was searched in vain. On a full cluster most
// workloads wait, many of them for the same thing; searching again for each would make a pass cost workloads x nodes.
// What is remembered holds as long as nothing was placed or rolled back since, so that a workload is answered with the
// very report its own search would give.
type hopeless struct {
	stamp int
	scans map[string]*scan
	gangs map[string]*scan // in a long pass: those of gangs, whatever was placed since
	asked int              // how many searches of gangs there were
}

// gangsExact is how many gangs a pass looks for with what is remembered holding only until something is placed. Beyond
// it what was looked for in vain stays so for the rest of the pass: placements only take room away. The report may then
// tell of a little more room than is left.
const gangsExact = 100

// findGang is find for a gang.
func (h *hopeless) findGang(w *pass, key string) *scan {
	if h.asked++; h.asked > gangsExact {
		if s := h.gangs[key]; s != nil {
			return s
		}
	}
	return h.find(w, key)
}

// noteGang is note for a gang.
func (h *hopeless) noteGang(w *pass, key string, s *scan) {
	h.note(w, key, s)
	if h.gangs == nil {
		h.gangs = make(map[string]*scan)
	}
	h.gangs[key] = s
	s.vain = true
}

// find gives the search that failed for an equal ask, or nil.
func (h *hopeless) find(w *pass, key string) *scan {
	if h.stamp != w.Stamp {
		return nil
	}
	return h.scans[key]
}

// note remembers a search that failed.
func (h *hopeless) note(w *pass, key string, s *scan) {
	if h.stamp != w.Stamp || h.scans == nil {
		h.stamp, h.scans = w.Stamp, make(map[string]*scan)
	}
	h.scans[key] = s
}

// empty reports whether nothing is remembered for the present state, so that no key need be made.
func (h *hopeless) empty(w *pass) bool { return h.stamp != w.Stamp || len(h.scans) == 0 }

// hopeKey is the key of a group; while something is promised, how long it will run decides, too, where it may go.
func (d *decision) hopeKey(g *groupWork) string {
	if !g.hoped {
		g.hope, g.hoped = g.hopeKey(d.load.Job), true
	}
	key := g.hope
	if key != "" && d.w.AnyShy() {
		return "" // who keeps away from whom depends on their names
	}
	if key == "" || !d.books.keeps() && d.aside == nil {
		return key
	}
	if len(d.books.windows) > 0 || d.aside != nil {
		return "" // and whose it is
	}
	return key + strconv.FormatInt(int64(d.until(g.tg)), 36)
}

// hopeKey is equal for groups that are feasible on the same nodes. It is "" for a group whose search depends on where
// its job's allocations are.
func (g *groupWork) hopeKey(job *structs.Job) string {
	a := g.ask
	if a.DistinctHostsJob || a.DistinctHostsGroup || len(a.Distinct) > 0 || len(model.PeersOf(a.Job, a.Tg)) > 0 ||
		slices.ContainsFunc(g.wants, func(w want) bool { return w.yields || !w.pinned.IsZero() }) {
		return ""
	}
	type taskKey struct {
		Driver      string
		Constraints []structs.Constraint
		Cores       int64
		Devices     []structs.DeviceRequest
		GPU         []structs.GPURequest
		RDMA        bool
		NUMA        *structs.NUMA
	}
	if g.gang && (a.Shares && len(g.staying) > 0 || len(g.ban(job)) > 0) {
		return ""
	}
	members := 1
	if g.gang {
		members = len(g.wants)
		if g.tg.Topology != nil && g.tg.Topology.Across != "" && len(g.staying) > 0 {
			return ""
		}
	}
	if b := a.PlainKey(members); b != nil {
		return string(b)
	}
	key := struct {
		Members     int
		Topology    *structs.Topology
		Pool        string
		Datacenters []string
		Need        structs.Vector
		Job, Group  []structs.Constraint
		Networks    []structs.Network
		Volumes     []structs.VolumeRequest
		Tasks       []taskKey
		Tolerations []structs.Toleration
	}{members, g.tg.Topology, job.NodePool, job.Datacenters, a.Need, job.Constraints, g.tg.Constraints, g.tg.Networks, g.tg.Volumes, nil, job.Tolerations}
	for _, t := range g.tg.Tasks {
		key.Tasks = append(key.Tasks, taskKey{t.Driver, t.Constraints, t.Resources.Cores, t.Resources.Devices, t.Resources.GPU, t.Resources.RDMA, t.Resources.NUMA})
	}
	return string(pack.Append(nil, &key))
}
