package endpoint

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/structs"
)

// namesShown bounds the models or drivers that a warning names.
const namesShown = 8

// unmet returns a warning for each driver, GPU model and attribute that a job asks for and that no node has, ready or not, and
// for datacenters without a node: the job waits until one joins, or it has a misspelt word. A cluster without nodes has nothing to
// compare with.
//
// Nodes are read until all that the job asks for is seen, which is usually the first of them.
func unmet(nodes iter.Seq[*structs.Node], j *structs.Job) []string {
	wants := []want{{kind: wantDatacenter, where: "datacenters", name: strings.Join(j.Datacenters, "|"), then: "the job waits for a node there", job: j}}
	wants = append(wants, attributesAsked("", j.Constraints, j.Affinities, j.Spreads)...)
	for _, g := range j.Groups {
		if g == nil {
			continue
		}
		where := fmt.Sprintf("group %q, ", g.Name)
		wants = append(wants, attributesAsked(where, g.Constraints, g.Affinities, g.Spreads)...)
		for _, t := range g.Tasks {
			if t == nil {
				continue
			}
			where := where + fmt.Sprintf("task %q, ", t.Name)
			wants = append(wants, want{kind: wantDriver, where: where + "driver", name: t.Driver})
			for _, words := range modelsAsked(&t.Resources) {
				wants = append(wants, want{kind: wantModel, where: where + "resources, gpu.model", name: words})
			}
			wants = append(wants, attributesAsked(where, t.Constraints, t.Affinities, nil)...)
		}
	}
	return unmetOf(nodes, wants)
}

// attributesAsked returns the attributes of nodes that rules need. A constraint that holds on nodes without one needs none.
func attributesAsked(where string, cs []structs.Constraint, as []structs.Affinity, sp []structs.Spread) (wants []want) {
	add := func(rule string, i int, target, then string) {
		if strings.HasPrefix(target, "${attr.") || strings.HasPrefix(target, "${meta.") {
			wants = append(wants, want{kind: wantAttribute, where: fmt.Sprintf("%s%s %d", where, rule, i+1), name: target, then: then})
		}
	}
	const idle = "it does nothing until a node has it"
	for i, c := range cs {
		switch c.Operand {
		case structs.OperandNotEqual, "not", structs.OperandIsNotSet:
			continue
		}
		add("constraint", i, c.LTarget, "")
		add("constraint", i, c.RTarget, "")
	}
	for i, a := range as {
		add("affinity", i, a.LTarget, idle)
	}
	for i, s := range sp {
		add("spread", i, s.Attribute, idle)
	}
	return wants
}

// unknownModels returns a warning for each limit of a GPU model that no node has: it may be misspelt.
func unknownModels(nodes iter.Seq[*structs.Node], of string, limits []structs.ModelAmount) []string {
	wants := make([]want, len(limits))
	for i, l := range limits {
		wants[i] = want{kind: wantModel, where: of, name: l.Model, then: "the limit holds for none until a node has it"}
	}
	return unmetOf(nodes, wants)
}

func unmetOf(nodes iter.Seq[*structs.Node], wants []want) []string {
	open := len(wants)
	if open == 0 {
		return nil
	}
	for n := range nodes {
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
	wants = slices.DeleteFunc(wants, func(w want) bool { return w.met })
	have := [wantKinds]map[string]bool{wantDriver: {}} // nodes without a driver are no cluster yet
	for i := range wants {
		have[wants[i].kind] = map[string]bool{}
	}
	for n := range nodes {
		for kind, names := range have {
			if names != nil {
				offered(n, wantKind(kind), names)
			}
		}
	}
	if len(have[wantDriver]) == 0 {
		return nil
	}
	var out []string
	for _, w := range wants {
		out = append(out, w.warning(slices.Sorted(maps.Keys(have[w.kind]))))
	}
	return out
}

// wantKind is a kind of thing that a job asks nodes for.
type wantKind int

const (
	wantDriver wantKind = iota
	wantModel
	wantDatacenter
	wantAttribute
	wantKinds
)

// offered adds what a node has of a kind to names.
func offered(n *structs.Node, kind wantKind, names map[string]bool) {
	switch kind {
	case wantDriver:
		for name, d := range n.Drivers {
			if d.Detected {
				names[name] = true
			}
		}
	case wantModel:
		for _, d := range n.Resources.Devices {
			if d.Type == "gpu" {
				names[d.Name] = true
			}
		}
	case wantDatacenter:
		names[n.Datacenter] = true
	case wantAttribute:
		for key := range n.Attributes {
			names["${attr."+key+"}"] = true
		}
		for key := range n.Meta {
			names["${meta."+key+"}"] = true
		}
	}
}

// want is something that a job asks a node for.
type want struct {
	kind        wantKind
	where, name string       // name may be alternatives, divided by |
	then        string       // what follows if no node has it; "": the job waits
	job         *structs.Job // of wantDatacenter
	met         bool
}

func (w *want) meets(n *structs.Node) bool {
	switch w.kind {
	case wantModel:
		return slices.ContainsFunc(n.Resources.Devices, func(d structs.DeviceGroup) bool { return d.Type == "gpu" && structs.IsModel(d.Name, w.name) })
	case wantDatacenter:
		return match.InDatacenter(w.job, n)
	case wantAttribute:
		_, found := match.Resolve(w.name, n)
		return found
	}
	d := n.Drivers[w.name]
	return d != nil && d.Detected
}

func (w *want) warning(have []string) string {
	words := slices.Clone(have)
	if w.kind == wantModel { // a request names a word of the model: H100 of "NVIDIA H100 80GB HBM3"
		words = nil
		for _, name := range have {
			words = append(words, strings.Fields(name)...)
		}
	}
	near := ""
	if w.kind == wantAttribute {
		words, near = nil, nearAttribute(w.name, have)
	}
	for part := range strings.SplitSeq(w.name, "|") {
		near = cmp.Or(near, suggest.DidYouMean(part, words))
	}
	what := [wantKinds]string{"no node has the driver", "no node has a GPU of model", "no node is in the datacenter", "no node has the attribute"}[w.kind]
	known, has := "no node has one", "nodes have "
	if w.kind == wantDatacenter {
		has = "nodes are in "
	}
	switch {
	case w.kind == wantAttribute: // a node has dozens
		known = "muster node status -verbose NODE lists a node's attributes"
	case len(have) > namesShown:
		known = fmt.Sprintf("%s%s and %d more", has, strings.Join(have[:namesShown], ", "), len(have)-namesShown)
	case len(have) > 0:
		known = has + strings.Join(have, ", ")
	}
	return fmt.Sprintf("%s: %s %q%s (%s); %s", w.where, what, w.name, near, known, cmp.Or(w.then, "the job waits for a node that has it"))
}

// nearAttribute suggests one of the attributes have for name. Only the keys are compared: all names begin alike.
func nearAttribute(name string, have []string) string {
	key := func(name string) string {
		_, after, _ := strings.Cut(name, ".") // of "${attr." or "${meta."
		return strings.TrimSuffix(after, "}")
	}
	full, keys := map[string]string{}, make([]string, 0, len(have))
	for _, h := range have {
		full[key(h)] = h
		keys = append(keys, key(h))
	}
	if n := suggest.Nearest(key(name), keys); n != "" {
		return fmt.Sprintf("; did you mean %q?", full[n])
	}
	return ""
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
