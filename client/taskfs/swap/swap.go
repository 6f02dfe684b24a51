// Package swap plays a task that replaces names while the agent works on them, for tests. It needs root: a task's tricks
// with hard links and mounts, and the agent's rights that they abuse, are root's.
package swap

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// RoundsEnv is the variable that sets the rounds of each operation. The long form has 10,000.
const RoundsEnv = "MUSTER_SWAP_ROUNDS"

// roundsShort is the number of rounds in CI.
const roundsShort = 100

// Ground is a directory that a task writes to, and what lies outside of it.
type Ground struct {
	Dir      string // the task's
	t        *testing.T
	dir      string // outside, of root alone
	file     string // outside, of root alone
	want     string
	rand     *rand.Rand
	replaced atomic.Int64
}

// Secret is the content of the file outside.
var Secret = []byte("victim's secret")

// New creates a directory for a task and victims next to it.
func New(t *testing.T) *Ground {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not run: needs root, as the agent that tasks race with")
	}
	top, err := os.MkdirTemp("", "muster-swap-") // shorter than t.TempDir, for sockets
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	g := &Ground{Dir: filepath.Join(top, "task"), t: t, dir: filepath.Join(top, "victims"), rand: rand.New(rand.NewPCG(seed, 0))}
	g.file = filepath.Join(g.dir, "file")
	t.Cleanup(func() {
		g.unmount(top)
		if err := os.RemoveAll(top); err != nil {
			t.Error(err)
		}
	})
	err = errors.Join(os.Chmod(top, 0o755), os.Mkdir(g.Dir, 0o755), os.Mkdir(g.dir, 0o700), os.WriteFile(g.file, Secret, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	g.want = g.state()
	return g
}

// state describes the victims. Tasks can add names to a file, but nothing else.
func (g *Ground) state() string {
	var out bytes.Buffer
	for _, p := range []string{g.dir, g.file} {
		var st unix.Stat_t
		err := unix.Lstat(p, &st)
		fmt.Fprintf(&out, "%s: mode %o, owner %d:%d, device %d, %v\n", filepath.Base(p), st.Mode, st.Uid, st.Gid, st.Dev, err)
	}
	names, err := os.ReadDir(g.dir)
	content, ferr := os.ReadFile(g.file)
	fmt.Fprintf(&out, "entries %v %v, content %q %v", names, err, content, ferr)
	return out.String()
}

// Damage returns how the victims differ from what they were, or "".
func (g *Ground) Damage() string {
	if now := g.state(); now != g.want {
		return "before:\n" + g.want + "\nnow:\n" + now
	}
	return ""
}

// Rounds returns how often an operation is repeated.
func Rounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv(RoundsEnv)
	if text == "" {
		return roundsShort
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q: want a number of rounds", RoundsEnv, text)
	}
	return n
}

// Race repeats an operation while names below the task's directory are replaced by links, pipes, mounts and other
// directories. The operation may fail, but it must neither change what lies outside nor return the secret in it. There
// are as many replacements as rounds, or more. The operation is repeated until it has succeeded once: a mount may cover its
// name for hundreds of rounds.
func (g *Ground) Race(names []string, op func() ([]byte, error)) {
	g.t.Helper()
	n, done, failed := Rounds(g.t), 0, 0
	g.During(names, func() {
		for ; done < n || g.replaced.Load() < int64(n) && done < 20*n || failed == done && done < 200*n; done++ {
			got, err := op()
			if err != nil {
				failed++
			}
			if bytes.Contains(got, Secret) {
				g.t.Error("the agent read a file outside of the task's directory")
				return
			}
		}
	})
	if d := g.Damage(); d != "" {
		g.t.Error(d)
	}
	if failed == done {
		g.t.Error("every round failed: nothing was tried")
	}
	g.t.Logf("%d of %d rounds failed, %d replacements", failed, done, g.replaced.Load())
}

// During calls do while names are replaced.
func (g *Ground) During(names []string, do func()) {
	stop := make(chan struct{})
	var end sync.WaitGroup
	end.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				g.replace(names[g.rand.IntN(len(names))])
			}
		}
	})
	do()
	close(stop)
	end.Wait()
	g.unmount(g.Dir)
}

// aside is the name under which something is prepared in the directory of the name that it will replace.
const aside = ".swap"

// replace puts something else at a name and takes it away again, several times.
func (g *Ground) replace(name string) {
	in, err := unix.Open(g.Dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return
	}
	defer func() { unix.Close(in) }()
	if dir, base := filepath.Split(name); dir != "" { // unlike a task, this is root: it must not follow its own links
		sub, err := unix.Openat2(in, filepath.Clean(dir), &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV})
		if err != nil {
			return
		}
		unix.Close(in)
		in, name = sub, base
	}
	switch kind := g.rand.IntN(200); {
	case kind == 0:
		g.cover(in, name)
		return
	case kind == 1:
		g.unmount(g.Dir)
		return
	default:
		err = g.prepare(in, kind%7)
	}
	if err != nil {
		g.discard(in)
		return
	}
	if unix.Renameat2(in, name, in, aside, unix.RENAME_EXCHANGE) != nil {
		_ = unix.Renameat(in, aside, in, name)
	}
	g.replaced.Add(1)
	for range g.rand.IntN(4) { // back and forth: the window of an operation may be anywhere
		_ = unix.Renameat2(in, name, in, aside, unix.RENAME_EXCHANGE)
	}
	g.discard(in)
}

// prepare makes something with the name aside.
func (g *Ground) prepare(in, kind int) error {
	switch kind {
	case 0:
		return unix.Symlinkat(g.dir, in, aside)
	case 1:
		return unix.Symlinkat(g.file, in, aside)
	case 2:
		return unix.Linkat(unix.AT_FDCWD, g.file, in, aside, 0)
	case 3:
		return unix.Mknodat(in, aside, unix.S_IFIFO|0o666, 0)
	case 4:
		return unix.Symlinkat("..", in, aside)
	case 5:
		return unix.Mkdirat(in, aside, 0o755)
	}
	fd, err := unix.Openat(in, aside, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o644)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// cover mounts a victim at a name: a mount cannot be moved there.
func (g *Ground) cover(in int, name string) {
	fd, err := unix.Openat(in, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	at := "/proc/self/fd/" + strconv.Itoa(fd)
	if unix.Mount(g.dir, at, "", unix.MS_BIND, "") != nil {
		_ = unix.Mount(g.file, at, "", unix.MS_BIND, "")
	}
}

// discard removes what is aside, but nothing outside. The operation renames directories too, so a mount below the name may
// still be there after unmount: what is mounted is never entered.
func (g *Ground) discard(in int) {
	for range 100 {
		if remove(in, aside) {
			return
		}
		g.unmount(g.Dir)
	}
}

// remove removes a name and what is below it, up to mounts, and reports whether the name is gone.
func remove(in int, name string) (gone bool) {
	switch err := unix.Unlinkat(in, name, 0); err {
	case nil, unix.ENOENT:
		return true
	case unix.EISDIR:
	default:
		return false
	}
	how := &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV}
	fd, err := unix.Openat2(in, name, how)
	if err != nil {
		return false
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, n := range names {
		if !remove(fd, n) {
			return false
		}
	}
	return unix.Unlinkat(in, name, unix.AT_REMOVEDIR) == nil
}

// unmount detaches everything that is mounted at or below a path.
func (g *Ground) unmount(path string) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return
	}
	lines := bytes.Split(b, []byte("\n"))
	slices.Reverse(lines) // the newest first
	for _, line := range lines {
		f := bytes.Fields(line)
		if len(f) > 4 && (string(f[4]) == path || bytes.HasPrefix(f[4], []byte(path+"/"))) {
			_ = unix.Unmount(string(f[4]), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
}
