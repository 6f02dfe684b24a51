package nomadlike

import (
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/wire"
)

var (
	memoryMeasured = []string{"RSS", "Cache", "Swap", "Usage", "Max Usage"}
	cpuMeasured    = []string{"System Mode", "User Mode", "Percent", "Throttled Periods", "Throttled Time"}
)

func usageOf(t methods.TaskStats) *wire.ResourceUsage {
	return &wire.ResourceUsage{
		MemoryStats: &wire.MemoryStats{
			RSS: uint64(t.Memory.RSS), Cache: uint64(t.Memory.Cache), Swap: uint64(t.Memory.Swap), Usage: uint64(t.Memory.Usage),
			MaxUsage: uint64(t.Memory.MaxUsage), KernelUsage: uint64(t.Memory.KernelUsage), Measured: memoryMeasured,
		},
		CpuStats: &wire.CpuStats{
			SystemMode: micro(t.CPU.SystemMicro), UserMode: micro(t.CPU.UserMicro), Percent: micro(t.CPU.PercentMicro),
			TotalTicks: float64(t.CPU.TotalTicksMHz), ThrottledPeriods: uint64(t.CPU.ThrottledCount),
			ThrottledTime: uint64(t.CPU.ThrottledNanos), Measured: cpuMeasured,
		},
		DeviceStats: devicesOf(t.Devices),
	}
}

// micro converts millionths.
func micro(n int64) float64 { return float64(n) / 1e6 }

func allocStatsOf(r *methods.AllocStatsResponse) *wire.AllocResourceUsage {
	out := &wire.AllocResourceUsage{ResourceUsage: usageOf(r.Total), Tasks: map[string]*wire.TaskResourceUsage{}, Timestamp: int64(r.Time)}
	for name, t := range r.Tasks {
		out.Tasks[name] = &wire.TaskResourceUsage{ResourceUsage: usageOf(*t), Timestamp: int64(t.Time), Pids: map[string]*wire.ResourceUsage{}}
	}
	return out
}

func diskOf(d methods.DiskStats) *wire.HostDiskStats {
	return &wire.HostDiskStats{
		Device: d.Device, Mountpoint: d.Mountpoint, Size: uint64(d.Size), Used: uint64(d.Used), Available: uint64(d.Available),
		UsedPercent: micro(d.UsedMicro), InodesUsedPercent: micro(d.InodesUsedMicro),
	}
}

func hostStatsOf(r *methods.HostStatsResponse) *wire.HostStats {
	out := &wire.HostStats{
		Memory: &wire.HostMemoryStats{Total: uint64(r.MemTotal), Available: uint64(r.MemAvailable), Used: uint64(r.MemUsed), Free: uint64(r.MemFree)},
		CPU:    []*wire.HostCPUStats{}, DiskStats: []*wire.HostDiskStats{}, AllocDirStats: diskOf(r.AllocDir),
		DeviceStats: devicesOf(r.Devices), Uptime: uint64(r.Uptime.Seconds()), CPUTicksConsumed: float64(r.CPUTicksMHz), Timestamp: int64(r.Time),
	}
	for _, c := range r.CPU {
		out.CPU = append(out.CPU, &wire.HostCPUStats{CPU: c.CPU, User: micro(c.UserMicro), System: micro(c.SystemMicro), Idle: micro(c.IdleMicro), TotalPercent: micro(c.TotalMicro)})
	}
	for _, d := range r.Disks {
		out.DiskStats = append(out.DiskStats, diskOf(d))
	}
	return out
}
