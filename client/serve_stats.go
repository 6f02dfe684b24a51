package client

import (
	"context"
	"math"
	"runtime"
	"time"

	pscpu "github.com/shirou/gopsutil/v4/cpu"
	psdisk "github.com/shirou/gopsutil/v4/disk"
	pshost "github.com/shirou/gopsutil/v4/host"
	psmem "github.com/shirou/gopsutil/v4/mem"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// micro converts a percentage to millionths of a percent.
func micro(percent float64) int64 {
	if math.IsNaN(percent) || math.IsInf(percent, 0) {
		return 0
	}
	return int64(math.Round(percent * 1e6))
}

func (s service) stats(ctx context.Context, _ *rpc.Call, req *methods.AllocNodeRequest) (*methods.AllocStatsResponse, error) {
	c, err := s.find(req.AllocID, structs.NodeID{})
	if err != nil {
		return nil, err
	}
	r, err := s.alloc(req.AllocID)
	if err != nil {
		return nil, err
	}
	resp := &methods.AllocStatsResponse{Tasks: map[string]*methods.TaskStats{}, Time: structs.LogTimeOf(time.Now())}
	mhz := c.Node().Resources.MHzPerCore
	for name, h := range r.Running() {
		if req.Task != "" && req.Task != name {
			continue
		}
		st, err := h.Stats(ctx)
		if err != nil {
			continue // it ended meanwhile
		}
		t := taskStats(st, mhz)
		t.Devices = c.deviceStats(granted(r.Alloc(), name))
		c.addUse(t.Devices, r.ID(), name)
		resp.Tasks[name] = &t
		addStats(&resp.Total, t)
	}
	resp.Total.Time = resp.Time
	return resp, nil
}

func taskStats(st driver.Stats, mhz int64) methods.TaskStats {
	return methods.TaskStats{
		CPU: methods.CPUStats{
			TotalNanos: int64(st.CPUTotalNS), PercentMicro: micro(st.CPUPercent),
			UserMicro: share(st.CPUUserNS, st.CPUTotalNS, st.CPUPercent), SystemMicro: share(st.CPUSystemNS, st.CPUTotalNS, st.CPUPercent),
			TotalTicksMHz: int64(st.CPUPercent / 100 * float64(mhz)), ThrottledNanos: int64(st.ThrottledNS),
		},
		Memory: methods.MemoryStats{
			RSS: int64(st.RSSBytes), Cache: int64(st.CacheBytes), Swap: int64(st.SwapBytes), Usage: int64(st.UsageBytes), MaxUsage: int64(st.MaxUsage),
		},
		Pids: int64(st.PidsCount), Time: structs.LogTimeOf(st.Time),
	}
}

// share scales a percentage by the share of time spent in one mode since the start.
func share(part, total uint64, percent float64) int64 {
	if total == 0 {
		return 0
	}
	return micro(percent * float64(part) / float64(total))
}

func addStats(sum *methods.TaskStats, t methods.TaskStats) {
	sum.CPU.TotalNanos += t.CPU.TotalNanos
	sum.CPU.PercentMicro += t.CPU.PercentMicro
	sum.CPU.UserMicro += t.CPU.UserMicro
	sum.CPU.SystemMicro += t.CPU.SystemMicro
	sum.CPU.TotalTicksMHz += t.CPU.TotalTicksMHz
	sum.CPU.ThrottledNanos += t.CPU.ThrottledNanos
	sum.Memory.RSS += t.Memory.RSS
	sum.Memory.Cache += t.Memory.Cache
	sum.Memory.Swap += t.Memory.Swap
	sum.Memory.Usage += t.Memory.Usage
	sum.Memory.MaxUsage += t.Memory.MaxUsage
	sum.Pids += t.Pids
	sum.Devices = append(sum.Devices, t.Devices...)
}

func (s service) hostStats(ctx context.Context, _ *rpc.Call, req *methods.AllocNodeRequest) (*methods.HostStatsResponse, error) {
	c, err := s.find(req.AllocID, req.NodeID)
	if err != nil {
		return nil, err
	}
	if c.cfg.Storage.Ephemeral {
		return simulatedStats(c), nil
	}
	return c.HostStats(ctx)
}

// deviceStats returns the last measurement of the devices with an id in only; nil: of all.
func (c *Client) deviceStats(only map[string]bool) []methods.DeviceStats {
	if c.cfg.Host.DeviceStats == nil || only != nil && len(only) == 0 {
		return nil
	}
	var out []methods.DeviceStats
	for _, d := range c.cfg.Host.DeviceStats() {
		if only == nil || only[d.ID] {
			out = append(out, d)
		}
	}
	return out
}

// addUse adds a task's use of its GPUs.
func (c *Client) addUse(list []methods.DeviceStats, id structs.AllocID, task string) {
	for _, u := range c.gpus.UsesOf(id) {
		for i := range list {
			if list[i].ID == u.GPU && u.Task == task {
				list[i].Use = append(list[i].Use, methods.DeviceUse{
					Task: task, Backend: u.Backend, QuotaBytes: u.MiB << 20, UsedBytes: u.UsedBytes, PeakBytes: u.PeakBytes,
					MiBSeconds: u.MiBSeconds, SMMillis: u.SMMillis, EnergyMJ: u.EnergyMJ, Denied: u.Denied,
					ActiveMillis: u.ActiveMillis, KnownMillis: u.KnownMillis,
				})
			}
		}
	}
}

// How long the GPU driver may be closed.
const (
	gpuReleaseDefault = 10 * time.Minute
	gpuReleaseMax     = 24 * time.Hour
)

// releaseGPUs closes the GPU driver for a while.
func (s service) releaseGPUs(ctx context.Context, _ *rpc.Call, req *methods.GPUReleaseRequest) (*methods.WriteResponse, error) {
	c, err := s.find(structs.AllocID{}, req.NodeID)
	if err != nil {
		return nil, err
	}
	d := req.For
	if d == 0 {
		d = gpuReleaseDefault
	}
	switch {
	case c.cfg.Host.ReleaseGPUs == nil:
		return nil, structs.Errorf(structs.CodeInvalid, "the agent of this node does not use a GPU driver")
	case d < 0 || d > gpuReleaseMax:
		return nil, structs.Errorf(structs.CodeInvalid, "the time must be above 0 and at most %s", gpuReleaseMax)
	}
	return nil, c.cfg.Host.ReleaseGPUs(ctx, d)
}

// granted returns the ids of the devices that an allocation's task holds.
func granted(a *structs.Allocation, task string) map[string]bool {
	ids := map[string]bool{}
	for _, g := range a.Grants {
		if g.Task == task {
			ids[g.Instance] = true
		}
	}
	return ids
}

// simulatedStats describes an idle machine of the size that the node claims.
func simulatedStats(c *Client) *methods.HostStatsResponse {
	mem := c.Node().Resources.MemoryMiB << 20
	return &methods.HostStatsResponse{MemTotal: mem, MemAvailable: mem, MemFree: mem, Time: structs.LogTimeOf(time.Now())}
}

// cpuSample is how long the processors are observed for one measurement.
const cpuSample = 100 * time.Millisecond

// HostStats measures the machine.
func (c *Client) HostStats(ctx context.Context) (*methods.HostStatsResponse, error) {
	out := &methods.HostStatsResponse{Time: structs.LogTimeOf(time.Now())}
	if m, err := psmem.VirtualMemoryWithContext(ctx); err == nil {
		out.MemTotal, out.MemAvailable, out.MemUsed, out.MemFree = int64(m.Total), int64(m.Available), int64(m.Used), int64(m.Free)
	}
	before, err := pscpu.TimesWithContext(ctx, true)
	if err == nil && pause(ctx, cpuSample) {
		if after, err := pscpu.TimesWithContext(ctx, true); err == nil && len(after) == len(before) {
			busy := int64(0)
			for i := range after {
				core := coreStats(before[i], after[i])
				busy += core.TotalMicro
				out.CPU = append(out.CPU, core)
			}
			out.CPUTicksMHz = busy / 1e6 * c.Node().Resources.MHzPerCore / 100
		}
	}
	if parts, err := psdisk.PartitionsWithContext(ctx, false); err == nil {
		for _, p := range parts {
			if d, ok := diskStats(ctx, p.Device, p.Mountpoint); ok {
				out.Disks = append(out.Disks, d)
			}
		}
	}
	out.Devices = c.deviceStats(nil)
	out.AllocDir, _ = diskStats(ctx, c.Node().Attributes["unique.storage.volume"], c.cfg.Storage.AllocsDir)
	if up, err := pshost.UptimeWithContext(ctx); err == nil {
		out.Uptime = time.Duration(up) * time.Second
	}
	if len(out.CPU) == 0 && ctx.Err() == nil && runtime.GOOS == "linux" {
		return nil, structs.Errorf(structs.CodeInternal, "the machine's processors could not be measured")
	}
	return out, ctx.Err()
}

func coreStats(a, b pscpu.TimesStat) methods.CoreStats {
	total := func(t pscpu.TimesStat) float64 {
		return t.User + t.System + t.Idle + t.Nice + t.Iowait + t.Irq + t.Softirq + t.Steal
	}
	d := total(b) - total(a)
	if d <= 0 {
		return methods.CoreStats{CPU: b.CPU, IdleMicro: 100e6}
	}
	pct := func(x, y float64) int64 { return micro(max(0, y-x) / d * 100) }
	out := methods.CoreStats{CPU: b.CPU, UserMicro: pct(a.User+a.Nice, b.User+b.Nice), SystemMicro: pct(a.System, b.System), IdleMicro: pct(a.Idle+a.Iowait, b.Idle+b.Iowait)}
	out.TotalMicro = max(0, 100e6-out.IdleMicro)
	return out
}

func diskStats(ctx context.Context, device, mount string) (methods.DiskStats, bool) {
	u, err := psdisk.UsageWithContext(ctx, mount)
	if err != nil {
		return methods.DiskStats{}, false
	}
	return methods.DiskStats{
		Device: device, Mountpoint: mount,
		Size: int64(u.Total), Used: int64(u.Used), Available: int64(u.Free),
		UsedMicro: micro(u.UsedPercent), InodesUsedMicro: micro(u.InodesUsedPercent),
	}, true
}
