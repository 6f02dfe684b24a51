package fingerprint

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// gpuModels are the models that ParseGPUs simulates: memory in MiB, and islands of fast links.
var gpuModels = map[string]struct {
	memoryMiB int64
	island    int // GPUs in an island; 0 for none
	cc        string
}{
	"A10":  {23028, 0, "8.6"},
	"A100": {81920, 8, "8.0"},
	"B200": {183359, 8, "10.0"},
	"H100": {81559, 8, "9.0"},
	"H200": {143771, 8, "9.0"},
	"L4":   {23034, 0, "8.9"},
	"L40S": {46068, 0, "8.9"},
	"T4":   {15360, 0, "7.5"},
	"V100": {32768, 4, "7.0"},
}

// gpusMax limits the GPUs of one machine.
const gpusMax = 64

// ParseGPUs makes simulated GPUs from "8xH100" (or several, "4xA100,2xT4") for development and simulation. Their ids
// are derived from seed, so that no two machines have the same one.
func ParseGPUs(spec string, seed structs.Seed) (StaticDevices, error) {
	var out StaticDevices
	total := 0
	for _, part := range strings.Split(spec, ",") {
		n, model, ok := strings.Cut(strings.TrimSpace(part), "x")
		count, err := strconv.Atoi(n)
		m, known := gpuModels[strings.ToUpper(model)]
		if !ok || err != nil || count < 1 || !known {
			return nil, fmt.Errorf("gpus %q: want a count and a model such as 8xH100; models are A10, A100, B200, H100, H200, L4, L40S, T4, V100", part)
		}
		model = strings.ToUpper(model)
		if total += count; total > gpusMax {
			return nil, fmt.Errorf("gpus %q: more than %d on one machine", spec, gpusMax)
		}
		g := structs.DeviceGroup{
			Vendor: "nvidia", Type: "gpu", Name: model,
			Attributes: map[string]structs.Attribute{
				"memory":             {Kind: "int", Int: m.memoryMiB, Unit: "MiB"},
				"cuda_compute":       {Kind: "string", Str: m.cc},
				"driver_version":     {Kind: "string", Str: "simulated"},
				"display_state":      {Kind: "string", Str: "Disabled"},
				"persistence_mode":   {Kind: "string", Str: "Enabled"},
				"muster.simulated":   {Kind: "bool", Bool: true},
				"cores_clock":        {Kind: "int", Int: 1980, Unit: "MHz"},
				"memory_clock":       {Kind: "int", Int: 2619, Unit: "MHz"},
				"pci_bandwidth":      {Kind: "int", Int: 63015, Unit: "MB/s"},
				"power":              {Kind: "int", Int: 700, Unit: "W"},
				"bar1":               {Kind: "int", Int: 131072, Unit: "MiB"},
				"muster.island_size": {Kind: "int", Int: int64(m.island)},
			},
		}
		for i := range count {
			uuid := structs.DeriveID[structs.NodeID](seed, "gpu", model, uint64(i)).String()
			inst := structs.DeviceInstance{
				ID: "GPU-" + uuid, Healthy: true,
				PCIBusID: fmt.Sprintf("00000000:%02X:00.0", 0x10+total-count+i),
				NUMANode: int64(i * 2 / count), MemoryMiB: m.memoryMiB,
			}
			if m.island > 0 {
				inst.Island = fmt.Sprintf("%s-%d", strings.ToLower(model), i/m.island)
			}
			g.Instances = append(g.Instances, inst)
		}
		out = append(out, g)
	}
	return out, nil
}
