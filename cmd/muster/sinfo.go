package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// slurmNodes are nodes of one pool in one state.
type slurmNodes struct {
	pool, state, gres string
	names             []string
	cores, memory     int64
}

// slurmState is a node's state in Slurm's words.
func slurmState(n *wire.NodeListStub, running, held int) string {
	gpus := slurmGPUs(n)
	switch {
	case n.Status != "ready":
		return "down"
	case n.Drain && running > 0:
		return "draining"
	case n.Drain || n.SchedulingEligibility != "eligible":
		return "drained"
	case running == 0:
		return "idle"
	case gpus > 0 && held >= gpus:
		return "allocated"
	}
	return "mixed"
}

var slurmStateShort = map[string]string{"down": "down", "draining": "drng", "drained": "drain", "idle": "idle", "allocated": "alloc", "mixed": "mix"}

func slurmGPUs(n *wire.NodeListStub) (count int) {
	if n.NodeResources != nil {
		for _, d := range n.NodeResources.Devices {
			if d.Type == "gpu" {
				count += len(d.Instances)
			}
		}
	}
	return count
}

var sinfoTable = slurmTable[slurmNodes]{
	{"P", "partition", "PARTITION", func(n slurmNodes) string { return n.pool }},
	{"R", "partitionname", "PARTITION", func(n slurmNodes) string { return n.pool }},
	{"a", "available", "AVAIL", func(slurmNodes) string { return "up" }},
	{"D", "nodes", "NODES", func(n slurmNodes) string { return strconv.Itoa(len(n.names)) }},
	{"t", "statecompact", "STATE", func(n slurmNodes) string { return slurmStateShort[n.state] }},
	{"T", "statelong", "STATE", func(n slurmNodes) string { return n.state }},
	{"N", "nodelist", "NODELIST", func(n slurmNodes) string { return strings.Join(n.names, ",") }},
	{"n", "nodehost", "HOSTNAMES", func(n slurmNodes) string { return strings.Join(n.names, ",") }},
	{"G", "gres", "GRES", func(n slurmNodes) string { return cmp.Or(n.gres, "(null)") }},
	{"c", "cpus", "CPUS", func(n slurmNodes) string { return strconv.FormatInt(n.cores, 10) }},
	{"m", "memory", "MEMORY", func(n slurmNodes) string { return strconv.FormatInt(n.memory, 10) }},
}

func newSinfo(e *env) *cobra.Command {
	var (
		format, columns, pools, states, names string
		byNode, long, noHead                  bool
	)
	return e.slurmVerb("sinfo [options]", "List nodes as Slurm's sinfo does",
		`List node pools with their nodes by state, as Slurm's sinfo does, or with -N each node: -p PARTITION, -n NODE, -t STATE, -l, -h, and -o or --Format with
the common fields. A node is allocated when all its GPUs are held, mixed when some or none are; drained nodes take no new work.`, `
muster sinfo
muster sinfo -N -l
muster sinfo -h -o '%N %G %t'`, "muster node status, muster gpu list and muster node pool list",
		func(f *pflag.FlagSet) {
			f.StringVarP(&pools, "partition", "p", "", "")
			f.StringVarP(&names, "nodes", "n", "", "")
			f.StringVarP(&states, "states", "t", "", "")
			f.StringVarP(&format, "format", "o", "", "")
			f.StringVarP(&columns, "Format", "O", "", "")
			f.BoolVarP(&byNode, "Node", "N", false, "")
			f.BoolVarP(&long, "long", "l", false, "")
			f.BoolVarP(&noHead, "noheader", "h", false, "")
		}, func(ctx context.Context, a *api, words []string) error {
			if len(words) > 0 {
				return fmt.Errorf("sinfo takes no arguments, got %q; one node:  sinfo -n %s", words[0], word(words[0]))
			}
			var list []*wire.NodeListStub
			if _, err := a.get(ctx, "/v1/nodes", url.Values{"resources": {"true"}}, &list); err != nil {
				return err
			}
			allocs, err := slurmAllocs(ctx, a)
			if err != nil {
				return err
			}
			running, held := map[string]int{}, map[string]int{}
			for _, s := range allocs {
				running[s.NodeID]++
				held[s.NodeID] += int(heldBy([]*wire.AllocationListStub{s}))
			}
			var rows []slurmNodes
			slices.SortFunc(list, func(x, y *wire.NodeListStub) int {
				return cmp.Or(cmp.Compare(x.NodePool, y.NodePool), cmp.Compare(x.Name, y.Name), cmp.Compare(x.ID, y.ID))
			})
			for _, n := range list {
				r := slurmNodes{pool: n.NodePool, state: slurmState(n, running[n.ID], held[n.ID]), names: []string{n.Name}}
				if !among(pools, r.pool) || !among(names, n.Name) || !among(strings.ToLower(states), r.state) && !among(strings.ToLower(states), slurmStateShort[r.state]) {
					continue
				}
				if v := n.NodeResources; v != nil {
					r.cores, r.memory = int64(v.Cpu.TotalCpuCores), v.Memory.MemoryMB
					var gres []string
					for _, d := range v.Devices {
						if d.Type == "gpu" {
							gres = append(gres, fmt.Sprintf("gpu:%s:%d", strings.ReplaceAll(d.Name, " ", "_"), len(d.Instances)))
						}
					}
					r.gres = strings.Join(gres, ",")
				}
				i := slices.IndexFunc(rows, func(x slurmNodes) bool {
					return x.pool == r.pool && x.state == r.state && x.gres == r.gres && x.cores == r.cores && x.memory == r.memory
				})
				if i < 0 || byNode {
					rows = append(rows, r)
				} else {
					rows[i].names = append(rows[i].names, n.Name)
				}
			}
			switch {
			case format+columns != "":
				format = cmp.Or(format, columns)
			case byNode && long:
				format = "%N %D %P %T %c %m %G"
			case byNode:
				format = "%N %D %P %t"
			case long:
				format = "%P %a %D %T %c %m %G %N"
			default:
				format = "%P %a %D %t %N"
			}
			return sinfoTable.print(e, format, noHead, "", rows)
		})
}
