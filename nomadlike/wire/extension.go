package wire

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/internal/suggest"
)

// Clients that know only Nomad's fields spell Muster's in meta: "muster.gang.min" = "2" or muster_gang_min = "2", in
// the meta of the job, group or task that the field belongs to. Dots and underscores mean the same. Lists are separated
// by commas.

// leaf is one value below an extension field: its name, joined with underscores, and the path to it.
type leaf struct {
	name string
	path []int
}

// leavesOf lists the values below the named fields of a wire struct.
func leavesOf(t reflect.Type, fields string) []leaf {
	var out []leaf
	var walk func(t reflect.Type, name string, path []int)
	walk = func(t reflect.Type, name string, path []int) {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			if t.Kind() != reflect.Map {
				out = append(out, leaf{name, slices.Clone(path)})
			}
			return
		}
		for i := range t.NumField() {
			if tag, _, _ := strings.Cut(t.Field(i).Tag.Get("hcl"), ","); tag != "" {
				walk(t.Field(i).Type, name+"_"+tag, append(path, i))
			}
		}
	}
	for _, f := range strings.Fields(fields) {
		sf, ok := t.FieldByName(f)
		if !ok {
			panic("no field " + f)
		}
		tag, _, _ := strings.Cut(sf.Tag.Get("hcl"), ",")
		walk(sf.Type, tag, sf.Index)
	}
	return out
}

var (
	jobLeaves   = leavesOf(reflect.TypeFor[Job](), "Queue Placement Preemptible Runtime Deadline Begin Hold Requeue Array")
	groupLeaves = leavesOf(reflect.TypeFor[TaskGroup](), "Gang Elastic Topology Launch Checkpoint")
	taskLeaves  = leavesOf(reflect.TypeFor[Task](), "WorkDir Umask LogPath LogErrorPath")
)

// Extensions that are not a single value.
const (
	extDepends     = "depends_on"
	extToleration  = "toleration"
	extArrayParams = "array_params_"
)

func leafNames(list []leaf, more ...string) []string {
	out := slices.Clone(more)
	for _, l := range list {
		out = append(out, l.name)
	}
	return out
}

// extensionKey recognizes the meta spelling of Muster's extensions and returns the name with underscores: "gang_min"
// for "muster.gang.min" or "muster_gang_min".
func extensionKey(k string) (name string, ok bool) {
	rest, ok := extensionRest(k)
	return strings.ReplaceAll(rest, ".", "_"), ok
}

func extensionRest(k string) (string, bool) {
	if rest, ok := strings.CutPrefix(k, "muster."); ok {
		return rest, true
	}
	return strings.CutPrefix(k, "muster_")
}

// takeMeta copies extensions in meta to their fields. It may be repeated: a value that is already set must be the same.
// Problems are added to p; nil discards them.
func (j *Job) takeMeta(p *Problems) {
	if p == nil {
		p = &Problems{}
	}
	takeLeaves(p, "", reflect.ValueOf(j).Elem(), j.Meta, jobLeaves, j.takeOther)
	for _, g := range j.TaskGroups {
		if g == nil {
			continue
		}
		where := fmt.Sprintf("group %q", val(g.Name))
		takeLeaves(p, where, reflect.ValueOf(g).Elem(), g.Meta, groupLeaves, func(name, _, _ string) (bool, error) {
			if slices.Contains(leafNames(jobLeaves, extDepends, extToleration), name) {
				return true, fmt.Errorf("this extension belongs into the meta of the job, not of a group")
			}
			return false, nil
		})
		for _, t := range g.Tasks {
			if t == nil {
				continue
			}
			tw := prefix(where, fmt.Sprintf("task %q", t.Name))
			if _, err := gpuFromMeta(t.Meta); err != nil {
				p.errorf(tw+", meta", "%v", err)
			}
			takeLeaves(p, tw, reflect.ValueOf(t).Elem(), t.Meta, taskLeaves, t.takeOther)
		}
	}
}

// takeOther reads the task's extensions that are not a single value of the task; those of GPUs are read elsewhere.
func (t *Task) takeOther(name, _, text string) (bool, error) {
	if t.Resources == nil && (name == "shm" || name == "rdma" || name == "ulimits") {
		t.Resources = &Resources{}
	}
	text = strings.TrimSpace(text)
	switch {
	case strings.HasPrefix(name, "gpu_"):
		return true, nil
	case name == "shm":
		n, err := strconv.Atoi(text)
		if err != nil {
			return true, fmt.Errorf("%.64q; want a number of MiB", text)
		}
		if have := t.Resources.ShmMB; have != nil && *have != n {
			return true, fmt.Errorf("the resources say shm = %d and the meta says %d; remove one of them", *have, n)
		}
		t.Resources.ShmMB = &n
		return true, nil
	case name == "rdma":
		on, err := strconv.ParseBool(text)
		if err != nil {
			return true, fmt.Errorf("%.64q; want true or false", text)
		}
		if have := t.Resources.RDMA; have != nil && *have != on {
			return true, fmt.Errorf("the resources say rdma = %t and the meta says %t; remove one of them", *have, on)
		}
		t.Resources.RDMA = &on
		return true, nil
	case name == "ulimits":
		list := map[string]string{}
		for _, s := range splitList(text) {
			k, v, ok := strings.Cut(s, "=")
			if !ok {
				return true, fmt.Errorf("%.64q; want NAME=LIMIT, several divided by commas", text)
			}
			list[strings.TrimSpace(k)] = strings.TrimSpace(v)
		}
		if have := t.Resources.Ulimits; have != nil && !maps.Equal(have, list) {
			return true, fmt.Errorf("the resources have ulimits and the meta says something else; remove one of them")
		}
		t.Resources.Ulimits = list
		return true, nil
	case slices.Contains(leafNames(groupLeaves), name):
		return true, fmt.Errorf("this extension belongs into the meta of the group, not of a task")
	case slices.Contains(leafNames(jobLeaves, extDepends, extToleration), name):
		return true, fmt.Errorf("this extension belongs into the meta of the job, not of a task")
	}
	return true, fmt.Errorf("there is no such extension; a task has muster.gpu.*, %s", strings.Join(leafNames(taskLeaves, "muster.shm", "rdma", "ulimits"), ", "))
}

// takeOther reads the job's extensions that are not a single value.
func (j *Job) takeOther(name, rest, text string) (bool, error) {
	switch {
	case name == extDepends:
		list, err := parseDepends(text)
		if err == nil && j.DependsOn != nil && !sameDepends(j.DependsOn, list) {
			err = fmt.Errorf("the job has depends_on blocks and its meta says something else; remove one of them")
		}
		if err == nil && j.DependsOn == nil {
			j.DependsOn = list
		}
		return true, err
	case name == extToleration:
		list, err := parseTolerations(text)
		if err == nil && j.Tolerations != nil && !reflect.DeepEqual(j.Tolerations, list) {
			err = fmt.Errorf("the job has toleration blocks and its meta says something else; remove one of them")
		}
		if err == nil && j.Tolerations == nil {
			j.Tolerations = list
		}
		return true, err
	case strings.HasPrefix(name, extArrayParams):
		param, values := rest[len(extArrayParams):], splitList(text)
		if j.Array == nil {
			j.Array = &Array{}
		}
		if old, ok := j.Array.Params[param]; ok && !slices.Equal(old, values) {
			return true, fmt.Errorf("the array's params say something else; remove one of them")
		}
		if j.Array.Params == nil {
			j.Array.Params = map[string][]string{}
		}
		j.Array.Params[param] = values
		return true, nil
	case slices.Contains(leafNames(groupLeaves), name):
		return true, fmt.Errorf("this extension belongs into the meta of a group")
	case strings.HasPrefix(name, "gpu_") || slices.Contains(leafNames(taskLeaves, "shm", "rdma", "ulimits"), name):
		return true, fmt.Errorf("this extension belongs into the meta of a task")
	}
	return false, nil
}

// takeLeaves reads one meta into the struct around it. other handles names that are not leaves.
func takeLeaves(p *Problems, where string, target reflect.Value, meta map[string]string, leaves []leaf, other func(name, rest, text string) (bool, error)) {
	from := map[string]string{}
	for _, k := range sortedKeys(meta) {
		name, ok := extensionKey(k)
		if !ok {
			continue
		}
		w := prefix(where, "meta "+k)
		i := slices.IndexFunc(leaves, func(l leaf) bool { return l.name == name })
		if i < 0 {
			rest, _ := extensionRest(k)
			if known, err := other(name, rest, meta[k]); err != nil {
				p.errorf(w, "%v", err)
			} else if !known {
				all := leafNames(leaves)
				p.errorf(w, "there is no such extension: want muster. and one of %s%s", strings.Join(all, ", "), suggest.DidYouMean(name, all))
			}
			continue
		}
		if k2, twice := from[name]; twice && meta[k2] != meta[k] {
			p.errorf(w, "the meta has %q, too, with another value; remove one of them", k2)
			continue
		}
		from[name] = k
		if err := setLeaf(target, leaves[i].path, meta[k]); err != nil {
			p.errorf(w, "%v", err)
		}
	}
}

// setLeaf writes a text into the value at the path. A different value that is already there is an error.
func setLeaf(v reflect.Value, path []int, text string) error {
	for _, i := range path[:len(path)-1] {
		if v = v.Field(i); v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
	}
	v = v.Field(path[len(path)-1])
	want := reflect.New(v.Type()).Elem()
	to := want
	if to.Kind() == reflect.Pointer {
		to.Set(reflect.New(to.Type().Elem()))
		to = to.Elem()
	}
	text = strings.TrimSpace(text)
	switch {
	case to.Type() == reflect.TypeFor[Duration]():
		d, err := ParseDuration(text)
		if err != nil {
			return err
		}
		to.SetInt(int64(d))
	case to.Kind() == reflect.String:
		to.SetString(text)
	case to.Kind() == reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%.64q; want true or false", text)
		}
		to.SetBool(b)
	case to.Kind() == reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%.64q; want a whole number", text)
		}
		to.SetInt(int64(n))
	case to.Kind() == reflect.Slice:
		to.Set(reflect.ValueOf(splitList(text)))
	}
	if isSet(v) || v.Kind() == reflect.Pointer && !v.IsNil() {
		if reflect.DeepEqual(v.Interface(), want.Interface()) || sameTime(v, want) {
			return nil
		}
		return fmt.Errorf("the job says %s and its meta says %.64q; remove one of them", show1(v), text)
	}
	v.Set(want)
	return nil
}

// sameTime reports whether two texts are the same time, written differently.
func sameTime(a, b reflect.Value) bool {
	x, ok1 := a.Interface().(*string)
	y, ok2 := b.Interface().(*string)
	if !ok1 || !ok2 {
		return false
	}
	t, err1 := parseTime(x)
	u, err2 := parseTime(y)
	return err1 == nil && err2 == nil && t == u
}

func show1(v reflect.Value) string {
	v = reflect.Indirect(v)
	if v.Kind() == reflect.String {
		return fmt.Sprintf("%.64q", v.String())
	}
	return fmt.Sprintf("%v", v.Interface())
}

func splitList(text string) []string {
	var out []string
	for s := range strings.SplitSeq(text, ",") {
		out = append(out, strings.TrimSpace(s))
	}
	return out
}

// parseDepends reads "prep, clean:completed, other:started:2h": a job's id, when, and a timeout.
func parseDepends(text string) ([]*DependsOn, error) {
	var out []*DependsOn
	for _, s := range splitList(text) {
		parts := strings.Split(s, ":")
		if s == "" || len(parts) > 3 {
			return nil, fmt.Errorf("%.64q; want the id of a job, or JOB:WHEN, or JOB:WHEN:TIMEOUT, several divided by commas", text)
		}
		d := &DependsOn{Name: parts[0]}
		if len(parts) > 1 {
			d.When = parts[1]
		}
		if len(parts) > 2 {
			t, err := ParseDuration(parts[2])
			if err != nil {
				return nil, err
			}
			d.Timeout = &t
		}
		out = append(out, d)
	}
	return out, nil
}

func sameDepends(a, b []*DependsOn) bool {
	return slices.EqualFunc(a, b, func(x, y *DependsOn) bool {
		return x != nil && x.Name == y.Name && (x.Job == "" || x.Job == x.Name) && (x.When == y.When || y.When == "") && val(x.Timeout) == val(y.Timeout)
	})
}

// parseTolerations reads "dedicated=nlp:no-schedule, spot": KEY, KEY=VALUE, with :EFFECT behind.
func parseTolerations(text string) ([]*Toleration, error) {
	var out []*Toleration
	for _, s := range splitList(text) {
		rest, effect, _ := strings.Cut(s, ":")
		key, value, _ := strings.Cut(rest, "=")
		if key == "" {
			return nil, fmt.Errorf("%.64q; want KEY or KEY=VALUE, with :EFFECT behind where only one effect is meant, several divided by commas", text)
		}
		out = append(out, &Toleration{Key: key, Value: value, Effect: effect})
	}
	return out, nil
}
