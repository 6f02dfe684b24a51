package allocdir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/taskfs"
	"github.com/muster-sched/muster/structs"
)

func build(t *testing.T, tmpfs bool) *Dir {
	t.Helper()
	d := New(t.TempDir(), "a1")
	for range 2 { // twice is the same
		if err := d.Build(); err != nil {
			t.Fatal(err)
		}
		if err := d.BuildTask("web", TaskSpec{Owner: taskfs.Agent, Memory: tmpfs}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := d.Destroy(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// isMount reports whether the secrets of task web are in memory.
func isMount(t *testing.T, d *Dir) bool {
	t.Helper()
	dir, _, err := d.Part("web")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	return dir.IsMount(Secrets)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestLayout(t *testing.T) {
	d := build(t, false)
	for path, mode := range map[string]os.FileMode{
		"alloc": 0o755, "alloc/data": 0o777 | os.ModeSticky, "alloc/logs": 0o755, "alloc/tmp": 0o777 | os.ModeSticky,
		"web": 0o755, "web/local": 0o755, "web/secrets": 0o700, "web/tmp": 0o777 | os.ModeSticky,
	} {
		t.Run(path, func(t *testing.T) {
			info, err := os.Lstat(filepath.Join(d.Root, path))
			if err != nil || !info.IsDir() || info.Mode()&(os.ModePerm|os.ModeSticky) != mode {
				t.Errorf("%s: %v, mode %v, want %v", path, err, info.Mode(), mode)
			}
		})
	}
	for _, name := range []string{"alloc", "..", ".", "a/b", ".fetch", ".x", ""} {
		if err := d.BuildTask(name, TaskSpec{Owner: taskfs.Agent}); err == nil {
			t.Errorf("a task called %q was given a directory", name)
		}
	}
}

func TestSecretsInMemory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not run: needs root to mount")
	}
	d := build(t, true)
	s := d.Task("web").Secrets
	if !isMount(t, d) {
		t.Skip("not run: this machine does not let us mount")
	}
	if list, err := d.List("web"); err != nil || len(list) != 3 {
		t.Errorf("the task's directory shows %v, %v", list, err)
	}
	if os.WriteFile(filepath.Join(s, "big"), make([]byte, 2<<20), 0o600) == nil {
		t.Error("secrets may be larger than their file system")
	}
	write(t, filepath.Join(d.SharedDir(), Data, "f"), strings.Repeat("x", 5000))
	if n, err := d.Usage(1 << 40); err != nil || n < 5000 || n > 1<<20 {
		t.Errorf("usage is %d, %v: secrets in memory do not count, data does", n, err)
	}
	other := New(filepath.Dir(d.Root), "other")
	if err := errors.Join(os.Mkdir(other.Root, 0o755), os.Symlink(d.Task("web").Root, other.Task("web").Root)); err != nil {
		t.Fatal(err)
	}
	if other.Unmount("web"); !isMount(t, d) {
		t.Error("a link in the place of a task's directory led to another allocation's secrets")
	}
	d.Unmount("web")
	if isMount(t, d) {
		t.Error("still mounted")
	}
	if entries, _ := os.ReadDir(s); len(entries) != 0 {
		t.Errorf("secrets are left on disk: %v", entries)
	}
}

// TestNothingLeadsOut tries every way a task has to make the agent read a file that is not the allocation's.
func TestNothingLeadsOut(t *testing.T) {
	d := build(t, false)
	outside := filepath.Join(filepath.Dir(d.Root), "outside")
	write(t, outside, "outside")
	write(t, filepath.Join(d.Task("web").Secrets, "token"), "secret")
	write(t, filepath.Join(d.SharedDir(), Data, "ok"), "fine")
	local := d.Task("web").Local
	for name, target := range map[string]string{
		"abs": outside, "up": "../../../outside", "root": "/", "sec": "../secrets/token", "secdir": "../secrets", "passwd": "/etc/passwd",
		"self": "/proc/self/environ", "loop": "loop", "good": "../../alloc/data/ok",
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.Symlink(target, filepath.Join(local, name)); err != nil {
				t.Fatal(err)
			}
		})
	}
	if err := syscall.Mkfifo(filepath.Join(local, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]structs.ErrorCode{
		"../outside": structs.CodeInvalid, "../../../etc/passwd": structs.CodeInvalid, "web/../../outside": structs.CodeInvalid, "/../outside": structs.CodeInvalid,
		"web/local/abs": structs.CodeInvalid, "web/local/up": structs.CodeInvalid, "web/local/root": structs.CodeInvalid, "web/local/root/etc/passwd": structs.CodeInvalid,
		"web/local/passwd": structs.CodeInvalid, "web/local/self": structs.CodeInvalid, "web/local/loop": structs.CodeInvalid,
		"web/secrets/token": structs.CodeDenied, "web/local/../secrets/token": structs.CodeDenied, "web/local/sec": structs.CodeDenied, "web/local/secdir/token": structs.CodeDenied,
		"web/secrets": structs.CodeDenied, "web/local/pipe": structs.CodeInvalid, "web/none": structs.CodeNotFound, "a\x00b": structs.CodeInvalid, strings.Repeat("x/", 4000): structs.CodeInvalid,
	} {
		t.Run(path, func(t *testing.T) {
			if f, err := d.OpenFile(path); err == nil || structs.CodeOf(err) != want {
				t.Errorf("opening %.40q: %v, want %s", path, err, want)
				if f != nil {
					f.Close()
				}
			}
		})
	}
	for _, path := range []string{"web/local/root", "web/local/secdir", "web/secrets", "..", "web/local/pipe", "alloc/data/ok"} {
		if list, err := d.List(path); err == nil {
			t.Errorf("listing %q gives %v", path, list)
		}
	}
	for _, path := range []string{"alloc/data/ok", "/alloc/data/ok", "web/local/good", "alloc//data/../data/ok"} {
		f, err := d.OpenFile(path)
		if err != nil {
			t.Errorf("opening %q: %v", path, err)
			continue
		}
		f.Close()
	}
	if list, err := d.List("/"); err != nil || len(list) != 2 {
		t.Errorf("listing the top: %v, %v", list, err)
	}
	if err := d.Destroy(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(outside); err != nil || string(b) != "outside" {
		t.Error("removing the allocation removed what a link pointed to")
	}
	if _, err := d.List("/"); structs.CodeOf(err) != structs.CodeNotFound {
		t.Errorf("listing what is gone: %v", err)
	}
}

func TestAdopt(t *testing.T) {
	root := t.TempDir()
	prev, next := New(root, "p"), New(root, "n")
	for _, d := range []*Dir{prev, next} {
		if err := d.Build(); err != nil {
			t.Fatal(err)
		}
		if err := d.BuildTask("web", TaskSpec{Owner: taskfs.Agent}); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(prev.SharedDir(), Data, "db"), "rows")
	write(t, filepath.Join(prev.Task("web").Local, "cache"), "c")
	write(t, filepath.Join(next.Task("web").Local, "own"), "o") // not to be replaced
	if err := next.Adopt(prev, []string{"web"}); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(filepath.Join(next.SharedDir(), Data, "db")); string(b) != "rows" {
		t.Errorf(`the shared data was not taken over: got %q, want "rows"`, string(b))
	}
	if _, err := os.Stat(filepath.Join(next.Task("web").Local, "own")); err != nil {
		t.Error("the task's own files were replaced")
	}
	if err := next.Adopt(New(root, "none"), []string{"web"}); err != nil {
		t.Errorf("taking over from nothing: %v", err)
	}
}

func TestUsageStops(t *testing.T) {
	d := build(t, false)
	for _, n := range []string{"a", "b", "c"} {
		write(t, filepath.Join(d.SharedDir(), Data, n), strings.Repeat("x", 100_000))
	}
	if n, err := d.Usage(150_000); err != nil || n <= 150_000 {
		t.Errorf("usage is %d, %v", n, err)
	}
}

// TestDestroyEmpty removes what a task has left as it was made, or in its way: nothing outside goes along.
func TestDestroyEmpty(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.MkdirAll(filepath.Join(outside, Local), 0o755); err != nil {
		t.Fatal(err)
	}
	replace := func(rel string) func(d *Dir) error {
		return func(d *Dir) error {
			path := filepath.Join(d.Root, rel)
			return errors.Join(os.RemoveAll(path), os.Symlink(outside, path))
		}
	}
	for name, change := range map[string]func(d *Dir) error{
		"as it was made":       func(*Dir) error { return nil },
		"a directory is gone":  func(d *Dir) error { return os.Remove(filepath.Join(d.Root, "web", Tmp)) },
		"a file at the top":    func(d *Dir) error { return os.WriteFile(filepath.Join(d.Root, "x"), nil, 0o600) },
		"a log":                func(d *Dir) error { return os.WriteFile(filepath.Join(d.LogDir(), "x"), nil, 0o600) },
		"another directory":    func(d *Dir) error { return os.MkdirAll(filepath.Join(d.Root, "web", "a", "b"), 0o700) },
		"a link for the task":  replace("web"),
		"a link for its files": replace("web/" + Local),
		"a link for the logs":  replace("alloc/" + Logs),
	} {
		t.Run(name, func(t *testing.T) {
			d := build(t, false)
			if err := change(d); err != nil {
				t.Fatal(err)
			}
			if err := d.Destroy(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := os.Lstat(d.Root); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: the directory is still there: %v", name, err)
			}
			if _, err := os.Lstat(filepath.Join(outside, Local)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if err := d.Destroy(); err != nil {
				t.Errorf("%s: removed again: %v", name, err)
			}
		})
	}
}

func TestBarred(t *testing.T) {
	dir := t.TempDir()
	for p := dir; p != "/" && p != os.TempDir(); p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	private := filepath.Join(dir, "private")
	data := filepath.Join(private, "data", "allocs")
	if err := os.MkdirAll(data, 0o711); err != nil {
		t.Fatal(err)
	}
	if got := Barred(data); got != "" {
		t.Errorf("Barred = %q though everybody may enter each directory", got)
	}
	if err := os.Chmod(private, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := Barred(data); got != private {
		t.Errorf("Barred = %q, want %q", got, private)
	}
}

// TestScatter marks the directory of allocations where the file system knows that mark.
func TestScatter(t *testing.T) {
	root := t.TempDir()
	Scatter(filepath.Join(root, "none"))
	Scatter(root)
	Scatter(root)
	if _, err := os.Stat(root); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.EXT4_SUPER_MAGIC {
		t.Skipf("does not apply here: the file system of %s is no ext4", root)
	}
	if flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS); err != nil || flags&topDir == 0 {
		t.Errorf("flags of the directory: %#x, %v", flags, err)
	}
}
