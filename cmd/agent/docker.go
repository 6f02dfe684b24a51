package agent

import (
	"context"
	"path/filepath"

	"github.com/muster-sched/muster/client"
	"github.com/muster-sched/muster/client/driver/docker"
)

// openDocker makes the driver for containers. The engine itself is contacted later.
func (a *Agent) openDocker() {
	opt := *a.cfg.Client.Docker
	opt.StateDir = filepath.Join(a.cfg.DataDir, "docker")
	if g := a.cfg.Client.GPU; g != nil {
		opt.Proc = g.Proc
	}
	opt.Log = a.log.Named("client.docker")
	opt.NodeID = func() string { return a.nodeID.String() }
	opt.CoreMHz = func() int64 {
		if a.client == nil {
			return 0
		}
		return a.client.Node().Resources.MHzPerCore
	}
	opt.Known = func(taskID string) bool { return a.client == nil || a.client.Knows(taskID) }
	opt.Guards, opt.Bound = a.super, a.temp != ""
	a.docker = docker.New(opt)
}

// supervisor lists every task that runs here, of any driver.
func (a *Agent) supervisor() client.Supervisor {
	if a.docker == nil {
		return client.Supervised(a.super)
	}
	return client.Supervisors(client.Supervised(a.super), containers{a.docker})
}

type containers struct{ d *docker.Driver }

// TaskIDs implements client.Supervisor.
func (c containers) TaskIDs(ctx context.Context) ([]string, error) { return c.d.TaskIDs(ctx) }

// Destroy implements client.Supervisor.
func (c containers) Destroy(ctx context.Context, taskID string) error { return c.d.Remove(ctx, taskID) }
