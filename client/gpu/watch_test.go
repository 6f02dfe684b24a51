package gpu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/muster-sched/muster/structs"
)

func TestWhoseProcessItIs(t *testing.T) {
	id := structs.AllocID{0xab, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	name := id.String()
	for _, c := range []struct {
		text, task string
		ok         bool
	}{
		{"0::/muster/5f1c/" + name + ".train.0\n", "train", true},
		{"12:pids:/muster/5f1c/" + name + ".a.b.3\n0::/\n", "a.b", true},
		{"0::/system.slice/muster.service/muster/5f1c/" + name + ".train.12/child\n", "train", true},
		{"0::/muster/5f1c/.supervisor\n", "", false},
		{"0::/muster/5f1c\n", "", false},
		{"0::/user.slice/session-1.scope\n", "", false},
		{"0::/muster/5f1c/not-an-id.train.0\n", "", false},
		{"", "", false},
	} {
		alloc, task, ok := ownerIn(c.text)
		if ok != c.ok || task != c.task || ok && alloc != id {
			t.Errorf("%q: %v %q %v", c.text, alloc, task, ok)
		}
	}
}

// TestOwnerWithoutGroups: a process outside of control groups belongs to the task whose launcher is among its ancestors.
func TestOwnerWithoutGroups(t *testing.T) {
	id := structs.AllocID{0xab, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	run := id.String() + ".a.b.3"
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, run), []byte("exec 3<&0; sh -c 'echo $$; read line <&3' & wait"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &exec.Cmd{Path: "/bin/sh", Args: []string{"muster-launch", run, "task"}, Dir: dir}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); _ = c.Wait() }() // which ends both
	pid := 0
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	if alloc, task, ok := OwnerOf(pid); !ok || alloc != id || task != "a.b" {
		t.Errorf("%v %q %v", alloc, task, ok)
	}
	if _, _, ok := OwnerOf(os.Getpid()); ok {
		t.Error("the test belongs to a task")
	}
}

func TestWatcher(t *testing.T) {
	a, b := structs.AllocID{1}, structs.AllocID{2}
	owners := map[int]structs.AllocID{10: a, 11: a, 20: b}
	w := &Watcher{Owner: func(pid int) (structs.AllocID, string, bool) { id, ok := owners[pid]; return id, "t", ok }}
	const mib = 1 << 20
	quotas := []Quota{{a, "t", "G", 20000, ""}, {b, "t", "G", 1000, ""}}
	look := func(ps ...Process) []Excess {
		return w.Look(w.Uses([]Sample{{UUID: "G", Processes: ps}, {UUID: "H"}}), quotas)
	}

	if uses := w.Uses([]Sample{{UUID: "G", Processes: []Process{{PID: 10, Bytes: 5 * mib}, {PID: 99, Bytes: mib}, {PID: 20, Bytes: -1}, {PID: 11, Bytes: 7 * mib}}}}); !reflect.DeepEqual(uses,
		[]TaskUse{{a, "t", "G", 12 * mib, false, 0}, {b, "t", "G", 0, true, 0}}) {
		t.Errorf("uses %+v", uses)
	}
	within, beyond := Process{PID: 10, Bytes: 20400 * mib}, Process{PID: 10, Bytes: 20401 * mib}
	for i, c := range []struct {
		ps   []Process
		want []Excess
	}{
		{[]Process{beyond}, nil}, // once may be a program that just ended
		{[]Process{within}, nil},
		{[]Process{beyond}, nil},
		{[]Process{beyond, {PID: 20, Bytes: 1256 * mib}}, []Excess{{a, "t", "G", 20000, 20401}}},
		{[]Process{{PID: 10, Bytes: 20000 * mib}, {PID: 11, Bytes: 401 * mib}}, []Excess{{a, "t", "G", 20000, 20401}}}, // children count
		{nil, nil},
		{[]Process{{PID: 20, Bytes: 1257 * mib}}, nil},
		{[]Process{{PID: 20, Bytes: 1257 * mib}}, []Excess{{b, "t", "G", 1000, 1257}}},
	} {
		if got := look(c.ps...); !reflect.DeepEqual(got, c.want) {
			t.Errorf("look %d: %+v, want %+v", i, got, c.want)
		}
	}
}
