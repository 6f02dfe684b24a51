package client

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/clienttest"
	"github.com/muster-sched/muster/structs"
)

// TestCheckpointNotice ends real processes for several reasons, and looks at what they were told before.
func TestCheckpointNotice(t *testing.T) {
	dir := scratch(t)
	srv := clienttest.New()
	cfg, sup, err := processConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer sup.Close()
	cfg.Connect = InProcess(srv.InProcess)
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
			job := clienttest.Job("ckpt", structs.JobBatch, sh("main", c.script))
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
			st := end.TaskStates["main"]
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

	t.Run("before a limit", func(t *testing.T) {
		job := clienttest.Job("ckpt", structs.JobBatch, sh("main", trap))
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
