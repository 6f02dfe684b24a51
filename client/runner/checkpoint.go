package runner

import (
	"bytes"
	"context"
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
// itself, a command that returns and a request that is answered end the waiting. The event that records the notice also
// tells an agent that was started anew that it has been given.

// Why work is told to save its state: the values of structs.Checkpoint.On.
const (
	causePreempt = "preempt"
	causeLimit   = "limit"
	causeDrain   = "drain"
)

// graceDefault is how long saving may take when the group does not say.
const graceDefault = 30 * time.Second

var causeText = map[string]string{causePreempt: "it is preempted", causeLimit: "its time is over soon", causeDrain: "its node drains"}

// endCause is why the allocation is being ended, as far as checkpoints care; "" for any other reason.
func (r *Runner) endCause() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.alloc.Desired == structs.DesiredEvict:
		return causePreempt
	case r.alloc.ServerTerminal() && r.alloc.Transition.Migrate:
		return causeDrain
	case r.overtime:
		return causeLimit
	}
	return ""
}

// checkpoint is what the task's group says about saving state for a cause, or nil.
func (t *task) checkpoint(cause string) *structs.Checkpoint {
	g := t.r.group()
	spec := t.spec()
	if g == nil || g.Checkpoint == nil || cause == "" || spec == nil || spec.Lifecycle != nil {
		return nil
	}
	c := g.Checkpoint
	if len(c.On) > 0 && !slices.Contains(c.On, cause) {
		return nil
	}
	return c
}

// save tells a running task to save its state and waits for its grace. It gives the end of the task if it ended
// meanwhile, else nil.
func (t *task) save(ctx context.Context, h driver.Task, cause string) *driver.ExitResult {
	c := t.checkpoint(cause)
	if c == nil {
		return nil
	}
	grace := c.Grace
	if grace <= 0 {
		grace = graceDefault
	}
	told := t.told(cause)
	if told == 0 {
		told = now()
	}
	left := time.Until(told.Add(grace).Time())
	if left <= 0 {
		return nil
	}
	wctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	if t.told(cause) == 0 && t.announce(wctx, h, c, cause, grace) {
		return nil
	}
	if res, err := waitResult(wctx, h); err == nil {
		return res
	}
	return nil
}

// told is when the task was told to save its state for a cause; 0 for never.
func (t *task) told(cause string) structs.LogTime {
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
	how, to := "", ""
	switch {
	case c.Signal != "" && c.To == "ranks":
		how, to = "signal "+c.Signal, " to its ranks"
	case c.Signal != "":
		how = "signal " + c.Signal
	case len(c.Command) > 0:
		how = "command " + c.Command[0]
	case c.URL != "":
		how = "request to " + c.URL
	}
	t.note(ctx, event(EventCheckpoint, fmt.Sprintf("Told to save its state because %s: %s%s. Waiting up to %s", causeText[cause], how, to, grace),
		"cause", cause, "grace", grace.String()))
	var err error
	switch {
	case c.Signal != "" && c.To == "ranks" && !t.r.group().Launch.InRanks(): // the launcher of ranks passes signals on to them
		err = signalRanks(ctx, h, c.Signal)
	case c.Signal != "":
		err = h.Signal(ctx, c.Signal)
	case len(c.Command) > 0:
		var code int
		var out bytes.Buffer
		if code, err = h.Exec(ctx, driver.ExecRequest{Command: c.Command, Stderr: &out}); err == nil && code != 0 {
			err = fmt.Errorf("exit code %d: %.200s", code, strings.TrimSpace(out.String()))
		}
		saved = err == nil
	case c.URL != "":
		err = post(ctx, c.URL)
		saved = err == nil
	}
	if err != nil {
		t.note(ctx, event(EventCheckpoint, fmt.Sprintf("Could not be told to save its state: %v", err), "error", err.Error()))
	} else if saved {
		t.note(ctx, event(EventCheckpoint, "Saved its state", "saved", "true"))
	}
	return saved
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
	parents := make(map[int]bool, len(stats.PerProcess))
	ranked := make(map[int]bool)
	for pid := range stats.PerProcess {
		parents[parentOf(pid)] = true
		if hasRank(pid) {
			ranked[pid] = true
		}
	}
	if main := h.Status().PID; ranked[main] { // the launcher itself was given one: that tells nothing
		clear(ranked)
	}
	n := 0
	for pid := range stats.PerProcess {
		if len(ranked) > 0 && (!ranked[pid] || ranked[parentOf(pid)]) || len(ranked) == 0 && parents[pid] {
			continue
		}
		if err := syscall.Kill(pid, sig); err == nil {
			n++
		}
	}
	if n == 0 {
		return fmt.Errorf("none of %d processes could be signalled", len(stats.PerProcess))
	}
	return nil
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
		if c == nil || err != nil || t.told(causeLimit) != 0 {
			continue
		}
		t.announce(ctx, h, c, causeLimit, c.Before)
	}
}
