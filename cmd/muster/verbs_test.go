package main

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// TestLogsShowBothStreams: a traceback is visible without a flag, and stdout stays clean for pipes.
func TestLogsShowBothStreams(t *testing.T) {
	for _, c := range []struct{ args, out, errOut string }{
		{"alloc logs 8ba85cef", "result\n", "Traceback\n"},
		{"alloc logs -stdout 8ba85cef", "result\n", ""},
		{"alloc logs -stderr 8ba85cef", "Traceback\n", ""},
	} {
		f := newAgentFake(t)
		f.answers["GET /v1/client/fs/logs/"+allocA] = func(r *http.Request) any {
			if r.URL.Query().Get("type") == "stderr" {
				return frame("Traceback\n")
			}
			return frame("result\n")
		}
		if r := f.run(t, "", strings.Fields(c.args)...); r.code != 0 || r.out != c.out || r.errOut != c.errOut {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", c.args, r.code, r.out, r.errOut)
		}
		if r := f.run(t, "", "alloc", "logs", "-both", "8ba85cef"); !strings.Contains(r.out, "result\n") || !strings.Contains(r.out, "Traceback\n") || r.errOut != "" {
			t.Errorf("-both: stdout %q, stderr %q", r.out, r.errOut)
		}
	}
}

func TestLogsWithTimes(t *testing.T) {
	at := time.Date(2026, 1, 31, 15, 4, 5, 678e6, time.UTC).UnixNano()
	const stamp = "2026-01-31T15:04:05.678Z "
	f := newAgentFake(t)
	var asked url.Values
	f.answers["GET /v1/client/fs/logs/"+allocA] = func(r *http.Request) any {
		asked = r.URL.Query()
		return frame("0: one\n1: tw") + frameAt("o\n0: three\n", at)
	}
	for _, c := range []struct{ args, out, since, stamps string }{
		{"-stdout", "0: one\n1: two\n0: three\n", "", ""},
		{"-stdout -timestamps", strings.Repeat("-", 24) + " 0: one\n" + strings.Repeat("-", 24) + " 1: two\n" + stamp + "0: three\n", "", "true"},
		{"-stdout -timestamps -rank 0", strings.Repeat("-", 24) + " one\n" + stamp + "three\n", "", "true"},
		{"-stdout -timestamps -tail -n 1", stamp + "0: three\n", "", "true"},
		{"-stdout -since 2d", "0: one\n1: two\n0: three\n", "48h", ""},
	} {
		r := f.run(t, "", append([]string{"alloc", "logs"}, append(strings.Fields(c.args), "8ba85cef")...)...)
		if r.code != 0 || r.out != c.out || asked.Get("since") != c.since || asked.Get("timestamps") != c.stamps {
			t.Errorf("%s: exit code %d, asked %v, stdout %q", c.args, r.code, asked, r.out)
		}
		if unknown := strings.Contains(r.errOut, "does not know when"); unknown != (c.since != "" || c.stamps != "") {
			t.Errorf("%s: stderr %q", c.args, r.errOut)
		}
	}
	f.answers["GET /v1/client/fs/logs/"+allocA] = failure{400, "since is no time"}
	if r := f.run(t, "", "alloc", "logs", "-since", "yesterday", "8ba85cef"); r.code != 1 || strings.Count(r.errOut, "since is no time") != 1 {
		t.Errorf("-since yesterday: exit code %d, stderr %q", r.code, r.errOut)
	}
}

// restarting answers as a job of n allocations whose tasks run again some looks after they were asked to.
func restarting(f *agentFake, n int) {
	restarts, behind := map[int]uint64{}, map[int]int{}
	ids := []string{}
	for i := range n {
		id := "8ba85cef-1111-4ccc-8ccc-00000000000" + string(rune('a'+i))
		ids = append(ids, id)
		f.answers["PUT /v1/client/allocation/"+id+"/restart"] = func(*http.Request) any {
			restarts[i]++
			behind[i] = 2
			return map[string]any{"Index": 1}
		}
	}
	f.answers["GET /v1/jobs"] = []*wire.JobListStub{{ID: "web", Namespace: "default", Status: "running", User: "alice"}}
	f.answers["GET /v1/job/web/allocations"] = func(*http.Request) any {
		var list []*wire.AllocationListStub
		for i, id := range ids {
			st := &wire.TaskState{State: "running", Restarts: restarts[i]}
			if behind[i] > 0 {
				behind[i]--
				st.State = "pending"
			}
			list = append(list, &wire.AllocationListStub{ID: id, JobID: "web", Namespace: "default", Name: "web.g[" + string(rune('0'+i)) + "]", TaskGroup: "g", ClientStatus: "running", DesiredStatus: "run", TaskStates: map[string]*wire.TaskState{"t": st}})
		}
		return list
	}
}

func TestJobRestartGoesBatchByBatch(t *testing.T) {
	f := newAgentFake(t)
	restarting(f, 3)
	r := f.run(t, "", "job", "restart", "-batch-size", "2", "web")
	if r.code != 0 || !strings.Contains(r.out, `Job "web": 3 of 3 allocations restarted`) {
		t.Fatalf("exit code %d: %q %q", r.code, r.out, r.errOut)
	}
	// The third allocation waits until the first two run again.
	text := strings.Join(f.requests, "\n")
	third := strings.Index(text, "00000000000c/restart")
	if first := strings.LastIndex(text[:third], "/restart"); first < 0 || !strings.Contains(text[first:third], "GET /v1/job/web/allocations") {
		t.Errorf("the second batch did not wait:\n%s", text)
	}
	f = newAgentFake(t)
	restarting(f, 3)
	if r := f.run(t, "", "job", "restart", "-index", "1", "web"); r.code != 0 || !strings.Contains(r.out, "1 of 1") || slices.ContainsFunc(f.requests, func(s string) bool { return strings.Contains(s, "00000000000a/restart") }) {
		t.Errorf("-index: exit code %d: %q %q", r.code, r.out, r.errOut)
	}
	for _, args := range [][]string{{"-index", "9", "web"}, {"-group", "x", "web"}, {"-task", "x", "web"}, {"-batch-size", "0", "web"}, {"-batch-size", "101%", "web"}, {"-reschedule", "-task", "t", "web"}, {"-on-error", "ask", "web"}} {
		f := newAgentFake(t)
		restarting(f, 3)
		if r := f.run(t, "", append([]string{"job", "restart"}, args...)...); r.code != exitError || strings.Contains(strings.Join(f.requests, "\n"), "PUT") {
			t.Errorf("%q: exit code %d, %v", args, r.code, f.requests)
		}
	}
}

func TestJobRestartEndsWithTheFirstFailure(t *testing.T) {
	for _, c := range []struct {
		args []string
		puts int
	}{{nil, 1}, {[]string{"-on-error", "continue"}, 3}} {
		f := newAgentFake(t)
		restarting(f, 3)
		f.answers["PUT /v1/client/allocation/8ba85cef-1111-4ccc-8ccc-00000000000a/restart"] = failure{503, "the node does not answer"}
		r := f.run(t, "", append([]string{"job", "restart", "web"}, c.args...)...)
		if n := strings.Count(strings.Join(f.requests, "\n"), "PUT "); r.code != exitError || n != c.puts || !strings.Contains(r.errOut, "the node does not answer") {
			t.Errorf("%q: exit code %d after %d requests: %q %q", c.args, r.code, n, r.out, r.errOut)
		}
	}
}

func TestBulkStopNamesWhatItStops(t *testing.T) {
	stubs := []*wire.JobListStub{
		{ID: "sweep-1", Namespace: "default", Status: "running", User: "alice", Queue: "research/nlp"}, {ID: "sweep-2", Namespace: "default", Status: "pending", User: "bob", Queue: "research"},
		{ID: "sweep-3", Namespace: "default", Status: "dead", User: "bob"}, {ID: "web", Namespace: "default", Status: "running", User: "bob"},
	}
	gpus := func(n int) *wire.AllocatedResources {
		return &wire.AllocatedResources{Tasks: map[string]*wire.AllocatedTaskResources{"t": {Devices: []*wire.AllocatedDeviceResource{{DeviceIDs: make([]string, n)}}}}}
	}
	fake := func() *agentFake {
		f := newAgentFake(t)
		f.answers["GET /v1/jobs"] = stubs
		f.answers["GET /v1/allocations"] = []*wire.AllocationListStub{{JobID: "sweep-1", Namespace: "default", ClientStatus: "running", AllocatedResources: gpus(8)}, {JobID: "web", Namespace: "default", ClientStatus: "running", AllocatedResources: gpus(4)}}
		for _, j := range stubs {
			f.answers["DELETE /v1/job/"+j.ID] = &wire.JobDeregisterResponse{}
		}
		return f
	}
	for _, c := range []struct {
		args    string
		stopped []string
	}{
		{"-name sweep-*", []string{"sweep-1", "sweep-2"}}, {"-user bob", []string{"sweep-2", "web"}}, {"-user bob -state pending", []string{"sweep-2"}},
		{"-queue research", []string{"sweep-1", "sweep-2"}}, {"-queue default", []string{"web"}}, {"-all", []string{"sweep-1", "sweep-2", "web"}}, {"-user carol", nil},
	} {
		f := fake()
		r := f.run(t, "", strings.Fields("job stop -yes "+c.args)...)
		var got []string
		for _, line := range f.requests {
			if id, ok := strings.CutPrefix(line, "DELETE /v1/job/"); ok {
				got = append(got, strings.SplitN(id, "?", 2)[0])
			}
		}
		if r.code != 0 || !slices.Equal(got, c.stopped) {
			t.Errorf("%s: exit code %d, stopped %q, want %q: %s", c.args, r.code, got, c.stopped, r.errOut)
		}
	}
	f := fake()
	r := f.run(t, "", "job", "stop", "-name", "sweep-*")
	if want := "Stop 2 jobs of alice (1), bob (1) in namespace default, with 1 live allocation and 8 GPUs?"; r.code != exitError || !strings.Contains(r.errOut, want) || strings.Contains(strings.Join(f.requests, "\n"), "DELETE") {
		t.Errorf("without -yes and a terminal: exit code %d, %q, %q", r.code, r.errOut, f.requests)
	}
	for _, args := range []string{"job stop", "job stop -all web", "job stop -state dead", "job stop -name [ -yes"} {
		if r := fake().run(t, "", strings.Fields(args)...); r.code != exitError {
			t.Errorf("%s: exit code %d", args, r.code)
		}
	}
}

func TestFmt(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		return p
	}
	const odd, even = "job \"a\" {\ntype = \"batch\"\n  id=\"b\"\n}\n", "job \"a\" {\n  type = \"batch\"\n  id   = \"b\"\n}\n"
	a, below, note, good := write("a.hcl", odd), write("below/b.hcl", odd), write("note.txt", odd), write("good.nomad", even)
	f := newAgentFake(t)
	if r := f.run(t, "", "fmt", "-check", dir); r.code != exitError || r.out != a+"\n" {
		t.Errorf("-check: exit code %d, %q %q", r.code, r.out, r.errOut)
	}
	if r := f.run(t, "", "fmt", "-write=false", a); r.code != 0 || r.out != even {
		t.Errorf("-write=false: exit code %d, %q", r.code, r.out)
	}
	if r := f.run(t, odd, "fmt", "-"); r.code != 0 || r.out != even {
		t.Errorf("standard input: exit code %d, %q", r.code, r.out)
	}
	if r := f.run(t, "", "fmt", dir); r.code != 0 || r.out != a+"\n" {
		t.Errorf("exit code %d, %q %q", r.code, r.out, r.errOut)
	}
	for p, want := range map[string]string{a: even, below: odd, note: odd, good: even} {
		b, err := os.ReadFile(p)
		if st, serr := os.Stat(p); err != nil || serr != nil || string(b) != want || st.Mode().Perm() != 0o640 {
			t.Errorf("%s: %q %v", p, b, err)
		}
	}
	if r := f.run(t, "", "fmt", "-recursive", "-list=false", dir); r.code != 0 || r.out != "" {
		t.Errorf("-recursive: exit code %d, %q", r.code, r.out)
	}
	if r := f.run(t, "", "fmt", "-check", "-recursive", dir); r.code != 0 {
		t.Errorf("formatted files: exit code %d, %q", r.code, r.out)
	}
	broken := write("broken.hcl", "job \"x\" {\n")
	if r := f.run(t, "", "fmt", broken); r.code != exitError || !strings.Contains(r.errOut, "broken.hcl line 1") {
		t.Errorf("a broken file: exit code %d, %q", r.code, r.errOut)
	}
}
