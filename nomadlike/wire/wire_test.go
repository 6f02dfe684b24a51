package wire

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/structs"
)

var update = flag.Bool("update", false, "rewrite generated files")

const supportPage = "../../docs/reference/job-support.md"

func TestSupportPage(t *testing.T) {
	want := SupportPage()
	if *update {
		if err := os.MkdirAll(filepath.Dir(supportPage), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(supportPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(supportPage)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/reference/job-support.md is out of date; run `go generate ./nomadlike/wire`")
	}
}

// Every field that a job may have, down to the last block, must have a row in the support table, and every row a field.
func TestSupportTableIsComplete(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] {
			return
		}
		seen[typ] = true
		rows := supportByType[typ]
		if rows == nil {
			t.Errorf("%s has no entry in supportTable (support.go)", typ)
			return
		}
		names := map[string]bool{}
		for f := range typ.Fields() {
			names[f.Name] = true
			got := rows.rows(f.Name)
			if len(got) == 0 {
				t.Errorf("%s.%s has no row in supportTable: say whether it is supported, ignored or refused", typ, f.Name)
			}
			for s, n := range got {
				if (s == Ignored || s == Refused) && rows.all == "" && n.why == "" {
					t.Errorf("%s.%s is %s without a reason", typ, f.Name, s)
				}
			}
			walk(f.Type)
		}
		for _, f := range append(strings.Fields(rows.supported+" "+rows.server), append(sortedKeys(rows.ignored), sortedKeys(rows.refused)...)...) {
			if !names[f] {
				t.Errorf("supportTable names %s.%s, which does not exist", typ, f)
			}
		}
	}
	walk(reflect.TypeFor[Job]())
	for typ := range supportByType {
		if !seen[typ] {
			t.Errorf("supportTable has %s, which no job contains", typ)
		}
	}
}

// filler sets every field to a value that is not zero and differs from the others.
type filler struct{ n int64 }

func (f *filler) fill(t *testing.T, v reflect.Value, path string) {
	f.n++
	switch v.Interface().(type) {
	case structs.RawConfig:
		v.Set(reflect.ValueOf(f.raw(path)))
		return
	case structs.AccessorID:
		id := structs.DeriveID[structs.AccessorID](structs.Seed{1}, "x", path, uint64(f.n))
		v.Set(reflect.ValueOf(id))
		return
	case Duration:
		v.SetInt(f.n * int64(time.Second))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(t, v.Elem(), path)
	case reflect.Struct:
		for i := range v.NumField() {
			f.fill(t, v.Field(i), path+"."+v.Type().Field(i).Name)
		}
	case reflect.Slice:
		n := 2
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			f.fill(t, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		e := reflect.New(v.Type().Elem()).Elem()
		f.fill(t, e, path+"[]")
		v.SetMapIndex(reflect.ValueOf(fmt.Sprintf("k%d", f.n)).Convert(v.Type().Key()), e)
	case reflect.String:
		v.SetString(fmt.Sprintf("s%d", f.n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(f.n % 100)
		if v.Int() == 0 {
			v.SetInt(1)
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(f.n%100) + 1)
	case reflect.Interface:
		v.Set(reflect.ValueOf(fmt.Sprintf("any%d", f.n)))
	default:
		t.Fatalf("%s: no filler for %s", path, v.Type())
	}
}

// raw returns a filled wire shape for the blocks that jobs carry opaquely.
func (f *filler) raw(path string) structs.RawConfig {
	var v any = map[string]any{"a": f.n, "b": []any{"x", map[string]any{"deep": true}}, "html": "<&>", "big": json.Number("9007199254740993")}
	for _, x := range []struct {
		in string
		v  any
	}{
		{".Services[", &Service{}}, {".Templates[", &Template{}}, {".Artifacts[", &TaskArtifact{}}, {".Volumes[", &VolumeRequest{}},
		{".VolumeMounts[", &VolumeMount{}}, {".Identities[", &WorkloadIdentity{}},
	} {
		if strings.Contains(path, x.in) {
			v = x.v
			f.fill(nil, reflect.ValueOf(v).Elem(), "raw")
		}
	}
	b, err := CanonicalJSON(v)
	if err != nil {
		panic(err)
	}
	return b
}

func filledJob(t *testing.T) *structs.Job {
	j := &structs.Job{}
	(&filler{}).fill(t, reflect.ValueOf(j).Elem(), "Job")
	// What cannot be arbitrary: tokens are dropped, names are repeated inside of opaque blocks, volumes go by name, and
	// users have no field of why an update stopped.
	j.ConsulToken, j.VaultToken, j.UpdateFailed = "", "", ""
	fix := func(list []structs.Service) {
		for i := range list {
			var s Service
			if err := json.Unmarshal(list[i].Raw, &s); err != nil {
				t.Fatal(err)
			}
			list[i].Name, list[i].PortLabel, list[i].Checked = s.Name, s.PortLabel, s.checked()
		}
	}
	for _, g := range j.Groups {
		g.Joint = false // the server's
		fix(g.Services)
		for i := range g.Volumes {
			g.Volumes[i].Name = fmt.Sprintf("v%d", i)
		}
		for _, k := range g.Tasks {
			fix(k.Services)
		}
	}
	return j
}

func TestJobRoundTrip(t *testing.T) {
	want := filledJob(t)
	body, err := json.Marshal(JobFromStructs(want))
	if err != nil {
		t.Fatal(err)
	}
	var back Job
	unknown, err := Decode(body, &back)
	if err != nil || len(unknown) > 0 {
		t.Fatalf("decode: %v, unknown %v", err, unknown)
	}
	got, err := back.ToStructs()
	if err != nil {
		t.Fatal(err)
	}
	if d := diff("Job", reflect.ValueOf(want), reflect.ValueOf(got)); d != "" {
		t.Error(d)
	}
}

// diff names the first difference, which a job printed whole would hide.
func diff(path string, a, b reflect.Value) string {
	if a.Type() != b.Type() {
		return path + ": types differ"
	}
	switch a.Kind() {
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			if a.IsNil() != b.IsNil() {
				return fmt.Sprintf("%s: one is nil (%v, %v)", path, a.IsNil(), b.IsNil())
			}
			return ""
		}
		return diff(path, a.Elem(), b.Elem())
	case reflect.Struct:
		for i := range a.NumField() {
			if d := diff(path+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i)); d != "" {
				return d
			}
		}
		return ""
	case reflect.Slice:
		if a.Type().Elem().Kind() == reflect.Uint8 {
			break
		}
		if a.Len() != b.Len() {
			return fmt.Sprintf("%s: %d and %d elements", path, a.Len(), b.Len())
		}
		for i := range a.Len() {
			if d := diff(fmt.Sprintf("%s[%d]", path, i), a.Index(i), b.Index(i)); d != "" {
				return d
			}
		}
		return ""
	}
	if !reflect.DeepEqual(a.Interface(), b.Interface()) {
		return fmt.Sprintf("%s: %s and %s", path, show(a), show(b))
	}
	return ""
}

func show(v reflect.Value) string {
	if b, ok := v.Interface().(structs.RawConfig); ok {
		return string(b)
	}
	return fmt.Sprintf("%v", v.Interface())
}

func TestCanonicalizeTwiceIsOnce(t *testing.T) {
	j := &Job{}
	(&filler{}).fill(t, reflect.ValueOf(j).Elem(), "wire")
	j.Canonicalize()
	once, _ := json.Marshal(j)
	j.Canonicalize()
	twice, _ := json.Marshal(j)
	if string(once) != string(twice) {
		t.Errorf("not idempotent:\n%s\n%s", once, twice)
	}
}

func small(typ string) *Job {
	return &Job{ID: ptr("j"), Type: ptr(typ), TaskGroups: []*TaskGroup{{Name: ptr("g"), Tasks: []*Task{{Name: "t", Driver: "exec", Config: map[string]any{"command": "/bin/true"}}}}}}
}

func TestDefaults(t *testing.T) {
	for _, c := range []struct {
		typ        string
		restart    structs.Restart
		reschedule structs.Reschedule
		update     *structs.Update
		migrate    *structs.Migrate
	}{
		{"service", structs.Restart{Attempts: 2, Interval: 30 * time.Minute, Delay: 15 * time.Second, Mode: "fail"},
			structs.Reschedule{Delay: 30 * time.Second, DelayFunction: structs.DelayExponential, MaxDelay: time.Hour, Unlimited: true},
			&structs.Update{Stagger: 30 * time.Second, MaxParallel: 1, HealthCheck: "checks", MinHealthyTime: 10 * time.Second, HealthyDeadline: 5 * time.Minute, ProgressDeadline: 10 * time.Minute},
			&structs.Migrate{MaxParallel: 1, HealthCheck: "checks", MinHealthyTime: 10 * time.Second, HealthyDeadline: 5 * time.Minute}},
		{"batch", structs.Restart{Attempts: 3, Interval: 24 * time.Hour, Delay: 15 * time.Second, Mode: "fail"},
			structs.Reschedule{Attempts: 1, Interval: 24 * time.Hour, Delay: 5 * time.Second, DelayFunction: structs.DelayConstant}, nil, nil},
		{"system", structs.Restart{Attempts: 2, Interval: 30 * time.Minute, Delay: 15 * time.Second, Mode: "fail"}, structs.Reschedule{},
			&structs.Update{Stagger: 30 * time.Second, MaxParallel: 1, HealthCheck: "checks", MinHealthyTime: 10 * time.Second, HealthyDeadline: 5 * time.Minute, ProgressDeadline: 10 * time.Minute}, nil},
		{"sysbatch", structs.Restart{Attempts: 3, Interval: 24 * time.Hour, Delay: 15 * time.Second, Mode: "fail"}, structs.Reschedule{}, nil, nil},
	} {
		t.Run(c.typ, func(t *testing.T) {
			j, p := Prepare(small(c.typ))
			if err := p.Err(); err != nil || len(p.Warnings) > 0 {
				t.Fatal(err, p.Warnings)
			}
			want := &structs.Job{
				ID: "j", Name: "j", Namespace: "default", Region: "global", Type: structs.JobType(c.typ),
				Datacenters: []string{"*"}, Update: c.update,
				Groups: []*structs.Group{{
					Name: "g", Count: 1, Restart: c.restart, Reschedule: c.reschedule, Update: c.update, Migrate: c.migrate, Disk: structs.EphemeralDisk{SizeMiB: 300},
					Tasks: []*structs.Task{{
						Name: "t", Driver: "exec", Config: structs.RawConfig(`{"command":"/bin/true"}`), Resources: structs.Resources{CPU: 100, MemoryMiB: 300},
						Logs: structs.LogConfig{MaxFiles: 10, MaxFileSizeMB: 10}, KillTimeout: 5 * time.Second,
					}},
				}},
			}
			if d := diff("Job", reflect.ValueOf(want), reflect.ValueOf(j)); d != "" {
				t.Error(d)
			}
			// What a server shows must be acceptable to it again.
			again, p := Prepare(JobFromStructs(j))
			if err := p.Err(); err != nil || len(p.Warnings) > 0 {
				t.Fatal(err, p.Warnings)
			}
			if d := diff("Job", reflect.ValueOf(j), reflect.ValueOf(again)); d != "" {
				t.Error("again: " + d)
			}
		})
	}
}

func TestPrepareClearsWhatServersSet(t *testing.T) {
	j := small("batch")
	j.Version, j.Status, j.CreateIndex, j.JobModifyIndex, j.Stable = ptr(uint64(7)), ptr("dead"), ptr(uint64(9)), ptr(uint64(9)), ptr(true)
	j.Submitter = &Submitter{Name: "root"}
	out, p := Prepare(j)
	if p.Err() != nil {
		t.Fatal(p.Err())
	}
	if out.Version != 0 || out.Status != "" || out.CreateIndex != 0 || out.SpecIndex != 0 || out.Stable || out.Submitter != (structs.Submitter{}) {
		t.Errorf("a client chose what only servers set: %+v", out)
	}
}

func TestGPUBecomesADevice(t *testing.T) {
	j := small("batch")
	j.TaskGroups[0].Tasks[0].Resources = &Resources{GPU: &GPU{Count: ptr(8), Model: "H100"}}
	out, p := Prepare(j)
	if p.Err() != nil {
		t.Fatal(p.Err())
	}
	d := out.Groups[0].Tasks[0].Resources.Devices
	if len(d) != 1 || d[0].Name != "nvidia/gpu" || d[0].Count != 8 || len(d[0].Constraints) != 1 || d[0].Constraints[0].LTarget != "${device.model}" {
		t.Errorf("got %+v", d)
	}
}

// A share, its alternatives and its meta spelling; and everything comes back as it was.
func TestGPUShares(t *testing.T) {
	j := small("batch")
	j.TaskGroups[0].Tasks[0].Resources = &Resources{GPU: &GPU{Memory: "20GiB", Compute: ptr(50), Model: "H200", Enforce: "auto",
		Or: []*GPUOr{{Count: ptr(2), Model: "H100"}, {Share: ptr(25)}}}}
	out, p := Prepare(j)
	if p.Err() != nil {
		t.Fatal(p.Err())
	}
	r := out.Groups[0].Tasks[0].Resources
	want := []structs.GPURequest{{Count: 1, MemoryMiB: 20480, Compute: 50, Model: "H200", Enforce: "auto"}, {Count: 2, Model: "H100"}, {Count: 1, Share: 25}}
	if len(r.Devices) != 0 || !reflect.DeepEqual(r.GPU, want) {
		t.Errorf("got %+v", r.GPU)
	}
	again, p := Prepare(JobFromStructs(out))
	if p.Err() != nil || !reflect.DeepEqual(again.Groups[0].Tasks[0].Resources.GPU, want) {
		t.Errorf("%v, there and back: %+v", p.Err(), again)
	}
	for _, dot := range []string{".", "_"} {
		j := small("batch")
		meta := func(k string) string { return strings.ReplaceAll("muster.gpu."+k, ".", dot) }
		j.TaskGroups[0].Tasks[0].Meta = map[string]string{meta("memory"): "8192", meta("compute"): "25", meta("model"): "L4"}
		out, p := Prepare(j)
		if p.Err() != nil {
			t.Fatal(p.Err())
		}
		want := []structs.GPURequest{{Count: 1, MemoryMiB: 8192, Compute: 25, Model: "L4"}}
		if got := out.Groups[0].Tasks[0].Resources.GPU; !reflect.DeepEqual(got, want) {
			t.Errorf("meta with %q: %+v", dot, got)
		}
		j = small("batch")
		j.TaskGroups[0].Tasks[0].Meta = map[string]string{meta("count"): "2", meta("model"): "H100"}
		if out, p = Prepare(j); p.Err() != nil {
			t.Fatal(p.Err())
		}
		twice, p := Prepare(JobFromStructs(out))
		if d := twice.Groups[0].Tasks[0].Resources; p.Err() != nil || len(d.Devices) != 1 || d.Devices[0].Count != 2 || len(d.GPU) != 0 {
			t.Errorf("a job read from a server and sent again: %v %+v", p.Err(), d)
		}
	}
}

func TestQueueFromMeta(t *testing.T) {
	for _, k := range []string{"muster.queue", "muster_queue"} {
		j := small("batch")
		j.Meta = map[string]string{k: "research/nlp"}
		out, p := Prepare(j)
		if p.Err() != nil || out.Queue != "research/nlp" || out.Meta[k] != "research/nlp" {
			t.Errorf(`%s: %v %+v; want out.Queue = "research/nlp", out.Meta[k] = "research/nlp"`, k, p.Err(), out)
		}
	}
}

func TestAllocationFromStructs(t *testing.T) {
	j, p := Prepare(small("service"))
	if p.Err() != nil {
		t.Fatal(p.Err())
	}
	g := j.Groups[0]
	g.Networks = []structs.Network{{StaticPorts: []structs.Port{{Label: "http", Value: 80}}, DynamicPorts: []structs.Port{{Label: "db"}}}}
	a := &structs.Allocation{
		Job: j, JobID: "j", Group: "g", NameIndex: 3, Resources: structs.Vector{CPU: 100, MemoryMiB: 300, DiskMiB: 300},
		Grants: []structs.Grant{{Task: "t", Device: "nvidia/gpu/H100", Instance: "GPU-1"}, {Task: "t", Device: "nvidia/gpu/H100", Instance: "GPU-2"}},
		Ports:  []structs.PortGrant{{Label: "http", Value: 80, HostIP: "10.0.0.1"}, {Label: "db", Value: 21000, HostIP: "10.0.0.1"}},
	}
	report := &structs.GroupReport{Code: structs.ReasonResources, Considered: 5, Exhausted: 2, Refusals: []structs.Refusal{
		{Code: structs.ReasonResources, Obstacle: structs.Obstacle{Dimension: structs.DimensionMemory}, Nodes: 2, Short: 100, Unit: structs.UnitMiB}, {Code: structs.ReasonConstraint, Obstacle: structs.Obstacle{Dimension: structs.DimensionConstraint, Subject: "${attr.x} = 1"}, Nodes: 1},
	}, Scores: []structs.NodeScore{{Terms: []structs.ScoreTerm{{Name: "binpack", Micro: 500_000}}, Micro: 250_000}}}
	w := AllocFromStructs(a, report)
	if w.Name != "j.g[3]" || len(w.AllocatedResources.Tasks["t"].Devices) != 1 || len(w.AllocatedResources.Tasks["t"].Devices[0].DeviceIDs) != 2 {
		t.Errorf("devices: %+v", w.AllocatedResources.Tasks["t"])
	}
	n := w.AllocatedResources.Shared.Networks[0]
	if len(n.ReservedPorts) != 1 || len(n.DynamicPorts) != 1 || n.IP != "10.0.0.1" {
		t.Errorf("ports: %+v", n)
	}
	m := w.Metrics
	if m.DimensionExhausted["memory"] != 2 || m.ConstraintFiltered["${attr.x} = 1"] != 1 || m.NodesEvaluated != 5 || m.ScoreMetaData[0].Scores["binpack"] != 0.5 {
		t.Errorf("metrics: %+v", m)
	}
}

func TestPortRanges(t *testing.T) {
	if got := PortRanges([]int{8002, 22, 8000, 8001, 80}); got != "22,80,8000-8002" {
		t.Error(got)
	}
}

// TestMetricOfGates wants what no node has to do with to be in none of Nomad's counts of nodes.
func TestMetricOfGates(t *testing.T) {
	for _, code := range []structs.ReasonCode{structs.ReasonDependency, structs.ReasonBeginTime, structs.ReasonPriority, structs.ReasonRateLimit, structs.ReasonPreemptionPending} {
		m := MetricFromStructs(&structs.GroupReport{Group: "g", Code: code, Wanted: 1, Refusals: []structs.Refusal{{Code: code, Obstacle: structs.Obstacle{Dimension: structs.DimensionConstraint, Subject: "x"}}}}, "default")
		if m.Reason != string(code) || len(m.Refusals) != 1 || len(m.ConstraintFiltered)+len(m.DimensionExhausted)+len(m.QuotaExhausted) != 0 {
			t.Errorf("%s: %+v", code, m)
		}
	}
	m := MetricFromStructs(&structs.GroupReport{Code: structs.ReasonQuota, Refusals: []structs.Refusal{{Code: structs.ReasonQuota, Obstacle: structs.Obstacle{Dimension: structs.DimensionGPU, Holder: structs.Holder{Kind: structs.HolderQueue, Name: "a"}}}}}, "default")
	if len(m.QuotaExhausted) != 1 || len(m.DimensionExhausted) != 0 {
		t.Errorf("quota: %+v", m)
	}
}

// TestRefusalsKeepTheirValue sends every dimension through the log's form and through JSON.
func TestRefusalsKeepTheirValue(t *testing.T) {
	for d := structs.DimensionNone; d == structs.DimensionNone || d.Name() != ""; d++ {
		want := structs.Refusal{Code: structs.ReasonQuota, Nodes: 1, Short: 2, Unit: structs.UnitGPUs, Largest: 3, CuredBy: structs.EventQueueUsage, Obstacle: structs.Obstacle{
			Dimension: d, Holder: structs.Holder{Kind: structs.HolderQueue, Name: "a"}, Subject: "s", Detail: "d", Count: 4, Of: 5}}
		var stored structs.Refusal
		if err := pack.Decode(pack.Append(nil, &want), &stored); err != nil || stored != want {
			t.Errorf("stored: got %+v, error %v, want %+v", stored, err, want)
		}
		var sent Refusal
		b, err := json.Marshal(RefusalFromStructs(want))
		if err == nil {
			err = json.Unmarshal(b, &sent)
		}
		if got := sent.ToStructs(); err != nil || got != want || sent.Text != want.Text() {
			t.Errorf("sent: got %+v, error %v, want %+v", got, err, want)
		}
	}
}
