package scheduler

// hopeless remembers, within a pass, asks for which the whole cluster was searched in vain. On a full cluster most
// workloads wait, many of them for the same thing; searching again for each would make a pass cost workloads x nodes.
// What is remembered holds as long as nothing was placed or rolled back since, so that a workload is answered with the
// very report its own search would give.
type hopeless struct {
	stamp int
	scans map[string]*scan
	gangs map[string]*scan // in a long pass: those of gangs, whatever was placed since
	asked int              // how many searches of gangs there were
}

// gangsExact is how many gangs a pass looks for with what is remembered holding only until something is placed. Beyond
// it what was looked for in vain stays so for the rest of the pass: placements only take room away. The report may then
// tell of a little more room than is left.
const gangsExact = 100

// findGang is find for a gang.
func (h *hopeless) findGang(w *pass, key string) *scan {
	if h.asked++; h.asked > gangsExact {
		if s := h.gangs[key]; s != nil {
			return s
		}
	}
	return h.find(w, key)
}

// noteGang is note for a gang.
func (h *hopeless) noteGang(w *pass, key string, s *scan) {
	h.note(w, key, s)
	if h.gangs == nil {
		h.gangs = make(map[string]*scan)
	}
	h.gangs[key] = s
	s.vain = true
}

// find gives the search that failed for an equal ask, or nil.
func (h *hopeless) find(w *pass, key string) *scan {
	if h.stamp != w.Stamp {
		return nil
	}
	return h.scans[key]
}

// note remembers a search that failed.
func (h *hopeless) note(w *pass, key string, s *scan) {
	if h.stamp != w.Stamp || h.scans == nil {
		h.stamp, h.scans = w.Stamp, make(map[string]*scan)
	}
	h.scans[key] = s
}

// empty reports whether nothing is remembered for the present state, so that no key need be made.
func (h *hopeless) empty(w *pass) bool { return h.stamp != w.Stamp || len(h.scans) == 0 }
