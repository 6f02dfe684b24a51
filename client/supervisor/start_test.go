package supervisor

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/client/supervisor/launch"
)

// TestTaskFile: the room for the exit record comes with the first line, the last line counts, and an earlier task's content
// is overwritten.
func TestTaskFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.b.0")
	if err := os.WriteFile(path, make([]byte, launch.RecordSize), 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f, m := taskFile{fd: fd}, memory{ID: "a.b.0", BootID: "boot"}
	for pid := range 3 {
		m.PID = pid
		if err := f.save(&m); err != nil {
			t.Fatal(err)
		}
		got, result, err := load(path)
		if err != nil || result != nil || got.ID != m.ID || got.PID != pid {
			t.Fatalf("after line %d the file has %+v, result %v, error %v", pid, got, result, err)
		}
	}
	unix.Close(fd)
	if err := f.save(&m); err == nil {
		t.Error("a line was saved to a closed file")
	}
}

// TestLauncherFiles: streams without a log go to /dev/null, each other stream has a pipe and a pump, and a log whose
// directory does not exist fails the start. Nothing stays open.
func TestLauncherFiles(t *testing.T) {
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	dir := t.TempDir()
	before := open()
	for _, c := range []struct {
		name  string
		spec  Spec
		pumps int
		ok    bool
	}{
		{"no logs", Spec{}, 0, true},
		{"one log", Spec{Stdout: Log{Base: filepath.Join(dir, "out")}}, 1, true},
		{"two logs", Spec{Stdout: Log{Base: filepath.Join(dir, "out")}, Stderr: Log{Base: filepath.Join(dir, "err")}}, 2, true},
		{"no directory", Spec{Stdout: Log{Base: filepath.Join(dir, "out")}, Stderr: Log{Base: filepath.Join(dir, "none", "err")}}, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &starting{task: &task{fd: -1}, spec: &c.spec}
			files, err := s.files()
			if (err == nil) != c.ok || len(s.out) != c.pumps {
				t.Errorf("got %d pumps, error %v, want %d pumps, ok %v", len(s.out), err, c.pumps, c.ok)
			}
			if err == nil && c.pumps == 0 && (files[0] != files[1] || files[1] != files[launch.FDStdoutRead]) {
				t.Errorf("without logs the descriptors are %v, want /dev/null for all", files)
			}
			s.close()
			for _, p := range s.out {
				p.finish(5 * time.Second)
			}
		})
	}
	within(t, 5*time.Second, "descriptors are closed", func() bool { return open() <= before })
}

// TestLauncherAttributes: an isolated task has a pid namespace, and a version 2 group is opened to be cloned into.
func TestLauncherAttributes(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name  string
		spec  Spec
		group cgroup.Group
		flags uintptr
		in    bool
		ok    bool
	}{
		{"plain", Spec{}, cgroup.Group{}, 0, false, true},
		{"isolated", Spec{Isolate: &Isolation{}}, cgroup.Group{}, unix.CLONE_NEWPID, false, true},
		{"group of version 1", Spec{}, cgroup.Group{Main: dir}, 0, false, true},
		{"group of version 2", Spec{}, cgroup.Group{Main: dir, V2: true}, 0, true, true},
		{"group that is gone", Spec{}, cgroup.Group{Main: filepath.Join(dir, "none"), V2: true}, 0, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &starting{task: &task{mem: memory{Group: c.group}}, spec: &c.spec}
			defer s.close()
			attr, err := s.attributes(new(int))
			if (err == nil) != c.ok {
				t.Fatalf("error %v, want ok %v", err, c.ok)
			}
			if err == nil && (attr.Cloneflags != c.flags || attr.UseCgroupFD != c.in || !attr.Setsid) {
				t.Errorf("got %+v, want flags %x, into the group %v", attr, c.flags, c.in)
			}
		})
	}
}
