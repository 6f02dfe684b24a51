package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"
)

// The operator of a node may run commands before the tasks of an allocation start (prolog) and after all of them have
// ended (epilog). They run as the agent's user, outside of the task's limits: to check the GPUs, to mount what the job
// needs, to clean up. A failed command means that the node is broken, not the job: the node is drained with a reason,
// and the allocation, which has started nothing, is moved. If it cannot move, the prolog is tried again.

// Command is a program of the operator.
type Command struct {
	Argv    []string
	Timeout time.Duration // 0: 30 s; then the command and all of its child processes are killed
}

const (
	commandTimeout = 30 * time.Second
	// outputKept is how many bytes from the end of a command's output are kept for events.
	outputKept = 1 << 10
	// reasonKept is how many characters of its last line go into the drain reason.
	reasonKept = 200
	// prologAgain is the pause before the prolog of an allocation that cannot move is tried again.
	prologAgain = time.Minute
)

// tail keeps the end of what is written to it. Processes that a command left behind may still write while it is read.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if n := len(t.b) - outputKept; n > outputKept {
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(t.b[max(0, len(t.b)-outputKept):]), "?"))
}

// Run runs the command with the agent's environment plus env, and returns the end of its output.
func (c *Command) Run(ctx context.Context, env ...string) (string, error) {
	limit := c.Timeout
	if limit == 0 {
		limit = commandTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	var out tail
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &out, "/"
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // child processes may hold the output open
	runtime.LockOSThread()      // Pdeathsig refers to the thread, not the process, that started the command
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return out.String(), fmt.Errorf("it took longer than %s", limit)
	case errors.Is(err, exec.ErrWaitDelay): // the command itself succeeded
		return out.String(), nil
	}
	return out.String(), err
}

// operatorEnv returns the variables that describe the allocation to a command.
func (r *Runner) operatorEnv(hook string) []string {
	a := r.Alloc()
	var gpus []string
	for i := range a.Grants {
		if a.Grants[i].IsGPU() {
			gpus = append(gpus, a.Grants[i].Instance)
		}
	}
	env := []string{
		"MUSTER_HOOK=" + hook, "MUSTER_ALLOC_ID=" + a.ID.String(), "MUSTER_JOB_ID=" + a.JobID, "MUSTER_NAMESPACE=" + a.Namespace,
		"MUSTER_GROUP_NAME=" + string(a.Group), "MUSTER_NODE_ID=" + a.NodeID.String(), "MUSTER_GPUS=" + strings.Join(gpus, ","),
	}
	if r.dir != nil {
		env = append(env, "MUSTER_ALLOC_DIR="+r.dir.Root)
	}
	return env
}

// commandFailed records the failure of a command of the operator with every task, and drains the node.
func (r *Runner) commandFailed(ctx context.Context, hook, out string, err error) {
	why := fmt.Sprintf("the %s of the node failed: %v", hook, err)
	text := why
	if out != "" {
		text += ": " + out
	}
	r.log().Error("command of the operator failed; the node drains", "hook", hook, "error", err, "output", out)
	e := event(map[string]string{"prolog": EventProlog, "epilog": EventEpilog}[hook], text, "output", out)
	for _, t := range r.tasks {
		t.note(ctx, e)
	}
	if r.cfg.Agent.Fault != nil {
		if last := lastLine(out); last != "" {
			why += ": " + last
		}
		r.cfg.Agent.Fault(why)
	}
}

// lastLine returns the last line of a command's output, shortened and without control characters.
func lastLine(out string) string {
	out = strings.TrimSpace(out)
	out = strings.TrimSpace(out[strings.LastIndexByte(out, '\n')+1:])
	out = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, out)
	if text := []rune(out); len(text) > reasonKept {
		out = "..." + string(text[len(text)-reasonKept:])
	}
	return out
}

// awaitHealth waits until the node is known to be healthy.
func awaitHealth(ctx context.Context, r *Runner) error {
	if r.cfg.Agent.Healthy == nil || r.resumed() {
		return nil
	}
	select {
	case <-r.cfg.Agent.Healthy:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func prolog(ctx context.Context, r *Runner) error {
	r.mu.Lock()
	r.entered = true
	r.mu.Unlock()
	c := r.cfg.Policy.Prolog
	if c == nil || r.resumed() {
		return nil
	}
	r.touched.Store(true)
	for {
		out, err := c.Run(ctx, r.operatorEnv("prolog")...)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			return nil
		}
		r.commandFailed(ctx, "prolog", out, err)
		if !sleep(ctx, prologAgain) {
			return ctx.Err()
		}
	}
}

// epilog runs once all tasks have ended and before their resources are released. It runs again only if the agent was
// killed before the end was recorded.
func epilog(r *Runner) {
	c := r.cfg.Policy.Epilog
	r.mu.Lock()
	skip, ctx := c == nil || !r.entered || r.final != nil, r.ctx
	r.mu.Unlock()
	if skip {
		return
	}
	out, err := c.Run(ctx, r.operatorEnv("epilog")...)
	if err != nil && ctx.Err() == nil {
		r.commandFailed(ctx, "epilog", out, err)
	}
}

// Events of the operator's commands.
const (
	EventProlog = "Prolog Failed"
	EventEpilog = "Epilog Failed"
)
