package gpu

// Activity is how busy the parts of a GPU, or of a MIG instance, were since the previous measurement: thousandths of
// the time, -1 for what the driver does not report. It says more than the utilization, which is 100 % even if only one
// of many multiprocessors computes.
type Activity struct {
	UUID      string `json:",omitempty"` // of the MIG instance
	SM        int64  // a multiprocessor had work, on average over all
	Occupancy int64  // of the work that they can hold at once
	Tensor    int64  // tensor cores computed
	DRAM      int64  // memory was read or written
	Engine    int64  // any of the above computed or drew
}

// figures lists the measurements under the names of NVIDIA's exporter.
func (a *Activity) figures(add func(name, help string, value float64, known bool)) {
	for _, f := range []struct {
		name, help string
		value      int64
	}{
		{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Part of the time in which the GPU computed or drew.", a.Engine},
		{"DCGM_FI_PROF_SM_ACTIVE", "Part of the time in which a multiprocessor had work, on average over all.", a.SM},
		{"DCGM_FI_PROF_SM_OCCUPANCY", "Work of the multiprocessors, as a part of what they can have at once.", a.Occupancy},
		{"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Part of the time in which tensor cores computed.", a.Tensor},
		{"DCGM_FI_PROF_DRAM_ACTIVE", "Part of the time in which the GPU's memory was read or written.", a.DRAM},
	} {
		add(f.name, f.help, float64(f.value)/1000, f.value >= 0)
	}
}

// activities returns the activity of whole GPUs and of MIG instances, by UUID, where it is known.
func activities(samples []Sample) map[string]*Activity {
	out := map[string]*Activity{}
	for i := range samples {
		s := &samples[i]
		if s.Lost {
			continue
		}
		if s.Active != nil && s.Active.SM >= 0 && s.MIGMode != "Enabled" {
			out[s.UUID] = s.Active
		}
		for k := range s.Parts {
			if s.Parts[k].SM >= 0 {
				out[s.Parts[k].UUID] = &s.Parts[k]
			}
		}
	}
	return out
}
