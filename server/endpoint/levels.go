package endpoint

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// levelWarnings returns what is wrong with the levels of the topology, given the nodes.
func levelWarnings(p *replica.Published) []string {
	declared := p.Snapshot.SchedulerConfig().TopologyLevels
	return append(unknownLevels(p.Snapshot.Nodes(), declared), splitPlaces(p.Snapshot.Nodes(), p.View.LevelKeys(declared))...)
}

// levelWatch says which warnings about levels are new, for the log.
type levelWatch struct {
	mu      sync.Mutex
	changed bool            // a node has come, or may be in another place, since the last look
	next    time.Time       // of the next look
	told    map[string]bool // what was warned of, and still holds
}

// levelPeriod is how often the leader looks at most, because it then looks at every node.
const levelPeriod = time.Minute

// note records that a node was registered with other data than before.
func (w *levelWatch) note() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed = true
}

// look returns the new warnings; none if nothing has changed, or too little time has passed.
func (w *levelWatch) look(now time.Time, warnings func() []string) (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.changed || now.Before(w.next) {
		return nil
	}
	w.changed, w.next = false, now.Add(levelPeriod)
	told := map[string]bool{}
	for _, text := range warnings() {
		if told[text] = true; !w.told[text] {
			out = append(out, text)
		}
	}
	w.told = told
	return out
}

// unknownLevels returns a warning for each declared level of the topology that no node has: it may be misspelt. A cluster
// without nodes has nothing to compare with.
func unknownLevels(nodes iter.Seq[*structs.Node], levels []string) (out []string) {
	if len(levels) == 0 || levels[0] == structs.TopologyNone {
		return nil
	}
	open, keys, some := slices.Clone(levels), map[string]bool{}, false
	for n := range nodes {
		some = true
		open = slices.DeleteFunc(open, func(key string) bool { return model.LevelOf(n, key) != "" })
		if len(open) == 0 {
			return nil
		}
		for key := range n.Meta {
			keys[key] = true
		}
		for _, key := range structs.TopologyLevelsKnown {
			if model.LevelOf(n, key) != "" {
				keys[key] = true
			}
		}
	}
	if !some {
		return nil
	}
	have := slices.Sorted(maps.Keys(keys))
	known := strings.Join(have[:min(len(have), namesShown)], ", ")
	if n := len(have) - namesShown; n > 0 {
		known += fmt.Sprintf(" and %d more", n)
	}
	for _, key := range open {
		out = append(out, fmt.Sprintf("TopologyLevels: no node has %q in its meta or attributes%s (nodes have %s); gangs are placed without this level until one has it", key, suggest.DidYouMean(key, have), known))
	}
	return out
}

// splitPlaces returns a warning for each level at which a name stands for several places, because its nodes name
// different values of the next level, or some of them none. A gang runs in one node pool, so pools are looked at one by
// one. Names that each place of the next level uses again are no mistake: they are only reported while fewer than half
// of them stand for several.
func splitPlaces(nodes iter.Seq[*structs.Node], keys []string) (out []string) {
	type place struct {
		pool structs.PoolName
		name string
	}
	for k := 0; k+1 < len(keys); k++ {
		above := map[place]map[string]bool{} // the values of the next level
		for n := range nodes {
			if at := (place{n.Pool, model.LevelOf(n, keys[k])}); at.name != "" {
				if above[at] == nil {
					above[at] = map[string]bool{}
				}
				above[at][model.LevelOf(n, keys[k+1])] = true
			}
		}
		order := func(a, b place) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.pool, b.pool)) }
		var missing, split []place
		for _, name := range slices.SortedFunc(maps.Keys(above), order) {
			switch {
			case len(above[name]) < 2:
			case above[name][""]:
				missing = append(missing, name)
			default:
				split = append(split, name)
			}
		}
		bad := missing
		if 2*len(split) < len(above) {
			bad = slices.SortedFunc(slices.Values(slices.Concat(missing, split)), order)
		}
		if len(bad) == 0 {
			continue
		}
		var in []string
		for _, x := range slices.Sorted(maps.Keys(above[bad[0]])) {
			in = append(in, cmp.Or(x, "none"))
		}
		more := ""
		if len(bad) > 1 {
			more = fmt.Sprintf(" (and %d more)", len(bad)-1)
		}
		out = append(out, fmt.Sprintf("TopologyLevels: %s %q%s counts as %d places, because its nodes name several values of %s (%s): a gang that requires the %s has only one of them; give these nodes one %s in their meta",
			keys[k], bad[0].name, more, len(in), keys[k+1], strings.Join(in[:min(len(in), namesShown)], ", "), keys[k], keys[k+1]))
	}
	return out
}
