package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/allocdir"
	"github.com/muster-sched/muster/client/artifact"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/taskfs"
	"github.com/muster-sched/muster/structs"
)

// artifactSpec is the part of a job's artifact block that the client uses.
type artifactSpec struct {
	GetterSource  string
	GetterOptions map[string]string
	GetterHeaders map[string]string
	GetterMode    string
	RelativeDest  string
}

// fetchDir is the directory, below the allocation's, in which artifacts are collected until they are complete. Tasks
// cannot write to it.
const fetchDir = ".fetch"

// fetchArtifacts fetches the task's artifacts, once: a restarted task finds those of its first run.
func fetchArtifacts(ctx context.Context, a *attempt) error {
	r := a.task.r
	if len(a.spec.Artifacts) == 0 || r.dir == nil {
		return nil
	}
	marks, err := r.dir.Private(fetchDir, 0o711)
	if err != nil {
		return err
	}
	defer marks.Close()
	for i, raw := range a.spec.Artifacts {
		done := fmt.Sprintf("%s.%d", a.spec.Name, i)
		sum := sha256.Sum256(raw.Raw)
		mark := hex.EncodeToString(sum[:])
		if marked(marks, done, mark) {
			continue
		}
		if err := fetchOne(ctx, a, marks, raw.Raw); err != nil {
			return err
		}
		if err := marks.Replace(done, []byte(mark), 0o600, taskfs.Agent); err != nil {
			return err
		}
	}
	return nil
}

// marked reports whether a file of the agent's holds exactly this mark.
func marked(dir *taskfs.Dir, name, mark string) bool {
	f, err := dir.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(len(mark))+1))
	return err == nil && string(b) == mark
}

// fetchOne fetches an artifact into a new directory in stages, and moves it to its destination.
func fetchOne(ctx context.Context, a *attempt, stages *taskfs.Dir, raw []byte) error {
	var s artifactSpec
	if err := json.Unmarshal(raw, &s); err != nil {
		return driver.Permanent(err)
	}
	dest, err := a.place(s.RelativeDest)
	if err != nil {
		return fmt.Errorf("artifact destination %q: %w", s.RelativeDest, err)
	}
	spec := artifact.Spec{Source: a.env.Replace(s.GetterSource), Mode: s.GetterMode, Options: map[string]string{}, Headers: map[string]string{}, Egress: a.task.r.cfg.Policy.Egress}
	for k, v := range s.GetterOptions {
		spec.Options[k] = a.env.Replace(v)
	}
	for k, v := range s.GetterHeaders {
		spec.Headers[k] = a.env.Replace(v)
	}
	if spec.Mode == "file" {
		spec.Name, dest = path.Base(dest), path.Dir(dest)
	}
	if g := a.task.r.group(); g != nil && g.Disk.SizeMiB > 0 && a.task.r.cfg.Policy.EnforceDisk {
		spec.BytesMax = g.Disk.SizeMiB << 20
	}
	if err := spec.Check(); err != nil {
		return driver.Permanent(err)
	}
	a.note(event(EventArtifacts, "Client is downloading artifacts"))
	if sum, ok := structs.BundleSum(spec.Source); ok {
		f, err := a.openBundle(ctx, sum)
		if err != nil {
			return err
		}
		defer f.Close()
		spec.Bundle = f
	}
	stage, err := stages.MakeNew("new")
	if err != nil {
		return err
	}
	defer func() {
		stage.Close()
		_ = stages.RemoveAll(stage.Name()) // goes with the allocation otherwise
	}()
	err = a.interruptibly(ctx, func(ctx context.Context) error { return artifact.Fetch(ctx, spec, stage, a.artifactProgress) })
	if errors.Is(err, artifact.ErrRefused) {
		return driver.Permanent(err)
	}
	if err != nil {
		return err
	}
	who := a.owner
	if who.UID < 0 && os.Geteuid() == 0 {
		who = taskfs.Owner{}
	}
	if err := own(stage, who); err != nil {
		return err
	}
	_, missing := a.task.r.dir.Stat(dest)
	to, err := a.task.r.dir.MakeDir(dest)
	if err != nil {
		return driver.Permanent(fmt.Errorf("artifact destination %q: %w", s.RelativeDest, err))
	}
	defer to.Close()
	if missing != nil && os.Geteuid() == 0 { // a new directory is the task's, like what is in it
		if err := to.Own(who); err != nil {
			return fmt.Errorf("artifact destination %q: %w", s.RelativeDest, err)
		}
	}
	if err := move(stage, to); err != nil {
		return fmt.Errorf("artifact destination %q: %w", s.RelativeDest, err)
	}
	return nil
}

// Bundles fetches bundles (structs.BundleMax) from the servers, with the rights of an allocation's task.
type Bundles interface {
	// Open opens a bundle of the allocation's namespace. progress is called while it is fetched.
	Open(ctx context.Context, alloc *structs.Allocation, task, sum string, progress func(got, size int64)) (*os.File, error)
}

// openBundle opens a bundle, which is fetched if the node does not have it.
func (a *attempt) openBundle(ctx context.Context, sum string) (f *os.File, err error) {
	b := a.task.r.cfg.Servers.Bundles
	if b == nil {
		return nil, driver.Permanent(errors.New("this node fetches no bundles"))
	}
	progress := artifact.Seldom(a.artifactProgress)
	err = a.interruptibly(ctx, func(ctx context.Context) (err error) {
		f, err = b.Open(ctx, a.task.r.Alloc(), a.spec.Name, sum, progress)
		return err
	})
	switch structs.CodeOf(err) {
	case structs.CodeNotFound, structs.CodeDenied, structs.CodeInvalid, structs.CodeUnsupported:
		err = driver.Permanent(err)
	}
	return f, err
}

// artifactProgress adds an event that says how far a download is.
func (a *attempt) artifactProgress(got, size int64) {
	text := fmt.Sprintf("Downloading artifact: %.1f MiB so far", float64(got)/(1<<20))
	if size > 0 {
		text = fmt.Sprintf("Downloading artifact: %d %% of %.1f MiB", got*100/size, float64(size)/(1<<20))
	}
	a.note(event(EventArtifacts, text))
}

// place maps a destination to a path below the allocation's directory. A relative destination is below the task's
// directory, an absolute one is a path as the task sees it.
func (a *attempt) place(dest string) (string, error) {
	dest = a.env.Replace(dest)
	base := a.task.r.dir.Root
	var host string
	switch e := elsewhere(a.driver); {
	case !filepath.IsAbs(dest):
		host = filepath.Join(base, a.spec.Name, dest)
		if dest = filepath.Clean(dest); !filepath.IsLocal(dest) {
			return "", driver.Permanent(errors.New("it leads out of the task's directory"))
		}
	case e != nil:
		alloc, local, secrets := e.TaskDirs()
		t := a.task.r.dir.Task(a.spec.Name)
		for inside, outside := range map[string]string{alloc: a.task.r.dir.SharedDir(), local: t.Local, secrets: t.Secrets} {
			if rest, ok := strings.CutPrefix(filepath.Clean(dest), inside); ok && (rest == "" || rest[0] == '/') {
				host = filepath.Join(outside, rest)
			}
		}
	default:
		host = filepath.Clean(dest)
	}
	rel, err := filepath.Rel(base, host)
	if err != nil || host == "" || !filepath.IsLocal(rel) {
		return "", driver.Permanent(errors.New("it is neither in the task's directory nor in the one that the allocation shares"))
	}
	if first, _, _ := strings.Cut(rel, "/"); first != allocdir.Shared && first != a.spec.Name {
		return "", driver.Permanent(errors.New("it is neither in the task's directory nor in the one that the allocation shares"))
	}
	return rel, nil
}

// interruptibly runs a slow step of a start. A request to stop the task cancels the step.
func (a *attempt) interruptibly(ctx context.Context, do func(ctx context.Context) error) error {
	for not := wishNone; ; {
		wctx, cancel := a.task.waiting(ctx, not)
		err := do(wctx)
		asked := wctx.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil, ctx.Err() != nil, !asked:
			return err
		case a.task.wanted().kind == wishKill:
			return errNotPrepared
		}
		not = wishRestart // a restart of what has not started yet is this start
	}
}

// own makes the task's user the owner of everything below a directory, without the directory itself. A process that
// helped to fetch it may still run and put names of other files there: a file is given away only if it belongs to the
// user that fetched, and all of its names are below the directory.
func own(dir *taskfs.Dir, who taskfs.Owner) error {
	if os.Geteuid() != 0 {
		return nil
	}
	names := map[uint64]int{} // by inode, of files with several names
	err := dir.Walk(func(_ *taskfs.Dir, info taskfs.Info) error {
		if !info.IsDir() && info.Links() > 1 {
			names[info.Inode()]++
		}
		return nil
	})
	if err != nil {
		return err
	}
	return dir.Walk(func(in *taskfs.Dir, info taskfs.Info) error {
		n, err := in.Node(info.Name())
		if err != nil {
			return err
		}
		defer n.Close()
		if n.Owner().UID != artifact.FetchUser || !n.IsDir() && n.Links() > 1 && n.Links() != names[n.Inode()] {
			return driver.Permanent(fmt.Errorf("the artifact's %q is also a file elsewhere", info.Name()))
		}
		return n.Own(who)
	})
}

// move moves the contents of a directory into another. It replaces files that exist and merges directories.
func move(from, to *taskfs.Dir) error {
	names, err := from.Names(0)
	for _, name := range names {
		err = errors.Join(err, moveOne(from, to, name))
	}
	return err
}

func moveOne(from, to *taskfs.Dir, name string) error {
	info, err := from.Stat(name)
	if err != nil {
		return err
	}
	have, err := to.Stat(name)
	switch {
	case err == nil && have.IsDir() && info.IsDir():
		return inBoth(from, to, name, move)
	case err == nil:
		if err := to.RemoveAll(name); err != nil {
			return err
		}
	}
	err = from.Rename(name, to, name)
	if errors.Is(err, unix.EXDEV) { // secrets are on their own file system
		return copyTree(from, to, name, info)
	}
	return err
}

// inBoth calls do for a subdirectory of two directories.
func inBoth(from, to *taskfs.Dir, name string, do func(from, to *taskfs.Dir) error) error {
	src, err := from.Sub(name)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := to.Sub(name)
	if err != nil {
		return err
	}
	defer dst.Close()
	return do(src, dst)
}

// copyTree copies files and directories and keeps their owners.
func copyTree(from, to *taskfs.Dir, name string, info taskfs.Info) error {
	switch {
	case info.IsDir():
		dir, _, err := to.Make(name, info.Mode().Perm())
		if err != nil {
			return err
		}
		defer dir.Close()
		if err := inBoth(from, to, name, move); err != nil {
			return err
		}
		return dir.Own(info.Owner())
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := from.Readlink(name)
		if err != nil {
			return err
		}
		return to.Symlink(target, name, info.Owner())
	}
	n, err := from.Node(name)
	if err != nil {
		return err
	}
	defer n.Close()
	in, err := n.Open(os.O_RDONLY)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := to.Create(name, info.Mode().Perm(), info.Owner())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
