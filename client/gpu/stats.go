package gpu

import (
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// Stats returns the last measurement of each device, ordered by group and index. Lost devices are left out. Of a MIG
// instance only the memory of its processes is known.
func (n *NVIDIA) Stats() []methods.DeviceStats {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.snapshot == nil {
		return nil
	}
	at := structs.LogTimeOf(n.sampleAt)
	whole, parent, part := map[string]Device{}, map[string]string{}, map[string]MIG{}
	for _, g := range n.snapshot.GPUs {
		whole[g.UUID] = g
		for _, m := range g.MIG {
			parent[m.UUID], part[m.UUID] = g.UUID, m
		}
	}
	var out []methods.DeviceStats
	for i := range n.groups {
		for _, in := range n.groups[i].Instances {
			d := methods.DeviceStats{Group: n.groups[i].ID(), ID: in.ID, Parent: parent[in.ID], Time: at}
			if d.Parent == "" {
				s, ok := n.samples[in.ID]
				if !ok || s.Lost {
					continue
				}
				d.UsedBytes, d.TotalBytes, d.BAR1Bytes = s.UsedBytes, s.TotalBytes, whole[in.ID].BAR1Bytes
				d.Utilization, d.MemoryUtil, d.TemperatureC = s.UtilPercent, s.MemUtilPercent, s.TemperatureC
				d.PowerMW, d.EnergyMJ, d.ECCUncorrected, d.ECCFixed = s.PowerMW, s.EnergyMJ, s.ECCUncorrected, s.ECCCorrected
				d.More = s.more()
				out = append(out, d)
				continue
			}
			s, ok := n.samples[d.Parent]
			if !ok || s.Lost {
				continue
			}
			d.Utilization, d.MemoryUtil, d.TemperatureC, d.PowerMW, d.EnergyMJ, d.ECCUncorrected, d.ECCFixed = -1, -1, s.TemperatureC, -1, -1, -1, -1
			m := part[in.ID]
			d.TotalBytes = m.MemoryBytes
			for _, p := range s.Processes {
				if p.GI == m.GI && (p.CI == m.CI || p.CI < 0) {
					d.UsedBytes += max(p.Bytes, 0)
				}
			}
			out = append(out, d)
		}
	}
	return out
}

// more returns the additional measurements of a GPU.
func (s *Sample) more() []methods.DeviceFigure {
	out := []methods.DeviceFigure{
		{Name: "ECC errors in its life, uncorrected", Unit: "#", Value: s.ECCAggregate},
		{Name: "Remapped rows, uncorrected", Unit: "#", Value: s.RowsBad},
		{Name: "Remapped rows, corrected", Unit: "#", Value: s.RowsFixed},
	}
	if a := s.Active; a != nil {
		for _, f := range []methods.DeviceFigure{{Name: "SM activity", Value: a.SM}, {Name: "SM occupancy", Value: a.Occupancy}, {Name: "Tensor activity", Value: a.Tensor}, {Name: "Memory activity", Value: a.DRAM}} {
			if f.Unit = "%"; f.Value >= 0 {
				f.Value = (f.Value + 5) / 10
				out = append(out, f)
			}
		}
	}
	if w := s.Wires; w != nil {
		out = append(out, methods.DeviceFigure{Name: "PCIe sent", Unit: "kB/s", Value: w.PCIeTxKBs}, methods.DeviceFigure{Name: "PCIe received", Unit: "kB/s", Value: w.PCIeRxKBs},
			methods.DeviceFigure{Name: "PCIe replays", Unit: "#", Value: w.PCIeReplays})
		if links := len(w.Up) + len(w.Down); links > 0 {
			out = append(out, methods.DeviceFigure{Name: "NVLinks up", Unit: "#", Value: int64(len(w.Up))})
		}
		if w.NVLinkKiB >= 0 {
			out = append(out, methods.DeviceFigure{Name: "NVLink", Unit: "MB/s", Value: w.NVLinkMBs})
		}
		if n := max(w.CRCFlit, 0) + max(w.CRCData, 0) + max(w.Replays, 0) + max(w.Recoveries, 0); len(w.Up) > 0 && max(w.CRCFlit, w.CRCData, w.Replays, w.Recoveries) >= 0 {
			out = append(out, methods.DeviceFigure{Name: "NVLink errors", Unit: "#", Value: n})
		}
	}
	return out
}
