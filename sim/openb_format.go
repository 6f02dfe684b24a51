package sim

import (
	"context"
	"errors"

	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// openbFormat is shared GPUs without time: tasks arrive, are placed or dropped, and stay. The result is the share of
// the GPUs that is allocated at the end. testdata/traces/openb describes the protocol.
type openbFormat struct{}

func (openbFormat) Name() string { return "openb" }

func (openbFormat) About() string {
	return "placement of tasks on shared GPUs (the openb traces): -nodes is a file of nodes; every placement policy, published ones as fgd, bestfit, dotprod, packing, clustering, random, with the mix of the whole list; default: a cluster that nobody configured, which knows what it holds"
}

// openbSeeds is the default number of orders.
const openbSeeds = 10

func (f openbFormat) Run(ctx context.Context, o *Options, name string) (*Result, error) {
	config := *structs.DefaultSchedulerConfig()
	if name != "default" {
		config.Algorithm = name
	}
	if policy.Check(config.Algorithm) != nil {
		return nil, unknownPolicy(f.Name(), name, append(policy.Names(), "default"))
	}
	if o.Nodes == "" {
		return nil, errors.New("no cluster is given: say -nodes with a file that has the columns sn, cpu_milli, memory_mib, gpu and model")
	}
	b, err := LoadOpenB(o.Nodes, o.Trace)
	if err != nil {
		return nil, err
	}
	n := o.Seeds
	if n <= 0 {
		n = openbSeeds
	}
	seeds := make([]uint64, n)
	for i := range seeds {
		seeds[i] = o.Seed + uint64(i)
	}
	if o.Progress != nil {
		b.told = func(done, all int64) { o.Progress.Report(name, done, all, 0) }
	}
	mix := b.Mix() // as published; a cluster with the defaults knows only what it holds
	if name == "default" {
		mix = nil
	}
	rs, err := b.Run(ctx, config, mix, seeds)
	if err != nil {
		return nil, err
	}
	m := MeanOpenB(rs)
	r := &Result{Policy: name, Format: f.Name(), Curve: m.Curve}
	r.Set("alloc_80", m.Alloc80, "%")
	r.Set("alloc_100", m.Alloc100, "%")
	r.Set("alloc_130", m.Alloc130, "%")
	least, most := m.Alloc130, m.Alloc130
	for i := range rs {
		least, most = min(least, rs[i].Alloc130), max(most, rs[i].Alloc130)
	}
	r.Set("alloc_130_min", least, "%")
	r.Set("alloc_130_max", most, "%")
	r.Set("frag_of_idle_80", m.FragOfIdle80, "%")
	r.Set("frag_of_total_80", m.FragOfTotal80, "%")
	r.Set("frag_of_total_130", m.FragOfTotal130, "%")
	r.Set("jobs", float64(m.Tasks), "")
	r.Set("seeds", float64(n), "")
	r.Set("wall_s", m.Wall.Seconds(), "s")
	return r, nil
}
