package client

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/clientfake"
	"github.com/muster-sched/muster/structs"
)

// TestCheckpointNotice ends real processes for several reasons, and checks the notices that they got before.
func TestCheckpointNotice(t *testing.T) {
	srv, cfg := processNode(t)
	a := start(t, srv, cfg)

	evict := func(al *structs.Allocation) { al.Desired, al.DesiredDesc = structs.DesiredEvict, "preempted by job x" }
	trap := `trap 'echo saved; exit 0' USR1; trap 'echo killed; exit 3' TERM; echo ready; while true; do sleep 0.05; done`
	for name, c := range map[string]struct {
		script string
		ckpt   structs.Checkpoint
		end    func(*structs.Allocation)
		out    string // the last word of the task
		event  string // part of the event, "" for no notice
		exit   int64
	}{
		"signal, and it ends by itself": {trap, structs.Checkpoint{Signal: "SIGUSR1", Grace: time.Minute}, evict, "saved", "signal SIGUSR1. Waiting up to 1m0s", 0},
		"signal in vain":                {strings.Replace(trap, "echo saved; exit 0", "echo heard", 1), structs.Checkpoint{Signal: "SIGUSR1", Grace: 300 * time.Millisecond}, evict, "killed", "Waiting up to 300ms", 3},
		"ranks, not their launcher": {`trap 'echo launcher' USR1; trap 'exit 3' TERM; sh -c "trap 'echo rank; exit 0' USR1; echo ready; while :; do :; done" & wait $!; wait $!; exit 0`,
			structs.Checkpoint{Signal: "SIGUSR1", To: "ranks", Grace: time.Minute}, evict, "rank", "to its ranks", 0},
		"a command": {`trap 'cat $NOMAD_ALLOC_DIR/data/ckpt; exit 3' TERM; echo ready; while true; do sleep 0.05; done`,
			structs.Checkpoint{Command: []string{"/bin/sh", "-c", "echo state > $NOMAD_ALLOC_DIR/data/ckpt"}, Grace: time.Minute}, evict, "state", "command /bin/sh", 3},
		"not for this reason": {trap, structs.Checkpoint{Signal: "SIGUSR1", Grace: time.Minute, On: []string{"drain"}}, evict, "killed", "", 3},
		"a drain": {trap, structs.Checkpoint{Signal: "SIGUSR1", Grace: time.Minute, On: []string{"drain"}}, func(al *structs.Allocation) {
			al.Desired, al.Transition.Migrate = structs.DesiredStop, true
		}, "saved", "its node drains", 0},
		"a stop is none": {trap, structs.Checkpoint{Signal: "SIGUSR1", Grace: time.Minute}, func(al *structs.Allocation) { al.Desired = structs.DesiredStop }, "killed", "", 3},
	} {
		t.Run(name, func(t *testing.T) {
			job := clientfake.Job("ckpt", structs.JobBatch, sh("main", c.script))
			job.Groups[0].Checkpoint = &c.ckpt
			job.Groups[0].Restart = structs.Restart{Mode: "fail"}
			id := srv.Place(a.ID(), job, func(*structs.Allocation) {})
			srv.WaitStatus(t, id, structs.ClientRunning)
			back := srv.Back(a.ID())
			readLog(t, back, id, "stdout", func(s string) bool { return strings.Contains(s, "ready\n") })
			srv.Change(id, c.end)
			srv.Wait(t, "its end", func() bool { return srv.Alloc(id).ClientTerminal() })
			end := srv.Alloc(id)
			out := strings.Fields(readLog(t, back, id, "stdout", func(s string) bool { return true }))
			if out[len(out)-1] != c.out {
				t.Errorf("the task said %v, want %q at last", out, c.out)
			}
			var told []string
			st := end.TaskStates.Get("main")
			for _, e := range st.Events {
				if e.Type == "Checkpoint" {
					told = append(told, e.Message)
				}
			}
			if got := strings.Join(told, "; "); (c.event == "") != (got == "") || !strings.Contains(got, c.event) {
				t.Errorf("events %q, want %q", got, c.event)
			}
			for _, e := range st.Events {
				if e.Type == "Terminated" && e.ExitCode != c.exit {
					t.Errorf("exit code %d, want %d", e.ExitCode, c.exit)
				}
			}
		})
	}

	t.Run("in its turn", func(t *testing.T) {
		srv.LetSave(false)
		job := clientfake.Job("ckpt", structs.JobBatch, sh("main", trap))
		job.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Grace: time.Minute}
		id := srv.Place(a.ID(), job, func(*structs.Allocation) {})
		srv.WaitStatus(t, id, structs.ClientRunning)
		readLog(t, srv.Back(a.ID()), id, "stdout", func(s string) bool { return strings.Contains(s, "ready\n") })
		srv.Change(id, evict)
		events := func() (out []string) {
			for _, e := range srv.Alloc(id).TaskStates.Get("main").Events {
				if e.Type == "Checkpoint" {
					out = append(out, e.Message)
				}
			}
			return out
		}
		srv.Wait(t, "word that it waits", func() bool { return len(events()) > 0 })
		if said := events(); len(said) != 1 || said[0] != "Waits for its turn to save its state: storage x lets 2 do so at a time, 5 are before it" || srv.Alloc(id).ClientTerminal() {
			t.Errorf("before its turn: %q, %s", said, srv.Alloc(id).Client)
		}
		srv.LetSave(true)
		srv.Wait(t, "its end", func() bool { return srv.Alloc(id).ClientTerminal() })
		if said := events(); len(said) < 2 || !strings.Contains(said[1], "signal SIGUSR1") || srv.Alloc(id).Client != structs.ClientComplete {
			t.Errorf("in its turn: %q, %s", said, srv.Alloc(id).Client)
		}
	})

	t.Run("before a limit", func(t *testing.T) {
		job := clientfake.Job("ckpt", structs.JobBatch, sh("main", trap))
		job.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Before: time.Hour}
		job.Groups[0].MaxRunDuration = time.Hour + 3*time.Second // the notice comes when the trap is set
		id := srv.Place(a.ID(), job, func(*structs.Allocation) {})
		srv.Wait(t, "its end", func() bool { return srv.Alloc(id).ClientTerminal() })
		end := srv.Alloc(id)
		if out := readLog(t, srv.Back(a.ID()), id, "stdout", func(s string) bool { return true }); !strings.HasSuffix(out, "saved\n") {
			t.Errorf("the task said %q and ended %s", out, end.Client)
		}
	})
}

// TestProgress: real processes save their state in every supported way; the progress is reported, ends the wait after a
// notice, survives the agent, and is passed to the next start.
func TestProgress(t *testing.T) {
	dir := scratch(t)
	srv := clientfake.New()
	cfg, sup, err := processConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer sup.Close()
	cfg.Connect = InProcess(srv.InProcess)
	cfg.Tasks.CheckpointPoll, cfg.Tasks.CheckpointSettle = 50*time.Millisecond, 600*time.Millisecond
	a := start(t, srv, cfg)
	var jobs atomic.Int64
	place := func(script string, c structs.Checkpoint, change func(*structs.Allocation)) structs.AllocID {
		job := clientfake.Job(fmt.Sprint("ckpt", jobs.Add(1)), structs.JobBatch, sh("main", script))
		job.Groups[0].Checkpoint = &c
		job.Groups[0].Restart = structs.Restart{Mode: "fail"}
		return srv.Place(a.ID(), job, change)
	}
	none := func(*structs.Allocation) {}
	wait := "; trap 'exit 3' TERM; while true; do sleep 0.05; done"

	t.Run("seen", func(t *testing.T) { // all at once
		for name, c := range map[string]struct {
			script string
			ckpt   structs.Checkpoint
			path   string // "-" when none shall be seen
			bytes  int64
		}{
			"a pattern": {`mkdir local/c; printf 12345 > local/c/s-1.pt; printf 1 > local/c/log; sleep 0.2; printf 1234567 > local/c/s-2.pt.tmp; mv local/c/s-2.pt.tmp local/c/s-2.pt; sleep 0.1; printf 1 > local/c/log`,
				structs.Checkpoint{Path: "${NOMAD_TASK_DIR}/c/s-*.pt"}, "${NOMAD_TASK_DIR}/c/s-2.pt", 7},
			"a directory of directories": {`mkdir -p $NOMAD_ALLOC_DIR/data/step-1 $NOMAD_ALLOC_DIR/data/step-2.tmp; printf 123 > $NOMAD_ALLOC_DIR/data/step-1/a; printf 1234 > $NOMAD_ALLOC_DIR/data/step-1/b`,
				structs.Checkpoint{Dir: "${NOMAD_ALLOC_DIR}/data"}, "${NOMAD_ALLOC_DIR}/data/step-1", 7},
			"a file, relative":      {`printf 123 > state.bin`, structs.Checkpoint{Path: "state.bin"}, "/state.bin", 3},
			"the task says so":      {`printf 1234 > local/x; echo local/x > $MUSTER_CHECKPOINT_DONE`, structs.Checkpoint{Signal: "SIGUSR1"}, "${NOMAD_TASK_DIR}/x", 4},
			"the task says no more": {`touch $MUSTER_CHECKPOINT_DONE`, structs.Checkpoint{Signal: "SIGUSR1"}, "", 0},
			"never complete":        {`(while true; do printf 1; sleep 0.02; done) > state.bin`, structs.Checkpoint{Path: "state.bin"}, "-", 0},
			"an old one":            {`printf 1 > state.bin; touch -d '1 hour ago' state.bin`, structs.Checkpoint{Path: "state.bin"}, "-", 0},
			"a link, no file":       {`mkdir c; ln -s /etc/passwd c/x`, structs.Checkpoint{Dir: "c"}, "-", 0},
			"not where it may":      {`printf 1 > x`, structs.Checkpoint{Path: "../../../../../../proc/self/root/etc/passwd"}, "-", 0},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				id := place(c.script+wait, c.ckpt, none)
				srv.WaitStatus(t, id, structs.ClientRunning)
				if c.path == "-" {
					time.Sleep(1500 * time.Millisecond) // several looks find nothing
					if s := srv.Alloc(id).Saved; s != nil {
						t.Errorf("seen: %+v", s)
					}
				} else {
					srv.Wait(t, "a checkpoint", func() bool {
						s := srv.Alloc(id).Saved
						return s != nil && s.Bytes == c.bytes && (s.Path == c.path || len(c.path) > 1 && c.path[0] == '/' && strings.HasSuffix(s.Path, c.path))
					})
					if s := srv.Alloc(id).Saved; s.Time < srv.Alloc(id).StartedAt.Add(-time.Second) || s.Time > structs.LogTimeOf(time.Now()) {
						t.Errorf("written at %s", s.Time.Time())
					}
				}
				srv.Change(id, func(al *structs.Allocation) { al.Desired = structs.DesiredStop })
				srv.Wait(t, "its end", func() bool { return srv.Alloc(id).ClientTerminal() })
			})
		}
	})

	events := func(al *structs.Allocation) (out string) {
		for _, e := range al.TaskStates.Get("main").Events {
			if e.Type == "Checkpoint" {
				out += e.Message + "; "
			}
		}
		return out
	}
	t.Run("a notice ends when the state is saved", func(t *testing.T) {
		id := place(`printf 1 > s1; trap 'sleep 0.3; printf 12345 > s2' USR1; echo ready`+wait, structs.Checkpoint{Signal: "SIGUSR1", Path: "s*", Grace: time.Hour}, none)
		srv.WaitStatus(t, id, structs.ClientRunning)
		srv.Wait(t, "the first one", func() bool { return srv.Alloc(id).Saved != nil })
		if s := srv.Alloc(id).Saved; s.Took != 0 {
			t.Errorf("a checkpoint that nobody asked for took %v", s.Took)
		}
		srv.Change(id, func(al *structs.Allocation) { al.Desired, al.DesiredDesc = structs.DesiredEvict, "preempted by job x" })
		srv.Wait(t, "its end", func() bool { return srv.Alloc(id).ClientTerminal() })
		if end := srv.Alloc(id); end.Saved == nil || end.Saved.Bytes != 5 || !strings.Contains(events(end), "5 bytes in ") || !strings.HasSuffix(end.Saved.Path, "/s2") {
			t.Errorf("saved %+v, events %s", end.Saved, events(end))
		} else if end.Saved.Took < 250*time.Millisecond || end.Saved.Took > time.Minute {
			t.Errorf("a save of 300 ms took %v", end.Saved.Took)
		}
	})
	t.Run("told at intervals, and once by hand", func(t *testing.T) {
		id := place(`n=0; trap 'n=$((n+1)); echo $n > state' USR1; echo ready`+wait, structs.Checkpoint{Signal: "SIGUSR1", Path: "state", Interval: time.Second}, none)
		srv.WaitStatus(t, id, structs.ClientRunning)
		srv.Wait(t, "a checkpoint", func() bool { return srv.Alloc(id).Saved != nil })
		if _, err := a.Alloc(id).Save(t.Context()); err != nil {
			t.Errorf("asked by hand: %v", err)
		}
		srv.Change(id, func(al *structs.Allocation) { al.Desired = structs.DesiredStop })
		srv.Wait(t, "its end", func() bool { return srv.Alloc(id).ClientTerminal() })
		if end := srv.Alloc(id); !strings.Contains(events(end), "a user asked for it") {
			t.Errorf("events %s", events(end))
		}
	})
	t.Run("at intervals, in its turn", func(t *testing.T) {
		srv.LetSave(false)
		id := place(`n=0; trap 'n=$((n+1)); echo $n > state' USR1; echo ready`+wait, structs.Checkpoint{Signal: "SIGUSR1", Path: "state", Interval: 15 * time.Second}, none)
		srv.WaitStatus(t, id, structs.ClientRunning)
		began := time.Now()
		time.AfterFunc(18*time.Second, func() { srv.LetSave(true) })
		srv.Wait(t, "a checkpoint", func() bool { return srv.Alloc(id).Saved != nil })
		if d := time.Since(began); d < 17*time.Second {
			t.Errorf("it saved its state after %s, before its turn", d)
		}
		srv.Change(id, func(al *structs.Allocation) { al.Desired = structs.DesiredStop })
		srv.Wait(t, "its end", func() bool { return srv.Alloc(id).ClientTerminal() })
	})
	t.Run("a program that would end", func(t *testing.T) {
		for to, script := range map[string]string{"": `exec sleep 300`, "ranks": `trap : USR1; RANK=0 sh -c 'sleep 300; :'; :`} {
			id := place(`echo ready; `+script, structs.Checkpoint{Signal: "SIGUSR1", To: to, Interval: time.Second}, none)
			srv.WaitStatus(t, id, structs.ClientRunning)
			srv.Wait(t, "a first look", func() bool { return strings.Contains(events(srv.Alloc(id)), "does not catch SIGUSR1") })
			if _, err := a.Alloc(id).Save(t.Context()); err == nil || !strings.Contains(err.Error(), "does not catch SIGUSR1") {
				t.Errorf("to %q, asked by hand: %v", to, err)
			}
			if al := srv.Alloc(id); al.Client != structs.ClientRunning {
				t.Errorf("to %q: it is %s now: %s", to, al.Client, events(al))
			}
			srv.Change(id, func(al *structs.Allocation) { al.Desired = structs.DesiredStop })
			srv.Wait(t, "its end", func() bool { return srv.Alloc(id).ClientTerminal() })
		}
	})
	t.Run("saved at the end, and told to the next", func(t *testing.T) {
		// The task lives for a moment: a process that has ended before the agent looks has no files to be looked at.
		id := place(`env | grep MUSTER_CHECKPOINT; printf 123 > $NOMAD_ALLOC_DIR/data/last; sleep 1`, structs.Checkpoint{Dir: "${NOMAD_ALLOC_DIR}/data"}, func(al *structs.Allocation) {
			al.OwnLineage().Resume = &structs.Saved{Time: 1_700_000_000_000_000_000, Path: "/shared/ckpt/7"}
		})
		srv.Wait(t, "its end", func() bool { return srv.Alloc(id).ClientTerminal() })
		if s := srv.Alloc(id).Saved; s == nil || s.Path != "${NOMAD_ALLOC_DIR}/data/last" {
			t.Errorf("saved %+v", s)
		}
		out := readLog(t, srv.Back(a.ID()), id, "stdout", func(string) bool { return true })
		for _, want := range []string{"MUSTER_CHECKPOINT_PATH=/shared/ckpt/7\n", "MUSTER_CHECKPOINT_TIME=2023-11-14T22:13:20Z\n", "MUSTER_CHECKPOINT_DONE=/"} {
			if !strings.Contains(out, want) {
				t.Errorf("want %q in %s", want, out)
			}
		}
	})
}
