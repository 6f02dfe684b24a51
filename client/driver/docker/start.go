package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/supervisor"
)

// taskState is what finds a task again. It contains neither environment nor credentials.
type taskState struct {
	Container   string
	TaskID      string
	StartedAt   time.Time
	User        string           `json:",omitempty"`
	KillSignal  string           `json:",omitempty"`
	KillTimeout time.Duration    `json:",omitempty"`
	TTY         bool             `json:",omitempty"`
	Logs        driver.LogConfig `json:",omitzero"`
	Guarded     bool             `json:",omitempty"` // the supervisor ends it when its lease is over
}

func (d *Driver) inspect(ctx context.Context, name string) (container.InspectResponse, error) {
	res, err := d.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	return res.Container, err
}

// hasRun reports whether a container's command has ever been executed.
func hasRun(s *container.State) bool {
	if s == nil || s.Status == container.StateCreated {
		return false
	}
	at, err := time.Parse(time.RFC3339Nano, s.StartedAt)
	return err == nil && at.Year() > 1
}

// Start creates and starts the container. The engine accepts a name once: a repeated start finds the first one's
// container.
func (d *Driver) Start(ctx context.Context, cfg *driver.TaskConfig) (driver.Task, error) {
	e, err := d.look(ctx)
	if err != nil {
		return nil, fmt.Errorf("docker: the engine at %s: %w", d.opt.Host, err)
	}
	socket, err := d.guardable(cfg)
	if err != nil {
		return nil, err
	}
	v, err := d.decode(cfg.Config)
	if err != nil {
		return nil, err
	}
	if t, err := d.find(ctx, cfg, v); t != nil || err != nil {
		return t, err
	}
	image, err := d.image(ctx, cfg, v, func(string) {})
	if err != nil {
		return nil, err
	}
	req, err := d.request(cfg, v, image)
	if err != nil {
		return nil, err
	}
	if err := d.grant(cfg, e, req.HostConfig); err != nil {
		return nil, err
	}
	defer d.unpin(cfg.TaskID)
	if err := d.pin(cfg, req.HostConfig); err != nil {
		return nil, err
	}
	made, err := d.api.ContainerCreate(ctx, *req)
	if errdefs.IsConflict(err) { // an abandoned start was faster after all
		if t, ferr := d.find(ctx, cfg, v); t != nil || ferr != nil {
			return t, ferr
		}
		made, err = d.api.ContainerCreate(ctx, *req)
	}
	if err != nil {
		d.forget(cfg.TaskID)
		return nil, startError("create the container", err)
	}
	for _, w := range made.Warnings {
		d.log.Debug("the engine warns", "task", cfg.TaskID, "warning", w)
	}
	if err := d.guard(ctx, cfg, socket, made.ID); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return nil, errors.Join(err, d.remove(clean, made.ID, cfg.TaskID))
	}
	for attempt := 0; ; attempt++ {
		_, err = d.api.ContainerStart(ctx, made.ID, client.ContainerStartOptions{})
		// The engine notices a new CDI specification with a short delay.
		if err == nil || attempt == 10 || !strings.Contains(err.Error(), "unresolvable CDI devices") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		if ctx.Err() != nil || unreachable(err) {
			return nil, fmt.Errorf("docker: start the container: %w", brief(err)) // it may still start; a repeated start will find it
		}
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if rerr := errors.Join(d.remove(clean, made.ID, cfg.TaskID), d.unguard(clean, cfg.TaskID, socket != "")); rerr != nil {
			d.log.Warn("a container that could not be started could not be removed either", "task", cfg.TaskID, "error", rerr)
		}
		return nil, startError("start the container", err)
	}
	return d.started(ctx, made.ID, cfg, v)
}

func startError(what string, err error) error {
	out := fmt.Errorf("docker: %s: %w", what, brief(err))
	if isPermanent(err) {
		return driver.Permanent(out)
	}
	return out
}

// find returns the task that an earlier start with this id began, or nil. It removes a container that never ran.
func (d *Driver) find(ctx context.Context, cfg *driver.TaskConfig, v driver.Values) (driver.Task, error) {
	in, err := d.inspect(ctx, cfg.TaskID)
	switch {
	case gone(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("docker: look for the container: %w", brief(err))
	case in.Config == nil || in.Config.Labels[LabelID] != cfg.TaskID || in.Config.Labels[LabelNode] != d.opt.NodeID():
		return nil, refuse("there is a container %q that this agent has not made", cfg.TaskID)
	case hasRun(in.State):
		return d.started(ctx, in.ID, cfg, v)
	}
	if err := d.remove(ctx, in.ID, cfg.TaskID); err != nil {
		return nil, fmt.Errorf("docker: remove what an earlier start has left: %w", brief(err))
	}
	return nil, nil
}

// started makes the handle of a started container.
func (d *Driver) started(ctx context.Context, id string, cfg *driver.TaskConfig, v driver.Values) (driver.Task, error) {
	in, err := d.inspect(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("docker: look at the container that was started: %w", brief(err))
	}
	s := taskState{
		Container: in.ID, TaskID: cfg.TaskID, User: cfg.User, KillSignal: cfg.KillSignal, KillTimeout: cfg.KillTimeout, TTY: v.Bool("tty"), Logs: cfg.Logs,
		Guarded: cfg.StopOnClientAfter > 0,
	}
	t := &Task{d: d, state: s}
	t.see(&in)
	t.state.StartedAt = t.began
	return t, nil
}

// Recover finds a running task again.
func (d *Driver) Recover(ctx context.Context, state []byte) (driver.Task, error) {
	var s taskState
	if err := json.Unmarshal(state, &s); err != nil || s.Container == "" {
		return nil, fmt.Errorf("docker: the task's record is unreadable: %w", errors.Join(driver.ErrLost, err))
	}
	if _, err := d.look(ctx); err != nil {
		return nil, fmt.Errorf("docker: the engine at %s: %w", d.opt.Host, err)
	}
	in, err := d.inspect(ctx, s.Container)
	if gone(err) {
		d.forget(s.TaskID)
		return nil, driver.ErrLost
	}
	if err != nil {
		return nil, fmt.Errorf("docker: look for the container: %w", brief(err))
	}
	t := &Task{d: d, state: s}
	t.see(&in)
	return t, nil
}

// guardable returns the engine's socket if the task's container must be guarded; "" if it need not be.
func (d *Driver) guardable(cfg *driver.TaskConfig) (socket string, err error) {
	if cfg.StopOnClientAfter <= 0 && !d.opt.Bound {
		return "", nil
	}
	socket, local := strings.CutPrefix(d.opt.Host, "unix://")
	if !local || d.opt.Guards == nil {
		if cfg.StopOnClientAfter <= 0 {
			return "", nil
		}
		return "", refuse("stop_on_client_after needs an engine at a unix socket of this machine, which can be reached without the agent; this one is at %s", d.opt.Host)
	}
	return socket, nil
}

// boundLimit is the lease of a container that only the end of the agent ends.
const boundLimit = 100 * 365 * 24 * time.Hour

// guard makes the supervisor end a container when contact with the servers is lost; socket "" does nothing.
func (d *Driver) guard(ctx context.Context, cfg *driver.TaskConfig, socket, container string) error {
	if socket == "" {
		return nil
	}
	sig, timeout, err := driver.HowToStop("", 0, cfg.KillSignal, cfg.KillTimeout)
	if err != nil {
		return fmt.Errorf("docker: kill_signal: %w", err)
	}
	limit := cfg.StopOnClientAfter
	if limit <= 0 {
		limit = boundLimit
	}
	err = d.opt.Guards.Guard(ctx, &supervisor.Guard{ID: cfg.TaskID, Engine: socket, Container: container,
		Lease: supervisor.Lease{Group: cfg.AllocID, Limit: limit, Signal: int(sig), Timeout: timeout}})
	if errors.Is(err, supervisor.ErrLapsed) {
		return fmt.Errorf("docker: %w: %w", driver.ErrLapsed, err)
	}
	if err != nil {
		return fmt.Errorf("docker: guard the container: %w", err)
	}
	return nil
}

// unguard undoes guard.
func (d *Driver) unguard(ctx context.Context, taskID string, guarded bool) error {
	if !guarded || d.opt.Guards == nil {
		return nil
	}
	return d.opt.Guards.Unguard(ctx, taskID)
}
