package exec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/driver"
)

// spin exchanges two names, as a sibling task of the same user can, until the test ends.
func spin(t *testing.T, a, b string) {
	t.Helper()
	stop, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(stop)
		<-ended
	})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
			}
		}
	}()
}

// TestPrivateDirectoriesCannotBeExchanged starts tasks while their directory for temporary files, or the mount point of
// a volume, is exchanged for a link to a directory of root.
func TestPrivateDirectoriesCannotBeExchanged(t *testing.T) {
	for _, name := range []string{"tmp", "data"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			victim := filepath.Join(n.dir, "victim")
			if err := errors.Join(os.Mkdir(victim, 0o700), os.WriteFile(filepath.Join(victim, "who"), []byte("victim"), 0o644)); err != nil {
				t.Fatal(err)
			}
			cfg := n.config("ls -a /tmp; cat /tmp/who; grep " + victim + " /proc/self/mountinfo")
			dir := filepath.Join(cfg.Dirs.TaskDir, name)
			if err := errors.Join(os.MkdirAll(dir, 0o755), os.Symlink(victim, dir+".link")); err != nil {
				t.Fatal(err)
			}
			cfg.Mounts = []driver.Mount{{Source: t.TempDir(), Target: "data"}}
			spin(t, dir, dir+".link")
			began, tried := 0, 0
			for ; tried < 200 && began < 10; tried++ {
				cfg.TaskID = fmt.Sprintf("swap%d", tried)
				task, err := n.exec.Start(t.Context(), cfg)
				if err != nil {
					continue // a link was met
				}
				began++
				n.wait(task)
				if err := task.Destroy(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if out := stdout(cfg); strings.Contains(out, "victim") || strings.Contains(out, "who") {
				t.Errorf("the task saw a directory of root: %q", out)
			}
			if st, err := os.Stat(victim); err != nil || st.Mode() != os.ModeDir|0o700 {
				t.Errorf("a directory of root is now %v, %v", st.Mode(), err)
			}
			t.Logf("%d of %d tasks began", began, tried)
		})
	}
}

// TestWorkDirIsEnteredAsTheUser names a directory that only root can reach, also through a link of the task.
func TestWorkDirIsEnteredAsTheUser(t *testing.T) {
	n := newNode(t)
	victim, err := os.MkdirTemp("/var/tmp", "muster-victim-") // tasks have their own /tmp
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(victim) })
	inside := filepath.Join(victim, "inside")
	if err := errors.Join(os.Mkdir(inside, 0o755), os.WriteFile(filepath.Join(inside, "who"), []byte("victim"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{inside, "link"} {
		cfg := n.config("cat who")
		cfg.Config["work_dir"] = dir
		if err := os.Symlink(inside, filepath.Join(cfg.Dirs.TaskDir, "local/link")); err != nil {
			t.Fatal(err)
		}
		task, err := n.exec.Start(t.Context(), cfg)
		if err == nil {
			n.wait(task)
			t.Errorf("%s: the task began there and read %q", dir, stdout(cfg))
		} else if !strings.Contains(err.Error(), "enter the working directory") {
			t.Errorf("%s: %v", dir, err)
		}
	}
}
