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
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/allocdir"
	"github.com/muster-sched/muster/client/artifact"
	"github.com/muster-sched/muster/client/driver"
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
	root, err := os.OpenRoot(r.dir.Root)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.MkdirAll(fetchDir, 0o711); err != nil {
		return err
	}
	for i, raw := range a.spec.Artifacts {
		done := path.Join(fetchDir, fmt.Sprintf("%s.%d", fileName(a.spec.Name), i))
		sum := sha256.Sum256(raw.Raw)
		mark := hex.EncodeToString(sum[:])
		if b, err := root.ReadFile(done); err == nil && string(b) == mark {
			continue
		}
		if err := fetchOne(ctx, a, root, raw.Raw); err != nil {
			return err
		}
		if err := root.WriteFile(done, []byte(mark), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// fileName returns a task's name as part of a file name.
func fileName(task string) string { return strings.ReplaceAll(task, "/", "_") }

func fetchOne(ctx context.Context, a *attempt, root *os.Root, raw []byte) error {
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
	stage, err := os.MkdirTemp(filepath.Join(a.task.r.dir.Root, fetchDir), "new")
	if err != nil {
		return err
	}
	defer os.RemoveAll(stage)
	err = a.interruptibly(ctx, func(ctx context.Context) error { return artifact.Fetch(ctx, spec, stage) })
	if errors.Is(err, artifact.ErrRefused) {
		return driver.Permanent(err)
	}
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(a.task.r.dir.Root, stage)
	if err != nil {
		return err
	}
	who := a.owner
	if who.UID < 0 && os.Geteuid() == 0 {
		who = allocdir.Owner{}
	}
	if err := own(root, rel, who); err != nil {
		return err
	}
	if err := root.MkdirAll(dest, 0o755); err != nil {
		return driver.Permanent(fmt.Errorf("artifact destination %q: %w", s.RelativeDest, err))
	}
	if err := move(root, rel, dest); err != nil {
		return fmt.Errorf("artifact destination %q: %w", s.RelativeDest, err)
	}
	return nil
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

// own makes the task's user the owner of everything below a directory, without the directory itself.
func own(root *os.Root, dir string, who allocdir.Owner) error {
	if os.Geteuid() != 0 {
		return nil
	}
	sub, err := root.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer sub.Close()
	return fs.WalkDir(sub.FS(), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		return sub.Lchown(name, who.UID, who.GID)
	})
}

// move moves the contents of a directory into another. It replaces files that exist and merges directories.
func move(root *os.Root, from, to string) error {
	d, err := root.Open(from)
	if err != nil {
		return err
	}
	entries, err := d.ReadDir(-1)
	d.Close()
	if err != nil {
		return err
	}
	for _, e := range entries {
		src, dst := path.Join(from, e.Name()), path.Join(to, e.Name())
		have, err := root.Lstat(dst)
		switch {
		case err == nil && have.IsDir() && e.IsDir():
			if err := move(root, src, dst); err != nil {
				return err
			}
			continue
		case err == nil:
			if err := root.RemoveAll(dst); err != nil {
				return err
			}
		}
		if err := root.Rename(src, dst); errors.Is(err, unix.EXDEV) { // secrets are on their own file system
			err = copyTree(root, src, dst)
			if err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
	}
	return nil
}

// copyTree copies files and directories and keeps their owners.
func copyTree(root *os.Root, src, dst string) error {
	info, err := root.Lstat(src)
	if err != nil {
		return err
	}
	switch {
	case info.IsDir():
		if err := root.Mkdir(dst, info.Mode().Perm()); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := move(root, src, dst); err != nil {
			return err
		}
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := root.Readlink(src)
		if err != nil {
			return err
		}
		if err := root.Symlink(target, dst); err != nil {
			return err
		}
	default:
		in, err := root.Open(src)
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := root.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
		if err != nil {
			return err
		}
		_, err = io.Copy(out, in)
		if cerr := out.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return root.Lchown(dst, int(st.Uid), int(st.Gid))
	}
	return nil
}
