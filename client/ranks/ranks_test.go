package ranks

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	MaybeRun()
	goleak.VerifyTestMain(m)
}

// launch runs a script in two ranks, 4 and 5 of the world.
func launch(t *testing.T, script string, options ...string) (*exec.Cmd, *output, *output) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Args = slices.Concat([]string{"muster", Verb}, options, []string{"--", "/bin/sh", "sh", "-c", script})
	cmd.Env = append(os.Environ(), "MUSTER_RANKS=2", "MUSTER_FIRST_RANK=4", "RANK=wrong", "SLURM_JOB_ID=7")
	var out, errs output
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd, &out, &errs
}

// output is written by a process and read by a test.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// waitFor waits until the lines of o are want, in any order.
func (o *output) waitFor(t *testing.T, want string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); sorted(o) != want; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after 10 s the output is %q, want %q", sorted(o), want)
		}
	}
}

func sorted(b fmt.Stringer) string {
	l := strings.Split(strings.TrimSpace(b.String()), "\n")
	slices.Sort(l)
	return strings.Join(l, "|")
}

func TestRanks(t *testing.T) {
	for name, c := range map[string]struct {
		script    string
		out, errs string
		code      int
	}{
		"each knows its rank": {`echo "$RANK $LOCAL_RANK $SLURM_PROCID $SLURM_LOCALID"; echo bad >&2`, "4: 4 0 4 0|5: 5 1 5 1", "4: bad|5: bad", 0},
		"one fails, the other is ended": {`if [ $RANK = 5 ]; then sleep 0.2; exit 3; fi; trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.05; done`,
			"4: told|4: up", "rank 5 ended with exit code 3: ending the other ranks", 3},
		"ended by a signal":       {`[ $RANK = 5 ] || kill -9 $$; sleep 9`, "", "rank 4 ended with exit code 137: ending the other ranks", 137},
		"no end of line":          {`[ $RANK = 5 ] || printf 'no end'`, "4: no end", "", 0},
		"a bar that moves":        {`[ $RANK = 5 ] || printf '10%%\r50%%\rdone\n'`, "4: done", "", 0},
		"an empty line is a line": {`[ $RANK = 5 ] || printf 'a\n\nb\n'`, "4: |4: a|4: b", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, out, errs := launch(t, c.script)
			cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != c.code {
				t.Errorf("exit code %d, want %d", got, c.code)
			}
			if got := sorted(out); got != c.out {
				t.Errorf("stdout %q, want %q", got, c.out)
			}
			if got := sorted(errs); got != c.errs {
				t.Errorf("stderr %q, want %q", got, c.errs)
			}
		})
	}
}

func TestOwnGPUs(t *testing.T) {
	for _, c := range []struct {
		gpus string
		n    int
		want string // of all ranks, divided by "|"
	}{
		{"a,b", 2, "a|b"},
		{"a,b,c,d", 2, "a,b|c,d"},
		{"a,b,c", 2, "a|b,c"},
		{"a,b", 4, "a|a|b|b"},
		{"a,b", 3, "a|a|b"},
		{"a", 1, "a"},
	} {
		t.Run(fmt.Sprintf("gpus=%q n=%v", c.gpus, c.n), func(t *testing.T) {
			var got []string
			env := []string{"MUSTER_GPUS_BY_RANK=1", "MUSTER_RANKS=" + strconv.Itoa(c.n), "CUDA_VISIBLE_DEVICES=" + c.gpus, "NVIDIA_VISIBLE_DEVICES=" + c.gpus}
			for i := range c.n {
				e := environ(env, i, i)
				got = append(got, variable(e, "CUDA_VISIBLE_DEVICES"))
				if n := strings.Count(got[i], ",") + 1; variable(e, "MUSTER_GPU_COUNT") != strconv.Itoa(n) || variable(e, "NVIDIA_VISIBLE_DEVICES") != c.gpus {
					t.Errorf("rank %d of %d over %s: %v", i, c.n, c.gpus, e)
				}
			}
			if s := strings.Join(got, "|"); s != c.want {
				t.Errorf("%d ranks over %s see %s, want %s", c.n, c.gpus, s, c.want)
			}
		})
	}
	if e := environ([]string{"MUSTER_RANKS=2", "CUDA_VISIBLE_DEVICES=a,b"}, 1, 1); variable(e, "CUDA_VISIBLE_DEVICES") != "a,b" {
		t.Errorf("all GPUs for every rank: %v", e)
	}
	if e := environ([]string{"MUSTER_GPUS_BY_RANK=1", "MUSTER_RANKS=2", "CUDA_VISIBLE_DEVICES="}, 1, 1); variable(e, "CUDA_VISIBLE_DEVICES") != "" {
		t.Errorf("without GPUs: %v", e)
	}
	e := environ([]string{"MUSTER_GPUS_BY_RANK=1", "MUSTER_RANKS=2", "CUDA_VISIBLE_DEVICES=a,b", "MUSTER_GPU_MEMORY_MIB=10,20"}, 1, 1)
	if variable(e, "MUSTER_GPU_MEMORY_MIB") != "20" {
		t.Errorf("shares: %v", e)
	}
}

// TestSignalsArePassedOn ends ranks as an agent ends a task, and signals them to save their state before.
func TestSignalsArePassedOn(t *testing.T) {
	cmd, out, _ := launch(t, `trap 'echo saved' USR1; trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done`)
	out.waitFor(t, "4: up|5: up")
	cmd.Process.Signal(syscall.SIGUSR1)
	out.waitFor(t, "4: saved|4: up|5: saved|5: up")
	cmd.Process.Signal(syscall.SIGTERM)
	cmd.Wait()
	if got, want := sorted(out), "4: bye|4: saved|4: up|5: bye|5: saved|5: up"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("exit code %d, want that of the ranks", cmd.ProcessState.ExitCode())
	}
}

// TestLogPaths has the output of ranks added to files of theirs, or to one file, and that of a task without ranks.
func TestLogPaths(t *testing.T) {
	dir := t.TempDir()
	read := func(name string) string {
		b, _ := os.ReadFile(dir + "/" + name)
		return string(b)
	}
	run := func(script string, options ...string) (int, string, string) {
		cmd, out, errs := launch(t, script, options...)
		cmd.Wait()
		return cmd.ProcessState.ExitCode(), sorted(out), sorted(errs)
	}
	const say = `echo "out $RANK"; echo "err $RANK" >&2; printf end`
	if code, out, _ := run(say, "-log", dir+"/%03t%%.log"); code != 0 || out != "4: end|4: out 4|5: end|5: out 5" {
		t.Errorf("exit code %d, stdout %q", code, out)
	}
	for _, rank := range []string{"4", "5"} {
		if got := read("00" + rank + "%.log"); !strings.Contains(got, "out "+rank+"\n") || !strings.Contains(got, "err "+rank+"\n") || strings.Contains(got, ":") {
			t.Errorf("the file of rank %s has %q", rank, got)
		}
	}
	run(say, "-log", dir+"/all.out", "-log-error", dir+"/%t.err")
	run(say, "-log", dir+"/all.out", "-log-error", dir+"/%t.err")
	var all bytes.Buffer
	all.WriteString(read("all.out"))
	if got := sorted(&all); got != "4: end|4: end|4: out 4|4: out 4|5: end|5: end|5: out 5|5: out 5" || read("5.err") != "err 5\nerr 5\n" {
		t.Errorf("after two runs the file of all has %q, that of rank 5 %q", got, read("5.err"))
	}
	if code, out, errs := run(`echo "as $RANK"; exit 3`, "-single", "-log", dir+"/single"); code != 3 || out != "as wrong" || read("single") != "as wrong\n" {
		t.Errorf("single: exit code %d, stdout %q, file %q, %s", code, out, read("single"), errs)
	}
	if code, out, errs := run("echo ran", "-log", dir+"/none/x"); code != exitLog || out != "" || !strings.Contains(errs, "no such file or directory") || !strings.Contains(errs, "as its user") {
		t.Errorf("a log without a directory: exit code %d, stdout %q, %s", code, out, errs)
	}
}
