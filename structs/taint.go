package structs

import (
	"slices"
	"strings"
)

// Taint keeps jobs off a node that do not tolerate it. It is written in the node's meta: "taint.KEY" = "VALUE:EFFECT". An
// effect that is missing or unknown counts as no-schedule.
type Taint struct {
	Key, Value, Effect string
}

// TaintPrefix starts the keys of a node's meta that are taints.
const TaintPrefix = "taint."

// Taints of a node, by key.
func (n *Node) Taints() []Taint {
	var out []Taint
	for k, v := range n.Meta {
		key, ok := strings.CutPrefix(k, TaintPrefix)
		if !ok {
			continue
		}
		t := Taint{Key: key, Value: v, Effect: TaintNoSchedule}
		if i := strings.LastIndexByte(v, ':'); i >= 0 {
			t.Value = v[:i]
			if v[i+1:] == TaintPreferNoSchedule {
				t.Effect = TaintPreferNoSchedule
			}
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b Taint) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// String gives "KEY=VALUE:EFFECT".
func (t Taint) String() string { return t.Key + "=" + t.Value + ":" + t.Effect }

// Tolerated reports whether one of a job's tolerations accepts the taint.
func (t Taint) Tolerated(by []Toleration) bool {
	return slices.ContainsFunc(by, func(o Toleration) bool {
		return (o.Key == "" || o.Key == t.Key) && (o.Value == "" || o.Value == t.Value) && (o.Effect == "" || o.Effect == t.Effect)
	})
}
