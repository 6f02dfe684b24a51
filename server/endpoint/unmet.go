package endpoint

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/structs"
)

// namesShown bounds the models or drivers that a warning names.
const namesShown = 8

// unmet returns a warning for each driver and GPU model of a job that no node has, ready or not: the job
// waits until one joins, or it has a misspelt word. A cluster without nodes has nothing to compare with.
//
// Nodes are read until all that the job asks for is seen, which is usually the first of them.
func unmet(nodes iter.Seq[*structs.Node], j *structs.Job) []string {
	var wants []want
	for _, g := range j.Groups {
		if g == nil {
			continue
		}
		for _, t := range g.Tasks {
			if t == nil {
				continue
			}
			where := fmt.Sprintf("group %q, task %q", g.Name, t.Name)
			wants = append(wants, want{where: where + ", driver", what: "the driver", name: t.Driver})
			for _, words := range modelsAsked(&t.Resources) {
				wants = append(wants, want{where: where + ", resources, gpu.model", what: "a GPU of model", name: words, model: true})
			}
		}
	}
	return unmetOf(nodes, wants)
}

// unknownModels returns a warning for each limit of a GPU model that no node has: it may be misspelt.
func unknownModels(nodes iter.Seq[*structs.Node], of string, limits []structs.ModelAmount) []string {
	wants := make([]want, len(limits))
	for i, l := range limits {
		wants[i] = want{where: of, what: "a GPU of model", name: l.Model, model: true, then: "the limit holds for none until a node has it"}
	}
	return unmetOf(nodes, wants)
}

func unmetOf(nodes iter.Seq[*structs.Node], wants []want) []string {
	drivers, models := map[string]bool{}, map[string]bool{}
	open := len(wants)
	if open == 0 {
		return nil
	}
	for n := range nodes {
		for name, d := range n.Drivers {
			if d.Detected {
				drivers[name] = true
			}
		}
		for _, d := range n.Resources.Devices {
			if d.Type == "gpu" {
				models[d.Name] = true
			}
		}
		for i := range wants {
			if w := &wants[i]; !w.met && w.meets(n) {
				w.met = true
				open--
			}
		}
		if open == 0 {
			return nil
		}
	}
	if len(drivers) == 0 {
		return nil
	}
	var out []string
	for _, w := range wants {
		if w.met {
			continue
		}
		have := drivers
		if w.model {
			have = models
		}
		out = append(out, w.warning(slices.Sorted(maps.Keys(have))))
	}
	return out
}

// want is a driver or a GPU model that a task asks for.
type want struct {
	where, what, name string
	then              string // what follows if no node has it; "": the job waits
	model, met        bool
}

func (w *want) meets(n *structs.Node) bool {
	if w.model {
		return slices.ContainsFunc(n.Resources.Devices, func(d structs.DeviceGroup) bool { return d.Type == "gpu" && structs.IsModel(d.Name, w.name) })
	}
	d := n.Drivers[w.name]
	return d != nil && d.Detected
}

func (w *want) warning(have []string) string {
	words := slices.Clone(have)
	if w.model { // a request names a word of the model: H100 of "NVIDIA H100 80GB HBM3"
		words = nil
		for _, name := range have {
			words = append(words, strings.Fields(name)...)
		}
	}
	near := ""
	for part := range strings.SplitSeq(w.name, "|") {
		near = cmp.Or(near, suggest.DidYouMean(part, words))
	}
	known := "no node has one"
	if len(have) > namesShown {
		known = fmt.Sprintf("nodes have %s and %d more", strings.Join(have[:namesShown], ", "), len(have)-namesShown)
	} else if len(have) > 0 {
		known = "nodes have " + strings.Join(have, ", ")
	}
	return fmt.Sprintf("%s: no node has %s %q%s (%s); %s", w.where, w.what, w.name, near, known, cmp.Or(w.then, "the job waits for a node that has it"))
}

// modelsAsked returns the models of a task's GPUs, in both forms that a request has.
func modelsAsked(r *structs.Resources) (out []string) {
	for i := range r.GPU {
		if m := r.GPU[i].Model; m != "" {
			out = append(out, m)
		}
	}
	for _, d := range r.Devices {
		for _, c := range d.Constraints {
			if m := structs.ModelWords(c.RTarget); m != "" && c.LTarget == structs.ModelTarget && c.Operand == structs.OperandRegexp {
				out = append(out, m)
			}
		}
	}
	return out
}
