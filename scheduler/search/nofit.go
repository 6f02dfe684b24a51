package search

// NoFit caches, within a pass, the asks for which a search of the whole cluster found nothing. On a full cluster most
// workloads wait, many of them for the same thing; searching again for each would make a pass cost workloads x nodes.
// An entry is valid until something is placed or rolled back, so that a workload gets the very report that its own
// search would give.
type NoFit struct {
	stamp int
	scans map[string]*Search
	gangs map[string]*Search // in a long pass: searches for gangs, valid whatever was placed since
	asked int                // number of searches for gangs
}

// gangsExact is the number of gangs in a pass for which an entry is only valid until something is placed. After that,
// entries for gangs stay valid for the rest of the pass, because placements only reduce the free capacity. The report
// may then show a little more free capacity than is left.
const gangsExact = 100

// FindGang is Find for a gang.
func (h *NoFit) FindGang(w *Pass, key string) *Search {
	if h.asked++; h.asked > gangsExact {
		if s := h.gangs[key]; s != nil {
			return s
		}
	}
	return h.Find(w, key)
}

// NoteGang is Note for a gang.
func (h *NoFit) NoteGang(w *Pass, key string, s *Search) {
	h.Note(w, key, s)
	if h.gangs == nil {
		h.gangs = make(map[string]*Search)
	}
	h.gangs[key] = s
	s.GaveUp = true
}

// Find returns the failed search of an equal ask, or nil.
func (h *NoFit) Find(w *Pass, key string) *Search {
	if h.stamp != w.Stamp {
		return nil
	}
	return h.scans[key]
}

// Note records a search that failed.
func (h *NoFit) Note(w *Pass, key string, s *Search) {
	if h.stamp != w.Stamp || h.scans == nil {
		h.stamp, h.scans = w.Stamp, make(map[string]*Search)
	}
	h.scans[key] = s
}

// Empty reports whether there is no entry for the current state, so that the caller need not make a key.
func (h *NoFit) Empty(w *Pass) bool { return h.stamp != w.Stamp || len(h.scans) == 0 }
