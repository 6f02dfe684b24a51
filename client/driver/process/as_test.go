package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/internal/nodump"
)

// TestLookAsTheUser: commands and working directories are looked up with the rights of the task's user, so that a refusal
// does not say what there is where only root may look; an allocation is found although its parents are root's alone.
func TestLookAsTheUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not run: needs root, who looks with others' rights")
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	const group = 4242
	at := func(p string) string { return filepath.Join(dir, p) }
	for p, mode := range map[string]os.FileMode{"root": 0o700, "team": 0o750, "data": 0o700, "data/alloc": 0o755, "data/alloc/t": 0o755, "data/alloc/t/local": 0o755, "root/sub": 0o755, "theirs": 0o700} {
		if err := errors.Join(os.MkdirAll(at(p), 0o755), os.Chmod(at(p), mode)); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"root/tool", "team/tool", "data/alloc/t/local/tool", "theirs/tool"} {
		if err := os.WriteFile(at(p), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chown(at("team"), 0, group), os.Chown(at("theirs"), 4241, 4241), os.Symlink(at("root/tool"), at("data/alloc/t/local/a-link")), os.Symlink(at("root/none"), at("data/alloc/t/local/loose"))); err != nil {
		t.Fatal(err)
	}
	dirs := driver.Dirs{AllocRoot: at("data/alloc"), TaskDir: at("data/alloc/t"), LocalDir: at("data/alloc/t/local")}
	look := func(u *supervisor.Credential, command string) string {
		p, err := Search{Driver: "exec", Dirs: dirs, Dir: dirs.LocalDir, User: u}.Look(command)
		if err != nil {
			return strings.ReplaceAll(err.Error(), command, "COMMAND")
		}
		return p
	}
	stranger := &supervisor.Credential{UID: 4241, GID: 4241}
	member := &supervisor.Credential{UID: 4241, GID: 4241, Groups: []uint32{group}}
	denied := `exec: command "COMMAND" cannot be executed: permission denied`
	for _, c := range []struct {
		user          *supervisor.Credential
		command, want string
	}{
		{nil, at("root/tool"), at("root/tool")}, {&supervisor.Credential{}, at("root/tool"), at("root/tool")},
		{stranger, at("root/tool"), denied}, {stranger, at("root/none"), denied}, {stranger, at("team/tool"), denied},
		{member, at("team/tool"), at("team/tool")}, {member, at("root/tool"), denied},
		{stranger, "tool", at("data/alloc/t/local/tool")}, {stranger, at("data/alloc/t/local/tool"), at("data/alloc/t/local/tool")},
		{stranger, "a-link", denied}, {stranger, "loose", denied}, {nil, "a-link", at("data/alloc/t/local/a-link")},
	} {
		if got := look(c.user, c.command); got != c.want {
			t.Errorf("%s for %+v: %q, want %q", c.command, c.user, got, c.want)
		}
	}
	for p, want := range map[string]string{"root/sub": "may not enter", "root/none": "may not enter", "none": "is not a directory"} {
		if _, err := WorkDir(dirs, at(p), stranger); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("working directory %s: %v, want %q", p, err, want)
		}
	}
	if got, err := WorkDir(dirs, at("root/sub"), nil); err != nil || got != at("root/sub") {
		t.Errorf("root's working directory: %q, %v", got, err)
	}

	// No other goroutine gets the rights of a user, or loses its own.
	var all sync.WaitGroup
	for range 64 {
		all.Add(2)
		go func() {
			defer all.Done()
			if got := look(stranger, at("root/tool")); got != denied {
				t.Errorf("a stranger among many: %q", got)
			}
		}()
		go func() {
			defer all.Done()
			for _, p := range []string{"root/tool", "theirs/tool"} { // for which root needs a capability
				if _, err := os.Stat(at(p)); err != nil {
					t.Errorf("root among many: %v", err)
				}
			}
		}()
	}
	all.Wait()
}

// TestNotDumpableAfterwards: an agent that is not dumpable is not afterwards either. With a change of a thread's user the kernel makes
// the process dumpable as fs.suid_dumpable says, which is 2 on many distributions; where it is 0 this cannot fail.
func TestNotDumpableAfterwards(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not run: needs root, who looks with others' rights")
	}
	var core unix.Rlimit
	if err := errors.Join(unix.Getrlimit(unix.RLIMIT_CORE, &core), nodump.Set()); err != nil {
		t.Fatal(err)
	}
	dumpable := func() int {
		n, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0), unix.Setrlimit(unix.RLIMIT_CORE, &core)); err != nil {
			t.Error(err)
		}
	})
	if dumpable() != 0 {
		t.Skip("not run: without CAP_SYS_PTRACE an agent stays dumpable")
	}
	err := as(&supervisor.Credential{UID: 4242, GID: 4242}, func() error { return nil })
	if n := dumpable(); err != nil || n != 0 {
		t.Errorf("after looking with a user's rights the process has PR_GET_DUMPABLE %d (%v), want 0", n, err)
	}
}
