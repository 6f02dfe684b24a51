package jobdiff

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/structs"
)

func sample() *structs.Job {
	return &structs.Job{ID: "web", Name: "web", Type: structs.JobService, Priority: 50, Datacenters: []string{"dc1"}, NodePool: "default",
		Constraints: []structs.Constraint{{LTarget: "${attr.kernel.name}", RTarget: "linux", Operand: "="}},
		Groups: []*structs.Group{{Name: "g", Count: 2, Meta: map[string]string{"a": "1"},
			Networks: []structs.Network{{DynamicPorts: []structs.Port{{Label: "http"}}}},
			Tasks: []*structs.Task{{Name: "t", Driver: "exec", Config: structs.RawConfig(`{"args":["a","b"],"command":"x"}`), Env: map[string]string{"E": "1"},
				KillTimeout: 5 * time.Second, Resources: structs.Resources{CPU: 100, MemoryMiB: 64, Devices: []structs.DeviceRequest{{Name: "nvidia/gpu", Count: 1}}}}}}}}
}

// lines writes a difference as "path: old -> new".
func lines(d *Job) []string {
	var out []string
	var objects func(path string, os []*Object)
	fields := func(path string, fs []*Field) {
		for _, f := range fs {
			out = append(out, path+f.Type+" "+f.Name+": "+f.Old+" -> "+f.New+strings.Join(append([]string{""}, f.Annotations...), " !"))
		}
	}
	objects = func(path string, os []*Object) {
		for _, o := range os {
			fields(path+o.Type+" "+o.Name+"/", o.Fields)
			objects(path+o.Type+" "+o.Name+"/", o.Objects)
		}
	}
	fields("", d.Fields)
	objects("", d.Objects)
	for _, g := range d.TaskGroups {
		p := g.Type + " group " + g.Name + "/"
		fields(p, g.Fields)
		objects(p, g.Objects)
		for _, t := range g.Tasks {
			q := p + t.Type + " task " + t.Name + strings.Join(append([]string{""}, t.Annotations...), " !") + "/"
			fields(q, t.Fields)
			objects(q, t.Objects)
		}
	}
	return out
}

func TestDiff(t *testing.T) {
	a, b := sample(), sample()
	if d, err := Diff(a, b, false); err != nil || d.Type != None || len(lines(d)) != 0 {
		t.Fatalf("equal jobs differ: %v %v", err, lines(d))
	}
	b.Priority = 60
	b.Datacenters = []string{"dc1", "dc2"}
	b.Constraints[0].RTarget = "windows"
	g := b.Groups[0]
	g.Count = 3
	g.Meta["b"] = "2"
	g.Networks[0].DynamicPorts[0].To = 80
	task := g.Tasks[0]
	task.Config = structs.RawConfig(`{"args":["a","c"],"command":"x"}`)
	task.Env = nil
	task.Resources.MemoryMiB = 128
	task.Resources.Devices[0].Count = 2
	g.Tasks = append(g.Tasks, &structs.Task{Name: "side", Driver: "exec"})
	b.Groups = append(b.Groups, &structs.Group{Name: "h", Count: 1})
	d, err := Diff(a, b, false)
	if err != nil {
		t.Fatal(err)
	}
	Annotate(d, []reconcile.DesiredUpdates{{Group: "g", Destructive: 2, Place: 1}})
	got := strings.Join(lines(d), "\n")
	for _, want := range []string{
		"Edited Priority: 50 -> 60",
		"Edited Datacenters/Added Datacenters:  -> dc2",
		"Deleted Constraint/Deleted RTarget: linux -> ",
		"Added Constraint/Added RTarget:  -> windows",
		"Edited group g/Edited Count: 2 -> 3 !forces create",
		"Edited group g/Added Meta[b]:  -> 2",
		"Edited group g/Edited Network/Edited Dynamic Port/Edited To: 0 -> 80",
		"Edited group g/Edited task t !forces create/destroy update/Edited Config/Edited args[1]: b -> c",
		"Edited group g/Edited task t !forces create/destroy update/Deleted Env[E]: 1 -> ",
		"Edited group g/Edited task t !forces create/destroy update/Edited Resources/Edited MemoryMB: 64 -> 128",
		"Edited group g/Edited task t !forces create/destroy update/Edited Resources/Edited Device/Edited Count: 1 -> 2",
		"Edited group g/Added task side !forces create/Added Driver:  -> exec",
		"Added group h/Added Count:  -> 1 !forces create",
	} {
		if !strings.Contains(got, want+"\n") && !strings.HasSuffix(got, want) {
			t.Errorf("missing %q in\n%s", want, got)
		}
	}
	if u := d.TaskGroups[0].Updates; u["create/destroy update"] != 2 || u["create"] != 1 {
		t.Errorf("updates %v", u)
	}
	for _, none := range []string{"Edited CPU", "command", "kernel.name -> ${attr"} {
		if strings.Contains(got, none) {
			t.Errorf("%q did not change, but is told:\n%s", none, got)
		}
	}
}

func TestInPlace(t *testing.T) {
	a, b := sample(), sample()
	b.Groups[0].Tasks[0].KillTimeout = time.Second
	d, _ := Diff(a, b, true)
	Annotate(d, nil)
	if got := d.TaskGroups[0].Tasks[0].Annotations; !reflect.DeepEqual(got, []string{"forces in-place update"}) {
		t.Errorf("annotations %v", got)
	}
	if reconcile.Destructive(a, b, "g") {
		t.Error("the scheduler calls it destructive")
	}
}

// TestContext checks that only a changed block has unchanged fields. Nomad's clients print all that they get: a change of
// one number was 111 lines.
func TestContext(t *testing.T) {
	a, b := sample(), sample()
	b.Groups[0].Count++
	d, _ := Diff(a, b, true)
	got := lines(d)
	edited := slices.DeleteFunc(slices.Clone(got), func(l string) bool { return !strings.Contains(l, "Edited Count") })
	if len(edited) != 1 || slices.ContainsFunc(got, func(l string) bool { return strings.Contains(l, "None ") && strings.Contains(l, "->") }) {
		t.Errorf("a change of the count:\n%s", strings.Join(got, "\n"))
	}
	a, b = sample(), sample()
	b.Groups[0].Tasks[0].Resources.CPU++
	d, _ = Diff(a, b, true)
	context := strings.Join(lines(d), "\n")
	if !strings.Contains(context, "None MemoryMB: ") || strings.Contains(context, "None Driver: exec -> exec") {
		t.Errorf("a change of one field of a block:\n%s", context)
	}
}

func TestAddedAndDeleted(t *testing.T) {
	if d, err := Diff(nil, sample(), false); err != nil || d.Type != Added || d.TaskGroups[0].Type != Added {
		t.Errorf("%v %+v; want d.Type = %v, d.TaskGroups[0].Type = %v", err, d, Added, Added)
	}
	if d, err := Diff(sample(), nil, false); err != nil || d.Type != Deleted || d.TaskGroups[0].Tasks[0].Type != Deleted {
		t.Errorf("%v %+v; want d.Type = %v, d.TaskGroups[0].Tasks[0].Type = %v", err, d, Deleted, Deleted)
	}
	if _, err := Diff(nil, nil, false); err == nil {
		t.Error("want an error for nothing")
	}
	other := sample()
	other.ID = "other"
	if _, err := Diff(sample(), other, false); err == nil {
		t.Error("want an error for different jobs")
	}
	raw, err := JSON(nil, sample(), true)
	if err != nil || !json.Valid(raw) {
		t.Errorf("%v %s", err, raw)
	}
}

// Every field of a job, changed alone, must appear in the difference.
func TestEveryFieldShows(t *testing.T) {
	checked := 0
	var walk func(t *testing.T, path string, v reflect.Value, root func() (*structs.Job, reflect.Value))
	walk = func(t *testing.T, path string, v reflect.Value, root func() (*structs.Job, reflect.Value)) {
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if path == "Job" && jobSkip[name] || name == "Name" || name == "Tasks" || name == "Groups" {
				continue
			}
			j, target := root()
			if !bump(target.Field(i)) {
				continue
			}
			base, _ := root()
			d, err := Diff(base, j, false)
			if err != nil || d.Type != Edited {
				t.Errorf("changing %s.%s does not show (%v)", path, name, err)
			}
			checked++
		}
	}
	walk(t, "Job", reflect.ValueOf(*sample()), func() (*structs.Job, reflect.Value) { j := sample(); return j, reflect.ValueOf(j).Elem() })
	walk(t, "Group", reflect.ValueOf(*sample().Groups[0]), func() (*structs.Job, reflect.Value) {
		j := sample()
		return j, reflect.ValueOf(j.Groups[0]).Elem()
	})
	walk(t, "Task", reflect.ValueOf(*sample().Groups[0].Tasks[0]), func() (*structs.Job, reflect.Value) {
		j := sample()
		return j, reflect.ValueOf(j.Groups[0].Tasks[0]).Elem()
	})
	if checked < 50 {
		t.Errorf("only %d fields were changed", checked)
	}
}

// bump changes a value to another one.
func bump(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint64:
		v.SetUint(v.Uint() + 1)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"new": "1"}))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		if v.Elem().Kind() == reflect.Struct {
			return bump(v.Elem().Field(0))
		}
		return bump(v.Elem())
	case reflect.Struct:
		return bump(v.Field(0))
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(`{"new":"1"}`))
			return true
		}
		e := reflect.New(v.Type().Elem()).Elem()
		bump(e)
		v.Set(reflect.Append(v, e))
	default:
		return false
	}
	return true
}

func TestOwnFields(t *testing.T) {
	a, b := sample(), sample()
	b.Queue, b.Deadline, b.Runtime.Limit = "nlp", structs.LogTimeOf(time.Unix(1<<31, 0)), time.Second
	b.Depends = []structs.Dependency{{Name: "prep"}}
	long := make([]string, 1000)
	b.Array = &structs.Array{Count: 1000, Params: map[string][]string{"LR": long}}
	d, err := Diff(a, b, false)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(lines(d), "\n")
	for _, want := range []string{"Added Queue:  -> nlp", "Added Deadline:  -> 2038-01-19T03:14:08Z", "Edited Runtime/Edited Limit: 0 -> 1000000000", "Added DependsOn/Added Name:  -> prep", "Added Params[LR]:  -> 1000 values"} {
		if !strings.Contains(got, want) {
			t.Errorf("missing %q in\n%s", want, got)
		}
	}
}
