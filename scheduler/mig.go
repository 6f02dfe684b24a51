package scheduler

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// missingMIG begins the refusal of nodes that have no instances of a MIG profile.
const missingMIG = "missing device MIG "

// migHint tells what there is instead of instances of a MIG profile: those that nodes of the job's pool have, and GPUs that
// an operator can divide so. It looks at every node, for a report of what waits only.
func (s *scan) migHint(profile string) string {
	var have []string
	could := 0
	for _, c := range s.w.v.chunks {
		for _, n := range c.nodes {
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
					could++
				}
			}
		}
	}
	slices.Sort(have)
	out := "; no node has MIG instances"
	if len(have) > 0 {
		out = "; nodes have instances of " + strings.Join(have, ", ")
	}
	if could > 0 {
		out += fmt.Sprintf("; %s (%d)", structs.MIGCouldBe, could)
	}
	return out
}
