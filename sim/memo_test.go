package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// State that decisions keep from pass to pass changes none of them: on a view made from scratch each pass gives the
// same plan and the same reports, and a pass over all jobs places and reserves the same.
func TestMemoChangesNothing(t *testing.T) {
	name := filepath.Join(t.TempDir(), "trace.csv")
	d := draws{11}
	text := "submit,runtime,gpus,cpus,memory,nodes,user,limit\n"
	sizes := []int{1, 1, 1, 2, 2, 3, 4, 8, 8, 16, 32}
	for i := range 500 {
		g, run := sizes[d.intn(len(sizes))], 60+d.intn(3000)
		nodes := 1
		if g > 8 {
			nodes = g / 8
		}
		text += fmt.Sprintf("%d,%d,%d,%d,%d,%d,u%d,%d\n", i*5, run, g, g*(2<<d.intn(3)), g*8192*(1+d.intn(2)), nodes, d.intn(9), run*(2+d.intn(6))/2)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for i, p := range []string{"default", "easy", "conservative", "sjf+easy", "fcfs+conservative+fgd", "priority+greedy+worst-fit", "easy"} {
		rules, err := RulesFor(p)
		if err != nil {
			t.Fatal(err)
		}
		kinds, err := ParseNodes("37x8xH100-80GiB,8x4xA100-40GiB")
		if err != nil {
			t.Fatal(err)
		}
		o := &Options{Trace: name}
		src, err := openJobs(o, rules, kinds)
		if err != nil {
			t.Fatal(err)
		}
		cfg := Config{Nodes: BuildNodes(kinds), Source: src, Whole: i >= 6}
		if err := rules.Apply(&cfg); err != nil {
			t.Fatal(err)
		}
		passes, quick := 0, 0
		again := func(e *Engine, in *scheduler.Input, before *model.View) (scheduler.Plan, scheduler.Report) {
			x := *in
			x.View = before
			x.Line = e.line(&x)
			if !e.cfg.Whole && len(x.Pending) > 1 {
				x.Line = &turns{Line: x.Line}
			}
			return scheduler.Schedule(x, e.cfg.Policy)
		}
		cfg.Hooks.Passed = func(e *Engine, in *scheduler.Input, plan *scheduler.Plan, rep *scheduler.Report) {
			var ns []*structs.Node
			var as []*structs.Allocation
			in.View.EachNode(func(n *structs.Node) bool { ns = append(ns, n); return true })
			in.View.EachAllocation(func(a *structs.Allocation) bool { as = append(as, a); return true })
			fresh := func() *model.View { return model.NewView(in.View.Index(), ns, as, e.cfg.Pools) }
			passes++
			p2, r2 := again(e, in, fresh())
			if a, b := scheduler.AppendPlan(nil, *plan), scheduler.AppendPlan(nil, p2); !bytes.Equal(a, b) {
				t.Fatalf("%s: pass %d gives another plan from scratch", p, passes)
			}
			if a, b := said(rep), said(&r2); a != b {
				t.Fatalf("%s: pass %d says\n%s\nand from scratch\n%s", p, passes, a, b)
			}
			if cfg.Whole && passes%16 != 0 {
				return
			}
			everybody := *in
			everybody.Pending = slices.Clone(in.Pending)
			for i := range everybody.Pending {
				everybody.Pending[i].Least = nil
			}
			p3, r3 := again(e, &everybody, fresh())
			quick += len(r3.Workloads) - len(rep.Workloads)
			if a, b := scheduler.AppendPlan(nil, placing(plan)), scheduler.AppendPlan(nil, placing(&p3)); !bytes.Equal(a, b) {
				t.Fatalf("%s: pass %d places or promises something else when it decides about everybody", p, passes)
			}
		}
		if err := NewEngine(cfg).Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		src.Close()
		if refused += quick; passes < 500 {
			t.Errorf("%s: only %d passes", p, passes)
		}
		t.Logf("%s: %d passes, %d workloads refused without a decision", p, passes, quick)
	}
	if refused < 1000 {
		t.Errorf("only %d workloads were refused without a decision", refused)
	}
}

// said returns the reports of a pass in words.
func said(r *scheduler.Report) string {
	text := ""
	for _, w := range r.Workloads {
		groups, err := json.Marshal(w.Groups)
		if err != nil {
			groups = []byte(err.Error())
		}
		text += fmt.Sprintln(w.Key, w.Failed, w.Passed, w.Start, string(groups))
		for _, g := range w.Groups {
			text += fmt.Sprintln(g.InPool, g.Filtered, g.Exhausted, g.Available, g.ClassFilt, g.ClassExh, g.Considered, g.Scores)
		}
	}
	return text
}

// placing returns a plan's placements and reservations.
func placing(p *scheduler.Plan) (out scheduler.Plan) {
	for _, e := range p.Entries {
		if len(e.Parts) > 0 || e.Reservation != nil {
			out.Entries = append(out.Entries, e)
		}
	}
	return out
}
