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
