//go:build linux && cgo

package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Built says why this program cannot look at GPUs, or nothing.
const Built = ""

// libraries are where container distributions and others put the driver's library, beside the linker's own places.
var libraries = []string{
	"libnvidia-ml.so.1",
	"/usr/lib/wsl/lib/libnvidia-ml.so.1",
	"/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1",
	"/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
	"/run/nvidia/driver/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
	"/run/opengl-driver/lib/libnvidia-ml.so.1",
	"/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1",
}

// MaybeRun becomes the child process when the program was started as such; main calls it first. For checks by hand,
// `gpu-probe -dump` prints what is seen once, `-time N` how long N looks take, and `-share DIR UUID=MIB` makes the files of
// a share (package shim).
func MaybeRun() {
	canRun.Store(true)
	if len(os.Args) < 2 || os.Args[1] != verb {
		return
	}
	if len(os.Args) > 2 {
		switch {
		case len(os.Args) == 3 && os.Args[2] == "-dump":
			os.Exit(dump(os.Stdout, os.Stderr))
		case len(os.Args) == 4 && os.Args[2] == "-time":
			os.Exit(latency(os.Args[3], os.Stdout, os.Stderr))
		case len(os.Args) == 5 && os.Args[2] == "-share":
			os.Exit(placeShare(os.Args[3], os.Args[4], os.Stdout, os.Stderr))
		}
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM) // the agent's end is the end of standard input
	serve(os.Stdin, os.Stdout)
	os.Exit(0)
}

func dump(out, errs io.Writer) int {
	p, err := open()
	if err != nil {
		fmt.Fprintln(errs, "gpu-probe:", err)
		return 1
	}
	all := struct {
		Static  *Snapshot
		Dynamic []Sample
	}{}
	if all.Static, err = p.static(); err == nil {
		all.Dynamic, err = p.dynamic()
	}
	if err != nil {
		fmt.Fprintln(errs, "gpu-probe:", err)
		return 1
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	if e.Encode(all) != nil {
		return 1
	}
	return 0
}

// probe is the library, initialised.
type probe struct {
	lib   nvml.Interface
	known map[string]bool // by symbol; used by the requests' goroutine and, before it starts, by open
	at    atomic.Pointer[call]
	mu    sync.Mutex
	seen  map[string]nvml.Device // registered for events, by UUID; guarded by mu
	set   nvml.EventSet          // or nil
	until map[string]uint64      // time of the newest sample of processes, by UUID
}

// call is one that has not returned.
type call struct {
	symbol, uuid string
	since        time.Time
}

var errMissing = errors.New("no NVIDIA driver library (libnvidia-ml.so.1)")

func open() (*probe, error) {
	places := libraries
	if l := os.Getenv(LibraryEnv); l != "" {
		places = []string{l}
	}
	for _, l := range places {
		p := &probe{lib: nvml.New(nvml.WithLibraryPath(l)), known: map[string]bool{}, seen: map[string]nvml.Device{}, until: map[string]uint64{}}
		r := p.lib.Init()
		if r == nvml.ERROR_LIBRARY_NOT_FOUND {
			continue
		}
		if r != nvml.SUCCESS {
			return nil, fmt.Errorf("nvmlInit of %s: %s", l, text(r))
		}
		for _, s := range [][]string{countSymbols, handleSymbols, {"nvmlDeviceGetUUID"}} {
			if !p.has(s...) {
				return nil, fmt.Errorf("%s lacks %s: the driver is too old", l, s[0])
			}
		}
		return p, nil
	}
	return nil, errMissing
}

var (
	countSymbols  = []string{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"}
	handleSymbols = []string{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"}
)

// text names a return code without the library's help, which a broken driver may not give.
func text(r nvml.Return) string {
	switch r {
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "the driver is not loaded"
	case nvml.ERROR_NO_PERMISSION:
		return "no permission"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "library and kernel module are of different versions; reboot, or reload the module"
	case nvml.ERROR_GPU_IS_LOST:
		return "GPU is lost"
	}
	return fmt.Sprintf("NVML error %d", int(r))
}

// has reports whether the library has one of the symbols: calling one that it lacks would end the process.
func (p *probe) has(symbols ...string) bool {
	for _, s := range symbols {
		ok, seen := p.known[s]
		if !seen {
			ok = p.lib.Extensions().LookupSymbol(s) == nil
			p.known[s] = ok
		}
		if ok {
			return true
		}
	}
	return false
}

// ask calls a function if the library has it. The bool is whether there is an answer; a GPU that is lost is remembered.
func ask[T any](p *probe, d *view, symbols []string, f func() (T, nvml.Return)) (v T, ok bool) {
	if !p.has(symbols...) {
		return v, false
	}
	p.at.Store(&call{symbols[0], d.uuid, time.Now()})
	v, r := f()
	p.at.Store(nil)
	if r == nvml.ERROR_GPU_IS_LOST || r == nvml.ERROR_RESET_REQUIRED {
		d.lost = true
	}
	return v, r == nvml.SUCCESS
}

// view is a GPU while it is asked.
type view struct {
	nvml.Device
	uuid string
	lost bool
}

// devices opens all GPUs; lost counts those that cannot be.
func (p *probe) devices() (list []*view, lost int, err error) {
	none := &view{}
	n, ok := ask(p, none, countSymbols, p.lib.DeviceGetCount)
	if !ok {
		return nil, 0, errors.New("the driver does not tell how many GPUs there are")
	}
	for i := range n {
		d := &view{}
		h, ok := ask(p, d, handleSymbols, func() (nvml.Device, nvml.Return) { return p.lib.DeviceGetHandleByIndex(i) })
		if !ok {
			lost++
			continue
		}
		d.Device = h
		if d.uuid, ok = ask(p, d, []string{"nvmlDeviceGetUUID"}, h.GetUUID); !ok {
			lost++
			continue
		}
		list = append(list, d)
	}
	return list, lost, nil
}

// sampled are the functions that samples need, beside those of a full look.
var sampled = []string{
	"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption",
	"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetFieldValues",
	"nvmlDeviceGetProcessUtilization", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
}

func (p *probe) static() (*Snapshot, error) {
	none := &view{}
	s := &Snapshot{}
	s.Driver, _ = ask(p, none, []string{"nvmlSystemGetDriverVersion"}, p.lib.SystemGetDriverVersion)
	s.NVML, _ = ask(p, none, []string{"nvmlSystemGetNVMLVersion"}, p.lib.SystemGetNVMLVersion)
	if v, ok := ask(p, none, []string{"nvmlSystemGetCudaDriverVersion_v2"}, p.lib.SystemGetCudaDriverVersion_v2); ok {
		s.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	} else if v, ok := ask(p, none, []string{"nvmlSystemGetCudaDriverVersion"}, p.lib.SystemGetCudaDriverVersion); ok {
		s.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	list, lost, err := p.devices()
	if err != nil {
		return nil, err
	}
	s.Lost = lost
	for _, d := range list {
		x := p.device(d)
		if d.lost {
			s.Lost++
			continue
		}
		s.Dmem = s.Dmem || x.MIGMode != "Enabled" && p.limits(d)
		s.GPUs = append(s.GPUs, x)
		p.register(d)
	}
	for _, sym := range sampled {
		p.has(sym)
	}
	for sym, ok := range p.known {
		if !ok {
			s.Absent = append(s.Absent, sym)
		}
	}
	slices.Sort(s.Absent)
	return s, nil
}

var archs = map[nvml.DeviceArchitecture]string{2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper", 10: "blackwell", 13: "rubin"}

var brands = map[nvml.BrandType]string{1: "Quadro", 2: "Tesla", 5: "GeForce", 6: "Titan", 12: "Quadro RTX", 13: "NVIDIA RTX", 14: "NVIDIA", 15: "GeForce RTX", 16: "Titan RTX"}

func (p *probe) device(d *view) Device {
	x := Device{UUID: d.uuid, Minor: -1, NUMANode: -1}
	x.Name, _ = ask(p, d, []string{"nvmlDeviceGetName"}, d.GetName)
	x.Serial, _ = ask(p, d, []string{"nvmlDeviceGetSerial"}, d.GetSerial)
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
	if v, ok := ask(p, d, []string{"nvmlDeviceGetEnforcedPowerLimit"}, d.GetEnforcedPowerLimit); ok {
		x.PowerLimitMW = int64(v)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetPowerManagementLimitConstraints"}, func() (uint32, nvml.Return) {
		_, high, r := d.GetPowerManagementLimitConstraints()
		return high, r
	}); ok {
		x.PowerMaxMW = int64(v)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetMaxClockInfo"}, func() (uint32, nvml.Return) { return d.GetMaxClockInfo(nvml.CLOCK_SM) }); ok {
		x.ClockMHz = int64(v)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetMaxClockInfo"}, func() (uint32, nvml.Return) { return d.GetMaxClockInfo(nvml.CLOCK_MEM) }); ok {
		x.MemoryClockMHz = int64(v)
	}
	enabled := func(v nvml.EnableState, ok bool) string {
		switch {
		case !ok:
			return ""
		case v == nvml.FEATURE_ENABLED:
			return "Enabled"
		}
		return "Disabled"
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
	x.MIGMode = p.migMode(d)
	if x.MIGMode == "Enabled" {
		x.MIG, x.Profiles = p.instances(d), p.profiles(d)
	} else {
		p.links(d, &x)
	}
	return x
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

// profileName is what the driver calls a profile with so many slices and so much memory.
func profileName(slices, bytes int64) string {
	return fmt.Sprintf("%dg.%dgb", slices, (bytes+1<<29)>>30)
}

// profiles asks what a GPU in MIG mode can be divided into. Of profiles that differ in engines alone the first one stands for
// all.
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

// linksMax is how many NVLinks a GPU can have.
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

// numaOf asks the kernel for the NUMA node of a PCI device; -1 is unknown.
func numaOf(bus string) int64 {
	if len(bus) < 12 {
		return -1
	}
	b, err := os.ReadFile(filepath.Join("/sys/bus/pci/devices", strings.ToLower(bus[4:]), "numa_node"))
	n := int64(-1)
	if err == nil {
		fmt.Sscan(string(b), &n)
	}
	return n
}

func (p *probe) dynamic() ([]Sample, error) {
	list, lost, err := p.devices()
	if err != nil {
		return nil, err
	}
	var out []Sample
	for _, d := range list {
		out = append(out, p.sample(d))
	}
	for range lost {
		out = append(out, Sample{Lost: true})
	}
	return out, nil
}

func (p *probe) sample(d *view) Sample {
	s := Sample{UUID: d.uuid, UtilPercent: -1, MemUtilPercent: -1, TemperatureC: -1, PowerMW: -1, EnergyMJ: -1}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetMemoryInfo_v2"}, d.GetMemoryInfo_v2); ok {
		s.TotalBytes, s.UsedBytes, s.FreeBytes = int64(v.Total), int64(v.Used), int64(v.Free)
	} else if v, ok := ask(p, d, []string{"nvmlDeviceGetMemoryInfo"}, d.GetMemoryInfo); ok {
		s.TotalBytes, s.UsedBytes, s.FreeBytes = int64(v.Total), int64(v.Used), int64(v.Free)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetUtilizationRates"}, d.GetUtilizationRates); ok {
		s.UtilPercent, s.MemUtilPercent = int64(v.Gpu), int64(v.Memory)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetTemperature"}, func() (uint32, nvml.Return) { return d.GetTemperature(nvml.TEMPERATURE_GPU) }); ok {
		s.TemperatureC = int64(v)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetPowerUsage"}, d.GetPowerUsage); ok {
		s.PowerMW = int64(v)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetTotalEnergyConsumption"}, d.GetTotalEnergyConsumption); ok {
		s.EnergyMJ = int64(v)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetCurrentClocksEventReasons"}, d.GetCurrentClocksEventReasons); ok {
		s.Throttle = int64(v)
	}
	errs := []string{"nvmlDeviceGetTotalEccErrors"}
	if v, ok := ask(p, d, errs, func() (uint64, nvml.Return) {
		return d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	}); ok {
		s.ECCUncorrected = int64(v)
	}
	if v, ok := ask(p, d, errs, func() (uint64, nvml.Return) {
		return d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC)
	}); ok {
		s.ECCCorrected = int64(v)
	}
	type rows struct{ pending, failed bool }
	if v, ok := ask(p, d, []string{"nvmlDeviceGetRemappedRows"}, func() (rows, nvml.Return) {
		_, _, pending, failed, r := d.GetRemappedRows()
		return rows{pending, failed}, r
	}); ok {
		s.RowsPending, s.RowsFailed = v.pending, v.failed
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetFieldValues"}, func() (int64, nvml.Return) {
		f := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
		r := d.GetFieldValues(f)
		if r == nvml.SUCCESS {
			r = nvml.Return(f[0].NvmlReturn)
		}
		return int64(uint32(f[0].Value[0]) | uint32(f[0].Value[1])<<8 | uint32(f[0].Value[2])<<16 | uint32(f[0].Value[3])<<24), r
	}); ok {
		s.Recovery = v
	}
	s.MIGMode = p.migMode(d)
	if s.MIGMode == "Enabled" {
		s.MIGs = len(p.handles(d))
	}
	p.processes(d, &s)
	p.busy(d, &s)
	s.Lost = d.lost
	return s
}

// processes lists who holds memory, each once, although the driver may name it as computing, drawing and sharing.
func (p *probe) processes(d *view, s *Sample) {
	seen := map[[3]int64]bool{}
	id := func(v uint32) int64 {
		if v == 0xFFFFFFFF {
			return -1
		}
		return int64(v)
	}
	answered := false
	for _, kind := range []struct {
		name string
		get  func() ([]nvml.ProcessInfo, nvml.Return)
	}{
		{"nvmlDeviceGetComputeRunningProcesses", d.GetComputeRunningProcesses},
		{"nvmlDeviceGetGraphicsRunningProcesses", d.GetGraphicsRunningProcesses},
		{"nvmlDeviceGetMPSComputeRunningProcesses", d.GetMPSComputeRunningProcesses},
	} {
		list, ok := ask(p, d, []string{kind.name + "_v3", kind.name + "_v2", kind.name}, kind.get)
		answered = answered || ok
		for _, v := range list {
			x := Process{PID: int(v.Pid), Bytes: int64(v.UsedGpuMemory), GI: id(v.GpuInstanceId), CI: id(v.ComputeInstanceId), SM: -1}
			if x.Bytes < 0 {
				x.Bytes = -1
			}
			k := [3]int64{int64(x.PID), x.GI, x.CI}
			if !seen[k] {
				seen[k] = true
				s.Processes = append(s.Processes, x)
			}
		}
	}
	if !answered {
		s.ProcessesFailed = "the driver does not list processes"
	}
	slices.SortFunc(s.Processes, func(a, b Process) int { return a.PID - b.PID })
}

// register asks for the events of a GPU, once.
func (p *probe) register(d *view) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set == nil || p.seen[d.uuid] != nil {
		return
	}
	types, ok := ask(p, d, []string{"nvmlDeviceGetSupportedEventTypes"}, d.GetSupportedEventTypes)
	if !ok {
		return
	}
	want := uint64(nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError | eventUnavailable | eventRecovery)
	if _, ok := ask(p, d, []string{"nvmlDeviceRegisterEvents"}, func() (struct{}, nvml.Return) {
		return struct{}{}, d.RegisterEvents(types&want, p.set)
	}); ok {
		p.seen[d.uuid] = d.Device
	}
}

// Event types of newer drivers.
const (
	eventUnavailable = 0x4000
	eventRecovery    = 0x8000
)

// watch waits for events for as long as the process lives.
func (p *probe) watch(send func(message)) {
	for {
		v, r := p.set.Wait(5000)
		switch r {
		case nvml.SUCCESS:
			e := Event{GI: -1}
			p.mu.Lock()
			for uuid, d := range p.seen {
				if d == v.Device {
					e.UUID = uuid
				}
			}
			p.mu.Unlock()
			if v.EventType == nvml.EventTypeXidCriticalError {
				e.XID = int64(v.EventData)
			} else if v.EventType == nvml.EventTypeDoubleBitEccError {
				e.XID = 48
			}
			if v.GpuInstanceId != 0xFFFFFFFF {
				e.GI = int64(v.GpuInstanceId)
			}
			send(message{Event: &e})
		case nvml.ERROR_TIMEOUT:
		case nvml.ERROR_GPU_IS_LOST:
			send(message{Event: &Event{GI: -1}})
			time.Sleep(time.Second)
		default:
			time.Sleep(time.Second)
		}
	}
}

// stuckAfter is how long a call may take before the agent is told which one it is.
const stuckAfter = time.Second

func serve(in io.Reader, out io.Writer) {
	var mu sync.Mutex // around out
	send := func(m message) {
		mu.Lock()
		defer mu.Unlock()
		if writeMessage(out, m) != nil {
			os.Exit(1)
		}
	}
	requests := make(chan request, 4)
	go func() {
		for {
			var r request
			if readMessage(in, &r) != nil {
				os.Exit(0) // the agent is gone; a call that hangs must not keep this process
			}
			requests <- r
		}
	}()
	var p atomic.Pointer[probe]
	started := time.Now()
	go func() {
		told := (*call)(nil)
		for {
			time.Sleep(100 * time.Millisecond)
			now := p.Load()
			if now == nil {
				if told == nil && time.Since(started) > stuckAfter {
					told = &call{}
					send(message{Stuck: "nvmlInit"})
				}
				continue
			}
			if c := now.at.Load(); c != nil && c != told && time.Since(c.since) > stuckAfter {
				told = c
				name := c.symbol
				if c.uuid != "" {
					name += " of " + c.uuid
				}
				send(message{Stuck: name})
			}
		}
	}()
	o, err := open()
	if err != nil {
		send(message{Err: err.Error(), Missing: errors.Is(err, errMissing)})
		return
	}
	if o.has("nvmlEventSetCreate") && o.has("nvmlEventSetWait_v2", "nvmlEventSetWait") {
		set, ok := ask(o, &view{}, []string{"nvmlEventSetCreate"}, o.lib.EventSetCreate)
		if ok {
			o.set = set
			go o.watch(send)
		}
	}
	p.Store(o)
	send(message{Hello: true})
	for r := range requests {
		m := message{ID: r.ID}
		var err error
		switch r.Op {
		case "static":
			m.Static, err = o.static()
		case "dynamic":
			m.Dynamic, err = o.dynamic()
		case "limit", "limits":
			m.Limit, err = o.limit(r)
		default:
			err = fmt.Errorf("%q is no request", r.Op)
		}
		if err != nil {
			m.Err = err.Error()
		}
		send(m)
	}
}
