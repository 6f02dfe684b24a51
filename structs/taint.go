package structs

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Taint keeps jobs that do not tolerate it off a node. An operator sets it (Node.Tainted), or it is in the node's meta:
// "taint.KEY" = "VALUE:EFFECT", where a missing or unknown effect counts as no-schedule.
type Taint struct {
	Key, Value, Effect string
	Since              LogTime // when it was set; 0 for one in meta
}

// TaintPrefix starts the keys of a node's meta that are taints.
const TaintPrefix = "taint."

// Limits of taints.
const (
	TaintsMax    = 32  // set on one node
	taintTextMax = 128 // bytes of a key, and of a value
)

// Check returns an error if the taint is invalid.
func (t Taint) Check() *Error {
	odd := func(s string) bool {
		return len(s) > taintTextMax || strings.ContainsFunc(s, func(c rune) bool {
			return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-' || c == '/')
		})
	}
	switch {
	case t.Key == "" || odd(t.Key) || odd(t.Value):
		return Errorf(CodeInvalid, "taint %.160q: a key and a value are of letters, digits and . _ - /, at most %d bytes; the key is not empty", t.Key+"="+t.Value, taintTextMax)
	case t.Effect != TaintNoSchedule && t.Effect != TaintPreferNoSchedule && t.Effect != TaintNoExecute:
		return Errorf(CodeInvalid, "taint %q: effect %.40q is not known; use %s, %s or %s", t.Key, t.Effect, TaintNoSchedule, TaintPreferNoSchedule, TaintNoExecute)
	}
	return nil
}

// Taints returns the taints of a node, sorted by key and effect: those that operators set, and those in its meta.
func (n *Node) Taints() []Taint {
	out := slices.Clone(n.Tainted)
	for k, v := range n.Meta {
		key, ok := strings.CutPrefix(k, TaintPrefix)
		if !ok {
			continue
		}
		t := Taint{Key: key, Value: v, Effect: TaintNoSchedule}
		if i := strings.LastIndexByte(v, ':'); i >= 0 {
			t.Value = v[:i]
			if e := v[i+1:]; e == TaintPreferNoSchedule || e == TaintNoExecute {
				t.Effect = e
			}
		}
		if !slices.ContainsFunc(n.Tainted, t.same) {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, compareTaints)
	return out
}

func compareTaints(a, b Taint) int {
	return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Effect, b.Effect))
}

// same reports whether both have the same key and effect: a node has one such taint.
func (t Taint) same(o Taint) bool { return t.Key == o.Key && t.Effect == o.Effect }

// Retaint returns the taints set on a node after removing some and adding others. An entry of remove without effect
// removes all taints of its key.
func (n *Node) Retaint(add, remove []Taint, now LogTime) ([]Taint, *Error) {
	out := slices.Clone(n.Tainted)
	for _, r := range remove {
		was := len(out)
		out = slices.DeleteFunc(out, func(t Taint) bool { return t.Key == r.Key && (r.Effect == "" || r.Effect == t.Effect) })
		if len(out) < was {
			continue
		}
		if _, in := n.Meta[TaintPrefix+r.Key]; in {
			return nil, Errorf(CodeInvalid, "taint %q of node %q is in the node's meta; take it off with  muster node meta apply -unset %s%s", r.Key, n.Name, TaintPrefix, r.Key)
		}
		return nil, Errorf(CodeNotFound, "node %q has no taint %q", n.Name, strings.TrimSuffix(r.Key+":"+r.Effect, ":"))
	}
	for _, t := range add {
		if err := t.Check(); err != nil {
			return nil, err
		}
		t.Since = now
		if i := slices.IndexFunc(out, t.same); i < 0 {
			out = append(out, t)
		} else if out[i].Value != t.Value {
			out[i] = t
		}
	}
	if len(out) > TaintsMax {
		return nil, Errorf(CodeInvalid, "node %q would have %d taints; it may have %d", n.Name, len(out), TaintsMax)
	}
	slices.SortFunc(out, compareTaints)
	return out, nil
}

// String returns "KEY=VALUE:EFFECT".
func (t Taint) String() string { return t.Key + "=" + t.Value + ":" + t.Effect }

// Tolerated reports whether one of a job's tolerations accepts the taint, so that the job may be placed there. A
// toleration that only lets work stay for a while (Toleration.For) does not.
func (t Taint) Tolerated(by []Toleration) bool {
	return slices.ContainsFunc(by, func(o Toleration) bool {
		return o.matches(t) && (t.Effect != TaintNoExecute || o.For == 0)
	})
}

func (o *Toleration) matches(t Taint) bool {
	return (o.Key == "" || o.Key == t.Key) && (o.Value == "" || o.Value == t.Value) && (o.Effect == "" || o.Effect == t.Effect)
}

// Leave returns when work with these tolerations has to leave a node with the taint: 0 for never, else a time that may
// have passed. A taint in meta has no time, so no work may stay for a while.
func (t Taint) Leave(by []Toleration) LogTime {
	if t.Effect != TaintNoExecute || t.Tolerated(by) {
		return 0
	}
	longest := time.Duration(0)
	for i := range by {
		if by[i].matches(t) {
			longest = max(longest, by[i].For)
		}
	}
	if t.Since == 0 {
		longest = 0
	}
	return max(1, t.Since.Add(longest))
}
