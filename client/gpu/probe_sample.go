//go:build linux && cgo

package gpu

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// sampled are the functions that samples need, in addition to those of a full query.
var sampled = []string{
	"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption",
	"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceGetFieldValues",
	"nvmlDeviceGetProcessUtilization", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
}

func (p *probe) dynamic(wires bool) ([]Sample, error) {
	list, lost, err := p.devices()
	if err != nil {
		return nil, err
	}
	var out []Sample
	for _, d := range list {
		s := p.sample(d)
		if wires && !d.lost {
			s.Wires, s.Lost = p.wires(d), d.lost
		}
		out = append(out, s)
	}
	for range lost {
		out = append(out, Sample{Lost: true})
	}
	return out, nil
}

func (p *probe) sample(d *view) Sample {
	s := Sample{UUID: d.uuid, UtilPercent: -1, MemUtilPercent: -1, TemperatureC: -1, PowerMW: -1, EnergyMJ: -1, ECCAggregate: -1, ECCFixedAggr: -1, RowsFixed: -1, RowsBad: -1}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetMemoryInfo_v2"}, d.GetMemoryInfo_v2); ok {
		s.TotalBytes, s.UsedBytes, s.FreeBytes = int64(v.Total), int64(v.Used), int64(v.Free)
	} else if v, ok := ask(p, d, []string{"nvmlDeviceGetMemoryInfo"}, d.GetMemoryInfo); ok {
		s.TotalBytes, s.UsedBytes, s.FreeBytes = int64(v.Total), int64(v.Used), int64(v.Free)
	}
	if s.TotalBytes == 0 { // it shares the machine's memory
		s.TotalBytes, s.FreeBytes = machineMemory("MemTotal:"), machineMemory("MemAvailable:")
		s.UsedBytes = s.TotalBytes - s.FreeBytes
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
	for kind, at := range map[nvml.MemoryErrorType]*int64{nvml.MEMORY_ERROR_TYPE_UNCORRECTED: &s.ECCAggregate, nvml.MEMORY_ERROR_TYPE_CORRECTED: &s.ECCFixedAggr} {
		if v, ok := ask(p, d, errs, func() (uint64, nvml.Return) { return d.GetTotalEccErrors(kind, nvml.AGGREGATE_ECC) }); ok {
			*at = int64(v)
		}
	}
	type rows struct {
		fixed, bad      int
		pending, failed bool
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetRemappedRows"}, func() (rows, nvml.Return) {
		fixed, bad, pending, failed, r := d.GetRemappedRows()
		return rows{fixed, bad, pending, failed}, r
	}); ok {
		s.RowsFixed, s.RowsBad, s.RowsPending, s.RowsFailed = int64(v.fixed), int64(v.bad), v.pending, v.failed
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetRetiredPagesPendingStatus"}, d.GetRetiredPagesPendingStatus); ok {
		s.PagesPending = v == nvml.FEATURE_ENABLED
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetCurrPcieLinkGeneration"}, d.GetCurrPcieLinkGeneration); ok {
		s.PCIeGeneration = int64(v)
	}
	if v, ok := ask(p, d, []string{"nvmlDeviceGetCurrPcieLinkWidth"}, d.GetCurrPcieLinkWidth); ok {
		s.PCIeWidth = int64(v)
	}
	action := field{nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, 0}
	s.Recovery = p.fields(d, []field{action})[action]
	s.MIGMode = p.migMode(d)
	if s.MIGMode == "Enabled" {
		s.MIGs = len(p.handles(d))
	}
	p.processes(d, &s)
	p.busy(d, &s)
	p.activity(d, &s)
	s.Lost = d.lost
	return s
}

// processes lists the processes that hold memory, each once, although the driver may list it as computing, drawing and
// sharing.
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
