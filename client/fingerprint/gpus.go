package fingerprint

import (
	"fmt"
	"maps"
	"strings"

	"github.com/muster-sched/muster/internal/fakegpu"
	"github.com/muster-sched/muster/structs"
)

// islandGPUs is how many GPUs the switches of one simulated machine join.
const islandGPUs = 8

// ParseGPUs makes simulated GPUs for development and simulation from a specification of fakegpu.New: "8xH100", several,
// "4xA100,2xT4", or divided, "4xA100-40GB:mig". Their ids are derived from seed, so that no two machines have the same one.
func ParseGPUs(spec string, seed structs.Seed) (StaticDevices, error) {
	s, err := fakegpu.New(spec, string(seed[:]))
	if err != nil {
		return nil, err
	}
	s.ShortNames()
	var out StaticDevices
	index := map[string]int{}
	add := func(name string, attrs map[string]structs.Attribute, in structs.DeviceInstance) {
		i, ok := index[name]
		if !ok {
			i, index[name] = len(out), len(out)
			out = append(out, structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: name, Attributes: attrs})
		}
		out[i].Instances = append(out[i].Instances, in)
	}
	seen := map[string]int{} // GPUs so far, by model
	for i, g := range s.GPUs {
		attrs := map[string]structs.Attribute{
			"memory":           {Kind: "int", Int: g.Memory >> 20, Unit: "MiB"},
			"cuda_compute":     {Kind: "string", Str: g.CC},
			"driver_version":   {Kind: "string", Str: "simulated"},
			"display_state":    {Kind: "string", Str: "Disabled"},
			"persistence_mode": {Kind: "string", Str: "Enabled"},
			"muster.simulated": {Kind: "bool", Bool: true},
			"cores_clock":      {Kind: "int", Int: g.Clock, Unit: "MHz"},
			"memory_clock":     {Kind: "int", Int: g.MemClock, Unit: "MHz"},
			"pci_bandwidth":    {Kind: "int", Int: 63015, Unit: "MB/s"},
			"bar1":             {Kind: "int", Int: g.BAR1 >> 20, Unit: "MiB"},
		}
		in := structs.DeviceInstance{
			ID: g.UUID, Healthy: true, PCIBusID: fmt.Sprintf("00000000:%02X:00.0", 0x10+i), NUMANode: g.NUMA, MemoryMiB: g.Memory >> 20,
		}
		if g.MIG == 1 {
			for _, m := range s.MIGs {
				if m.GPU == i {
					in.ID, in.MemoryMiB, in.Parent, in.SlotStart, in.SlotCount = m.UUID, m.Memory>>20, g.UUID, m.Start, m.Size
					a := maps.Clone(attrs)
					a["memory"] = structs.Attribute{Kind: "int", Int: in.MemoryMiB, Unit: "MiB"}
					a["mig_profile"] = structs.Attribute{Kind: "string", Str: m.Profile}
					a["mig_slices"] = structs.Attribute{Kind: "int", Int: m.Slices}
					a["multiprocessors"] = structs.Attribute{Kind: "int", Int: m.SMs}
					a[structs.GPUEnforceAttribute] = structs.Attribute{Kind: "string", Str: structs.BackendMIG}
					add(g.Name+" MIG "+m.Profile, a, in)
				}
			}
			continue
		}
		island := min(s.Island(i), islandGPUs)
		if island > 0 {
			in.Island = fmt.Sprintf("%s-%d", strings.ToLower(g.Name), seen[g.Name]/island)
		}
		seen[g.Name]++
		attrs["power"] = structs.Attribute{Kind: "int", Int: g.Limit / 1000, Unit: "W"}
		attrs["muster.island_size"] = structs.Attribute{Kind: "int", Int: int64(island)}
		add(g.Name, attrs, in)
	}
	return out, nil
}
