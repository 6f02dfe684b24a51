package exec

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/supervisor"
)

const agentTasks = 20

// agentMain is a minimal agent for these tests: it recovers the tasks whose state it finds, starts the others, persists
// their state, prints "ready" and runs until it is killed.
func agentMain(dir string) error {
	sup, err := supervisor.Open(filepath.Join(dir, "supervisor"), "")
	if err != nil {
		return err
	}
	d := New(Options{Supervisor: sup})
	ctx := context.Background()
	for i := range agentTasks {
		id := fmt.Sprintf("task%d", i)
		file := filepath.Join(dir, id+".state")
		b, err := os.ReadFile(file)
		var task driver.Task
		if err == nil {
			if task, err = d.Recover(ctx, b); err != nil {
				return fmt.Errorf("recover %s: %w", id, err)
			}
		} else {
			alloc := filepath.Join(dir, "alloc", id)
			main := filepath.Join(alloc, "main")
			for _, p := range []string{filepath.Join(alloc, "logs"), filepath.Join(main, "local"), filepath.Join(main, "tmp")} {
				if err := os.MkdirAll(p, 0o755); err != nil {
					return err
				}
			}
			pause := "sleep 0.2"
			if i == 0 {
				pause = ":" // one writes as fast as it can
			}
			task, err = d.Start(ctx, &driver.TaskConfig{
				TaskID: id, AllocID: id, Name: "main", Env: driver.Vars(nil),
				Config: map[string]any{"command": "/bin/sh", "args": []any{"-c", "echo begin; trap 'echo end; exit 33' TERM; i=0; while :; do echo $i; i=$((i+1)); " + pause + "; done"}},
				Dirs:   driver.Dirs{AllocDir: alloc, TaskDir: main, HideDir: dir, AllocRoot: alloc},
				Logs:   driver.LogConfig{StdoutBase: filepath.Join(alloc, "logs", "main.stdout"), MaxFiles: 100_000, MaxFileSize: 1 << 20},
			})
			if err != nil {
				return fmt.Errorf("start %s: %w", id, err)
			}
			if err := os.WriteFile(file+".tmp", task.Status().State, 0o600); err != nil {
				return err
			}
			if err := os.Rename(file+".tmp", file); err != nil {
				return err
			}
		}
		fmt.Printf("%s %d\n", id, task.Status().PID)
	}
	fmt.Println("ready")
	select {}
}

func TestAgentKilledAgainAndAgain(t *testing.T) {
	n := newNode(t)
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pids := map[string]string{}
	interrupted, both := 0, 0
	const rounds = 30
	for round := range rounds {
		cmd := osexec.Command(self)
		cmd.Env = append(os.Environ(), "MUSTER_TEST_AGENT="+n.dir)
		var errs syncBuffer
		cmd.Stderr = &errs
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// In the first rounds it is killed while it starts tasks, later after it has them all.
		if round < rounds/2 {
			timer := time.AfterFunc(time.Duration(rng.IntN(25_000))*time.Microsecond, func() {
				if round%3 == 2 {
					killSupervisorOf(n.dir)
				}
				cmd.Process.Kill()
			})
			defer timer.Stop()
		}
		ready := false
		for sc := bufio.NewScanner(out); sc.Scan(); {
			if sc.Text() == "ready" {
				ready = true
				break
			}
			id, pid, _ := strings.Cut(sc.Text(), " ")
			if old, ok := pids[id]; ok && old != pid {
				t.Errorf("round %d: %s had pid %s and has %s", round, id, old, pid)
			}
			pids[id] = pid
		}
		if !ready {
			interrupted++
			if round >= rounds/2 {
				t.Fatalf("round %d: agent failed: %s", round, errs.String())
			}
		}
		if round%3 == 0 {
			both++
			cmd.Process.Kill()
			killSupervisorOf(n.dir)
		}
		cmd.Process.Kill()
		cmd.Wait()
		if s := errs.String(); s != "" {
			t.Fatalf("round %d: %s", round, s)
		}
	}
	if len(pids) != agentTasks || interrupted == 0 || both == 0 {
		t.Fatalf("%d tasks, %d interrupted starts, %d double kills: the test did not test", len(pids), interrupted, both)
	}
	list, err := n.sup.List(t.Context())
	if err != nil || len(list) != agentTasks {
		t.Fatalf("%d tasks known, %v", len(list), err)
	}
	for _, s := range list {
		if s.Ended || pids[s.ID] != strconv.Itoa(s.PID) {
			t.Errorf("%s: %+v, want pid %s running", s.ID, s, pids[s.ID])
			continue
		}
		if err := n.sup.Stop(t.Context(), s.ID, syscall.SIGTERM, 5*time.Second); err != nil {
			t.Error(err)
		}
		e, err := n.sup.Wait(t.Context(), s.ID)
		if err != nil || e.Code != 33 {
			t.Errorf("%s: exit %+v, %v", s.ID, e, err)
		}
		if left, _ := s.Group.Procs(); len(left) > 0 {
			t.Errorf("%s: orphans %v", s.ID, left)
		}
		checkNumbers(t, n.dir, s.ID)
	}
}

// checkNumbers reads a task's whole log: begin, 0, 1, 2, ..., end; every line once, although supervisors died.
func checkNumbers(t *testing.T, dir, id string) {
	t.Helper()
	var text strings.Builder
	for i := 0; ; i++ {
		b, err := os.ReadFile(filepath.Join(dir, "alloc", id, "logs", "main.stdout."+strconv.Itoa(i)))
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		text.Write(b)
	}
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	if len(lines) < 3 || lines[0] != "begin" || lines[len(lines)-1] != "end" {
		t.Errorf("%s: log of %d lines begins %q and ends %q", id, len(lines), lines[0], lines[len(lines)-1])
		return
	}
	for i, l := range lines[1 : len(lines)-1] {
		if l != strconv.Itoa(i) {
			t.Errorf("%s: line %d is %q", id, i, l)
			return
		}
	}
}

// killSupervisorOf kills the supervisor of a directory, if there is one, without starting one.
func killSupervisorOf(dir string) {
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err == nil && strings.HasPrefix(string(b), "muster\x00supervisor\x00-dir\x00"+dir+"/") {
			if pid, err := strconv.Atoi(strings.Split(p, "/")[2]); err == nil {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}
