// Package fake runs tasks that are only timers: no process, no file, a few hundred bytes each. Simulated nodes and the
// development agent offer it.
package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/internal/driverconf"
	"github.com/muster-sched/muster/structs"
)

// Driver is fake. It is safe for concurrent use.
type Driver struct {
	mu    sync.Mutex
	tasks map[string]*task // by TaskID; guarded by mu
}

// New makes the driver.
func New() *Driver { return &Driver{tasks: map[string]*task{}} }

// Name is "fake".
func (d *Driver) Name() string { return "fake" }

// Fingerprint always detects it.
func (d *Driver) Fingerprint(context.Context) driver.Fingerprint {
	return driver.Fingerprint{Detected: true, Health: driver.Healthy, Detail: "Healthy", Attributes: map[string]string{"driver.fake": "1", structs.SuspendAttribute("fake"): "1"}}
}

// ConfigSchema lists the config keys.
func (d *Driver) ConfigSchema() driver.Schema { return driver.Schema(driverconf.Fake.Keys) }

type state struct {
	ID         string
	StartedAt  time.Time
	Deadline   time.Time         `json:",omitzero"` // zero: until stopped
	Exit       driver.ExitResult `json:",omitzero"`
	KillAfter  time.Duration     `json:",omitempty"`
	KillSignal string            `json:",omitempty"`
	KillWithin time.Duration     `json:",omitempty"`
}

type task struct {
	d  *Driver
	st state

	mu     sync.Mutex // guards the fields below
	timer  *time.Timer
	exit   *driver.ExitResult // nil while it runs
	done   chan struct{}      // closed when it has ended; nil until asked for
	onEnd  func()             // see OnEnd; or nil
	frozen bool
	left   time.Duration // remaining run time while it is frozen
}

// Start starts a timer.
func (d *Driver) Start(ctx context.Context, cfg *driver.TaskConfig) (driver.Task, error) {
	v, err := d.ConfigSchema().Decode(d.Name(), cfg.Config)
	if err != nil {
		return nil, err
	}
	code := v.Int("exit_code")
	if code < 0 || code > 255 {
		return nil, driver.Permanent(fmt.Errorf("fake: config key \"exit_code\": want 0 to 255, got %d", code))
	}
	st := state{ID: cfg.TaskID, KillAfter: v.Duration("kill_after"), KillSignal: cfg.KillSignal, KillWithin: cfg.KillTimeout, Exit: driver.ExitResult{ExitCode: int(code), Err: v.String("exit_err")}}
	if name := v.String("exit_signal"); name != "" {
		sig, err := driver.ParseSignal(name)
		if err != nil {
			return nil, fmt.Errorf("fake: config key \"exit_signal\": %w", err)
		}
		st.Exit.Signal, st.Exit.ExitCode = int(sig), 128+int(sig)
	}
	if _, err := driver.ParseSignal(cfg.KillSignal); err != nil {
		return nil, fmt.Errorf("kill_signal: %w", err)
	}
	if w := v.Duration("start_block_for"); w > 0 {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(w):
		}
	}
	if msg := v.String("start_err"); msg != "" {
		return nil, errors.New("fake: " + msg)
	}
	if s := v.String("stdout_string"); s != "" && cfg.Logs.StdoutBase != "" {
		f, err := os.OpenFile(cfg.Logs.StdoutBase+".0", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		if err != nil {
			return nil, fmt.Errorf("fake: open log: %w", err)
		}
		_, err = io.WriteString(f, strings.TrimSuffix(s, "\n")+"\n")
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("fake: write log: %w", err)
		}
	}
	st.StartedAt = time.Now().UTC()
	if v.Has("run_for") {
		st.Deadline = st.StartedAt.Add(v.Duration("run_for"))
	}
	return d.run(st), nil
}

// run registers the task, or returns the one of that id.
func (d *Driver) run(st state) *task {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.tasks[st.ID]; t != nil {
		return t
	}
	t := &task{d: d, st: st}
	if !st.Deadline.IsZero() {
		t.mu.Lock() // the timer may fire at once
		defer t.mu.Unlock()
		t.timer = time.AfterFunc(time.Until(st.Deadline), func() {
			e := st.Exit
			t.mu.Lock()
			e.EndedAt = t.st.Deadline
			still := t.frozen
			t.mu.Unlock()
			if !still {
				t.end(e)
			}
		})
	}
	d.tasks[st.ID] = t
	return t
}

// Recover restores a task from its state, which is complete: a deadline that has passed meanwhile ends it at once.
func (d *Driver) Recover(_ context.Context, b []byte) (driver.Task, error) {
	var st state
	if err := json.Unmarshal(b, &st); err != nil || st.ID == "" {
		return nil, fmt.Errorf("fake: task state is unreadable: %w", driver.ErrLost)
	}
	return d.run(st), nil
}

func (t *task) end(e driver.ExitResult) {
	t.mu.Lock()
	if t.exit != nil {
		t.mu.Unlock()
		return
	}
	t.exit = &e
	if t.timer != nil {
		t.timer.Stop()
	}
	if t.done != nil {
		close(t.done)
	}
	f := t.onEnd
	t.onEnd = nil
	t.mu.Unlock()
	if f != nil {
		f()
	}
}

// OnEnd implements driver.Ender.
func (t *task) OnEnd(f func()) {
	t.mu.Lock()
	over := t.exit != nil
	if !over {
		t.onEnd = f
	}
	t.mu.Unlock()
	if over {
		f()
	}
}

func (t *task) running() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.exit == nil
}

// over returns a channel that is closed when the task has ended.
func (t *task) over() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done == nil {
		t.done = make(chan struct{})
		if t.exit != nil {
			close(t.done)
		}
	}
	return t.done
}

func (t *task) Status() driver.TaskStatus {
	t.mu.Lock()
	st := t.st
	t.mu.Unlock()
	b, err := json.Marshal(st)
	if err != nil {
		panic("state of a fake task cannot be encoded: " + err.Error()) // plain values: cannot happen
	}
	return driver.TaskStatus{TaskID: t.st.ID, State: b, StartedAt: t.st.StartedAt, Running: t.running()}
}

func (t *task) Wait(ctx context.Context) (driver.ExitResult, error) {
	select {
	case <-t.over():
		t.mu.Lock()
		defer t.mu.Unlock()
		return *t.exit, nil
	case <-ctx.Done():
		return driver.ExitResult{}, ctx.Err()
	}
}

// Suspend stops the timer and keeps the remaining run time.
func (t *task) Suspend(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.exit != nil {
		return driver.ErrNotRunning
	}
	if !t.frozen && t.timer != nil {
		t.timer.Stop()
		t.left = time.Until(t.st.Deadline)
	}
	t.frozen = true
	return nil
}

// Resume continues with the remaining run time.
func (t *task) Resume(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.frozen && t.exit == nil && t.timer != nil {
		t.st.Deadline = time.Now().UTC().Add(t.left)
		t.timer.Reset(t.left)
	}
	t.frozen = false
	return nil
}

func (t *task) Signal(_ context.Context, name string) error {
	if _, err := driver.ParseSignal(name); err != nil {
		return err
	}
	if !t.running() {
		return driver.ErrNotRunning
	}
	return nil
}

func (t *task) Stop(ctx context.Context, name string, timeout time.Duration) error {
	if name == "" {
		name = t.st.KillSignal
	}
	sig, err := driver.ParseSignal(name)
	if err != nil {
		return err
	}
	if timeout == 0 {
		timeout = t.st.KillWithin
	}
	if timeout == 0 {
		timeout = 5 * time.Second
	}
	num := int(sig)
	if t.st.KillAfter > 0 && timeout > 0 && t.running() {
		wait := t.st.KillAfter
		if wait > timeout {
			wait, num = timeout, 9
		}
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-t.over():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	t.end(driver.ExitResult{ExitCode: 128 + num, Signal: num, EndedAt: time.Now().UTC()})
	return nil
}

// Exec echoes the command, and then its input, to stdout.
func (t *task) Exec(_ context.Context, req driver.ExecRequest) (int, error) {
	if len(req.Command) == 0 {
		return -1, errors.New("exec: no command given")
	}
	if !t.running() {
		return -1, driver.ErrNotRunning
	}
	if req.Stdout != nil {
		if _, err := fmt.Fprintf(req.Stdout, "%s\n", strings.Join(req.Command, " ")); err != nil {
			return -1, err
		}
		if req.Stdin != nil {
			if _, err := io.Copy(req.Stdout, req.Stdin); err != nil {
				return -1, err
			}
		}
	}
	return 0, nil
}

func (t *task) Stats(context.Context) (driver.Stats, error) {
	if !t.running() {
		return driver.Stats{}, driver.ErrNotRunning
	}
	return driver.Stats{Time: time.Now()}, nil
}

func (t *task) Destroy(context.Context) error {
	t.end(driver.ExitResult{ExitCode: 137, Signal: 9, EndedAt: time.Now().UTC()})
	t.d.mu.Lock()
	delete(t.d.tasks, t.st.ID)
	t.d.mu.Unlock()
	return nil
}
