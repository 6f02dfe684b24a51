//go:build linux && cgo

package gpu

import (
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

var archs = map[nvml.DeviceArchitecture]string{2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper", 10: "blackwell", 13: "rubin"}

var brands = map[nvml.BrandType]string{1: "Quadro", 2: "Tesla", 5: "GeForce", 6: "Titan", 12: "Quadro RTX", 13: "NVIDIA RTX", 14: "NVIDIA", 15: "GeForce RTX", 16: "Titan RTX"}

func (p *probe) device(d *view) Device {
	x := Device{UUID: d.uuid, Minor: -1, NUMANode: -1}
	x.Name, _ = ask(p, d, []string{"nvmlDeviceGetName"}, d.GetName)
	x.Serial, _ = ask(p, d, []string{"nvmlDeviceGetSerial"}, d.GetSerial)
	x.BoardPart, _ = ask(p, d, []string{"nvmlDeviceGetBoardPartNumber"}, d.GetBoardPartNumber)
	if v, ok := ask(p, d, []string{"nvmlDeviceGetIndex"}, d.GetIndex); ok {
		x.Index = int64(v)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetMinorNumber"}, d.GetMinorNumber); ok {
		x.Minor = int64(v)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"}, d.GetPciInfo); ok {
		x.Bus = bus(v)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetMemoryInfo_v2"}, d.GetMemoryInfo_v2); ok {
		x.MemoryBytes, x.ReservedBytes = int64(v.Total), int64(v.Reserved)
	} else if v, ok := ask(p, d, []string{"nvmlDeviceGetMemoryInfo"}, d.GetMemoryInfo); ok {
		x.MemoryBytes = int64(v.Total)
	}
	if x.MemoryBytes == 0 { // it shares the machine's memory
		x.MemoryBytes = machineMemory("MemTotal:")
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetBAR1MemoryInfo"}, d.GetBAR1MemoryInfo); ok {
		x.BAR1Bytes = int64(v.Bar1Total)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetCudaComputeCapability"}, func() (s string, r nvml.Return) {
		major, minor, r := d.GetCudaComputeCapability()
		return fmt.Sprintf("%d.%d", major, minor), r
	}); ok {
		x.ComputeCapability = v
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetArchitecture"}, d.GetArchitecture); ok {
		x.Architecture = archs[v]
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetBrand"}, d.GetBrand); ok {
		x.Brand = brands[v]
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetNumaNodeId"}, d.GetNumaNodeId); ok {
		x.NUMANode = int64(v)
	} else {
		x.NUMANode = numaOf(x.Bus)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetMaxPcieLinkGeneration"}, d.GetMaxPcieLinkGeneration); ok {
		x.PCIeGeneration = int64(v)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetMaxPcieLinkWidth"}, d.GetMaxPcieLinkWidth); ok {
		x.PCIeWidth = int64(v)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetMaxClockInfo"}, func() (uint32, nvml.Return) { return d.GetMaxClockInfo(nvml.CLOCK_SM) }); ok {
		x.ClockMHz = int64(v)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetMaxClockInfo"}, func() (uint32, nvml.Return) { return d.GetMaxClockInfo(nvml.CLOCK_MEM) }); ok {
		x.MemoryClockMHz = int64(v)
	}
	x.Display = enabled(ask(p, d, []string{"nvmlDeviceGetDisplayMode"}, d.GetDisplayMode))
	x.Persistence = enabled(ask(p, d, []string{"nvmlDeviceGetPersistenceMode"}, d.GetPersistenceMode))
	x.ECC = enabled(ask(p, d, []string{"nvmlDeviceGetEccMode"}, func() (nvml.EnableState, nvml.Return) {
		now, _, r := d.GetEccMode()
		return now, r
	}))
	if v, ok := ask(p, d, []string{"nvmlDeviceGetComputeMode"}, d.GetComputeMode); ok {
		x.ComputeMode = map[nvml.ComputeMode]string{0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}[v]
	}
	p.limitsOf(d, &x)
	x.MIGMode = p.migMode(d)
	if x.MIGMode == "Enabled" {
		x.MIG, x.Profiles = p.instances(d), p.profiles(d)
	} else {
		p.links(d, &x)
	}
	return x
}

// enabled returns the name of a state, "" if unknown.
func enabled(v nvml.EnableState, ok bool) string {
	switch {
	case !ok:
		return ""
	case v == nvml.FEATURE_ENABLED:
		return "Enabled"
	}
	return "Disabled"
}

// limitsOf reads the limits and modes of a GPU that are not part of its identity, and its place in the machine.
func (p *probe) limitsOf(d *view, x *Device) {
	if v, ok := ask(p, d, []string{"nvmlDeviceGetEnforcedPowerLimit"}, d.GetEnforcedPowerLimit); ok {
		x.PowerLimitMW = int64(v)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetPowerManagementLimitConstraints"}, func() (v [2]uint32, r nvml.Return) {
		v[0], v[1], r = d.GetPowerManagementLimitConstraints()
		return v, r
	}); ok {
		x.PowerMinMW, x.PowerMaxMW = int64(v[0]), int64(v[1])
	}
	threshold := func(t nvml.TemperatureThresholds) int64 {
		v, _ := ask(p, d, []string{"nvmlDeviceGetTemperatureThreshold"}, func() (uint32, nvml.Return) { return d.GetTemperatureThreshold(t) })
		return int64(v)
	}
	x.SlowdownC, x.ShutdownC = threshold(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN), threshold(nvml.TEMPERATURE_THRESHOLD_SHUTDOWN)
	x.Accounting = enabled(ask(p, d, []string{"nvmlDeviceGetAccountingMode"}, d.GetAccountingMode))
	if v, ok := ask(p, d, []string{"nvmlDeviceGetVirtualizationMode"}, d.GetVirtualizationMode); ok {
		x.Virtualization = map[nvml.GpuVirtualizationMode]string{0: "none", 1: "passthrough", 2: "vgpu", 3: "host_vgpu", 4: "host_vsga"}[v]
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetCpuAffinityWithinScope"}, func() ([]uint, nvml.Return) {
		return d.GetCpuAffinityWithinScope(cpusMax, nvml.AFFINITY_SCOPE_NODE)
	}); ok {
		x.CPUs = cpuList(v)
	}
}

// cpusMax limits the processors of a machine.
const cpusMax = 4096

// cpuList formats a set of processors like the kernel: "0-15,32-47".
func cpuList(words []uint) string {
	var out []string
	has := func(i int) bool {
		return i/bits.UintSize < len(words) && words[i/bits.UintSize]>>(i%bits.UintSize)&1 != 0
	}
	for i := 0; i < len(words)*bits.UintSize; i++ {
		if !has(i) {
			continue
		}
		first := i
		for has(i + 1) {
			i++
		}
		if first == i {
			out = append(out, strconv.Itoa(i))
		} else {
			out = append(out, fmt.Sprintf("%d-%d", first, i))
		}
	}
	return strings.Join(out, ",")
}

// peers determines where each pair of GPUs is connected, and whether one can read the other's memory.
func (p *probe) peers(list []*view, gpus []Device) {
	at := map[string]*view{}
	for _, d := range list {
		at[d.uuid] = d
	}
	for i := range gpus {
		for k := range gpus {
			a, b := at[gpus[i].UUID], at[gpus[k].UUID]
			if i == k || a.lost || gpus[i].MIGMode == "Enabled" || gpus[k].MIGMode == "Enabled" {
				continue
			}
			x := Peer{Bus: gpus[k].Bus, Level: -1}
			if v, ok := ask(p, a, []string{"nvmlDeviceGetTopologyCommonAncestor"}, func() (nvml.GpuTopologyLevel, nvml.Return) { return a.GetTopologyCommonAncestor(b.Device) }); ok {
				x.Level = int64(v)
			}
			p2p := func(index nvml.GpuP2PCapsIndex) bool {
				v, ok := ask(p, a, []string{"nvmlDeviceGetP2PStatus"}, func() (nvml.GpuP2PStatus, nvml.Return) { return a.GetP2PStatus(b.Device, index) })
				return ok && v == nvml.P2P_STATUS_OK
			}
			x.Read, x.NVLink = p2p(nvml.P2P_CAPS_INDEX_READ), p2p(nvml.P2P_CAPS_INDEX_NVLINK)
			gpus[i].Peers = append(gpus[i].Peers, x)
		}
	}
}

// machineMemory returns a value of /proc/meminfo in bytes, for GPUs that share the machine's memory.
func machineMemory(name string) int64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n << 10
		}
	}
	return 0
}

func (p *probe) migMode(d *view) string {
	v, ok := ask(p, d, []string{"nvmlDeviceGetMigMode"}, func() (int, nvml.Return) {
		now, _, r := d.GetMigMode()
		return now, r
	})
	switch {
	case !ok:
		return ""
	case v == nvml.DEVICE_MIG_ENABLE:
		return "Enabled"
	}
	return "Disabled"
}

func (p *probe) handles(d *view) []*view {
	n, ok := ask(p, d, []string{"nvmlDeviceGetMaxMigDeviceCount"}, d.GetMaxMigDeviceCount)
	if !ok {
		return nil
	}
	var list []*view
	for i := range n {
		m := &view{uuid: d.uuid}
		if m.Device, ok = ask(p, d, []string{"nvmlDeviceGetMigDeviceHandleByIndex"}, func() (nvml.Device, nvml.Return) { return d.GetMigDeviceHandleByIndex(i) }); ok {
			list = append(list, m)
		}
	}
	return list
}

func (p *probe) instances(d *view) []MIG {
	var out []MIG
	for _, m := range p.handles(d) {
		x := MIG{GI: -1, CI: -1}
		var ok bool
		if x.UUID, ok = ask(p, m, []string{"nvmlDeviceGetUUID"}, m.GetUUID); !ok {
			continue
		}
		if v, ok := ask(p, m, []string{"nvmlDeviceGetGpuInstanceId"}, m.GetGpuInstanceId); ok {
			x.GI = int64(v)
		}
		if v, ok := ask(p, m, []string{"nvmlDeviceGetComputeInstanceId"}, m.GetComputeInstanceId); ok {
			x.CI = int64(v)
		}
		if v, ok := ask(p, m, []string{"nvmlDeviceGetAttributes_v2", "nvmlDeviceGetAttributes"}, m.GetAttributes); ok {
			x.MemoryBytes, x.Slices, x.SMs = int64(v.MemorySizeMB)<<20, int64(v.GpuInstanceSliceCount), int64(v.MultiprocessorCount)
		}
		if name, ok := ask(p, m, []string{"nvmlDeviceGetName"}, m.GetName); ok {
			if _, profile, ok := strings.Cut(name, " MIG "); ok {
				x.Profile = profile
			}
		}
		if x.Profile == "" {
			x.Profile = profileName(x.Slices, x.MemoryBytes)
		}
		if x.GI >= 0 {
			gi, ok := ask(p, d, []string{"nvmlDeviceGetGpuInstanceById"}, func() (nvml.GpuInstance, nvml.Return) { return d.GetGpuInstanceById(int(x.GI)) })
			if ok {
				if v, ok := ask(p, d, []string{"nvmlGpuInstanceGetInfo"}, gi.GetInfo); ok {
					x.Start, x.Size = int64(v.Placement.Start), int64(v.Placement.Size)
				}
			}
		}
		out = append(out, x)
	}
	return out
}

// profileName returns the driver's name of a profile with these slices and memory.
func profileName(slices, bytes int64) string {
	return fmt.Sprintf("%dg.%dgb", slices, (bytes+1<<29)>>30)
}

// profiles reads how a GPU in MIG mode can be divided. The first of several profiles that differ only in engines
// represents all.
func (p *probe) profiles(d *view) []MIGProfile {
	var out []MIGProfile
	for n := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		v, ok := ask(p, d, []string{"nvmlDeviceGetGpuInstanceProfileInfo"}, func() (nvml.GpuInstanceProfileInfo, nvml.Return) { return d.GetGpuInstanceProfileInfo(n) })
		if !ok {
			continue
		}
		x := MIGProfile{ID: int64(v.Id), Slices: int64(v.SliceCount), MemoryBytes: int64(v.MemorySizeMB) << 20, Max: int64(v.InstanceCount)}
		x.Name = profileName(x.Slices, x.MemoryBytes)
		if slices.ContainsFunc(out, func(o MIGProfile) bool { return o.Name == x.Name }) {
			continue
		}
		places, _ := ask(p, d, []string{"nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlDeviceGetGpuInstancePossiblePlacements"},
			func() ([]nvml.GpuInstancePlacement, nvml.Return) { return d.GetGpuInstancePossiblePlacements(&v) })
		for _, pl := range places {
			x.Size = int64(pl.Size)
			x.Starts = append(x.Starts, int64(pl.Start))
		}
		slices.Sort(x.Starts)
		out = append(out, x)
	}
	return out
}

// linksMax is the maximum number of NVLinks of a GPU.
const linksMax = nvml.NVLINK_MAX_LINKS

func (p *probe) links(d *view, x *Device) {
	for l := range linksMax {
		up, ok := ask(p, d, []string{"nvmlDeviceGetNvLinkState"}, func() (nvml.EnableState, nvml.Return) { return d.GetNvLinkState(l) })
		if !ok {
			break
		}
		if up != nvml.FEATURE_ENABLED {
			continue
		}
		if x.NVLinkVersion == 0 {
			v, _ := ask(p, d, []string{"nvmlDeviceGetNvLinkVersion"}, func() (uint32, nvml.Return) { return d.GetNvLinkVersion(l) })
			x.NVLinkVersion = int64(v)
		}
		link := Link{Count: 1}
		if t, ok := ask(p, d, []string{"nvmlDeviceGetNvLinkRemoteDeviceType"}, func() (nvml.IntNvLinkDeviceType, nvml.Return) { return d.GetNvLinkRemoteDeviceType(l) }); ok {
			link.Switch = t == nvml.NVLINK_DEVICE_TYPE_SWITCH
		}
		if v, ok := ask(p, d, []string{"nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo"}, func() (nvml.PciInfo, nvml.Return) { return d.GetNvLinkRemotePciInfo(l) }); ok {
			link.Bus = bus(v)
		}
		i := slices.IndexFunc(x.Links, func(o Link) bool { return o.Bus == link.Bus && o.Switch == link.Switch })
		if i >= 0 {
			x.Links[i].Count++
		} else {
			x.Links = append(x.Links, link)
		}
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetGpuFabricInfoV"}, func() (nvml.GpuFabricInfo_v2, nvml.Return) { return d.GetGpuFabricInfoV().V2() }); ok && v.State == nvml.GPU_FABRIC_STATE_COMPLETED {
		id := ""
		for _, b := range v.ClusterUuid {
			id += fmt.Sprintf("%02x", uint8(b))
		}
		if strings.Trim(id, "0") != "" {
			x.Fabric = fmt.Sprintf("%s.%d", id, v.CliqueId)
		}
	}
}

func bus(v nvml.PciInfo) string {
	return fmt.Sprintf("%08X:%02X:%02X.0", v.Domain, v.Bus, v.Device)
}

// numaOf reads the NUMA node of a PCI device from the kernel; -1 is unknown.
func numaOf(bus string) int64 {
	if len(bus) < 12 {
		return -1
	}
	b, err := os.ReadFile(filepath.Join("/sys/bus/pci/devices", strings.ToLower(bus[4:]), "numa_node"))
	n := int64(-1)
	if err == nil {
		_, _ = fmt.Sscan(string(b), &n)
	}
	return n
}
