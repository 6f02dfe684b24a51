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

// Before work is ended to make room for other work, because its node drains or its time is over, it is told to save its
// state: a signal, a command inside the task or a request, as its group says, and time to do it. A task that ends by
// itself, a command that returns, a request that is answered and a newer checkpoint that is seen (progress.go) end the waiting. The event that records the notice also
// tells an agent that was started anew that it has been given.

// Why work is told to save its state: the values of structs.Checkpoint.On.
const (
	causePreempt = structs.CausePreempt
	causeLimit   = "limit"
	causeDrain   = structs.CauseDrain
	causeResize  = "resize"  // a gang goes on with other members: it grows, or some made room
	causeRequest = "request" // not one of Checkpoint.On: always heeded
)

// graceDefault is how long saving may take when the group does not say.
const graceDefault = structs.CheckpointGrace

var causeText = map[string]string{causePreempt: "it is preempted", causeLimit: "its time is over soon", causeDrain: "its node drains", causeResize: "its gang goes on with other members", causeRequest: "somebody asked for it"}

// endCause is why the allocation is being ended, as far as checkpoints care; "" for any other reason.
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
		switch ro.Reason { // of a member that was lost, the others may hang
		case structs.RosterGrown, structs.RosterShrunk, structs.RosterPreempted:
			return causeResize
		}
	}
	return ""
}

// checkpoint is what the task's group says about saving state for a cause, or nil.
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

// graceOf is how long saving may take.
func graceOf(c *structs.Checkpoint) time.Duration {
	if c.Grace > 0 {
		return c.Grace
	}
	return graceDefault
}

// save tells a running task to save its state and waits for its grace, or until a newer checkpoint is seen. Work that cannot
// be told is waited for, if it was given a grace: it may save by itself. It gives the end of the task if it ended
// meanwhile, else nil.
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

// noteSaved tells what was saved.
func (t *task) noteSaved(ctx context.Context) {
	s := t.newest()
	t.note(ctx, event(EventCheckpoint, "Saved its state "+describe(s), "saved", "true", "bytes", strconv.FormatInt(s.Bytes, 10), "path", s.Path))
}

// because says why the task is to save its state.
func (t *task) because(cause string) string {
	if g := t.r.group(); cause == causeDrain && g != nil && g.Gang != nil {
		return "a node of its gang drains"
	}
	return causeText[cause]
}

// lastProblem is when the task was told to save its state for a cause; 0 for never.
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

// announce gives the notice and records it. It reports true when the state is known to be saved.
func (t *task) announce(ctx context.Context, h driver.Task, c *structs.Checkpoint, cause string, grace time.Duration) (saved bool) {
	if !c.Notified() {
		t.note(ctx, event(EventCheckpoint, fmt.Sprintf("Is to end because %s. Waiting up to %s for its next checkpoint", t.because(cause), grace),
			"cause", cause, "grace", grace.String()))
		return false
	}
	t.note(ctx, event(EventCheckpoint, fmt.Sprintf("Told to save its state because %s: %s. Waiting up to %s", t.because(cause), how(c), grace),
		"cause", cause, "grace", grace.String()))
	if err := t.notify(ctx, h, c); err != nil {
		t.note(ctx, event(EventCheckpoint, fmt.Sprintf("Could not be told to save its state: %v", err), "error", err.Error()))
		return false
	}
	if c.Signal != "" {
		return false
	}
	t.noteSaved(ctx)
	return true
}

// notify gives the notice. When a command has returned or a request was answered the state is saved, and that is recorded.
func (t *task) notify(ctx context.Context, h driver.Task, c *structs.Checkpoint) error {
	at := now()
	switch {
	case c.Signal != "" && c.To == "ranks" && !t.r.group().Launch.InRanks(): // the launcher of ranks passes signals on to them
		return signalRanks(ctx, h, c.Signal)
	case c.Signal != "":
		return h.Signal(ctx, c.Signal)
	case len(c.Command) > 0:
		if err := notifyBy(ctx, h.Exec, c.Command); err != nil {
			return err
		}
	default:
		if err := post(ctx, c.URL); errors.Is(ctx.Err(), context.DeadlineExceeded) {
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

// NotifyBy runs a command in a task that is to be told something.
func (r *Runner) NotifyBy(ctx context.Context, task string, command []string) error {
	return notifyBy(ctx, func(ctx context.Context, req driver.ExecRequest) (int, error) { return r.Exec(ctx, task, req) }, command)
}

// notifyBy runs a command and says how it failed, with the last line that it wrote: a command of a task may write without end.
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

// said adds the last line of what a command printed to a reason.
func said(out string) string {
	if last := lastLine(out); last != "" {
		return ": " + last
	}
	return ""
}

func post(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("answered %s", resp.Status)
	}
	return nil
}

// notifyToContinue is tell for work that is to go on. A signal that would end it is not sent: a program that has just begun, or that leaves
// saving to another of its processes, does not catch it.
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

// endedBySignal reports whether a process neither catches nor blocks nor ignores a signal that ends those who do not. Of one
// that cannot be looked at it says no.
func endedBySignal(pid int, sig syscall.Signal) (name string, ends bool) {
	switch sig {
	case syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGURG, syscall.SIGWINCH:
		return "", false // which are ignored by default
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

// rankVariables are in the environment of a rank, whoever started it.
var rankVariables = [][]byte{[]byte("RANK="), []byte("LOCAL_RANK="), []byte("OMPI_COMM_WORLD_RANK="), []byte("PMI_RANK="), []byte("SLURM_PROCID=")}

// signalRanks signals the ranks that a launcher inside the task has started: the topmost processes that were told a rank.
// Where nobody was, they are the processes without children.
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

// ranksAmong gives the ranks among the processes of a task, whose first one is main, in the order of their pids.
func ranksAmong(processes map[int]driver.ProcStats, main int) []int {
	parents := make(map[int]bool, len(processes))
	ranked := make(map[int]bool)
	for pid := range processes {
		parents[parentOf(pid)] = true
		if hasRank(pid) {
			ranked[pid] = true
		}
	}
	if ranked[main] { // the launcher itself was given one: that tells nothing
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

// parentOf is the parent of a process; 0 when it has ended.
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

// saveBefore tells running main tasks to save their state a while before the allocation's time is over.
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

// how says by what means a notice goes out.
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

// Notice is what became of telling work to save its state.
type Notice struct {
	Tasks []string // that were told
	How   string   // "signal SIGUSR1"
	Over  bool     // commands have returned, requests were answered: the state is saved
	At    structs.LogTime
	Was   *structs.Saved // the newest checkpoint before, or nil
	Grace time.Duration
}

// Save tells the running main tasks to save their state now. They go on. It waits for commands and requests until ctx is
// over; they have the group's grace whether or not somebody waits, and what comes of them is an event of the task.
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
			return nil, structs.Errorf(structs.CodeInvalid, "group %q saves its state when it likes: its checkpoint block names no signal, command or url by which it could be told", r.Alloc().Group)
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
				return nil, structs.Errorf(structs.CodeInvalid, "task %q could not be told to save its state: %v", a.task, a.err)
			}
		case <-ctx.Done():
			n.Over = false
			return n, nil
		}
	}
	return n, nil
}

// saveNow gives the notice that somebody asked for, says whether it went out, and records what came of it within ctx. life
// is the agent's.
func (t *task) saveNow(ctx, life context.Context, h driver.Task, c *structs.Checkpoint, told func(error)) {
	was, at := t.newest(), now()
	t.note(life, event(EventCheckpoint, fmt.Sprintf("Told to save its state because %s: %s", causeText[causeRequest], how(c)), "cause", causeRequest))
	err := t.notifyToContinue(ctx, h, c)
	if err != nil {
		t.note(life, event(EventCheckpoint, fmt.Sprintf("Could not be told to save its state: %v", err), "error", err.Error()))
	}
	told(err)
	if err == nil && (c.Signal == "" || t.awaitNewer(ctx, was, at)) {
		t.noteSaved(life)
	}
}
