// Package policy holds the placement policies, one small file each, and the one list of them. To add a policy, write a
// file with its name, add a line to Builtin and a script to testdata.
package policy

import (
	"sort"
	"strings"

	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Builtin are all policies, by the name used in configuration.
var Builtin = map[string]search.Policy{
	"binpack":   binpack{},
	"spread":    worstFit{name: "spread"}, // Nomad's name for it
	"worst-fit": worstFit{name: "worst-fit"},
	"first-fit": firstFit{},
	"next-fit":  nextFit{},

	"strand":       strand{},
	"fgd":          fgd{},
	"round-robin":  roundRobin{},
	"least-loaded": leastLoaded{},
	"learned":      learned{},
	"search":       improving{},

	"bestfit":    bestFit{},
	"dotprod":    dotProd{},
	"packing":    packing{},
	"clustering": clustering{},
	"random":     random{},
}

// Check returns an error for a name that configuration may not have. "" is no choice.
func Check(name string) error {
	if _, ok := Builtin[name]; ok || name == "" {
		return nil
	}
	return structs.Errorf(structs.CodeInvalid, "no placement policy is called %q; there are: %s", name, strings.Join(Names(), ", "))
}

// Names lists the policies in alphabetical order.
func Names() []string {
	names := make([]string, 0, len(Builtin))
	for n := range Builtin {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// For returns the policy of a domain: the pool's own, else the cluster's, else structs.AlgorithmDefault. A job that names
// a policy gets that one. An unknown name, which a newer version left, is ignored.
func For(pool *structs.NodePool, cluster structs.SchedulerConfig) search.Policy {
	if pool != nil && pool.Algorithm != "" {
		if p, ok := Builtin[pool.Algorithm]; ok {
			return perJob{p}
		}
	}
	if p, ok := Builtin[cluster.Algorithm]; ok {
		return perJob{p}
	}
	return perJob{Builtin[structs.AlgorithmDefault]}
}

// perJob lets jobs choose their policy.
type perJob struct{ search.Policy }

// Capabilities returns those of the domain's policy, with the choice per job.
func (p perJob) Capabilities() search.Capabilities {
	c := p.Policy.Capabilities()
	c.ForJob = p.forJob
	return c
}

func (p perJob) forJob(j *structs.Job) search.Policy {
	if j != nil {
		if own, ok := Builtin[j.Placement]; ok {
			return own
		}
	}
	return p.Policy
}
