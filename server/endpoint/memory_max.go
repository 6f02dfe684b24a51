package endpoint

import (
	"fmt"
	"slices"

	"github.com/muster-sched/muster/structs"
)

// DropMemoryMax removes memory_max from a job, with a warning, unless the cluster allows tasks to use more memory than
// they reserve. Agents then enforce memory as the limit.
func (s *Set) DropMemoryMax(j *structs.Job) (warnings []string) {
	if s.published().Snapshot.SchedulerConfig().MemoryOversub {
		return nil
	}
	groups := slices.Clone(j.Groups)
	for i, g := range groups {
		for n, t := range g.Tasks {
			if t.Resources.MemoryMaxMiB == 0 {
				continue
			}
			if groups[i] == g {
				own := *g
				own.Tasks = slices.Clone(g.Tasks)
				groups[i] = &own
			}
			own := *t
			own.Resources.MemoryMaxMiB = 0
			groups[i].Tasks[n] = &own
			warnings = append(warnings, fmt.Sprintf("group %q, task %q: memory_max is not used, because memory oversubscription is off (muster operator scheduler set-config -memory-oversubscription=true)", g.Name, t.Name))
		}
	}
	j.Groups = groups
	return warnings
}
