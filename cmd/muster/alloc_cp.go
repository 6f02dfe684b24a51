package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type allocCopyOptions struct {
	*env
	job  bool
	task string
}

func newAllocCopy(e *env) *cobra.Command {
	o := &allocCopyOptions{env: e}
	c := e.verb("cp [options] SOURCE TARGET", "Copy files and directories out of an allocation, or into one",
		`Copy a file or a directory; one of the two is ALLOCATION:PATH. Out of an allocation, also of one that has ended, PATH is as muster
alloc fs shows it, and the right to read files suffices. Into a running task it is done by programs of the task, with the task's user and
the right that muster alloc exec needs: sh and cat, and tar for directories. PATH is then below alloc/data/, alloc/tmp/ or
TASK/local/, or absolute, as the task sees its files. A target that is a directory gets the source into it; a file that exists is replaced once the copy is complete.
Symbolic links are left out, with a line on stderr.`, `
muster alloc cp 8ba85cef:alloc/data/results ./results
muster alloc cp 8ba85cef:train/local/model.pt .
muster alloc cp -job config.yaml sft:alloc/data
muster alloc cp -task main ./data 8ba85cef:/tmp`, 2, 2, o.run)
	c.Flags().BoolVar(&o.job, "job", false, "what is in front of the colon is a job: use one of its allocations")
	c.Flags().StringVar(&o.task, "task", "", "into an allocation: the task whose programs copy; needed only when there are several")
	return files(c)
}

// remote splits ALLOCATION:PATH. Local paths with a colon have a slash in front of it, as ./a:b, or are C:\b of Windows.
func remote(arg string) (alloc, file string, ok bool) {
	alloc, file, ok = strings.Cut(arg, ":")
	return alloc, file, ok && alloc != "" && !(runtime.GOOS == "windows" && len(alloc) == 1) && !strings.ContainsAny(alloc, `/\`)
}

func (o *allocCopyOptions) run(ctx context.Context, args []string) error {
	from, fromPath, out := remote(args[0])
	to, toPath, in := remote(args[1])
	if out == in {
		return fmt.Errorf("one of %q and %q must be ALLOCATION:PATH, and the other a path of this machine (with ./ in front if it has a colon)", args[0], args[1])
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	name := from
	if in {
		name = to
	}
	al, err := o.pickAlloc(ctx, a, name, o.job)
	if err != nil {
		return err
	}
	var n copied
	if in {
		err = o.upload(ctx, a, al, args[0], toPath, &n)
	} else {
		err = o.download(ctx, a, al, path.Join("/", fromPath), args[1], &n)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(o.err, "%s, %s\n", plural(n.files, "file"), bytesText(uint64(n.bytes)))
	return nil
}

// copied counts what was copied.
type copied struct {
	files, bytes int64
	inside       bool // a directory, of which what cannot be read is left out
}

// secretsDir is the directory of a task that the API does not read.
const secretsDir = "secrets"

// download copies a file or directory of an allocation to a local path.
func (o *allocCopyOptions) download(ctx context.Context, a *api, al *wire.Allocation, p, target string, n *copied) error {
	var st wire.AllocFileInfo
	if _, err := a.get(ctx, "/v1/client/fs/stat/"+al.ID, pathOf(al, p), &st); err != nil {
		return fmt.Errorf("look at %s of allocation %s: %w", p, shortID(al.ID, false), err)
	}
	dir, name := target, path.Base(p)
	if local, err := os.Stat(target); err != nil || !local.IsDir() {
		if strings.HasSuffix(target, "/") {
			return fmt.Errorf("%s is no directory", target)
		}
		dir, name = filepath.Dir(target), filepath.Base(target)
	}
	if name == "/" {
		name = shortID(al.ID, false) // all of the allocation
	}
	root, err := os.OpenRoot(dir) // what the agent calls its files leads nowhere else
	if err != nil {
		return err
	}
	defer root.Close()
	return o.fetch(ctx, a, al, p, &st, root, name, n)
}

func pathOf(al *wire.Allocation, p string) url.Values {
	q := ns(al.Namespace)
	q.Set("path", p)
	return q
}

// fetch copies p, which is st, to a name below root.
func (o *allocCopyOptions) fetch(ctx context.Context, a *api, al *wire.Allocation, p string, st *wire.AllocFileInfo, root *os.Root, name string, n *copied) error {
	if !st.IsDir {
		if !strings.HasPrefix(st.FileMode, "-") {
			fmt.Fprintf(o.err, "%s is left out: it is no file (%s)\n", p, st.FileMode)
			return nil
		}
		return o.fetchFile(ctx, a, al, p, st, root, name, n)
	}
	if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	var list []*wire.AllocFileInfo
	if _, err := a.get(ctx, "/v1/client/fs/ls/"+al.ID, pathOf(al, p), &list); err != nil {
		if path.Base(p) == secretsDir && n.inside {
			fmt.Fprintf(o.err, "%s is left out: secrets stay where they are\n", p)
			return root.Remove(name)
		}
		return fmt.Errorf("list %s: %w", p, err)
	}
	n.inside = true
	for _, f := range list {
		if f.Name == "." || f.Name == ".." || strings.ContainsAny(f.Name, `/\`) {
			return fmt.Errorf("%s has an entry %q, which is no name of a file", p, f.Name)
		}
		if err := o.fetch(ctx, a, al, path.Join(p, f.Name), f, root, name+"/"+f.Name, n); err != nil {
			return err
		}
	}
	return nil
}

func (o *allocCopyOptions) fetchFile(ctx context.Context, a *api, al *wire.Allocation, p string, st *wire.AllocFileInfo, root *os.Root, name string, n *copied) error {
	rc, _, err := a.stream(ctx, "GET", "/v1/client/fs/cat/"+al.ID, pathOf(al, p), nil)
	if err != nil {
		return fmt.Errorf("read %s: %w", p, err)
	}
	defer rc.Close()
	mode := fs.FileMode(0o644)
	if strings.Contains(st.FileMode, "x") {
		mode = 0o755
	}
	part := name + partSuffix
	f, err := root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	got, err := io.Copy(f, rc)
	err = errors.Join(err, f.Close())
	if err == nil && got < st.Size {
		err = fmt.Errorf("only %d of %d bytes came", got, st.Size)
	}
	if err == nil {
		err = root.Rename(part, name)
	}
	if err != nil {
		_ = root.Remove(part)
		return fmt.Errorf("read %s: %w", p, err)
	}
	n.files, n.bytes = n.files+1, n.bytes+got
	return nil
}

// partSuffix ends the name of a file that is not complete.
const partSuffix = ".part"

// Scripts that run in the task: $1 is a path below the base, an expression of the shell, and $2 the name of the source. A
// target that is a directory, or ends with a slash, gets the source into it.
const (
	putFile = `set -e; ` + drain + `; t=%s; n=$2; m=$3; case $t in */) [ -d "$t" ] || { echo "$t is no directory" >&2; exit 1; };; esac; [ ! -d "$t" ] || t=${t%%/}/$n
cat >"$t` + partSuffix + `" || { rm -f "$t` + partSuffix + `"; exit 1; }
[ "$(wc -c <"$t` + partSuffix + `")" -eq "$4" ] || { rm -f "$t` + partSuffix + `"; echo "it did not come as a whole" >&2; exit 1; }
chmod "$m" "$t` + partSuffix + `"; mv -f "$t` + partSuffix + `" "$t"`
	putDir = `set -e; ` + drain + `; t=%s; n=$2; if [ -d "$t" ]; then t=${t%%/}/$n; fi; mkdir -p "$t"; tar -xof - -C "$t"`
	// Who ends without having read all of its input may be cut off before it has said why.
	drain = `trap 'c=$?; cat >/dev/null; exit $c' EXIT`
)

// upload copies a local file or directory into a running task.
func (o *allocCopyOptions) upload(ctx context.Context, a *api, al *wire.Allocation, source, target string, n *copied) error {
	task, err := pickTask(al, o.task)
	if err != nil {
		return err
	}
	base, rest, err := taskPath(task, target)
	if err != nil {
		return err
	}
	st, err := os.Stat(source)
	if err != nil {
		return err
	}
	abs, err := filepath.Abs(source) // the name of "." is that of the directory
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	x := &allocExecOptions{env: new(env), task: task, stdin: true, rank: -1}
	*x.env = *o.env
	x.in, x.out = r, io.Discard
	words := []string{"/bin/sh", "-c", fmt.Sprintf(putDir, base), "sh", rest, filepath.Base(abs)}
	write := func() error { return o.pack(source, w, n) }
	if !st.IsDir() {
		if !st.Mode().IsRegular() {
			return fmt.Errorf("%s is neither a file nor a directory", source)
		}
		f, err := os.Open(source)
		if err != nil {
			return err
		}
		defer f.Close()
		size := st.Size()
		words[2] = fmt.Sprintf(putFile, base)
		words = append(words, strconv.FormatUint(uint64(st.Mode().Perm()), 8), strconv.FormatInt(size, 10))
		write = func() error {
			n.files, n.bytes = 1, size
			_, err := io.CopyN(w, f, size)
			return err
		}
	}
	failed := make(chan error, 1)
	go func() {
		err := write()
		w.CloseWithError(err)
		failed <- err
	}()
	err = x.enter(ctx, a, al, words)
	r.Close()
	if sent := <-failed; err == nil && sent != nil && !errors.Is(sent, io.ErrClosedPipe) {
		err = sent
	}
	var code exitCode
	if errors.As(err, &code) {
		return fmt.Errorf("copy to %s of task %q: its shell ended with %d", target, task, code)
	}
	return err
}

// taskPath returns how a shell in a task writes the target: an expression in which $1 is rest.
func taskPath(task, target string) (base, rest string, err error) {
	first, below, _ := strings.Cut(target, "/")
	switch {
	case target == "":
		return "", "", errors.New("say where to: a path below alloc/ or " + task + "/local/, or an absolute one")
	case first == "":
		return `"$1"`, target, nil
	case first == "alloc":
		return `"$NOMAD_ALLOC_DIR/$1"`, below, nil
	case first == task && (below == "local" || strings.HasPrefix(below, "local/")):
		return `"$NOMAD_TASK_DIR/$1"`, strings.TrimPrefix(strings.TrimPrefix(below, "local"), "/"), nil
	}
	return "", "", fmt.Errorf("%q: want a path below alloc/ or %s/local/, or an absolute one, as the task sees its files", target, task)
}

// pack writes a directory as tar. Of a file that is written to meanwhile it has as much as there was at first.
func (o *allocCopyOptions) pack(dir string, w io.Writer, n *copied) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	t := tar.NewWriter(w)
	err = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == "." {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		if !st.IsDir() && !st.Mode().IsRegular() {
			fmt.Fprintf(o.err, "%s is left out: it is no file (%s)\n", filepath.Join(dir, p), st.Mode())
			return nil
		}
		h, err := tar.FileInfoHeader(st, "")
		if err != nil {
			return err
		}
		h.Name, h.Uid, h.Gid, h.Uname, h.Gname = p, 0, 0, "", ""
		if st.IsDir() {
			h.Name += "/"
		}
		if err := t.WriteHeader(h); err != nil || st.IsDir() {
			return err
		}
		f, err := root.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := io.CopyN(t, f, st.Size()); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		n.files, n.bytes = n.files+1, n.bytes+st.Size()
		return nil
	})
	return errors.Join(err, t.Close())
}
