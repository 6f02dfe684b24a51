package gpu

import (
	"fmt"
	"sort"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// laneKBs is the bandwidth of one PCIe lane in one direction, by generation, in kB/s.
var laneKBs = []int64{0, 250_000, 500_000, 984_615, 1_969_231, 3_938_462, 7_562_500}

// islands returns the NVLink island of each GPU of a machine: GPUs that are connected directly or through switches. A
// GPU without links to another has none. The name is that of the fabric, else of the island's first bus.
func islands(gpus []Device) map[string]string {
	byBus := map[string]int{}
	for i, g := range gpus {
		byBus[g.Bus] = i
	}
	root := make([]int, len(gpus))
	for i := range root {
		root[i] = i
	}
	var find func(int) int
	find = func(i int) int {
		if root[i] != i {
			root[i] = find(root[i])
		}
		return root[i]
	}
	join := func(a, b int) {
		if a, b = find(a), find(b); gpus[a].Bus < gpus[b].Bus {
			root[b] = a
		} else {
			root[a] = b
		}
	}
	switched := -1 // a machine has one set of switches
	for i, g := range gpus {
		for _, l := range g.Links {
			if l.Switch {
				if switched >= 0 {
					join(switched, i)
				}
				switched = i
			} else if j, ok := byBus[l.Bus]; ok && j != i {
				join(i, j)
			}
		}
	}
	size := map[int]int{}
	for i := range gpus {
		size[find(i)]++
	}
	out := map[string]string{}
	for i, g := range gpus {
		switch {
		case g.Fabric != "":
			out[g.UUID] = structs.FabricIslandPrefix + g.Fabric
		case size[find(i)] > 1:
			out[g.UUID] = "nvlink-" + strings.ToLower(gpus[find(i)].Bus)
		}
	}
	return out
}

// geometry returns how the GPUs in MIG mode can be divided, by bus.
func geometry(s *Snapshot) (out []structs.MIGGeometry) {
	if s == nil {
		return nil
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.MIGMode != "Enabled" {
			continue
		}
		x := structs.MIGGeometry{GPU: g.UUID, PCIBusID: g.Bus}
		for _, p := range g.Profiles {
			x.Profiles = append(x.Profiles, structs.MIGProfile{Name: p.Name, ID: p.ID, Slices: p.Slices, Slots: p.Size, MemoryMiB: p.MemoryBytes >> 20, Max: p.Max, Starts: p.Starts})
		}
		out = append(out, x)
	}
	sort.Slice(out, func(i, k int) bool {
		return out[i].PCIBusID < out[k].PCIBusID || out[i].PCIBusID == out[k].PCIBusID && out[i].GPU < out[k].GPU
	})
	return out
}

// groups converts a snapshot to device groups, sorted. MIG instances form separate groups, and their GPU is in none.
func groups(s *Snapshot, verdict func(uuid string, gi int64) Verdict) []structs.DeviceGroup {
	if s == nil {
		return nil
	}
	isle := islands(s.GPUs)
	sizes := map[string]int64{}
	for _, i := range isle {
		sizes[i]++
	}
	gpus := append([]Device(nil), s.GPUs...)
	sort.Slice(gpus, func(i, k int) bool {
		return gpus[i].Bus < gpus[k].Bus || gpus[i].Bus == gpus[k].Bus && gpus[i].UUID < gpus[k].UUID
	})
	memories := map[string]map[int64]bool{}
	for _, g := range gpus {
		if memories[g.Name] == nil {
			memories[g.Name] = map[int64]bool{}
		}
		memories[g.Name][g.MemoryBytes] = true
	}
	var out []structs.DeviceGroup
	index := map[string]int{}
	add := func(name string, attrs map[string]structs.Attribute, in structs.DeviceInstance) {
		i, ok := index[name]
		if !ok {
			index[name] = len(out)
			out = append(out, structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: name, Instances: []structs.DeviceInstance{in}, Attributes: attrs})
			return
		}
		g := &out[i]
		g.Instances = append(g.Instances, in)
		for k, v := range g.Attributes { // a group has only the attributes on which its devices agree
			if attrs[k] != v {
				delete(g.Attributes, k)
			}
		}
	}
	for _, g := range gpus {
		name := g.Name
		if name == "" {
			name = "GPU"
		}
		if len(memories[g.Name]) > 1 { // one name, several sizes
			name = fmt.Sprintf("%s %dGiB", name, (g.MemoryBytes+1<<29)>>30)
		}
		in := structs.DeviceInstance{PCIBusID: g.Bus, NUMANode: g.NUMANode}
		if g.MIGMode == "Enabled" {
			for _, m := range g.MIG {
				in.ID, in.MemoryMiB = m.UUID, m.MemoryBytes>>20
				in.Parent, in.SlotStart, in.SlotCount = g.UUID, m.Start, m.Size
				in.Healthy, in.HealthDesc, in.Failed = described(verdict(g.UUID, m.GI))
				a := attributes(s, &g)
				a["memory"] = number(m.MemoryBytes>>20, "MiB")
				a["mig_profile"], a["mig_slices"], a["multiprocessors"] = words(m.Profile), number(m.Slices, ""), number(m.SMs, "")
				a[structs.GPUEnforceAttribute] = words(structs.BackendMIG)
				delete(a, "power")
				add(name+" MIG "+m.Profile, a, in)
			}
			continue
		}
		in.ID, in.MemoryMiB, in.Island = g.UUID, (g.MemoryBytes-g.ReservedBytes)>>20, isle[g.UUID]
		in.Healthy, in.HealthDesc, in.Failed = described(verdict(g.UUID, -1))
		if g.ComputeMode == "prohibited" && in.Healthy {
			in.Healthy, in.HealthDesc = false, "its compute mode is prohibited: nothing can compute on it (nvidia-smi -c 0 allows it)"
		}
		a := attributes(s, &g)
		a["muster.island_size"] = number(sizes[isle[g.UUID]], "")
		add(name, a, in)
	}
	sort.Slice(out, func(i, k int) bool { return out[i].Name < out[k].Name })
	return out
}

func described(v Verdict) (healthy bool, desc string, failed bool) {
	if v.State == Degraded {
		return true, structs.DegradedPrefix + v.Reason, false
	}
	return v.State == Healthy, v.Reason, v.Failed
}

func number(n int64, unit string) structs.Attribute {
	return structs.Attribute{Kind: "int", Int: n, Unit: unit}
}
func words(s string) structs.Attribute { return structs.Attribute{Kind: "string", Str: s} }

// attributes returns what constraints can name. Nomad's names come first; all are constant, so that a node does not
// change with every query.
func attributes(s *Snapshot, g *Device) map[string]structs.Attribute {
	a := map[string]structs.Attribute{}
	num := func(name string, n int64, unit string) {
		if n > 0 {
			a[name] = number(n, unit)
		}
	}
	text := func(name, v string) {
		if v != "" {
			a[name] = words(v)
		}
	}
	num("memory", g.MemoryBytes>>20, "MiB")
	text(structs.GPUEnforceAttribute, strings.Join(s.Enforce, ","))
	num("power", g.PowerLimitMW/1000, "W")
	num("bar1", g.BAR1Bytes>>20, "MiB")
	num("cores_clock", g.ClockMHz, "MHz")
	num("memory_clock", g.MemoryClockMHz, "MHz")
	if g.PCIeGeneration > 0 && g.PCIeGeneration < int64(len(laneKBs)) {
		num("pci_bandwidth", laneKBs[g.PCIeGeneration]*g.PCIeWidth/1000, "MB/s")
	}
	text("display_state", g.Display)
	text("persistence_mode", g.Persistence)
	text("driver_version", s.Driver)

	text("cuda_version", s.CUDA)
	text("cuda_compute", g.ComputeCapability)
	text("nvml_version", s.NVML)
	text("architecture", g.Architecture)
	text("brand", g.Brand)
	text("ecc_mode", g.ECC)
	text("mig_mode", g.MIGMode)
	text("compute_mode", g.ComputeMode)
	num("memory_reserved", g.ReservedBytes>>20, "MiB")
	num("power_min", g.PowerMinMW/1000, "W")
	num("power_max", g.PowerMaxMW/1000, "W")
	num("temperature_slowdown", g.SlowdownC, "")
	num("temperature_shutdown", g.ShutdownC, "")
	text("board_part", g.BoardPart)
	text("accounting_mode", g.Accounting)
	text("virtualization_mode", g.Virtualization)
	num("pcie_generation", g.PCIeGeneration, "")
	num("pcie_width", g.PCIeWidth, "")
	links := int64(0)
	for _, l := range g.Links {
		links += int64(l.Count)
	}
	num("nvlinks", links, "")
	num("nvlink_version", g.NVLinkVersion, "")
	a["muster.dmem"] = structs.Attribute{Kind: "bool", Bool: s.Dmem}
	return a
}
