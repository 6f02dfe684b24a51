package shim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/fakegpu"
	"github.com/muster-sched/muster/internal/fakegpu/lib"
)

// bench is a directory with the fake driver, the program that uses it, and a share of the first of two GPUs of 16 GiB.
type bench struct {
	t     *testing.T
	libs  string
	share string // directory of the library and its files
	state *fakegpu.File
	uuid  string
	other string
}

const gib = 1 << 30

var built struct {
	sync.Once
	dir string
	err error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

func newBench(t *testing.T, limit int64) *bench {
	t.Helper()
	if why := Built(); why != "" {
		t.Skip("does not apply here: the library is " + why)
	}
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "shim-"); built.err != nil {
			return
		}
		if built.err = lib.Build(built.dir); built.err != nil {
			return
		}
		src := filepath.Join(built.dir, "src")
		if built.err = os.Mkdir(src, 0o755); built.err != nil {
			return
		}
		if built.err = lib.Sources(src); built.err != nil {
			return
		}
		user := filepath.Join(src, "user.c")
		if built.err = lib.Compile("-o", filepath.Join(built.dir, "user"), user, filepath.Join(built.dir, lib.CUDA), "-lpthread", "-ldl"); built.err != nil {
			return
		}
		built.err = lib.Compile("-DLOADER", "-o", filepath.Join(built.dir, "loader"), user, "-lpthread", "-ldl") // finds the driver at run time
	})
	if errors.Is(built.err, lib.ErrNoCompiler) {
		t.Skip("not run: " + built.err.Error())
	} else if built.err != nil {
		t.Fatal(built.err)
	}
	s, err := fakegpu.New("2xT4", "shim")
	if err != nil {
		t.Fatal(err)
	}
	s.Context = 0
	b := &bench{t: t, libs: built.dir, share: filepath.Join(t.TempDir(), "share"), uuid: s.GPUs[0].UUID, other: s.GPUs[1].UUID}
	if b.state, err = fakegpu.Create(filepath.Join(t.TempDir(), "state"), s); err != nil {
		t.Fatal(err)
	}
	if err := Place(b.share, map[string]int64{b.uuid: limit}); err != nil {
		t.Fatal(err)
	}
	return b
}

// program is a running user program.
type program struct {
	b   *bench
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (b *bench) start(how string, env ...string) *program {
	b.t.Helper()
	name := "loader"
	if how == "linked" {
		name = "user"
	}
	p := &program{b: b, cmd: exec.Command(filepath.Join(b.libs, name), how)}
	p.cmd.Env = append([]string{"LD_LIBRARY_PATH=" + b.libs, fakegpu.Env + "=" + b.state.Path, Env + "=" + Preload(b.share, ""), "CUDA_VISIBLE_DEVICES=" + b.uuid + "," + b.other}, env...)
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		p.in.Close()
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	return p
}

// do carries out a command and gives the answer.
func (p *program) do(format string, args ...any) string {
	p.b.t.Helper()
	fmt.Fprintf(p.in, format+"\n", args...)
	s, err := p.out.ReadString('\n')
	if err != nil {
		p.b.t.Fatalf("%s: the program has ended: %v", fmt.Sprintf(format, args...), err)
	}
	return strings.TrimSpace(s)
}

func (p *program) want(answer, format string, args ...any) {
	p.b.t.Helper()
	if got := p.do(format, args...); got != answer {
		p.b.t.Errorf("%s: got %q, want %q", fmt.Sprintf(format, args...), got, answer)
	}
}

func (p *program) ready() *program {
	p.b.t.Helper()
	p.want("0 2", "init")
	p.want("0", "ctx 0")
	return p
}

func (b *bench) usage() Usage {
	b.t.Helper()
	f, err := Open(b.share, b.uuid)
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	u, err := f.Read()
	if err != nil {
		b.t.Fatal(err)
	}
	return u
}

var ways = []string{"linked", "dlsym", "proc", "ptsz", "deepbind"}

// TestEveryWayIn finds the driver's functions in every way that a program can: each sees the share as its GPU, and gets
// exactly that much. dlvsym, which goes around dlsym, is what the library does not catch.
func TestEveryWayIn(t *testing.T) {
	for _, how := range ways {
		t.Run(how, func(t *testing.T) {
			b := newBench(t, 4*gib)
			p := b.start(how).ready()
			p.want(fmt.Sprintf("0 %d %d", 4*gib, 4*gib), "info")
			p.want(fmt.Sprintf("0 %d", 4*gib), "total 0")
			p.want("2 8", "fill %d", gib/2)
			p.want(fmt.Sprintf("0 0 %d", 4*gib), "info")
			p.want("0", "free")
			p.want("2", "alloc %d", gib/2+1)
			p.want("0", "alloc %d", gib/2)
			if u := b.usage(); u.UsedBytes != 4*gib || u.PeakBytes != 4*gib || u.Denied != 2 || len(u.Processes) != 1 {
				t.Errorf("the file says %+v", u)
			}
			// The second GPU is the task's without a share.
			p.want("0", "ctx 1")
			p.want("0", "alloc %d", 5*gib)
		})
	}
	t.Run("dlvsym", func(t *testing.T) {
		p := newBench(t, 4*gib).start("dlvsym").ready()
		p.want("0", "alloc %d", 8*gib)
	})
}

// TestEveryAllocation takes memory with every function that gives some, and frees it again.
func TestEveryAllocation(t *testing.T) {
	const mib = 1 << 20
	for _, how := range ways {
		t.Run(how, func(t *testing.T) {
			b := newBench(t, 1*gib)
			p := b.start(how).ready()
			for _, kind := range []string{"alloc %d", "managed %d", "async %d", "create %d 0", "pool %d"} {
				p.want("2", kind, gib+2*mib)
				p.want("0", kind, gib)
				p.want("2", "alloc 1")
				p.want("2", kind, 2*mib)
				p.want("0", "free")
				if u := b.usage(); u.UsedBytes != 0 {
					t.Errorf("%s: %d bytes are left after it was freed", kind, u.UsedBytes)
				}
			}
			// Rows are padded to 512 bytes.
			p.want("2", "pitch %d %d", 513, mib+1)
			p.want("0", "pitch %d %d", 513, mib)
			p.want("2", "alloc 1")
			p.want("0", "free")
			p.want("2", "array %d %d", 16385, 16384)
			p.want("0", "array %d %d", 16384, 16384)
			p.want("2", "alloc 1")
			p.want("0", "free")
			// Mapped memory lives on when its handle is released.
			p.want("0", "mapped %d 0", gib)
			p.want("2", "alloc 1")
			p.want("0", "unmap %d 0", gib)
			p.want("0", "alloc %d", gib)
			p.want("0", "free")
			for _, kind := range []string{"array3 1024 1024 %d", "mipmap 16384 %d 1"} {
				fits := map[string]int{"array3 1024 1024 %d": 256, "mipmap 16384 %d 1": 16384}[kind]
				p.want("2", kind, fits+1)
				p.want("0", kind, fits)
				p.want("2", "alloc 1")
				p.want("0", "free")
			}
			p.want("2", "mipmap 16384 16384 2") // the second level is a quarter more
			// Memory that is mapped later, memory of the machine and memory of another process are not counted here.
			p.want("0", "alloc %d", gib)
			p.want("0", "sparse 4096 4096 16")
			p.want("0", "free")
			p.want("0", "host %d", 8*gib)
			p.want("0", "ipc")
			if u := b.usage(); u.UsedBytes != gib {
				t.Errorf("%d bytes are booked", u.UsedBytes)
			}
			p.want("0", "free")
			// A context that is destroyed takes its memory along.
			p.want("0", "context %d", gib)
			p.want("0", "context %d", gib)
			p.want("0", "alloc %d", gib)
			// A reset of the context frees everything.
			p.want("0", "reset 0")
			if u := b.usage(); u.UsedBytes != 0 {
				t.Errorf("%d bytes are left after the reset", u.UsedBytes)
			}
		})
	}
}

// TestPoolsKeepWhatTheyHave lets a pool keep what is freed: that counts, may be used again, and makes room for others
// when nothing else does.
func TestPoolsKeepWhatTheyHave(t *testing.T) {
	b := newBench(t, 1*gib)
	p := b.start("proc").ready()
	p.want("0", "threshold %d", 8*gib)
	p.want("0", "async %d", gib)
	p.want("0", "free")
	if u := b.usage(); u.UsedBytes != gib {
		t.Errorf("the pool holds %d bytes, and %d are booked", gib, u.UsedBytes)
	}
	p.want("0", "async %d", gib/2)
	p.want("0", "async %d", gib/2)
	p.want("2", "async 1")
	p.want("0", "free")
	p.want("0", "pool %d", gib/2) // another pool: the spare half of the first is trimmed
	if u := b.usage(); u.UsedBytes != gib {
		t.Errorf("%d bytes are booked", u.UsedBytes)
	}
}

// TestRace lets processes, and threads in them, allocate and free at once: what they hold in the end is the share, to
// the byte.
func TestRace(t *testing.T) {
	const processes, threads, step = 6, 3, 1 << 20
	b := newBench(t, 512<<20)
	sum := make(chan int64, processes)
	for range processes {
		p := b.start("proc").ready()
		go func() {
			fmt.Fprintf(p.in, "race %d 40 %d\n", threads, step)
			s, _ := p.out.ReadString('\n')
			n, _ := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
			sum <- n
		}()
	}
	var total int64
	for range processes {
		total += <-sum
	}
	// Who was done first may have stopped while others gave some back: what is missing must still be there.
	p := b.start("linked").ready()
	fields := strings.Fields(p.do("fill %d", step))
	more, _ := strconv.ParseInt(fields[1], 10, 64)
	if total+more*step != 512<<20 {
		t.Errorf("%d processes got %d MiB, one more %d MiB: want 512 together", processes, total>>20, more)
	}
	if u := b.usage(); u.UsedBytes != 512<<20 || u.PeakBytes != 512<<20 || len(u.Processes) != processes+1 {
		t.Errorf("booked %d of %d processes, peak %d", u.UsedBytes, len(u.Processes), u.PeakBytes)
	}
}

// TestKilled leaves charges behind: the next process frees them when it needs the room, and the agent when it looks.
func TestKilled(t *testing.T) {
	b := newBench(t, 1*gib)
	kill := func() {
		p := b.start("linked").ready()
		p.want("0", "alloc %d", gib)
		p.cmd.Process.Kill()
		p.cmd.Wait()
	}
	kill()
	if u := b.usage(); u.UsedBytes != gib {
		t.Errorf("booked %d", u.UsedBytes)
	}
	p := b.start("linked").ready()
	p.want("0", "alloc %d", gib)
	p.want("0", "free")
	p.in.Close() // ends it well
	p.cmd.Wait()
	if u := b.usage(); len(u.Processes) != 0 {
		t.Errorf("a process that ended well left %+v", u.Processes)
	}
	kill()
	live := b.start("linked").ready()
	live.want("2", "alloc %d", gib+1)
	f, err := Open(b.share, b.uuid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	kill()
	u, err := f.Read()
	if err != nil {
		t.Fatal(err)
	}
	l := &Living{}
	if n, err := f.Sweep(u.Processes, l.Gone); err != nil || n != 1 {
		t.Errorf("%d swept, want the one that was killed: %v", n, err)
	}
	if u, _ := f.Read(); len(u.Processes) != 1 || u.UsedBytes != 0 || u.Processes[0].PID != live.cmd.Process.Pid {
		t.Errorf("left: %+v", u)
	}
}

// TestKilledInTheMiddle kills processes while they allocate and free, at random points, with or without the book's
// lock: the remaining ones continue, and get exactly the share in the end.
func TestKilledInTheMiddle(t *testing.T) {
	b := newBench(t, 64<<20)
	for i := range 30 {
		p := b.start("proc").ready()
		fmt.Fprintf(p.in, "race 4 100000 %d\n", 1<<20)
		time.Sleep(time.Duration(i) * time.Millisecond) // another instant each time
		p.cmd.Process.Kill()
		p.cmd.Wait()
	}
	p := b.start("linked").ready()
	p.want("2 64", "fill %d", 1<<20)
	if u := b.usage(); u.UsedBytes != 64<<20 || len(u.Processes) != 1 {
		t.Errorf("booked %d of %d processes", u.UsedBytes, len(u.Processes))
	}
}

// TestForkAndExec forks while threads allocate, and becomes another program: neither hangs, and what the earlier program
// had is free again.
func TestForkAndExec(t *testing.T) {
	b := newBench(t, 1*gib)
	p := b.start("proc").ready()
	p.want("0", "alloc %d", gib/2)
	if got := p.do("fork"); got == "-1" {
		t.Error("the child of a fork hangs")
	}
	p.want("0", "alloc %d", gib/2)
	p.want("2", "alloc 1")
	fmt.Fprintln(p.in, "exec")
	p.ready()
	p.want("0", "alloc %d", gib)
	if u := b.usage(); u.UsedBytes != gib || len(u.Processes) != 1 {
		t.Errorf("after exec: %+v", u)
	}
}

// TestWhatTheAgentAdds changes the share and what is held beyond the books while a program runs.
func TestWhatTheAgentAdds(t *testing.T) {
	b := newBench(t, 4*gib)
	p := b.start("dlsym").ready()
	f, err := Open(b.share, b.uuid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.SetUntracked(gib); err != nil {
		t.Fatal(err)
	}
	p.want(fmt.Sprintf("0 %d %d", 3*gib, 4*gib), "info")
	p.want("2", "alloc %d", 3*gib+1)
	p.want("0", "alloc %d", 3*gib)
	if err := f.SetLimit(2 * gib); err != nil {
		t.Fatal(err)
	}
	p.want(fmt.Sprintf("0 0 %d", 2*gib), "info")
	p.want("2", "alloc 1")
	if err := Place(b.share, map[string]int64{b.uuid: 8 * gib}); err != nil { // as after a restart of the agent
		t.Fatal(err)
	}
	p.want("0", "alloc %d", 4*gib)
	if u := b.usage(); u.LimitBytes != 8*gib || u.UsedBytes != 7*gib {
		t.Errorf("the file says %+v", u)
	}
}

// TestGone: the agent gets an error when a task's files have changed. Numbers that a task writes are bounded.
func TestGone(t *testing.T) {
	b := newBench(t, gib)
	path := filepath.Join(b.share, b.uuid)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for what, break_ := range map[string]func() error{
		"the file is shorter":      func() error { return os.Truncate(path, 100) },
		"the file is removed":      func() error { return os.Remove(path) },
		"the library is removed":   func() error { return os.Remove(filepath.Join(b.share, Library)) },
		"the directory is removed": func() error { return os.RemoveAll(b.share) },
		"the file is overwritten":  func() error { return os.WriteFile(path, make([]byte, fileSize), 0o666) },
	} {
		t.Run(what, func(t *testing.T) {
			if err := os.RemoveAll(b.share); err != nil {
				t.Fatal(err)
			}
			if err := Place(b.share, map[string]int64{b.uuid: gib}); err != nil {
				t.Fatal(err)
			}
			if err := break_(); err != nil {
				t.Fatal(err)
			}
			f, err := Open(b.share, b.uuid)
			if err == nil {
				_, err = f.Read()
				f.Close()
			}
			if !errors.Is(err, ErrGone) {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	for i := 8; i < len(whole); i++ {
		whole[i] = 0xff
	}
	if err := os.MkdirAll(b.share, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Place(b.share, map[string]int64{b.uuid: gib}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, whole, 0o666); err != nil {
		t.Fatal(err)
	}
	if u := b.usage(); u.UsedBytes < 0 || u.UsedBytes > 1<<50 || len(u.Processes) != slots {
		t.Errorf("nonsense became %d bytes of %d processes", u.UsedBytes, len(u.Processes))
	}
}

// TestOtherProgramsAreLeftAlone preloads the library into programs that do not use GPUs, and together with a library of
// the task that looks up functions after itself.
func TestOtherProgramsAreLeftAlone(t *testing.T) {
	b := newBench(t, gib)
	dir := t.TempDir()
	src := filepath.Join(dir, "own.c")
	// A library that wraps getpid: RTLD_NEXT must mean what comes after it, not after the shim.
	if err := os.WriteFile(src, []byte("#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdlib.h>\nint getppid(void) { static int n; if (n++ > 3) abort(); int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, \"getppid\"); int r = next(); n--; return r; }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := lib.Compile("-fPIC", "-shared", "-o", filepath.Join(dir, "own.so"), src, "-ldl"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/bash", "-c", "echo $PPID; sleep 0.01")
	cmd.Env = []string{Env + "=" + Preload(b.share, filepath.Join(dir, "own.so"))}
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != strconv.Itoa(os.Getpid()) {
		t.Errorf("bash under the library: %v, %s", err, out)
	}
}

// A container's root can put links where the agent writes: they lead nowhere else.
func TestPlaceFollowsNoLinks(t *testing.T) {
	shared, elsewhere := t.TempDir(), t.TempDir()
	if err := os.Symlink(elsewhere, filepath.Join(shared, "gpu")); err != nil {
		t.Fatal(err)
	}
	if err := Place(filepath.Join(shared, "gpu", "t"), map[string]int64{"GPU-1": 1}); err == nil {
		t.Error("it was placed through a link")
	}
	if left, _ := os.ReadDir(elsewhere); len(left) != 0 {
		t.Errorf("elsewhere there is %v now", left)
	}
	if _, err := Open(filepath.Join(shared, "gpu", "t"), "GPU-1"); err == nil {
		t.Error("it was opened through a link")
	}
}
