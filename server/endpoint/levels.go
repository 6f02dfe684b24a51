package endpoint

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

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

// splitPlaces returns a warning for each level at which a name stands for several places, because its nodes name different
// values of the next level, or some of them none. Names that each place of the next level uses again are no mistake: they are only
// reported while fewer than half of them stand for several.
func splitPlaces(nodes iter.Seq[*structs.Node], keys []string) (out []string) {
	for k := 0; k+1 < len(keys); k++ {
		above := map[string]map[string]bool{} // by name: the values of the next level
		for n := range nodes {
			if name := model.LevelOf(n, keys[k]); name != "" {
				if above[name] == nil {
					above[name] = map[string]bool{}
				}
				above[name][model.LevelOf(n, keys[k+1])] = true
			}
		}
		var missing, split []string
		for _, name := range slices.Sorted(maps.Keys(above)) {
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
			bad = slices.Sorted(slices.Values(slices.Concat(missing, split)))
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
			keys[k], bad[0], more, len(in), keys[k+1], strings.Join(in[:min(len(in), namesShown)], ", "), keys[k], keys[k+1]))
	}
	return out
}
