package runner

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-sched/muster/client/artifact"
	"github.com/muster-sched/muster/client/taskfs"
	"github.com/muster-sched/muster/client/taskfs/swap"
)

// TestArtifactRaces gives away what was fetched and moves it to its destination, while a task, and what is left of the
// process that fetched, replace names.
func TestArtifactRaces(t *testing.T) {
	g := swap.New(t)
	top, err := taskfs.Open(g.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	fetched := taskfs.Owner{UID: artifact.FetchUser, GID: artifact.FetchUser}
	g.Race([]string{"stage/sub", "stage/sub/file", "stage/file", "task", "task/file", "task/sub"}, func() ([]byte, error) {
		_ = errors.Join(top.RemoveAll("stage"), top.RemoveAll("task"))
		stage, err := top.MakeAll("stage", 0o755)
		if err != nil {
			return nil, err
		}
		defer stage.Close()
		sub, err := stage.MakeAll("sub", 0o755)
		if err != nil {
			return nil, err
		}
		defer sub.Close()
		for _, d := range []*taskfs.Dir{stage, sub} {
			if err := d.Replace("file", []byte("new"), 0o644, fetched); err != nil {
				return nil, err
			}
		}
		if err := errors.Join(sub.Own(fetched), own(stage, taskfs.Owner{UID: 1, GID: 1})); err != nil {
			return nil, err
		}
		to, err := top.MakeAll("task", 0o755)
		if err != nil {
			return nil, err
		}
		defer to.Close()
		return nil, move(stage, to)
	})
}

// TestArtifactsAreOwnedWhole gives hard links and symbolic links of an artifact to the task's user, and nothing that has
// a name elsewhere.
func TestArtifactsAreOwnedWhole(t *testing.T) {
	g := swap.New(t)
	stage := filepath.Join(g.Dir, "stage")
	file, other := filepath.Join(stage, "file"), filepath.Join(g.Dir, "other")
	err := errors.Join(os.Mkdir(stage, 0o755), os.WriteFile(file, nil, 0o644), os.Link(file, filepath.Join(stage, "again")), os.Symlink("file", filepath.Join(stage, "link")))
	for _, name := range []string{"file", "link"} {
		err = errors.Join(err, os.Lchown(filepath.Join(stage, name), artifact.FetchUser, artifact.FetchUser))
	}
	if err != nil {
		t.Fatal(err)
	}
	d, err := taskfs.Open(stage)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := own(d, taskfs.Owner{UID: artifact.FetchUser, GID: 7}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "again", "link"} {
		if info, err := d.Stat(name); err != nil || info.Owner().GID != 7 {
			t.Errorf("%s belongs to %v, %v", name, info.Owner(), err)
		}
	}
	if err := os.Link(file, other); err != nil {
		t.Fatal(err)
	}
	if err := own(d, taskfs.Owner{UID: 8, GID: 8}); err == nil {
		t.Error("a file with a name elsewhere was given away")
	}
}
