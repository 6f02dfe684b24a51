// Package rawexec runs a task as a plain process of the host: supervised and killed as one group, but with no isolation
// and no limits. An agent offers it only when its configuration says so.
package rawexec

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/driver/process"
	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/client/supervisor/launch"
	"github.com/muster-sched/muster/internal/driverconf"
	"github.com/muster-sched/muster/structs"
)

// Options of the driver.
type Options struct {
	Supervisor *supervisor.Client
	Enabled    bool // false: the fingerprint says that the configuration disables the driver
}

// Driver is raw_exec.
type Driver struct{ opt Options }

// New makes the driver.
func New(opt Options) *Driver { return &Driver{opt} }

// Name is "raw_exec".
func (d *Driver) Name() string { return "raw_exec" }

// JoinsNetwork implements driver.NetworkJoiner.
func (d *Driver) JoinsNetwork() bool { return true }

// Fingerprint reports whether the driver works here.
func (d *Driver) Fingerprint(context.Context) driver.Fingerprint {
	if !d.opt.Enabled {
		return driver.Fingerprint{Health: driver.Undetected, Detail: `disabled; options { "driver.raw_exec.enable" = "1" } or plugin "raw_exec" { config { enabled = true } } enables it`}
	}
	if _, err := launch.Binary(); err != nil {
		return driver.Fingerprint{Health: driver.Undetected, Detail: err.Error()}
	}
	f := driver.Fingerprint{Detected: true, Health: driver.Healthy, Detail: "Healthy", Attributes: map[string]string{"driver.raw_exec": "1"}}
	if l, err := d.opt.Supervisor.Groups(); err == nil && l.Freezes() {
		f.Attributes[structs.SuspendAttribute(d.Name())] = "1"
	} else if err != nil {
		f.Detail = "Healthy; without control groups tasks are killed by session: " + err.Error()
	}
	return f
}

// ConfigSchema lists the config keys.
func (d *Driver) ConfigSchema() driver.Schema { return driver.Schema(driverconf.RawExec.Keys) }

// Start runs the task.
func (d *Driver) Start(ctx context.Context, cfg *driver.TaskConfig) (driver.Task, error) {
	if !d.opt.Enabled {
		return nil, driver.Permanent(fmt.Errorf("raw_exec is disabled on this node"))
	}
	v, err := d.ConfigSchema().Decode(d.Name(), cfg.Config)
	if err != nil {
		return nil, err
	}
	st := process.State{KillSignal: cfg.KillSignal, KillTimeout: cfg.KillTimeout, TaskDirs: cfg.Dirs}
	if cfg.User != "" {
		if st.User, err = process.LookUser(cfg.User, cfg.UserGroups); err != nil {
			return nil, err
		}
		if os.Geteuid() != 0 {
			if int(st.User.UID) != os.Geteuid() {
				return nil, driver.Permanent(fmt.Errorf("raw_exec: the agent is not root, so the task cannot run as %q", cfg.User))
			}
			st.User = nil
		}
	}
	dir, asUser, err := process.Place(cfg, v.String("work_dir"), st.User)
	if err != nil {
		return nil, err
	}
	posture, err := process.Posture(cfg, asUser || v.String("work_dir") != "")
	if err != nil {
		return nil, err
	}
	path, err := process.Search{Driver: d.Name(), Dirs: cfg.Dirs, Dir: dir, AsUser: asUser, Env: cfg.Env(), User: st.User}.Look(v.String("command"))
	if err != nil {
		return nil, err
	}
	limit := v.Int("pids_limit")
	if limit < 0 {
		return nil, driver.Permanent(fmt.Errorf("raw_exec: config key \"pids_limit\" must not be negative, got %d", limit))
	}
	spec := &supervisor.Spec{
		ID: cfg.TaskID, Path: path, Argv: append([]string{v.String("command")}, v.List("args")...), Env: process.Environ(cfg.Env()), Dir: dir,
		NoFile: cfg.NoFile, Posture: posture, NetNS: cfg.NetNS, Limits: cgroup.Limits{PidsMax: limit}, User: st.User,
	}
	if spec.Lease, err = process.Lease(cfg); err != nil {
		return nil, err
	}
	process.Launch(spec, cfg)
	spec.Stdout, spec.Stderr = process.Logs(cfg.Logs)
	st.Dir, st.Posture = dir, posture
	return process.Start(ctx, d.Name(), d.opt.Supervisor, spec, st)
}

// Recover finds a running task again.
func (d *Driver) Recover(ctx context.Context, state []byte) (driver.Task, error) {
	return process.Recover(ctx, d.Name(), d.opt.Supervisor, state)
}

// Discard implements driver.Discarder.
func (d *Driver) Discard(ctx context.Context, taskID, sig string, timeout time.Duration) error {
	return process.Discard(ctx, d.opt.Supervisor, taskID, sig, timeout)
}
