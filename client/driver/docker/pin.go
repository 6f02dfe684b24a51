package docker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/allocdir"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/taskfs"
)

// How mounts of an allocation's own files are made.
//
// Naively, the agent would check that a relative source stays within the allocation's directory and pass its path to
// the engine. But the tasks of the allocation write there: one of them can replace the source by a link to / after the
// check and before the engine mounts, and gets the host's root. So the agent opens the source beneath the allocation's
// directory, binds what it has opened to a place that no task can reach, and passes that place to the engine. It is
// needed until the container has started. An agent without the right to mount passes the path.

// pinDir returns the directory in which a task's sources are bound while its container starts.
func (d *Driver) pinDir(taskID string) string {
	return filepath.Join(d.opt.StateDir, "pins", taskID)
}

// pin replaces the sources of mounts that are in directories of tasks.
func (d *Driver) pin(cfg *driver.TaskConfig, host *container.HostConfig) error {
	if os.Geteuid() != 0 || cfg.Dirs.AllocRoot == "" {
		return nil
	}
	alloc := allocdir.Dir{Root: cfg.Dirs.AllocRoot}
	own := map[string]bool{cfg.Dirs.AllocDir: true, filepath.Join(cfg.Dirs.TaskDir, allocdir.Local): true, cfg.Dirs.SecretsDir: true} // their parents belong to the agent
	for _, m := range cfg.Etc {
		own[m.Source] = true
	}
	for i := range host.Mounts {
		m := &host.Mounts[i]
		rel, err := filepath.Rel(alloc.Root, m.Source)
		if m.Type != mount.TypeBind || own[m.Source] || err != nil || !filepath.IsLocal(rel) {
			continue
		}
		place := filepath.Join(d.pinDir(cfg.TaskID), strconv.Itoa(i))
		if err := bindBeneath(&alloc, rel, place); err != nil {
			return fmt.Errorf("docker: mount source %q: %w", m.Target, err)
		}
		m.Source = place
	}
	return nil
}

// bindBeneath binds what a path in an allocation leads to to a place. Links that lead out are refused.
func bindBeneath(alloc *allocdir.Dir, rel, place string) error {
	n, err := alloc.Find(rel)
	if errors.Is(err, taskfs.ErrOutside) {
		return driver.Permanent(err)
	}
	if err != nil {
		return err
	}
	defer n.Close()
	if err := os.MkdirAll(filepath.Dir(place), 0o700); err != nil {
		return err
	}
	unpinPlace(place) // left over from an earlier start
	if n.IsDir() {
		err = os.Mkdir(place, 0o700)
	} else {
		err = os.WriteFile(place, nil, 0o600)
	}
	if err != nil {
		return err
	}
	return n.Bind(place)
}

// unpin removes the bind mounts of a task's start.
func (d *Driver) unpin(taskID string) {
	dir := d.pinDir(taskID)
	places, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, p := range places {
		unpinPlace(filepath.Join(dir, p.Name()))
	}
	_ = os.Remove(dir)
}

func unpinPlace(place string) {
	// A mount left by a killed agent may still be in the source's peer group; make it private first or the unmount
	// propagates.
	for unix.Mount("", place, "", unix.MS_PRIVATE, "") == nil && unix.Unmount(place, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
	}
	_ = os.Remove(place) // never its content
}

// unpinOthers removes what interrupted starts left.
func (d *Driver) unpinOthers(there func(taskID string) bool) {
	dirs, _ := os.ReadDir(filepath.Join(d.opt.StateDir, "pins"))
	for _, dir := range dirs {
		if id := dir.Name(); !strings.HasPrefix(id, ".") && !there(id) {
			d.unpin(id)
		}
	}
}
