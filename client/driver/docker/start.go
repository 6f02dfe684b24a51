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
	if cfg.StopOnClientAfter > 0 { // jobs are refused before
		return nil, refuse("stop_on_client_after cannot be kept: the container would run on without the agent")
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
		if rerr := d.remove(clean, made.ID, cfg.TaskID); rerr != nil {
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
