package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/structs"
)

// Before work is stopped to make room for other work, because its node drains or because its time limit is near, its
// task is notified to save its state: by a signal, a command inside the task or an HTTP request, as its group declares.
// The wait that follows is bounded by the group's grace. It ends early when the task ends, the command returns, the
// request is answered or a newer checkpoint is seen (progress.go). The notice is recorded as an event, so a restarted
// agent knows that it was sent.

// Causes of a notice: the values of structs.Checkpoint.On.
const (
	causePreempt = structs.CausePreempt
	causeLimit   = "limit"
	causeDrain   = structs.CauseDrain
	causeResize  = structs.CauseResize // the gang continues with other members: it grows or shrinks
	causeRequest = "request"           // not a value of Checkpoint.On: a request is never filtered
)

// graceDefault bounds a save if the group sets no grace.
const graceDefault = structs.CheckpointGrace

var causeText = map[string]string{causePreempt: "it is preempted", causeLimit: "its time is over soon", causeDrain: "its node drains", causeResize: "its gang restarts with other members", causeRequest: "a user asked for it"}

// endCause returns why the allocation is being stopped, if that is a cause for a checkpoint; "" otherwise.
func (r *Runner) endCause() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cause := r.alloc.EndCause(); cause != "" {
		return cause
	}
	switch ro := r.gang.roster; {
	case r.limit.passed:
		return causeLimit
	case r.again != nil && r.again.Type == EventGang && ro != nil:
		switch ro.Reason { // not for a lost member: the others may hang
		case structs.RosterGrown, structs.RosterShrunk, structs.RosterPreempted:
			return causeResize
		}
	}
	return ""
}

// checkpoint returns the checkpoint block of the task's group if it applies to cause, or nil.
func (t *task) checkpoint(cause string) *structs.Checkpoint {
	c := t.saves()
	if c == nil || cause == "" {
		return nil
	}
	if cause != causeRequest && len(c.On) > 0 && !slices.Contains(c.On, cause) {
		return nil
	}
	return c
}

// graceOf returns how long a save may take.
func graceOf(c *structs.Checkpoint) time.Duration {
	if c.Grace > 0 {
		return c.Grace
	}
	return graceDefault
}

// save notifies a running task to save its state and waits until its grace is over or a newer checkpoint is seen. A
// task without a way to be notified gets the grace only if the group sets one: it may save by itself. save returns the
// result of the task if it ended meanwhile, else nil.
func (t *task) save(ctx context.Context, h driver.Task, cause string) *driver.ExitResult {
	c := t.checkpoint(cause)
	if c == nil || !c.Notified() && c.Grace <= 0 {
		return nil
	}
	if t.notified(cause) == 0 {
		if res := t.awaitTurn(ctx, h); res != nil || ctx.Err() != nil {
			return res
		}
	}
	grace := graceOf(c)
	first, was := t.notified(cause), t.newest()
	told := first
	if told == 0 {
		told = now()
	}
	left := time.Until(told.Add(grace).Time())
	if left <= 0 {
		return nil
	}
	wctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	if first == 0 && t.announce(wctx, h, c, cause, grace) {
		return nil
	}
	saved := make(chan bool, 1)
	sctx, stop := context.WithCancel(wctx)
	go func() {
		ok := t.awaitNewer(sctx, was, told)
		if ok {
			cancel()
		}
		saved <- ok
	}()
	res, err := h.Wait(wctx)
	stop()
	if seen := <-saved; err == nil {
		return &res
	} else if seen && ctx.Err() == nil {
		t.noteSaved(ctx)
	}
	return nil
}

// noteSaved records an event with the newest checkpoint.
func (t *task) noteSaved(ctx context.Context) {
	s := t.newest()
	t.note(ctx, event(EventCheckpoint, "Saved its state "+describe(s), "saved", "true", "bytes", strconv.FormatInt(s.Bytes, 10), "path", s.Path))
}

// because returns the cause in words.
func (t *task) because(cause string) string {
	if g := t.r.group(); cause == causeDrain && g != nil && g.Gang != nil {
		return "a node of its gang drains"
	}
	return causeText[cause]
}

// notified returns when the current run was notified for a cause; 0 for never.
func (t *task) notified(cause string) structs.LogTime {
	at := structs.LogTime(0)
	st := t.state()
	for i := range st.Events {
		if e := &st.Events[i]; e.Type == EventCheckpoint && e.Details["cause"] == cause && e.Time >= st.StartedAt {
			at = e.Time
		}
	}
	return at
}

// announce sends the notice and records it. It returns true if the state is known to be saved.
func (t *task) announce(ctx context.Context, h driver.Task, c *structs.Checkpoint, cause string, grace time.Duration) (saved bool) {
	if !c.Notified() {
		t.note(ctx, event(EventCheckpoint, fmt.Sprintf("Is to end because %s. Waiting up to %s for its next checkpoint", t.because(cause), grace),
			"cause", cause, "grace", grace.String()))
		return false
	}
	t.note(ctx, event(EventCheckpoint, fmt.Sprintf("Notified to save its state because %s: %s. Waiting up to %s", t.because(cause), how(c), grace),
		"cause", cause, "grace", grace.String()))
	if err := t.notify(ctx, h, c); err != nil {
		t.note(ctx, event(EventCheckpoint, fmt.Sprintf("Could not be notified to save its state: %v", err), "error", err.Error()))
		return false
	}
	if c.Signal != "" {
		return false
	}
	t.noteSaved(ctx)
	return true
}

// notify sends the notice. A command that returned or a request that was answered counts as a checkpoint, and is
// recorded.
func (t *task) notify(ctx context.Context, h driver.Task, c *structs.Checkpoint) error {
	at := now()
	t.mu.Lock()
	t.noticed = at
	t.mu.Unlock()
	switch {
	case c.Signal != "" && c.To == "ranks" && !t.r.group().Launch.InRanks(): // the launcher passes a signal on to its ranks
		return signalRanks(ctx, h, c.Signal)
	case c.Signal != "":
		return h.Signal(ctx, c.Signal)
	case len(c.Command) > 0:
		if err := notifyBy(ctx, h.Exec, c.Command); err != nil {
			return err
		}
	default:
		if err := t.r.cfg.Policy.post(ctx, c.URL); errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("%s did not answer in time", c.URL)
		} else if err != nil {
			return err
		}
	}
	if s := t.newest(); s == nil || s.Time < at {
		t.record(ctx, &structs.Saved{Time: at})
	}
	return nil
}

// NotifyBy runs a command in a running task, to notify it of something.
func (r *Runner) NotifyBy(ctx context.Context, task string, command []string) error {
	return notifyBy(ctx, func(ctx context.Context, req driver.ExecRequest) (int, error) { return r.Exec(ctx, task, req) }, command)
}

// notifyBy runs a command. The error of a failed command ends with the last line that it printed: output is unbounded.
func notifyBy(ctx context.Context, exec func(context.Context, driver.ExecRequest) (int, error), command []string) error {
	var out tail
	code, err := exec(ctx, driver.ExecRequest{Command: command, Stderr: &out, Whole: true})
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("command %s did not end in time%s", command[0], said(out.String()))
	case err != nil:
		return err
	case code != 0:
		return fmt.Errorf("exit code %d%s", code, said(out.String()))
	}
	return nil
}

// said formats the last line of a command's output as a suffix of an error.
func said(out string) string {
	if last := lastLine(out); last != "" {
		return ": " + last
	}
	return ""
}

// post requests a checkpoint from the task. Its redirects may lead only to addresses that the task may name itself.
func (p *Policy) post(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	transport := p.Local.Local().Transport(false)
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("answered %s", resp.Status)
	}
	return nil
}

// notifyToContinue is notify for a task that must keep running. It refuses to send a signal that would end the task: a
// program that has just started, or that leaves saving to another of its processes, does not catch the signal.
func (t *task) notifyToContinue(ctx context.Context, h driver.Task, c *structs.Checkpoint) error {
	if c.Signal != "" {
		pids := []int{h.Status().PID}
		if c.To == "ranks" || t.r.group().Launch.InRanks() {
			stats, err := h.Stats(ctx)
			if err != nil {
				return fmt.Errorf("list the processes: %w", err)
			}
			pids = ranksAmong(stats.PerProcess, h.Status().PID)
		}
		sig, err := driver.ParseSignal(c.Signal)
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if name, ends := endedBySignal(pid, sig); ends {
				return fmt.Errorf("process %d (%s) does not catch %s, which would end it; nothing was sent", pid, name, c.Signal)
			}
		}
	}
	return t.notify(ctx, h, c)
}

// endedBySignal reports whether sig would end the process, because the process neither catches, blocks nor ignores it.
// It returns false for a process that cannot be inspected.
func endedBySignal(pid int, sig syscall.Signal) (name string, ends bool) {
	switch sig {
	case syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGURG, syscall.SIGWINCH:
		return "", false // ignored by default
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if pid <= 0 || err != nil {
		return "", false
	}
	known := uint64(0)
	seen := false
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch key {
		case "Name":
			name = value
		case "SigBlk", "SigIgn", "SigCgt":
			mask, err := strconv.ParseUint(value, 16, 64)
			if err != nil {
				return name, false
			}
			known, seen = known|mask, true
		}
	}
	return name, seen && known&(1<<(sig-1)) == 0
}

// rankVariables are set in the environment of a rank, for each of the known launchers.
var rankVariables = [][]byte{[]byte("RANK="), []byte("LOCAL_RANK="), []byte("OMPI_COMM_WORLD_RANK="), []byte("PMI_RANK="), []byte("SLURM_PROCID=")}

// signalRanks signals the ranks that a launcher inside the task has started: the topmost processes with a rank
// variable. If no process has one, the processes without children are signalled.
func signalRanks(ctx context.Context, h driver.Task, name string) error {
	sig, err := driver.ParseSignal(name)
	if err != nil {
		return err
	}
	stats, err := h.Stats(ctx)
	if err != nil {
		return fmt.Errorf("list the processes: %w", err)
	}
	n := 0
	for _, pid := range ranksAmong(stats.PerProcess, h.Status().PID) {
		if err := syscall.Kill(pid, sig); err == nil {
			n++
		}
	}
	if n == 0 {
		return fmt.Errorf("none of %d processes could be signalled", len(stats.PerProcess))
	}
	return nil
}

// ranksAmong returns the pids of the ranks among the processes of a task, in ascending order. main is the task's first
// process.
func ranksAmong(processes map[int]driver.ProcStats, main int) []int {
	parents := make(map[int]bool, len(processes))
	ranked := make(map[int]bool)
	for pid := range processes {
		parents[parentOf(pid)] = true
		if hasRank(pid) {
			ranked[pid] = true
		}
	}
	if ranked[main] { // the launcher itself has a rank variable, so the variables distinguish nothing
		clear(ranked)
	}
	var out []int
	for pid := range processes {
		if len(ranked) > 0 && (!ranked[pid] || ranked[parentOf(pid)]) || len(ranked) == 0 && parents[pid] {
			continue
		}
		out = append(out, pid)
	}
	slices.Sort(out)
	return out
}

// hasRank reports whether a process was started as a rank.
func hasRank(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for _, v := range rankVariables {
		if bytes.HasPrefix(b, v) || bytes.Contains(b, append([]byte{0}, v...)) {
			return true
		}
	}
	return false
}

// parentOf returns the parent of a process; 0 if it has ended.
func parentOf(pid int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // the name may hold spaces and brackets
	if len(f) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(f[1])
	return ppid
}

// saveBefore notifies running main tasks to save their state some time before the allocation's time limit.
func (r *Runner) saveBefore(ctx context.Context) {
	for _, t := range r.tasks {
		c := t.checkpoint(causeLimit)
		h, err := t.running()
		if c == nil || err != nil || t.notified(causeLimit) != 0 {
			continue
		}
		t.announce(ctx, h, c, causeLimit, c.Before)
	}
}

// how describes the means of a notice.
func how(c *structs.Checkpoint) string {
	switch {
	case c.Signal != "" && c.To == "ranks":
		return "signal " + c.Signal + " to its ranks"
	case c.Signal != "":
		return "signal " + c.Signal
	case len(c.Command) > 0:
		return "command " + c.Command[0]
	}
	return "request to " + c.URL
}

// Notice is the outcome of a request to save state.
type Notice struct {
	Tasks []string // the tasks that were notified
	How   string   // "signal SIGUSR1"
	Over  bool     // commands have returned and requests were answered: the state is saved
	At    structs.LogTime
	Was   *structs.Saved // the newest checkpoint before the request, or nil
	Grace time.Duration
}

// Save notifies the running main tasks to save their state now. The tasks keep running. Save waits for commands and
// requests until ctx ends. They continue in the background for the group's grace, and their outcome becomes an event of
// the task.
func (r *Runner) Save(ctx context.Context) (*Notice, error) {
	if err := r.errSuspended("it would not hear that it is to save its state"); err != nil {
		return nil, err
	}
	type answer struct {
		task string
		err  error
	}
	answers := make(chan answer, len(r.tasks))
	n := &Notice{At: now(), Was: r.newest()}
	r.mu.Lock()
	life := r.ctx
	r.mu.Unlock()
	for _, t := range r.tasks {
		c := t.checkpoint(causeRequest)
		h, err := t.running()
		if c == nil || err != nil {
			continue
		}
		if !c.Notified() {
			return nil, structs.Errorf(structs.CodeInvalid, "group %q saves its state at times of its choice: its checkpoint block has no signal, command or url to request it", r.Alloc().Group)
		}
		n.Tasks, n.How, n.Over, n.Grace = append(n.Tasks, t.name), how(c), c.Signal == "", graceOf(c)
		if !r.cfg.Agent.Go(func() {
			tctx, cancel := context.WithTimeout(life, graceOf(c))
			defer cancel()
			t.saveNow(tctx, life, h, c, func(err error) { answers <- answer{t.name, err} })
		}) {
			return nil, structs.Errorf(structs.CodeUnavailable, "the agent is ending")
		}
	}
	if len(n.Tasks) == 0 {
		return nil, structs.Errorf(structs.CodeInvalid, "allocation %s has no running task with a checkpoint block", r.id.Short())
	}
	for range n.Tasks {
		select {
		case a := <-answers:
			if a.err != nil {
				return nil, structs.Errorf(structs.CodeInvalid, "task %q could not be notified to save its state: %v", a.task, a.err)
			}
		case <-ctx.Done():
			n.Over = false
			return n, nil
		}
	}
	return n, nil
}

// saveNow sends the notice of a user's request, reports through told whether it was sent, and records the outcome
// within ctx. life is the agent's context.
func (t *task) saveNow(ctx, life context.Context, h driver.Task, c *structs.Checkpoint, told func(error)) {
	was, at := t.newest(), now()
	t.note(life, event(EventCheckpoint, fmt.Sprintf("Notified to save its state because %s: %s", causeText[causeRequest], how(c)), "cause", causeRequest))
	err := t.notifyToContinue(ctx, h, c)
	if err != nil {
		t.note(life, event(EventCheckpoint, fmt.Sprintf("Could not be notified to save its state: %v", err), "error", err.Error()))
	}
	told(err)
	if err == nil && (c.Signal == "" || t.awaitNewer(ctx, was, at)) {
		t.noteSaved(life)
	}
}
