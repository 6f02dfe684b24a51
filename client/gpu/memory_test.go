//go:build linux && cgo

package gpu

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/muster-sched/muster/internal/fakegpu"
	"github.com/muster-sched/muster/internal/fakegpu/lib"
)

// user is a real process that allocates through the fake libcuda.
type user struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startUser(t *testing.T, f *fakegpu.File, dir string, env ...string) *user {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "user")
	src := t.TempDir()
	if err := lib.Sources(src); err != nil {
		t.Fatal(err)
	}
	needCompiler(t, lib.Compile("-o", exe, filepath.Join(src, "user.c"), filepath.Join(dir, lib.CUDA)))
	u := &user{t: t, cmd: exec.Command(exe)}
	u.cmd.Env = append(os.Environ(), append(env, "LD_LIBRARY_PATH="+dir, fakegpu.Env+"="+f.Path)...)
	u.cmd.Stderr = os.Stderr
	var err error
	if u.in, err = u.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := u.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := u.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	u.out = bufio.NewScanner(out)
	t.Cleanup(func() { _ = u.cmd.Process.Kill(); _ = u.cmd.Wait() })
	return u
}

// do sends a command and wants an answer.
func (u *user) do(want, format string, args ...any) {
	u.t.Helper()
	fmt.Fprintf(u.in, format+"\n", args...)
	if !u.out.Scan() {
		u.t.Fatalf("%s: the program ended", fmt.Sprintf(format, args...))
	}
	if got := u.out.Text(); got != want {
		u.t.Errorf("%s: got %q, want %q", fmt.Sprintf(format, args...), got, want)
	}
}

func TestMemoryOfProcesses(t *testing.T) {
	f, dir := fake(t, "4xH100")
	_ = f.Edit(func(s *fakegpu.State) { s.Context = 300 << 20 })
	s, _ := f.Read()
	n := watch(t, quick(f, dir))
	u := startUser(t, f, dir, "CUDA_VISIBLE_DEVICES="+s.GPUs[2].UUID)
	u.do("0 1", "init")
	u.do("0", "ctx 0")
	u.do("0", "alloc %d", int64(20<<30))
	v := startUser(t, f, dir, "CUDA_VISIBLE_DEVICES=2,0")
	v.do("0 2", "init")
	v.do("0", "ctx 0")
	v.do("0", "alloc %d", int64(1<<30))
	total := s.GPUs[2].Memory - s.GPUs[2].Reserved
	v.do(fmt.Sprintf("0 %d %d", total-21<<30-600<<20, total), "info")
	v.do("2", "alloc %d", int64(70<<30)) // CUDA_ERROR_OUT_OF_MEMORY

	samples, err := n.Refresh(t.Context())
	if err != nil || len(samples) != 4 {
		t.Fatalf("samples %+v, %v", samples, err)
	}
	got := map[int]int64{}
	for _, p := range samples[2].Processes {
		got[p.PID] = p.Bytes
	}
	if len(got) != 2 || got[u.cmd.Process.Pid] != 20<<30+300<<20 || got[v.cmd.Process.Pid] != 1<<30+300<<20 {
		t.Errorf("processes are %v", got)
	}
	if samples[2].UsedBytes != 21<<30+600<<20 || samples[2].FreeBytes != total-samples[2].UsedBytes || samples[0].UsedBytes != 0 || len(samples[0].Processes) != 0 {
		t.Errorf("memory is %+v and %+v", samples[2], samples[0])
	}
	v.do("0", "free")
	// A killed process holds nothing, without any message to the agent.
	_ = u.cmd.Process.Kill()
	_ = u.cmd.Wait()
	if samples, err = n.Refresh(t.Context()); err != nil || samples[2].UsedBytes != 300<<20 || len(samples[2].Processes) != 1 {
		t.Errorf("after the kill: %+v, %v", samples[2], err)
	}
	v.do("0", "alloc %d", int64(70<<30))
	if s, _ = f.Read(); len(s.Procs) != 1 {
		t.Errorf("charges of the dead stay: %+v", s.Procs)
	}
}

func TestMemoryOfInstances(t *testing.T) {
	f, dir := fake(t, "1xH100")
	_ = f.Edit(func(s *fakegpu.State) { s.Split(0, 3) })
	s, _ := f.Read()
	n := watch(t, quick(f, dir))
	u := startUser(t, f, dir, "CUDA_VISIBLE_DEVICES="+s.MIGs[1].UUID)
	u.do("0 1", "init")
	u.do("0", "ctx 0")
	u.do("2", "alloc %d", s.MIGs[1].Memory+1)
	u.do("0", "alloc %d", int64(5<<30))
	samples, err := n.Refresh(t.Context())
	if err != nil || len(samples[0].Processes) != 1 || samples[0].Processes[0] != (Process{u.cmd.Process.Pid, 5 << 30, s.MIGs[1].GI, 0, -1}) || samples[0].UsedBytes != 5<<30 {
		t.Errorf("samples %+v, %v", samples, err)
	}
	stats := n.Stats()
	if len(stats) != 3 || stats[1].ID != s.MIGs[1].UUID || stats[1].Parent != s.GPUs[0].UUID || stats[1].UsedBytes != 5<<30 || stats[1].TotalBytes>>20 != s.MIGs[1].Memory>>20 ||
		stats[0].UsedBytes != 0 || stats[1].PowerMW != -1 {
		t.Errorf("statistics are %+v", stats)
	}
	none := startUser(t, f, dir, "CUDA_VISIBLE_DEVICES=void")
	none.do("100 0", "init") // CUDA_ERROR_NO_DEVICE
}

// TestRaceForMemory has six processes take one GPU's memory in small pieces until it is full: together they get all of it
// and not a byte more, although each looks and takes in two steps.
func TestRaceForMemory(t *testing.T) {
	f, dir := fake(t, "1xT4")
	_ = f.Edit(func(s *fakegpu.State) { s.GPUs[0].Memory, s.GPUs[0].Reserved = 300<<20, 0 })
	var users []*user
	for range 6 {
		u := startUser(t, f, dir)
		u.do("0 1", "init")
		u.do("0", "ctx 0")
		users = append(users, u)
	}
	const tries = 100 // 600 MiB asked for, 300 there
	got := make(chan int, len(users))
	for _, u := range users {
		go func() {
			for range tries {
				fmt.Fprintf(u.in, "alloc %d\n", 1<<20)
			}
		}()
		go func() {
			n := 0
			for range tries {
				if u.out.Scan() && u.out.Text() == "0" {
					n++
				}
			}
			got <- n
		}()
	}
	sum := 0
	for range users {
		sum += <-got
	}
	if sum != 300 {
		t.Errorf("together they got %d MiB of 300", sum)
	}
	s, err := f.Read()
	if err != nil || s.Used()[s.GPUs[0].UUID] != 300<<20 || len(s.GPUs) != 1 {
		t.Errorf("the file says %+v, %v", s, err)
	}
}
