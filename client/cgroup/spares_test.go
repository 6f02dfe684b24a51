package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSpareMemoryGroups ends tasks one after another and looks at which memory group the next one gets.
func TestSpareMemoryGroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not run: needs root")
	}
	m, err := Open("spares-" + strconv.Itoa(os.Getpid()))
	if err != nil {
		t.Skip("not run: " + err.Error())
	}
	t.Cleanup(m.Close)
	if point, v2 := m.Layout.where("memory"); point == "" || v2 {
		t.Skip("does not apply here: memory is not limited by version 1 groups")
	}
	inode := func(g Group) (ino uint64) {
		st, err := os.Stat(g.V1["memory"])
		if err != nil {
			t.Fatal(err)
		}
		return inodeOf(st)
	}
	limit := Limits{MemoryBytes: 32 << 20, PidsMax: 10}
	run := func(id string, l Limits, in func(Group)) (ino uint64) {
		t.Helper()
		g, err := m.Create(id, l)
		if err != nil {
			t.Fatal(err)
		}
		ino = inode(g)
		for f, want := range map[string]int64{"memory.limit_in_bytes": l.MemoryBytes, "memory.memsw.limit_in_bytes": l.MemoryBytes} {
			if got := number(filepath.Join(g.V1["memory"], f)); got != uint64(want) && (f == "memory.limit_in_bytes" || got > 0) {
				t.Errorf("%s: %s is %d, want %d", id, f, got, want)
			}
		}
		if in != nil {
			in(g)
		}
		if err := m.Remove(g); err != nil {
			t.Fatal(err)
		}
		if err := m.Remove(g); err != nil {
			t.Errorf("removing twice: %v", err)
		}
		for _, d := range g.V1 {
			if _, err := os.Stat(d); !os.IsNotExist(err) {
				t.Errorf("%s of an ended task: %v", d, err)
			}
		}
		return ino
	}
	first := run("a", limit, nil)
	if again := run("b", limit, nil); again != first {
		t.Errorf("a task with the same limit got a new group: got %v, want %v", again, first)
	}
	if other := run("c", Limits{MemoryBytes: 64 << 20}, nil); other == first {
		t.Error("a task with another limit got the group")
	}
	if low := run("d", Limits{MemoryBytes: 32 << 20, MemoryLow: 1 << 20}, nil); low == first {
		t.Error("a task with a reservation got the group")
	}
	run("raised", limit, func(g Group) {
		if err := os.WriteFile(filepath.Join(g.V1["memory"], "memory.memsw.limit_in_bytes"), []byte("-1"), 0); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(g.V1["memory"], "memory.limit_in_bytes"), []byte("67108864"), 0); err != nil {
			t.Fatal(err)
		}
	})
	first = run("after one that raised its limit", limit, nil) // run looks at the limit
	// Pages of a file that are charged to the group stay with it.
	used := run("e", limit, func(g Group) { fill(t, g, 4<<20) })
	if used != first {
		t.Errorf("the spare group was not used: got %v, want %v", used, first)
	}
	fresh := run("f", limit, nil)
	if fresh == used {
		t.Error("a task got a group with 4 MiB of another's pages")
	}
	if g, err := m.Create("g", limit); err != nil || g.Again != limit.MemoryBytes || inode(g) != fresh {
		t.Errorf("%+v, %v; want g.Again = %v, inode(g) = %v", g, err, limit.MemoryBytes, fresh)
	} else if err := g.Remove(); err != nil {
		t.Error(err)
	}
	// Nothing is left of tasks that are gone.
	run("last", limit, nil)
	for began := time.Now(); spareNames(t, filepath.Join(m.dir(m.Layout.V1["memory"]))) > 0; time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("spare groups stay when no task ends any more")
		}
	}
	for i := range sparesMax + 5 {
		g, err := m.Create("h"+strconv.Itoa(i), limit)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Remove(g)
	}
	parent := filepath.Join(m.dir(m.Layout.V1["memory"]))
	os.Mkdir(filepath.Join(parent, sparePrefix+"1-1"), 0o755) // another process left it
	m.Sweep()
	if left := spareNames(t, parent); left != 0 {
		t.Errorf("%d spare groups are left", left)
	}
	t.Cleanup(func() {
		if left := spareNames(t, parent); left > sparesMax {
			t.Errorf("%d spare groups were kept", left)
		}
	})
}

func spareNames(t *testing.T, dir string) (n int) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), sparePrefix) {
			n++
		}
	}
	return n
}

func inodeOf(st os.FileInfo) uint64 { return st.Sys().(*syscall.Stat_t).Ino }

// fill charges pages of a file to the group.
func fill(t *testing.T, g Group, size int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pages")
	cmd := exec.Command("sh", "-c", `echo 0 >"$1" && head -c "$2" /dev/zero >"$3"`, "sh", filepath.Join(g.V1["memory"], "tasks"), strconv.Itoa(size), file)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
