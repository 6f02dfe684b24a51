// Package jobdiff compares two versions of a job and returns the differences in the shape that Nomad's clients print:
// fields, objects, groups and tasks, each added, deleted, edited or unchanged. Names are those of Nomad's job model.
// The comparison walks the structs by reflection, so that a new field is compared without being listed here.
package jobdiff

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/structs"
)

// Values of a Type field.
const (
	None    = "None"
	Added   = "Added"
	Deleted = "Deleted"
	Edited  = "Edited"
)

// Job is the difference between two versions of a job. It encodes to the JSON that Nomad's clients read.
type Job struct {
	Type       string
	ID         string
	Fields     []*Field
	Objects    []*Object
	TaskGroups []*Group
}

// Group is the difference of one group. Updates counts what the change does to allocations (see Annotate).
type Group struct {
	Type    string
	Name    string
	Fields  []*Field
	Objects []*Object
	Tasks   []*Task
	Updates map[string]uint64
}

// Task is the difference of one task.
type Task struct {
	Type        string
	Name        string
	Fields      []*Field
	Objects     []*Object
	Annotations []string
}

// Object is the difference of a block.
type Object struct {
	Type    string
	Name    string
	Fields  []*Field
	Objects []*Object
}

// Field is the difference of one value. Durations are in nanoseconds.
type Field struct {
	Type        string
	Name        string
	Old, New    string
	Annotations []string
}

// Diff compares two versions; either may be nil, not both. With contextual, the result includes unchanged fields of
// changed blocks, and unchanged groups and tasks by their names. As in Nomad, whose clients print all of it, it never
// includes unchanged blocks, nor unchanged fields of the job, a group or a task.
func Diff(before, after *structs.Job, contextual bool) (*Job, error) {
	if before == nil && after == nil {
		return nil, structs.Errorf(structs.CodeInvalid, "there is no job to compare")
	}
	if before != nil && after != nil && before.ID != after.ID {
		return nil, structs.Errorf(structs.CodeInvalid, "cannot compare job %q with job %q: they are different jobs", before.ID, after.ID)
	}
	w := walker{contextual}
	d := &Job{Type: kindOf(before == nil, after == nil)}
	if after != nil {
		d.ID = after.ID
	} else {
		d.ID = before.ID
	}
	d.Fields, d.Objects = w.whole(valueOf(before), valueOf(after), jobSkip)
	var old, new []*structs.Group
	if before != nil {
		old = before.Groups
	}
	if after != nil {
		new = after.Groups
	}
	pair(old, new, func(g *structs.Group) string { return string(g.Name) }, func(name string, a, b *structs.Group) {
		if g := w.group(name, a, b); g.Type != None || contextual {
			d.TaskGroups = append(d.TaskGroups, g)
		}
	})
	if d.Type == Edited && !changed(d.Fields, d.Objects) && !slices.ContainsFunc(d.TaskGroups, func(g *Group) bool { return g.Type != None }) {
		d.Type = None
	}
	return d, nil
}

// JSON is Diff as JSON.
func JSON(before, after *structs.Job, contextual bool) ([]byte, error) {
	d, err := Diff(before, after, contextual)
	if err != nil {
		return nil, err
	}
	return json.Marshal(d)
}

// walker compares values by reflection.
type walker struct{ contextual bool }

// jobSkip are fields that are not part of a job's specification, or are compared elsewhere.
var jobSkip = map[string]bool{"ID": true, "Groups": true, "Payload": true, "ConsulToken": true, "VaultToken": true, "Stable": true, "Version": true,
	"VersionTag": true, "SubmitTime": true, "Submitter": true, "Status": true, "StatusDesc": true, "UpdateFailed": true, "CreateIndex": true, "ModifyIndex": true, "SpecIndex": true}

var groupSkip = map[string]bool{"Name": true, "Tasks": true}
var taskSkip = map[string]bool{"Name": true}

// objectSkip are fields of blocks that are derived from others.
var objectSkip = map[string]bool{"Checked": true}

// names are Nomad's names where they differ from ours: by "Type.Field", else by "Field".
var names = map[string]string{
	"Constraints": "Constraint", "Affinities": "Affinity", "Spreads": "Spread", "Parameterized": "ParameterizedJob",
	"DispatchIdempotencyToken": "DispatchIdempotencyToken", "Disk": "EphemeralDisk", "SizeMiB": "SizeMB",
	"Group.Restart": "RestartPolicy", "Task.Restart": "RestartPolicy", "Reschedule": "ReschedulePolicy", "Migrate": "MigrateStrategy",
	"EphemeralDisk.Migrate": "Migrate", "Networks": "Network", "StaticPorts": "Static Port", "DynamicPorts": "Dynamic Port",
	"Volumes": "Volume", "Services": "Service", "MaxClientDisc": "MaxClientDisconnect", "StopAfterDisc": "StopAfterClientDisconnect",
	"PreventLostResch": "PreventRescheduleOnLost", "MemoryMiB": "MemoryMB", "MemoryMaxMiB": "MemoryMaxMB", "DiskMiB": "DiskMB", "SecretsMiB": "SecretsMB",
	"Devices": "Device", "Logs": "LogConfig", "Templates": "Template", "Artifacts": "Artifact", "VolumeMounts": "VolumeMount",
	"Identities": "Identity", "Actions": "Action", "ScalingPolicies": "Scaling", "Targets": "SpreadTarget", "PortLabel": "PortLabel",
	"Specs": "Spec", "Links": "Link", "Depends": "DependsOn", "JobID": "Job", "ShmMiB": "ShmMB", "Tolerations": "Toleration",
}

func nameOf(t reflect.Type, field string) string {
	if n, ok := names[t.Name()+"."+field]; ok {
		return n
	}
	if n, ok := names[field]; ok {
		return n
	}
	return field
}

func kindOf(isNew, isGone bool) string {
	switch {
	case isNew:
		return Added
	case isGone:
		return Deleted
	}
	return Edited
}

func valueOf[T any](p *T) reflect.Value {
	if p == nil {
		return reflect.Value{}
	}
	return reflect.ValueOf(p).Elem()
}

// pair calls f for every key of either list, in key order.
func pair[T any](old, new []*T, key func(*T) string, f func(key string, a, b *T)) {
	m := make(map[string][2]*T)
	for _, x := range old {
		m[key(x)] = [2]*T{x, nil}
	}
	for _, x := range new {
		p := m[key(x)]
		p[1] = x
		m[key(x)] = p
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		f(k, m[k][0], m[k][1])
	}
}

func (w walker) group(name string, a, b *structs.Group) *Group {
	g := &Group{Type: kindOf(a == nil, b == nil), Name: name}
	g.Fields, g.Objects = w.whole(valueOf(a), valueOf(b), groupSkip)
	var old, new []*structs.Task
	if a != nil {
		old = a.Tasks
	}
	if b != nil {
		new = b.Tasks
	}
	pair(old, new, func(t *structs.Task) string { return t.Name }, func(name string, a, b *structs.Task) {
		t := &Task{Type: kindOf(a == nil, b == nil), Name: name}
		t.Fields, t.Objects = w.whole(valueOf(a), valueOf(b), taskSkip)
		if t.Type == Edited && !changed(t.Fields, t.Objects) {
			t.Type = None
		}
		if t.Type != None || w.contextual {
			g.Tasks = append(g.Tasks, t)
		}
	})
	if g.Type == Edited && !changed(g.Fields, g.Objects) && !slices.ContainsFunc(g.Tasks, func(t *Task) bool { return t.Type != None }) {
		g.Type = None
	}
	return g
}

func changed(fs []*Field, os []*Object) bool {
	return slices.ContainsFunc(fs, func(f *Field) bool { return f.Type != None }) || slices.ContainsFunc(os, func(o *Object) bool { return o.Type != None })
}

// whole compares two jobs, groups or tasks, whose unchanged fields are never shown.
func (w walker) whole(a, b reflect.Value, skip map[string]bool) ([]*Field, []*Object) {
	fields, objects := w.block(a, b, skip)
	return slices.DeleteFunc(fields, func(f *Field) bool { return f.Type == None }), objects
}

// block compares two structs of one type; an invalid value means that the struct is absent on that side.
func (w walker) block(a, b reflect.Value, skip map[string]bool) ([]*Field, []*Object) {
	t := a
	if !t.IsValid() {
		t = b
	}
	typ := t.Type()
	old, new := make(map[string]string), make(map[string]string)
	var objects []*Object
	for i := range typ.NumField() {
		f := typ.Field(i)
		if skip[f.Name] {
			continue
		}
		name := nameOf(typ, f.Name)
		x, y := field(a, i), field(b, i)
		if fs := flat(name, f.Type, x, old); !fs {
			objects = append(objects, w.nested(name, f.Type, x, y)...)
			continue
		}
		flat(name, f.Type, y, new)
	}
	slices.SortStableFunc(objects, func(x, y *Object) int { return strings.Compare(x.Name, y.Name) })
	return w.fields(old, new), objects
}

func field(v reflect.Value, i int) reflect.Value {
	if !v.IsValid() {
		return v
	}
	return v.Field(i)
}

var (
	rawType  = reflect.TypeFor[structs.RawConfig]()
	timeType = reflect.TypeFor[structs.LogTime]()
)

// listShown is how many values of an array's parameter are shown; of longer lists only the number and a sum.
const listShown = 16

// flat writes a value that is shown as one or more fields; it reports false for one that is shown as objects.
func flat(name string, t reflect.Type, v reflect.Value, into map[string]string) bool {
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64, reflect.Uint64:
		if t == timeType {
			if v.IsValid() && v.Int() != 0 {
				into[name] = structs.LogTime(v.Int()).Time().Format(time.RFC3339Nano)
			}
			return true
		}
		if v.IsValid() {
			into[name] = text(v)
		}
		return true
	case reflect.Pointer:
		if k := t.Elem().Kind(); k == reflect.Struct {
			return false
		}
		if v.IsValid() && !v.IsNil() {
			into[name] = text(v.Elem())
		}
		return true
	case reflect.Map:
		if v.IsValid() {
			for it := v.MapRange(); it.Next(); {
				s := text(it.Value())
				if l := it.Value(); l.Kind() == reflect.Slice && l.Len() > listShown {
					sum := fnv.New64a()
					_, _ = sum.Write([]byte(s))
					s = fmt.Sprintf("%d values, sum %016x", l.Len(), sum.Sum64())
				}
				into[name+"["+it.Key().String()+"]"] = s
			}
		}
		return true
	case reflect.Slice:
		if t != rawType && t.Elem().Kind() == reflect.Uint8 {
			if v.IsValid() && v.Len() > 0 {
				into[name] = strconv.Itoa(v.Len()) + " bytes"
			}
			return true
		}
	}
	return false
}

func text(v reflect.Value) string {
	if v.CanInt() { // durations as nanoseconds, as Nomad shows them
		return strconv.FormatInt(v.Int(), 10)
	}
	return fmt.Sprint(v.Interface())
}

// fields compares two sets of named values.
func (w walker) fields(old, new map[string]string) []*Field {
	var keys []string
	for k := range old {
		keys = append(keys, k)
	}
	for k := range new {
		if _, have := old[k]; !have {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	var out []*Field
	for _, k := range keys {
		a, hadOld := old[k]
		b, hasNew := new[k]
		f := &Field{Name: k, Old: a, New: b}
		switch {
		case a == b && hadOld == hasNew, a == "" && b == "":
			f.Type = None
		case !hadOld || a == "":
			f.Type = Added
		case !hasNew || b == "":
			f.Type = Deleted
		default:
			f.Type = Edited
		}
		if f.Type == None && (!w.contextual || a == "") {
			continue
		}
		out = append(out, f)
	}
	return out
}

// nested compares what is shown as objects: structs, lists of structs, texts or numbers, and foreign blocks.
func (w walker) nested(name string, t reflect.Type, a, b reflect.Value) []*Object {
	switch {
	case t == rawType:
		return one(w.raw(name, a, b))
	case t.Kind() == reflect.Pointer:
		return one(w.object(name, deref(a), deref(b)))
	case t.Kind() == reflect.Struct:
		return one(w.object(name, a, b))
	case t.Kind() == reflect.Slice && (t.Elem().Kind() == reflect.String || t.Elem().Kind() == reflect.Int64):
		return one(w.texts(name, a, b))
	case t.Kind() == reflect.Slice:
		return w.list(name, a, b)
	}
	return nil
}

func one(o *Object) []*Object {
	if o == nil {
		return nil
	}
	return []*Object{o}
}

func deref(v reflect.Value) reflect.Value {
	if !v.IsValid() || v.IsNil() {
		return reflect.Value{}
	}
	return v.Elem()
}

func (w walker) object(name string, a, b reflect.Value) *Object {
	if !a.IsValid() && !b.IsValid() {
		return nil
	}
	o := &Object{Type: kindOf(!a.IsValid(), !b.IsValid()), Name: name}
	o.Fields, o.Objects = w.block(a, b, objectSkip)
	if raw := rawOf(a, b); raw != nil {
		o.Fields = append(o.Fields, raw.diff(w)...)
		slices.SortStableFunc(o.Fields, func(x, y *Field) int { return strings.Compare(x.Name, y.Name) })
		o.Objects = slices.DeleteFunc(o.Objects, func(x *Object) bool { return x.Name == "Raw" })
	}
	if o.Type == Edited && !changed(o.Fields, o.Objects) {
		return nil
	}
	return o
}

// foreign is a block of another system's schema, inside one of ours.
type foreign struct{ old, new map[string]string }

func rawOf(a, b reflect.Value) *foreign {
	v := a
	if !v.IsValid() {
		v = b
	}
	if f, ok := v.Type().FieldByName("Raw"); !ok || f.Type != rawType {
		return nil
	}
	f := &foreign{map[string]string{}, map[string]string{}}
	if a.IsValid() {
		flattenJSON(a.FieldByName("Raw").Bytes(), f.old)
	}
	if b.IsValid() {
		flattenJSON(b.FieldByName("Raw").Bytes(), f.new)
	}
	delete(f.old, "Name")
	delete(f.new, "Name")
	delete(f.old, "PortLabel")
	delete(f.new, "PortLabel")
	return f
}

func (f *foreign) diff(w walker) []*Field { return w.fields(f.old, f.new) }

func (w walker) raw(name string, a, b reflect.Value) *Object {
	old, new := map[string]string{}, map[string]string{}
	hasOld, hasNew := a.IsValid() && a.Len() > 0, b.IsValid() && b.Len() > 0
	if !hasOld && !hasNew {
		return nil
	}
	if hasOld {
		flattenJSON(a.Bytes(), old)
	}
	if hasNew {
		flattenJSON(b.Bytes(), new)
	}
	o := &Object{Type: kindOf(!hasOld, !hasNew), Name: name, Fields: w.fields(old, new)}
	if o.Type == Edited && !changed(o.Fields, nil) {
		return nil
	}
	return o
}

// flattenJSON writes every leaf of a JSON text under a name like "args[0]" or "labels.tier".
func flattenJSON(raw []byte, into map[string]string) {
	var v any
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	if len(raw) == 0 || d.Decode(&v) != nil {
		return
	}
	flattenValue("", v, into)
}

func flattenValue(name string, v any, into map[string]string) {
	switch x := v.(type) {
	case map[string]any:
		for k, y := range x {
			key := k
			if name != "" {
				key = name + "." + k
			}
			flattenValue(key, y, into)
		}
	case []any:
		for i, y := range x {
			flattenValue(fmt.Sprintf("%s[%d]", name, i), y, into)
		}
	case nil:
	default:
		into[name] = fmt.Sprint(x)
	}
}

// texts compares lists of texts or numbers as sets.
func (w walker) texts(name string, a, b reflect.Value) *Object {
	list := func(v reflect.Value) []string {
		var out []string
		if v.IsValid() {
			for i := range v.Len() {
				out = append(out, text(v.Index(i)))
			}
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	old, new := list(a), list(b)
	o := &Object{Name: name}
	for _, s := range old {
		switch {
		case !slices.Contains(new, s):
			o.Fields = append(o.Fields, &Field{Type: Deleted, Name: name, Old: s})
		case w.contextual:
			o.Fields = append(o.Fields, &Field{Type: None, Name: name, Old: s, New: s})
		}
	}
	for _, s := range new {
		if !slices.Contains(old, s) {
			o.Fields = append(o.Fields, &Field{Type: Added, Name: name, New: s})
		}
	}
	switch {
	case !changed(o.Fields, nil):
		return nil
	case len(old) == 0:
		o.Type = Added
	case len(new) == 0:
		o.Type = Deleted
	default:
		o.Type = Edited
	}
	return o
}

// list compares lists of structs. Elements with a name are compared with the element of the same name; others are equal
// or not.
func (w walker) list(name string, a, b reflect.Value) []*Object {
	type entry struct{ old, new reflect.Value }
	m := make(map[string]*entry)
	var keys []string
	collect := func(v reflect.Value, isNew bool) {
		if !v.IsValid() {
			return
		}
		seen := make(map[string]int)
		for i := range v.Len() {
			e := v.Index(i)
			if e.Kind() == reflect.Pointer {
				e = e.Elem()
			}
			k := keyOf(e)
			k = fmt.Sprintf("%s#%d", k, seen[k])
			seen[k[:strings.LastIndex(k, "#")]]++
			x := m[k]
			if x == nil {
				x = &entry{}
				m[k] = x
				keys = append(keys, k)
			}
			if isNew {
				x.new = e
			} else {
				x.old = e
			}
		}
	}
	collect(a, false)
	collect(b, true)
	slices.Sort(keys)
	var out []*Object
	for _, k := range keys {
		if o := w.object(name, m[k].old, m[k].new); o != nil {
			out = append(out, o)
		}
	}
	return out
}

// identity returns what distinguishes an element from the others of its list, if it has a name.
func identity(v reflect.Value) (string, bool) {
	for _, f := range []string{"Name", "Label"} {
		if x := v.FieldByName(f); x.IsValid() && x.Kind() == reflect.String {
			return x.String(), true
		}
	}
	return "", false
}

func keyOf(v reflect.Value) string {
	if s, ok := identity(v); ok {
		return s
	}
	if v.Type().Name() == "Network" {
		return "" // a group has at most one
	}
	b, err := json.Marshal(v.Interface()) // the values behind pointers, not their addresses
	if err != nil {
		return fmt.Sprintf("%#v", v.Interface())
	}
	return string(b)
}

// inPlaceFields and inPlaceObjects of a task do not restart it (see scheduler.Destructive).
var (
	inPlaceFields  = []string{"KillTimeout", "ShutdownDelay"}
	inPlaceObjects = []string{"Constraint", "RestartPolicy", "Service", "Scaling", "Action"}
)

// Annotate adds to a difference what the change does: how many allocations of a group are created, updated or stopped,
// and which lines force it.
func Annotate(d *Job, updates []reconcile.DesiredUpdates) {
	for _, g := range d.TaskGroups {
		for i := range updates {
			if u := &updates[i]; string(u.Group) == g.Name {
				g.Updates = counts(u)
			}
		}
		for _, f := range g.Fields {
			if f.Name != "Count" || f.Type == None {
				continue
			}
			a, _ := strconv.ParseInt(f.Old, 10, 64)
			b, _ := strconv.ParseInt(f.New, 10, 64)
			if b > a {
				f.Annotations = append(f.Annotations, "forces create")
			} else {
				f.Annotations = append(f.Annotations, "forces destroy")
			}
		}
		for _, t := range g.Tasks {
			switch t.Type {
			case Added:
				t.Annotations = append(t.Annotations, "forces create")
			case Deleted:
				t.Annotations = append(t.Annotations, "forces destroy")
			case Edited:
				why := "forces in-place update"
				if slices.ContainsFunc(t.Fields, func(f *Field) bool { return f.Type != None && !slices.Contains(inPlaceFields, f.Name) }) ||
					slices.ContainsFunc(t.Objects, func(o *Object) bool { return o.Type != None && !slices.Contains(inPlaceObjects, o.Name) }) {
					why = "forces create/destroy update"
				}
				t.Annotations = append(t.Annotations, why)
			}
		}
	}
}

func counts(u *reconcile.DesiredUpdates) map[string]uint64 {
	m := make(map[string]uint64)
	for _, x := range []struct {
		name string
		n    int64
	}{{"ignore", u.Ignore}, {"create", u.Place + u.Reschedule}, {"migrate", u.Migrate}, {"destroy", u.Stop}, {"in-place update", u.InPlace},
		{"create/destroy update", u.Destructive}, {"canary", u.Canary}, {"preemptions", u.Preemptions}} {
		if x.n > 0 {
			m[x.name] = uint64(x.n)
		}
	}
	return m
}
