package gpu

import (
	"slices"
	"strconv"
)

// Figure is one measurement of one GPU under the name of NVIDIA's exporter, so that dashboards made for that show it.
type Figure struct {
	Name, Help string
	Value      float64
}

// DeviceFigures are the measurements of one GPU.
type DeviceFigures struct {
	Labels  []string // alternating names and values, as in the exporter
	Figures []Figure
}

// Figures returns the last measurement of each GPU, in bus order. What the driver does not report is left out.
func (n *NVIDIA) Figures() []DeviceFigures {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.snapshot == nil {
		return nil
	}
	var out []DeviceFigures
	for i := range n.snapshot.GPUs {
		g := &n.snapshot.GPUs[i]
		d := DeviceFigures{Labels: []string{
			"gpu", strconv.FormatInt(g.Index, 10), "UUID", g.UUID, "pci_bus_id", g.Bus, "device", "nvidia" + strconv.FormatInt(g.Minor, 10), "modelName", g.Name,
			"DCGM_FI_DRIVER_VERSION", n.snapshot.Driver,
		}}
		v, healthy := n.verdict(g.UUID, -1), 0.0
		if v.State == Healthy || v.State == Degraded {
			healthy = 1
		}
		add := func(name, help string, value float64, known bool) {
			if known {
				d.Figures = append(d.Figures, Figure{name, help, value})
			}
		}
		add("muster_gpu_healthy", "Whether the GPU takes work: 1 healthy or degraded, 0 quarantined or lost.", healthy, true)
		add("DCGM_FI_DEV_XID_ERRORS", "The last XID error, 0 for none since the agent was started.", float64(n.xids[g.UUID]), true)
		s, ok := n.samples[g.UUID]
		if ok && !s.Lost {
			pending := 0.0
			if s.RowsPending {
				pending = 1
			}
			failed := 0.0
			if s.RowsFailed {
				failed = 1
			}
			add("DCGM_FI_DEV_FB_USED", "Memory in use, MiB.", float64(s.UsedBytes>>20), s.TotalBytes > 0)
			add("DCGM_FI_DEV_FB_FREE", "Memory that is free, MiB.", float64(s.FreeBytes>>20), s.TotalBytes > 0)
			add("DCGM_FI_DEV_FB_RESERVED", "Memory that driver and firmware keep, MiB.", float64(g.ReservedBytes>>20), g.ReservedBytes > 0)
			add("DCGM_FI_DEV_GPU_UTIL", "Time in which the GPU computed, percent.", float64(s.UtilPercent), s.UtilPercent >= 0)
			add("DCGM_FI_DEV_MEM_COPY_UTIL", "Time in which its memory was read or written, percent.", float64(s.MemUtilPercent), s.MemUtilPercent >= 0)
			add("DCGM_FI_DEV_GPU_TEMP", "Temperature, degrees Celsius.", float64(s.TemperatureC), s.TemperatureC >= 0)
			add("DCGM_FI_DEV_POWER_USAGE", "Power drawn, W.", float64(s.PowerMW)/1000, s.PowerMW >= 0)
			limit := g.PowerLimitMW
			if p, ok := n.power[g.UUID]; ok {
				limit = p.SetMW
			}
			add("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "Power limit in force, W.", float64(limit)/1000, limit > 0)
			add("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy since the driver was loaded, mJ.", float64(s.EnergyMJ), s.EnergyMJ >= 0)
			add("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "Why clocks are held down, as NVML's bits.", float64(s.Throttle), true)
			add("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Uncorrected memory errors since the driver was loaded.", float64(s.ECCUncorrected), g.ECC == "Enabled")
			add("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Corrected memory errors since the driver was loaded.", float64(s.ECCCorrected), g.ECC == "Enabled")
			add("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "Uncorrected memory errors in the GPU's life.", float64(s.ECCAggregate), s.ECCAggregate >= 0)
			add("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "Corrected memory errors in the GPU's life.", float64(s.ECCFixedAggr), s.ECCFixedAggr >= 0)
			add("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Memory rows remapped for uncorrected errors.", float64(s.RowsBad), s.RowsBad >= 0)
			add("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Memory rows remapped for corrected errors.", float64(s.RowsFixed), s.RowsFixed >= 0)
			add("DCGM_FI_DEV_ROW_REMAP_PENDING", "Whether memory rows wait to be remapped.", pending, true)
			add("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping a memory row failed.", failed, true)
			add("DCGM_FI_DEV_PCIE_LINK_GEN", "Generation at which PCIe runs now.", float64(s.PCIeGeneration), s.PCIeGeneration > 0)
			add("DCGM_FI_DEV_PCIE_LINK_WIDTH", "Lanes of PCIe now.", float64(s.PCIeWidth), s.PCIeWidth > 0)
			if s.Wires != nil {
				s.Wires.figures(add)
			}
			if s.Active != nil {
				s.Active.figures(add)
			}
		}
		out = append(out, d)
		for k := range s.Parts {
			for _, m := range g.MIG {
				if ok && !s.Lost && m.UUID == s.Parts[k].UUID {
					whole := d.Labels
					d = DeviceFigures{Labels: append(slices.Clip(whole), "GPU_I_PROFILE", m.Profile, "GPU_I_ID", strconv.FormatInt(m.GI, 10))}
					s.Parts[k].figures(add)
					out = append(out, d)
					d.Labels = whole
				}
			}
		}
	}
	return out
}

// figures lists the measurements of a GPU's links.
func (w *Wires) figures(add func(name, help string, value float64, known bool)) {
	links := len(w.Up)+len(w.Down) > 0
	for _, f := range []struct {
		name, help string
		value      int64
		links      bool
	}{
		{"DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "Sent over PCIe, kB/s.", w.PCIeTxKBs, true},
		{"DCGM_FI_DEV_PCIE_RX_THROUGHPUT", "Received over PCIe, kB/s.", w.PCIeRxKBs, true},
		{"DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Packets that PCIe has sent again since the driver was loaded.", w.PCIeReplays, true},
		{"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Data sent and received over all NVLinks, MB/s.", w.NVLinkMBs, w.NVLinkKiB >= 0},
		{"DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "Checksum errors of control packets of all NVLinks.", w.CRCFlit, links},
		{"DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "Checksum errors of data of all NVLinks.", w.CRCData, links},
		{"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "Packets that NVLinks have sent again.", w.Replays, links},
		{"DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "How often NVLinks had to be trained again.", w.Recoveries, links},
		{"muster_gpu_nvlinks_up", "NVLinks that are up.", int64(len(w.Up)), links},
	} {
		add(f.name, f.help, float64(f.value), f.links && f.value >= 0)
	}
}
