package scheduler

import (
	"slices"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// otherMIG is what there is instead of instances of a MIG profile: the profiles that nodes of the job's pool have instances
// of, and how many GPUs an operator can divide so. It looks at every node, for a report of what waits only.
func (s *scan) otherMIG(profile string) (profiles string, divisible int64) {
	var have []string
	for _, c := range s.w.View.Chunks {
		for _, n := range c.Nodes {
			if !inPool(s.ask.job, n) || !inDatacenter(s.ask.job, n) {
				continue
			}
			for i := range n.Resources.Devices {
				if p := n.Resources.Devices[i].MIGProfile(); p != "" && !slices.Contains(have, p) {
					have = append(have, p)
				}
			}
			for i := range n.Resources.MIG {
				if slices.ContainsFunc(n.Resources.MIG[i].Profiles, func(p structs.MIGProfile) bool { return p.Name == profile }) {
					divisible++
				}
			}
		}
	}
	slices.Sort(have)
	return strings.Join(have, ", "), divisible
}
