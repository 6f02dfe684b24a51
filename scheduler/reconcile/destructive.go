package reconcile

import (
	"maps"
	"reflect"
	"slices"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/structs"
)

// Destructive reports whether a group changed between two versions of a job in a way that running allocations cannot
// adopt: its tasks must be started again. Everything is destructive except what plainGroup and plainTask list (and, of
// the job, everything but its meta): those fields only affect the servers, or the agent applies them while tasks run.
// Constraints are not destructive either, but the node must still satisfy them. Those on ${device.ids} are: an allocation
// keeps the devices that it has.
func Destructive(before, after *structs.Job, group structs.GroupName) bool {
	a, b := before.Group(group), after.Group(group)
	if a == nil || b == nil {
		return true
	}
	if !sameMeta(before.Meta, after.Meta) || !sameArray(before.Array, after.Array) {
		return true
	}
	if !slices.Equal(match.DeviceConstraints(before.Constraints), match.DeviceConstraints(after.Constraints)) {
		return true
	}
	if !sameDeep(reflect.ValueOf(before.Affinities), reflect.ValueOf(after.Affinities)) ||
		!sameDeep(reflect.ValueOf(before.Spreads), reflect.ValueOf(after.Spreads)) {
		return true
	}
	return !sameSilence(a, b) || !sameDeep(reflect.ValueOf(plainGroup(a)), reflect.ValueOf(plainGroup(b)))
}

// sameSilence reports whether tasks of both groups run equally long on a silent node. A node that falls silent goes by
// the version that it last heard of, so that the servers cannot change the time of a running task.
func sameSilence(a, b *structs.Group) bool {
	la, _ := a.StopOnClient()
	lb, _ := b.StopOnClient()
	wa, oka := a.RunsSilent()
	wb, okb := b.RunsSilent()
	return oka == okb && la == lb && wa == wb
}

// plainGroup returns a group without what may change in place.
func plainGroup(g *structs.Group) structs.Group {
	p := *g
	p.Count = 0
	p.Constraints = match.DeviceConstraints(g.Constraints)
	p.Restart = structs.Restart{}
	p.Reschedule = structs.Reschedule{}
	p.Update = nil
	p.Migrate = nil
	p.Disconnect = nil
	p.Scaling = nil
	if g.Gang != nil {
		p.Gang = &structs.Gang{} // whether it is a gang changes what tasks are given; the rest is for the servers
	}
	p.Elastic = nil
	p.Topology = nil
	p.Near, p.Away = nil, nil
	p.Joint = false
	p.Services = nil
	p.ShutdownDelay = 0
	p.MaxRunDuration = 0
	p.MaxClientDisc = nil
	p.StopAfterDisc = nil
	p.PreventLostResch = false
	p.Elastic = nil
	p.Meta = plainMeta(g.Meta)
	if p.Gang != nil { // whether it is a gang needs a restart; sizes and times only matter to the scheduler
		p.Gang = &structs.Gang{}
	}
	if c := p.Checkpoint; c != nil { // the agent reads it when it gives notice; tasks only know the place
		p.Checkpoint = &structs.Checkpoint{Dir: c.Dir}
	}
	p.Tasks = make([]*structs.Task, len(g.Tasks))
	for i, t := range g.Tasks {
		q := plainTask(t)
		p.Tasks[i] = &q
	}
	return p
}

// plainTask returns a task without what may change in place.
func plainTask(t *structs.Task) structs.Task {
	q := *t
	q.Meta = plainMeta(t.Meta)
	q.Constraints = match.DeviceConstraints(t.Constraints)
	q.Restart = nil
	q.Services = nil
	q.ScalingPolicies = nil
	q.Actions = nil
	q.KillTimeout = 0
	q.ShutdownDelay = 0
	return q
}

// plainMeta returns a meta without the keys of our extensions (the job has them as fields, which are compared).
func plainMeta(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m { // the result does not depend on the order
		if !structs.IsExtensionKey(k) {
			out[k] = v
		}
	}
	return out
}

func sameMeta(a, b map[string]string) bool { return maps.Equal(plainMeta(a), plainMeta(b)) }

// sameArray reports whether the allocations of one array may continue as another's: each keeps its parameters. The
// count and the cap may differ.
func sameArray(a, b *structs.Array) bool {
	if a == nil || b == nil {
		return a == b
	}
	n := min(a.Count, b.Count)
	return maps.EqualFunc(a.Params, b.Params, func(x, y []string) bool {
		return slices.Equal(x[:min(n, len(x))], y[:min(n, len(y))])
	})
}

// sameDeep is reflect.DeepEqual, except that an empty slice or map equals nil.
func sameDeep(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		return a.Pointer() == b.Pointer() || sameDeep(a.Elem(), b.Elem())
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !sameDeep(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Map:
		if a.Len() != b.Len() {
			return false
		}
		for _, k := range a.MapKeys() { // the result does not depend on the order
			y := b.MapIndex(k)
			if !y.IsValid() || !sameDeep(a.MapIndex(k), y) {
				return false
			}
		}
		return true
	case reflect.Struct:
		for i := range a.NumField() {
			if !sameDeep(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	}
	return a.Interface() == b.Interface()
}
