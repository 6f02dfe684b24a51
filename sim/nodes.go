package sim

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// Machine describes one kind of node of a simulated cluster.
type Machine struct {
	Count     int
	GPUs      int
	Model     string // default "GPU"
	GPUMiB    int64  // memory of each GPU
	CPU       int64  // MHz: cores times 1000
	MemoryMiB int64
}

// Defaults per GPU; a machine without GPUs has as much as one with 8.
const (
	gpuMiBDefault  = 80 << 10
	coresPerGPU    = 24
	memoryPerGPU   = 256 << 10 // MiB
	megahertzOfOne = 1000      // MHz of one core
)

// ParseNodes reads a description of a cluster: COUNTxGPUS, COUNTxGPUSxMODEL or COUNTxGPUSxMODEL-MEMORY, several kinds
// joined by +, each with /cpu=CORES and /mem=SIZE where the defaults (24 cores and 256 GiB a GPU) do not fit:
//
//	8x8   1000x8xH100-80GiB   100x8xH100-80GiB+50x4xA100-40GiB/cpu=96/mem=1TiB   20x0/cpu=64
func ParseNodes(spec string) ([]Machine, error) {
	var out []Machine
	for _, kind := range strings.Split(spec, "+") {
		m, err := parseMachine(kind)
		if err != nil {
			return nil, fmt.Errorf("nodes %q: %w", kind, err)
		}
		out = append(out, m)
	}
	return out, nil
}

func parseMachine(kind string) (Machine, error) {
	fields := strings.Split(kind, "/")
	parts := strings.SplitN(fields[0], "x", 3)
	m := Machine{Model: "GPU", GPUMiB: gpuMiBDefault}
	if len(parts) < 2 {
		return m, fmt.Errorf("want COUNTxGPUS, COUNTxGPUSxMODEL or COUNTxGPUSxMODEL-MEMORY, such as 8x8 or 1000x8xH100-80GiB")
	}
	var err error
	if m.Count, err = strconv.Atoi(parts[0]); err != nil || m.Count < 1 || m.Count > 1_000_000 {
		return m, fmt.Errorf("%q is not a number of nodes from 1 to 1000000", parts[0])
	}
	if m.GPUs, err = strconv.Atoi(parts[1]); err != nil || m.GPUs < 0 || m.GPUs > 1024 {
		return m, fmt.Errorf("%q is not a number of GPUs a node from 0 to 1024", parts[1])
	}
	if len(parts) == 3 {
		name := parts[2]
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			if mib, err := parseMiB(name[i+1:]); err == nil && mib > 0 {
				name, m.GPUMiB = name[:i], mib
			}
		}
		if name == "" {
			return m, fmt.Errorf("the model of GPU is missing after the last x")
		}
		m.Model = name
	}
	per := int64(m.GPUs)
	if per == 0 {
		per = 8
	}
	m.CPU, m.MemoryMiB = per*coresPerGPU*megahertzOfOne, per*memoryPerGPU
	for _, f := range fields[1:] {
		key, val, _ := strings.Cut(f, "=")
		switch key {
		case "cpu":
			n, err := strconv.ParseFloat(val, 64)
			if err != nil || n <= 0 || n > 1e6 {
				return m, fmt.Errorf("cpu=%q is not a number of cores", val)
			}
			m.CPU = int64(n * megahertzOfOne)
		case "mem":
			if m.MemoryMiB, err = parseMiB(val); err != nil {
				return m, fmt.Errorf("mem=%q: %w", val, err)
			}
		default:
			return m, fmt.Errorf("%q is not known after /; there are cpu=CORES and mem=SIZE", key)
		}
	}
	return m, nil
}

// parseMiB reads an amount of memory: a number of MiB, or one with KiB, MiB, GiB, TiB (also kB, MB, GB, TB, K, M, G, T).
func parseMiB(s string) (int64, error) {
	s = strings.TrimSpace(s)
	at := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	num, unit := s, ""
	if at >= 0 {
		num, unit = s[:at], strings.TrimSpace(s[at:])
	}
	n, err := strconv.ParseFloat(num, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not an amount of memory: want MiB, or a number with GiB, TiB, GB", s)
	}
	switch strings.ToLower(unit) {
	case "", "m", "mib":
	case "k", "kib":
		n /= 1 << 10
	case "g", "gib":
		n *= 1 << 10
	case "t", "tib":
		n *= 1 << 20
	case "kb":
		n *= 1e3 / (1 << 20)
	case "mb":
		n *= 1e6 / (1 << 20)
	case "gb":
		n *= 1e9 / (1 << 20)
	case "tb":
		n *= 1e12 / (1 << 20)
	default:
		return 0, fmt.Errorf("%q is not a unit of memory: want MiB, GiB or TiB", unit)
	}
	if n < 0 || n > 1<<40 {
		return 0, fmt.Errorf("%q is out of range", s)
	}
	return int64(n + 0.5), nil
}

// BuildNodes makes the nodes of a cluster, in the order of kinds, with ids.
func BuildNodes(kinds []Machine) []*structs.Node {
	var out []*structs.Node
	for _, m := range kinds {
		for range m.Count {
			out = append(out, m.node(len(out)))
		}
	}
	SetIDs(out)
	return out
}

// node makes one node. A node's class is computed from its resources, so nodes of a kind share one.
func (m *Machine) node(i int) *structs.Node {
	n := &structs.Node{
		Name: fmt.Sprintf("node-%d", i), Datacenter: structs.DatacenterDefault, Pool: structs.NodePoolDefault,
		Resources: structs.NodeResources{CPU: m.CPU, Cores: m.CPU / megahertzOfOne, MHzPerCore: megahertzOfOne, MemoryMiB: m.MemoryMiB, DiskMiB: 1 << 40},
		Drivers:   map[string]*structs.DriverInfo{Driver: {Detected: true, Healthy: true}},
		Status:    structs.NodeReady, Eligibility: structs.NodeEligible, Epoch: 1, CreateIndex: 1, ModifyIndex: 1,
	}
	if m.GPUs > 0 {
		g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: m.Model}
		for k := range m.GPUs {
			g.Instances = append(g.Instances, structs.DeviceInstance{ID: "GPU-" + strconv.Itoa(i) + "-" + strconv.Itoa(k), Healthy: true, NUMANode: -1, Island: "0", MemoryMiB: m.GPUMiB})
		}
		n.Resources.Devices = []structs.DeviceGroup{g}
	}
	return n
}

// Driver is the task driver of simulated jobs and nodes.
const Driver = "sim"
