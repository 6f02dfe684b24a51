package exec

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-sched/muster/client/allocdir"
	"github.com/muster-sched/muster/client/driver"
)

func TestVolumes(t *testing.T) {
	n := newNode(t)
	vol := t.TempDir()
	if err := os.Chmod(vol, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(vol), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(vol, "in"), []byte("from the node\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := n.config(`cat deep/data/in /tmp/set/in /mnt/in; echo mine > deep/data/out; echo x > /tmp/set/no; echo y > /mnt/no; echo end`)
	cfg.Dirs.LocalDir = cfg.Dirs.TaskDir
	cfg.Mounts = []driver.Mount{
		{Source: vol, Target: "deep/data"}, {Source: vol, Target: "/tmp/set", ReadOnly: true}, {Source: vol, Target: "/mnt", ReadOnly: true},
	}
	task := n.run(n.exec, cfg)
	if r := n.wait(task); !r.Successful() {
		t.Fatalf("exit %+v, stderr %s", r, stderr(cfg))
	}
	if out := stdout(cfg); out != strings.Repeat("from the node\n", 3)+"end\n" {
		t.Errorf("%q %s; want %v", out, stderr(cfg), strings.Repeat("from the node\n", 3)+"end\n")
	}
	if got := strings.Count(stderr(cfg), "Read-only file system"); got != 2 {
		t.Errorf("%d writes to read-only volumes were refused, want 2: %s", got, stderr(cfg))
	}
	if b, err := os.ReadFile(filepath.Join(vol, "out")); string(b) != "mine\n" {
		t.Errorf("%q %v; want \"mine\\n\"", b, err)
	}
	if left, _ := os.ReadDir(filepath.Join(cfg.Dirs.TaskDir, "deep/data")); len(left) != 0 {
		t.Errorf("the volume is mounted for the whole node: %v", left)
	}
}

func TestVolumesRefused(t *testing.T) {
	n := newNode(t)
	hidden := filepath.Join(n.dir, "hidden")
	if err := errors.Join(os.MkdirAll(filepath.Join(hidden, "in"), 0o755), os.Chmod(hidden, 0o700)); err != nil {
		t.Fatal(err)
	}
	for want, m := range map[string]driver.Mount{
		"leads out of the task's directory": {Target: "../../../x"},
		"not a directory that the task's user sees on this node, whose root tasks of this driver have": {Target: "/no-such-place"},
		"destination \"" + hidden + "/in\" is not a directory":                                         {Target: hidden + "/in"}, // only root may look there
		"symbolic link":                  {Target: "link/x"},
		"\"/tmp/link/deep/x\"":           {Target: "/tmp/link/deep/x"},
		"propagation_mode bidirectional": {Target: "x", Propagation: "bidirectional"},
	} {
		cfg := n.config("true")
		m.Source = t.TempDir()
		cfg.Mounts = []driver.Mount{m}
		if err := os.Symlink("/etc", filepath.Join(cfg.Dirs.TaskDir, "link")); err != nil {
			t.Fatal(err)
		}
		victim, tmp := t.TempDir(), filepath.Join(cfg.Dirs.TaskDir, allocdir.Tmp)
		if err := errors.Join(os.MkdirAll(tmp, 0o777), os.Symlink(victim, filepath.Join(tmp, "link"))); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if made, _ := os.ReadDir(victim); len(made) != 0 {
				t.Errorf("%+v: the agent followed a task's link and made %v", m, made)
			}
		}()
		if _, err := n.exec.Start(t.Context(), cfg); !errors.Is(err, driver.ErrPermanent) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", m, err, want)
		}
	}
}
