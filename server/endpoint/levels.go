package endpoint

import (
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
