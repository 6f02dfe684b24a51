package allocdir

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-sched/muster/client/taskfs"
	"github.com/muster-sched/muster/client/taskfs/swap"
)

// TestRaces builds, reads and removes allocations while a task replaces names in them.
func TestRaces(t *testing.T) {
	user := TaskSpec{Owner: taskfs.Owner{UID: 65534, GID: 65534}}
	memory, apart := user, user
	memory.Memory, apart.Apart = true, true
	task := func(s TaskSpec) func(g *swap.Ground, d *Dir) ([]byte, error) {
		return func(_ *swap.Ground, d *Dir) ([]byte, error) {
			defer d.Unmount("web")
			return nil, errors.Join(d.Build(), d.BuildTask("web", s))
		}
	}
	for name, op := range map[string]func(g *swap.Ground, d *Dir) ([]byte, error){
		"a task":                       task(user),
		"a task with secrets":          task(memory),
		"a task in a container":        task(apart),
		"a task whose directory stays": func(_ *swap.Ground, d *Dir) ([]byte, error) { return nil, d.BuildTask("web", memory) },
		"destroy": func(_ *swap.Ground, d *Dir) ([]byte, error) {
			return nil, errors.Join(d.Build(), d.BuildTask("web", user), d.Destroy())
		},
		"adopt": func(g *swap.Ground, d *Dir) ([]byte, error) {
			next := New(g.Dir, "next")
			err := errors.Join(d.Build(), d.BuildTask("web", user), next.Build(), next.Adopt(d, []string{"web"}))
			return nil, errors.Join(err, next.Destroy())
		},
		"read": func(_ *swap.Ground, d *Dir) ([]byte, error) {
			_ = errors.Join(d.Build(), d.BuildTask("web", user))
			f, err := d.OpenFile("web/local/file")
			if err != nil {
				f, err = d.OpenFile("web/local")
			}
			if err != nil {
				_, err = d.List("web/local")
				_, uerr := d.Usage(1 << 40)
				return nil, errors.Join(err, uerr)
			}
			defer f.Close()
			return io.ReadAll(f)
		},
		"create": func(_ *swap.Ground, d *Dir) ([]byte, error) {
			_ = errors.Join(d.Build(), d.BuildTask("web", user))
			dir, name, err := d.Create("web/local/sub/file")
			if err != nil {
				return nil, err
			}
			defer dir.Close()
			return nil, dir.Replace(name, []byte("new"), 0o600, user.Owner)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := swap.New(t)
			d := New(g.Dir, "a1")
			if err := d.Build(); err != nil {
				t.Fatal(err)
			}
			names := []string{"a1/web", "a1/web/local", "a1/web/secrets", "a1/web/tmp", "a1/alloc/logs", "a1/alloc/data", "a1/web/local/sub"}
			g.Race(names, func() ([]byte, error) {
				got, err := op(g, d)
				if err != nil { // what a task has put there stays in the way
					_ = os.Rename(filepath.Join(g.Dir, "a1"), filepath.Join(g.Dir, "old"))
					_ = New(g.Dir, "old").Destroy()
					_ = d.Build()
				}
				return got, err
			})
		})
	}
}
