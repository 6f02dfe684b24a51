package gpu

import (
	"slices"
	"strconv"

	"github.com/muster-sched/muster/internal/telemetry"
)

// deviceReading is what the metrics of one GPU are read from.
type deviceReading struct {
	gpu     *Device
	sample  *Sample // nil when the driver said nothing
	healthy bool
	xid     int64
	limitMW int64 // power limit in force
}

// wires are the ways to other GPUs, or nil.
func (r *deviceReading) wires() *Wires {
	if r.sample == nil {
		return nil
	}
	return r.sample.Wires
}

// ofDevice declares a measurement under the name that NVIDIA's exporter gives it, so that dashboards made for that show it. They
// are all gauges: Prometheus wants the names of counters to end with _total, and theirs do not.
func ofDevice(name, help string, read func(r *deviceReading) (value float64, known bool)) telemetry.Row[*deviceReading] {
	return telemetry.Gauge(name, help, func(r *deviceReading) float64 { return telemetry.Known(read(r)) })
}

// ofSample is a measurement of the last sample; negative is not known.
func ofSample(name, help string, read func(s *Sample) int64) telemetry.Row[*deviceReading] {
	return ofDevice(name, help, func(r *deviceReading) (float64, bool) {
		if r.sample == nil {
			return 0, false
		}
		v := read(r.sample)
		return float64(v), v >= 0
	})
}

// ofWires is a measurement of PCIe or NVLink; negative is not known. What is of NVLink is left out where there is none.
func ofWires(name, help string, links bool, read func(w *Wires) int64) telemetry.Row[*deviceReading] {
	return ofDevice(name, help, func(r *deviceReading) (float64, bool) {
		w := r.wires()
		if w == nil || links && len(w.Up)+len(w.Down) == 0 {
			return 0, false
		}
		v := read(w)
		return float64(v), v >= 0
	})
}

// unless is v, or "not known".
func unless(unknown bool, v int64) int64 {
	if unknown {
		return -1
	}
	return v
}

// exporterLabels are those of NVIDIA's exporter. The last two are of MIG instances; an empty label is none.
var exporterLabels = []string{"Hostname", "gpu", "UUID", "pci_bus_id", "device", "modelName", "DCGM_FI_DRIVER_VERSION", "GPU_I_PROFILE", "GPU_I_ID"}

// ExporterMetrics are measurements of whole GPUs.
var ExporterMetrics = telemetry.Table[*deviceReading]{
	ofDevice("DCGM_FI_DEV_XID_ERRORS", "The last XID error, 0 for none since the agent was started.", func(r *deviceReading) (float64, bool) { return float64(r.xid), true }),
	ofSample("DCGM_FI_DEV_FB_USED", "Memory in use, MiB.", func(s *Sample) int64 { return unless(s.TotalBytes <= 0, s.UsedBytes>>20) }),
	ofSample("DCGM_FI_DEV_FB_FREE", "Memory that is free, MiB.", func(s *Sample) int64 { return unless(s.TotalBytes <= 0, s.FreeBytes>>20) }),
	ofDevice("DCGM_FI_DEV_FB_RESERVED", "Memory that driver and firmware keep, MiB.", func(r *deviceReading) (float64, bool) {
		return float64(r.gpu.ReservedBytes >> 20), r.sample != nil && r.gpu.ReservedBytes > 0
	}),
	ofSample("DCGM_FI_DEV_GPU_UTIL", "Time in which the GPU computed, percent.", func(s *Sample) int64 { return s.UtilPercent }),
	ofSample("DCGM_FI_DEV_MEM_COPY_UTIL", "Time in which its memory was read or written, percent.", func(s *Sample) int64 { return s.MemUtilPercent }),
	ofSample("DCGM_FI_DEV_GPU_TEMP", "Temperature, degrees Celsius.", func(s *Sample) int64 { return s.TemperatureC }),
	ofDevice("DCGM_FI_DEV_POWER_USAGE", "Power drawn, W.", func(r *deviceReading) (float64, bool) {
		if r.sample == nil {
			return 0, false
		}
		return float64(r.sample.PowerMW) / 1000, r.sample.PowerMW >= 0
	}),
	ofDevice("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "Power limit in force, W.", func(r *deviceReading) (float64, bool) {
		return float64(r.limitMW) / 1000, r.sample != nil && r.limitMW > 0
	}),
	ofSample("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy since the driver was loaded, mJ.", func(s *Sample) int64 { return s.EnergyMJ }),
	ofDevice("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "Why clocks are held down, as NVML's bits.", func(r *deviceReading) (float64, bool) {
		if r.sample == nil {
			return 0, false
		}
		return float64(r.sample.Throttle), true
	}),
	ofDevice("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Uncorrected memory errors since the driver was loaded.", func(r *deviceReading) (float64, bool) {
		if r.sample == nil {
			return 0, false
		}
		return float64(r.sample.ECCUncorrected), r.gpu.ECC == "Enabled"
	}),
	ofDevice("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Corrected memory errors since the driver was loaded.", func(r *deviceReading) (float64, bool) {
		if r.sample == nil {
			return 0, false
		}
		return float64(r.sample.ECCCorrected), r.gpu.ECC == "Enabled"
	}),
	ofSample("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "Uncorrected memory errors in the GPU's life.", func(s *Sample) int64 { return s.ECCAggregate }),
	ofSample("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "Corrected memory errors in the GPU's life.", func(s *Sample) int64 { return s.ECCFixedAggr }),
	ofSample("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Memory rows remapped for uncorrected errors.", func(s *Sample) int64 { return s.RowsBad }),
	ofSample("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Memory rows remapped for corrected errors.", func(s *Sample) int64 { return s.RowsFixed }),
	ofSample("DCGM_FI_DEV_ROW_REMAP_PENDING", "Whether memory rows wait to be remapped.", func(s *Sample) int64 { return int64(telemetry.Bool(s.RowsPending)) }),
	ofSample("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping a memory row failed.", func(s *Sample) int64 { return int64(telemetry.Bool(s.RowsFailed)) }),
	ofSample("DCGM_FI_DEV_PCIE_LINK_GEN", "Generation at which PCIe runs now.", func(s *Sample) int64 { return unless(s.PCIeGeneration <= 0, s.PCIeGeneration) }),
	ofSample("DCGM_FI_DEV_PCIE_LINK_WIDTH", "Lanes of PCIe now.", func(s *Sample) int64 { return unless(s.PCIeWidth <= 0, s.PCIeWidth) }),
	ofWires("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "Sent over PCIe, kB/s.", false, func(w *Wires) int64 { return w.PCIeTxKBs }),
	ofWires("DCGM_FI_DEV_PCIE_RX_THROUGHPUT", "Received over PCIe, kB/s.", false, func(w *Wires) int64 { return w.PCIeRxKBs }),
	ofWires("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Packets that PCIe has sent again since the driver was loaded.", false, func(w *Wires) int64 { return w.PCIeReplays }),
	ofWires("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Data sent and received over all NVLinks, MB/s.", false, func(w *Wires) int64 { return unless(w.NVLinkKiB < 0, w.NVLinkMBs) }),
	ofWires("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "Checksum errors of control packets of all NVLinks.", true, func(w *Wires) int64 { return w.CRCFlit }),
	ofWires("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "Checksum errors of data of all NVLinks.", true, func(w *Wires) int64 { return w.CRCData }),
	ofWires("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "Packets that NVLinks have sent again.", true, func(w *Wires) int64 { return w.Replays }),
	ofWires("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "How often NVLinks had to be trained again.", true, func(w *Wires) int64 { return w.Recoveries }),
}.Labelled(exporterLabels...)

// ActivityMetrics are measurements of whole GPUs and of MIG instances, which GPUs make themselves.
var ActivityMetrics = telemetry.Table[*Activity]{
	ofActivity("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Part of the time in which the GPU computed or drew.", func(a *Activity) int64 { return a.Engine }),
	ofActivity("DCGM_FI_PROF_SM_ACTIVE", "Part of the time in which a multiprocessor had work, on average over all.", func(a *Activity) int64 { return a.SM }),
	ofActivity("DCGM_FI_PROF_SM_OCCUPANCY", "Work of the multiprocessors, as a part of what they can have at once.", func(a *Activity) int64 { return a.Occupancy }),
	ofActivity("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Part of the time in which tensor cores computed.", func(a *Activity) int64 { return a.Tensor }),
	ofActivity("DCGM_FI_PROF_DRAM_ACTIVE", "Part of the time in which the GPU's memory was read or written.", func(a *Activity) int64 { return a.DRAM }),
}.Labelled(exporterLabels...)

func ofActivity(name, help string, read func(a *Activity) int64) telemetry.Row[*Activity] {
	return telemetry.Gauge(name, help, func(a *Activity) float64 { v := read(a); return telemetry.Known(float64(v)/1000, v >= 0) })
}

// HealthMetrics are about GPUs under names of our own.
var HealthMetrics = telemetry.Table[*deviceReading]{
	ofDevice("muster_gpu_healthy", "Whether the GPU takes work: 1 healthy or degraded, 0 quarantined or lost.", func(r *deviceReading) (float64, bool) { return telemetry.Bool(r.healthy), true }),
	ofWires("muster_gpu_nvlinks_up", "NVLinks that are up.", true, func(w *Wires) int64 { return int64(len(w.Up)) }),
}.Labelled("node", "gpu", "uuid", "model")

// UseMetrics are about the use of a GPU by a task.
var UseMetrics = telemetry.Table[*TaskUsage]{
	telemetry.Gauge("muster_task_gpu_quota_bytes", "The task's share of the GPU's memory; 0 is all of it.", func(u *TaskUsage) int64 { return u.MiB << 20 }),
	telemetry.Gauge("muster_task_gpu_memory_bytes", "GPU memory that the task holds.", func(u *TaskUsage) float64 { return telemetry.Known(float64(u.UsedBytes), u.UsedBytes >= 0) }),
	telemetry.Gauge("muster_task_gpu_memory_peak_bytes", "Most GPU memory that the task held.", func(u *TaskUsage) int64 { return u.PeakBytes }),
	telemetry.Counter("muster_task_gpu_memory_byte_seconds_total", "GPU memory that the task held, over time.", func(u *TaskUsage) float64 { return float64(u.MiBSeconds) * (1 << 20) }),
	telemetry.Counter("muster_task_gpu_sm_seconds_total", "Time in which the task had all multiprocessors of the GPU; half of them for 2 s count as 1 s.", func(u *TaskUsage) float64 { return float64(u.SMMillis) / 1000 }),
	telemetry.Counter("muster_task_gpu_energy_joules_total", "The task's part of the GPU's energy.", func(u *TaskUsage) float64 { return float64(u.EnergyMJ) / 1000 }),
	telemetry.Counter("muster_task_gpu_allocations_refused_total", "Allocations of memory beyond the share that were refused.", func(u *TaskUsage) int64 { return u.Denied }),
	telemetry.Gauge("muster_task_gpu_sm_activity_ratio", "Mean part of the time in which a multiprocessor of the task's GPU had work.", func(u *TaskUsage) float64 {
		return telemetry.Known(float64(u.ActiveMillis)/float64(max(u.KnownMillis, 1)), u.KnownMillis > 0)
	}),
}.Labelled("alloc_id", "task", "gpu", "backend")

// Metrics gives the last measurement of each GPU of a node, in order of bus. What the driver does not report is left out.
func (n *NVIDIA) Metrics(out *telemetry.Samples, node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.snapshot == nil {
		return
	}
	for i := range n.snapshot.GPUs {
		g := &n.snapshot.GPUs[i]
		v := n.verdict(g.UUID, -1)
		r := deviceReading{gpu: g, healthy: v.State == Healthy || v.State == Degraded, xid: n.xids[g.UUID], limitMW: g.PowerLimitMW}
		if p, ok := n.power[g.UUID]; ok {
			r.limitMW = p.SetMW
		}
		s, ok := n.samples[g.UUID]
		if ok && !s.Lost {
			r.sample = &s
		}
		index := strconv.FormatInt(g.Index, 10)
		HealthMetrics.Give(out, &r, node, index, g.UUID, g.Name)
		labels := []string{node, index, g.UUID, g.Bus, "nvidia" + strconv.FormatInt(g.Minor, 10), g.Name, n.snapshot.Driver}
		whole := slices.Concat(labels, []string{"", ""})
		ExporterMetrics.Give(out, &r, whole...)
		if r.sample == nil {
			continue
		}
		if s.Active != nil {
			ActivityMetrics.Give(out, s.Active, whole...)
		}
		for k := range s.Parts {
			for _, m := range g.MIG {
				if m.UUID == s.Parts[k].UUID {
					ActivityMetrics.Give(out, &s.Parts[k], slices.Concat(labels, []string{m.Profile, strconv.FormatInt(m.GI, 10)})...)
				}
			}
		}
	}
}
