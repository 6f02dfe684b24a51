package client

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/clientfake"
	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/structs"
)

// command is a shell script as a command of the operator.
func command(script string) *runner.Command {
	return &runner.Command{Argv: []string{"/bin/sh", "-c", script}, Timeout: 10 * time.Second}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPrologAndEpilog(t *testing.T) {
	srv := clientfake.New()
	cfg := newConfig(t, srv)
	said := filepath.Join(t.TempDir(), "said")
	cfg.Hooks.Prolog = command("echo $MUSTER_HOOK $MUSTER_JOB_ID $MUSTER_GPUS >> " + said + "; test -d $MUSTER_ALLOC_DIR")
	cfg.Hooks.Epilog = command("echo $MUSTER_HOOK $MUSTER_ALLOC_ID >> " + said)
	a := start(t, srv, cfg)
	gpu := a.Node().Resources.Devices[0]
	id := srv.Place(a.ID(), clientfake.Job("train", structs.JobBatch, hook("m", "", false, `{"run_for":"20ms"}`)), func(al *structs.Allocation) {
		al.Grants = []structs.Grant{{Task: "m", Device: gpu.ID(), Instance: gpu.Instances[0].ID}}
	})
	srv.WaitStatus(t, id, structs.ClientComplete)
	want := "prolog train " + gpu.Instances[0].ID + "\nepilog " + id.String() + "\n"
	if got := read(t, said); got != want {
		t.Errorf("said %q, want %q", got, want)
	}
	// An agent that starts again does not run them for what has ended.
	a = a.restart()
	srv.WaitStatus(t, srv.Place(a.ID(), clientfake.Job("next", structs.JobBatch, hook("m", "", false, `{"run_for":"1ms"}`))), structs.ClientComplete)
	if got := read(t, said); strings.Count(got, "epilog "+id.String()) != 1 {
		t.Errorf("said %q", got)
	}
	if d := srv.Drains(); len(d) != 0 {
		t.Errorf("the node was drained: %+v", d)
	}
}

func TestFailingPrologDrains(t *testing.T) {
	for name, c := range map[string]struct {
		cmd  *runner.Command
		want string
	}{
		"exit":    {command("echo GPU 3 has fallen off the bus; exit 3"), "exit status 3: GPU 3 has fallen off the bus"},
		"much":    {command("yes all is well | head -c 3000000; printf 'row remap\\033[31m failed\\n\\n'; exit 4"), "failed"},
		"timeout": {&runner.Command{Argv: []string{"/bin/sh", "-c", "echo waiting; sleep 300 & sleep 300"}, Timeout: 200 * time.Millisecond}, "it took longer than 200ms: waiting"},
		"missing": {&runner.Command{Argv: []string{"/nowhere/prolog"}}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := clientfake.New()
			cfg := newConfig(t, srv)
			cfg.Hooks.Prolog = c.cmd
			a := start(t, srv, cfg)
			id := srv.Place(a.ID(), clientfake.Job("train", structs.JobBatch, hook("m", "", false, `{"run_for":"20ms"}`)))
			srv.Wait(t, "the drain", func() bool { return len(srv.Drains()) == 1 })
			said := c.want
			if name == "much" {
				said = "the prolog of the node failed: exit status 4: row remap [31m failed"
			}
			if d := srv.Drains()[0]; d.Deadline != 0 || !strings.Contains(d.Meta["message"], "the prolog of the node failed") || !strings.HasSuffix(d.Meta["message"], said) && name != "missing" {
				t.Errorf("drained with %+v", d)
			}
			srv.Wait(t, "the event", func() bool {
				st := srv.Alloc(id).TaskStates.Get("m")
				return st != nil && strings.Contains(eventTypes(st), "Prolog Failed")
			})
			al := srv.Alloc(id)
			st := al.TaskStates.Get("m")
			if e := st.Events[len(st.Events)-1]; !strings.Contains(e.Message, c.want) {
				t.Errorf("the event says %q, want %q", e.Message, c.want)
			}
			if al.Client != structs.ClientPending || st.StartedAt != 0 {
				t.Errorf("the allocation is %s, started at %v", al.Client, st.StartedAt)
			}
			srv.Stop(id) // as servers do once it has another place
			al = srv.WaitStatus(t, id, structs.ClientComplete)
			if st := al.TaskStates.Get("m"); st.Failed || st.StartedAt != 0 {
				t.Errorf("task %+v", st)
			}
		})
	}
}

func TestFailingEpilogDrains(t *testing.T) {
	srv := clientfake.New()
	cfg := newConfig(t, srv)
	cfg.Hooks.Epilog = command("echo a process does not die; exit 1")
	a := start(t, srv, cfg)
	al := srv.WaitStatus(t, srv.Place(a.ID(), clientfake.Job("train", structs.JobBatch, hook("m", "", false, `{"run_for":"1ms"}`))), structs.ClientComplete)
	if got := eventTypes(al.TaskStates.Get("m")); !strings.Contains(got, "Epilog Failed") {
		t.Errorf("events %s", got)
	}
	srv.Wait(t, "the drain", func() bool { return len(srv.Drains()) == 1 })
}

// TestHealthCommand: nothing starts before the first success; a failure later drains the node, once.
func TestHealthCommand(t *testing.T) {
	srv := clientfake.New()
	cfg := newConfig(t, srv)
	well := filepath.Join(t.TempDir(), "well")
	cfg.Hooks.Health, cfg.Hooks.HealthEvery = command("test -e "+well+" || { echo ECC errors; exit 1; }"), 20*time.Millisecond
	a := start(t, srv, cfg)
	id := srv.Place(a.ID(), clientfake.Job("train", structs.JobBatch, hook("m", "", false, `{"run_for":"1ms"}`)))
	srv.Wait(t, "the drain", func() bool { return len(srv.Drains()) == 1 })
	if m := srv.Drains()[0].Meta["message"]; !strings.Contains(m, "ECC errors") {
		t.Errorf("drained because %q", m)
	}
	time.Sleep(100 * time.Millisecond) // nothing starts in this time, and no second drain
	if al := srv.Alloc(id); al.Client != structs.ClientPending || len(srv.Drains()) != 1 {
		t.Errorf("allocation %s on a sick node, %d drains", al.Client, len(srv.Drains()))
	}
	if err := os.WriteFile(well, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	srv.WaitStatus(t, id, structs.ClientComplete)
	if err := os.Remove(well); err != nil {
		t.Fatal(err)
	}
	srv.Wait(t, "the second drain", func() bool { return len(srv.Drains()) == 2 })
}

// TestEnabledWhileUnwell: a node that is enabled while its health command still fails is drained again, with the reason, by a
// run that began after the enabling; one that is enabled after its cure is not.
func TestEnabledWhileUnwell(t *testing.T) {
	srv := clientfake.New()
	cfg := newConfig(t, srv)
	dir := t.TempDir()
	runs, well, gate, began := filepath.Join(dir, "runs"), filepath.Join(dir, "well"), filepath.Join(dir, "gate"), filepath.Join(dir, "began")
	wait := "if test -e " + gate + "; then touch " + began + "; while test -e " + gate + "; do sleep 0.01; done; echo before the cure; exit 1; fi; "
	cfg.Hooks.Health, cfg.Hooks.HealthEvery = command("echo >> "+runs+"; "+wait+"test -e "+well+" || { echo ECC errors; exit 1; }"), 20*time.Millisecond
	a := start(t, srv, cfg)
	// more waits until the command has begun n times more.
	more := func(n int) {
		t.Helper()
		from := strings.Count(read(t, runs), "\n")
		srv.Wait(t, "runs of the command", func() bool { return strings.Count(read(t, runs), "\n") >= from+n })
	}
	drains := func(n int) {
		t.Helper()
		srv.Wait(t, "the drain", func() bool { return len(srv.Drains()) >= n })
		more(3)
		if ds := srv.Drains(); len(ds) != n || !strings.Contains(ds[n-1].Meta["message"], "ECC errors") {
			t.Fatalf("drains %+v, want %d", ds, n)
		}
	}
	drains(1)
	srv.Enable(a.ID())
	drains(2)
	srv.Enable(a.ID())
	drains(3)
	if err := os.WriteFile(well, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	more(2) // the second began after the first, which has seen the cure
	srv.Enable(a.ID())
	drains(3)
	srv.WaitStatus(t, srv.Place(a.ID(), clientfake.Job("train", structs.JobBatch, hook("m", "", false, `{"run_for":"1ms"}`))), structs.ClientComplete)
	// A run that was under way when the node was cured and enabled does not drain it.
	if err := os.Remove(well); err != nil {
		t.Fatal(err)
	}
	drains(4)
	touch := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	touch(gate)
	srv.Wait(t, "the run at the gate", func() bool { _, err := os.Stat(began); return err == nil })
	touch(well)
	srv.Enable(a.ID())
	if err := os.Remove(gate); err != nil {
		t.Fatal(err)
	}
	drains(4)
}
