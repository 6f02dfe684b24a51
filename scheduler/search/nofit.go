package search

// NoFit remembers, within a pass, asks for which the whole cluster was searched in vain. On a full cluster most
// workloads wait, many of them for the same thing; searching again for each would make a pass cost workloads x nodes.
// What is remembered holds as long as nothing was placed or rolled back since, so that a workload is answered with the
// very report its own search would give.
type NoFit struct {
	stamp int
	scans map[string]*Search
	gangs map[string]*Search // in a long pass: those of gangs, whatever was placed since
	asked int                // how many searches of gangs there were
}

// gangsExact is how many gangs a pass looks for with what is remembered holding only until something is placed. Beyond
// it what was looked for in vain stays so for the rest of the pass: placements only take room away. The report may then
// tell of a little more room than is left.
const gangsExact = 100

// FindGang is find for a gang.
func (h *NoFit) FindGang(w *Pass, key string) *Search {
	if h.asked++; h.asked > gangsExact {
		if s := h.gangs[key]; s != nil {
			return s
		}
	}
	return h.Find(w, key)
}

// NoteGang is note for a gang.
func (h *NoFit) NoteGang(w *Pass, key string, s *Search) {
	h.Note(w, key, s)
	if h.gangs == nil {
		h.gangs = make(map[string]*Search)
	}
	h.gangs[key] = s
	s.GaveUp = true
}

// Find gives the search that failed for an equal ask, or nil.
func (h *NoFit) Find(w *Pass, key string) *Search {
	if h.stamp != w.Stamp {
		return nil
	}
	return h.scans[key]
}

// Note remembers a search that failed.
func (h *NoFit) Note(w *Pass, key string, s *Search) {
	if h.stamp != w.Stamp || h.scans == nil {
		h.stamp, h.scans = w.Stamp, make(map[string]*Search)
	}
	h.scans[key] = s
}

// Empty reports whether nothing is remembered for the present state, so that no key need be made.
func (h *NoFit) Empty(w *Pass) bool { return h.stamp != w.Stamp || len(h.scans) == 0 }
