package client

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// diskEvery is the interval at which the disk usage of running allocations is measured, or the collection interval if
// that is shorter.
const diskEvery = 15 * time.Second

// The free space is checked every diskLook, which is cheap; walking directories is not. Usage is measured early when
// the free space has shrunk by half of what the allocation closest to its limit has left, but by at most diskStep and
// at least diskStepMin.
const (
	diskLook    = 100 * time.Millisecond
	diskStep    = 64 << 20
	diskStepMin = 2 << 20
)

// diskPace limits the share of time spent on early measurements: the pause after one is this many times its duration.
const diskPace = 20

// collectLoop removes what is left of ended allocations, watches disk usage, and stops allocations that must not run
// while the servers are silent.
func (c *Client) collectLoop(ctx context.Context) {
	gc := time.NewTicker(c.cfg.GC.Interval)
	defer gc.Stop()
	disk := time.NewTicker(min(c.cfg.GC.Interval, diskEvery))
	defer disk.Stop()
	watch := time.NewTicker(time.Second)
	defer watch.Stop()
	var look <-chan time.Time
	if !c.cfg.Storage.Ephemeral {
		t := time.NewTicker(diskLook)
		defer t.Stop()
		look = t.C
	}
	free, again, step := c.diskFree(), time.Time{}, int64(diskStepMin)
	measure := func() {
		began := time.Now()
		now := c.diskFree() // taken before measuring: what is written meanwhile counts for the next time
		least := int64(2 * diskStep)
		for _, r := range c.Allocs() {
			if ctx.Err() != nil {
				return
			}
			if left, limited := r.CheckDisk(); limited {
				least = min(least, left)
			}
		}
		free, again, step = now, time.Now().Add(diskPace*time.Since(began)), max(diskStepMin, least/2)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-disk.C:
			measure()
		case <-gc.C:
			c.collect(ctx)
			c.sweepNetworks()
		case <-look:
			// An allocation that fills the disk is stopped soon, not at the next interval.
			switch now := c.diskFree(); {
			case now > free: // something was removed: count from the new value
				free = now
			case now < free-step && time.Now().After(again):
				measure()
			}
		case <-watch.C:
			c.endSilent(c.connected.silent())
			c.killForgotten()
			if c.ended.Load() > int64(c.cfg.GC.MaxAllocs) {
				c.collect(ctx)
			}
		}
	}
}

// collect removes ended allocations, oldest first, while a limit is exceeded.
func (c *Client) collect(ctx context.Context) {
	var old []*runner.Runner
	for _, r := range c.Allocs() {
		if f := r.Final(); f != nil && f.Acked {
			old = append(old, r)
		}
	}
	slices.SortFunc(old, func(a, b *runner.Runner) int {
		if d := a.Final().EndedAt - b.Final().EndedAt; d != 0 {
			return int(max(-1, min(1, d)))
		}
		return strings.Compare(a.ID().String(), b.ID().String())
	})
	for len(old) > 0 && ctx.Err() == nil {
		n := 0
		switch {
		case len(old) > c.cfg.GC.MaxAllocs:
			n = len(old) - c.cfg.GC.MaxAllocs
		case c.cfg.GC.MaxAge > 0 && old[0].Final().Age(time.Now()) > c.cfg.GC.MaxAge:
			n = 1
		case c.diskFull():
			n = min(len(old), c.cfg.GC.Parallel)
		}
		if n == 0 {
			return
		}
		c.removeAll(old[:n])
		old = old[n:]
	}
}

// diskFree returns the free bytes of the allocations' file system; 0 if unknown.
func (c *Client) diskFree() int64 {
	var st unix.Statfs_t
	if c.cfg.Storage.Ephemeral || unix.Statfs(c.cfg.Storage.AllocsDir, &st) != nil {
		return 0
	}
	return int64(st.Bfree) * st.Bsize
}

func (c *Client) diskFull() bool {
	if c.cfg.Storage.Ephemeral {
		return false
	}
	var st unix.Statfs_t
	if unix.Statfs(c.cfg.Storage.AllocsDir, &st) != nil || st.Blocks == 0 {
		return false
	}
	used := int((st.Blocks - st.Bfree) * 100 / st.Blocks)
	inodes := 0
	if st.Files > 0 {
		inodes = int((st.Files - st.Ffree) * 100 / st.Files)
	}
	return used > c.cfg.GC.DiskPercent || inodes > c.cfg.GC.InodePercent
}

func (c *Client) removeAll(rs []*runner.Runner) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, c.cfg.GC.Parallel)
	for _, r := range rs {
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer wg.Done()
			c.remove(r)
			<-slots
		}()
	}
	wg.Wait()
}

// remove deletes everything that an ended allocation left.
func (c *Client) remove(r *runner.Runner) {
	if err := r.Destroy(); err != nil {
		c.log.Warn("allocation could not be removed; it is tried again", "alloc", r.ID().Short(), "error", err)
		return
	}
	c.mu.Lock()
	if c.allocs[r.ID()] == r {
		delete(c.allocs, r.ID())
		c.ended.Add(-1)
	}
	c.recent[r.ID()] = true
	c.mu.Unlock()
	c.observed.forget(r.ID())
}

// Collect removes an ended allocation now, or all of them for a zero id.
func (c *Client) Collect(id structs.AllocID) error {
	var rs []*runner.Runner
	for _, r := range c.Allocs() {
		switch {
		case r.Final() != nil && (id.IsZero() || r.ID() == id):
			rs = append(rs, r)
		case r.ID() == id:
			return structs.Errorf(structs.CodeInvalid, "allocation %s has not ended", id.Short())
		}
	}
	if len(rs) == 0 && !id.IsZero() {
		return structs.Errorf(structs.CodeNotFound, "allocation %s is not on this node", id.Short())
	}
	c.removeAll(rs)
	return nil
}

// lost reports whether tasks may run here that the agent does not know: it started without its state and has not
// processed a complete list of its allocations yet.
func (c *Client) lost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lostDB
}

// Knows reports whether a task's run, by the id that its driver was given, belongs to an allocation that this node
// still holds. Until the agent has its complete list of allocations it answers true.
func (c *Client) Knows(taskID string) bool {
	if c.lost() {
		return true
	}
	alloc, _, _ := strings.Cut(taskID, ".")
	id, err := structs.ParseID[structs.AllocID](alloc)
	if err != nil || id.IsZero() {
		return true // not a task of this program
	}
	r := c.Alloc(id)
	return r != nil && !r.Released()
}

// sweepNetworks removes networks of allocations that are gone and repairs the others. Until the agent has its complete
// list of allocations it does nothing.
func (c *Client) sweepNetworks() {
	if c.cfg.Host.Networks == nil || c.lost() {
		return
	}
	err := c.cfg.Host.Networks.Sweep(func(alloc string) bool {
		id, err := structs.ParseID[structs.AllocID](alloc)
		if err != nil {
			return false
		}
		r := c.Alloc(id)
		return r != nil && r.Final() == nil
	})
	if err != nil {
		c.log.Warn("networks of allocations are not as they should be; it is tried again", "error", err)
	}
}

// running lists the tasks that run here, including those that the agent does not know.
func (c *Client) running(ctx context.Context) ([]string, error) {
	if c.cfg.Host.Supervisor == nil {
		return nil, nil
	}
	return c.cfg.Host.Supervisor.TaskIDs(ctx)
}

// cleanLeftovers runs once, after the first complete list of allocations, when the agent started without its state. It
// ends tasks that belong to no allocation of this node. The others have been found again by their runners.
func (c *Client) cleanLeftovers(ctx context.Context) {
	if !c.lost() {
		return
	}
	ids, err := c.running(ctx)
	if err != nil {
		c.log.Warn("tasks left over from an earlier agent could not be listed", "error", err)
		return // tried again after the next poll
	}
	for _, id := range ids {
		alloc, _, _ := strings.Cut(id, ".")
		aid, err := structs.ParseID[structs.AllocID](alloc)
		if err != nil || aid.IsZero() {
			continue // not a task of this program
		}
		if r := c.Alloc(aid); r != nil && r.Final() == nil {
			continue
		}
		c.log.Warn("ending a task that belongs to no allocation of this node", "task", id)
		if err := c.cfg.Host.Supervisor.Destroy(ctx, id); err != nil {
			c.log.Error("a task that belongs to no allocation could not be ended; it is tried again", "task", id, "error", err)
			return
		}
	}
	if err := c.store.PutSwept(); err != nil {
		c.log.Warn("agent state not written", "error", err)
		return
	}
	c.mu.Lock()
	c.lostDB = false
	c.mu.Unlock()
}

// Leave takes the node out of the cluster deliberately: it drains the node if so configured, ends what still runs,
// reports the node as down, and stops the agent. The ended allocations are not reported: the servers replace them
// because the node is down.
func (c *Client) Leave(ctx context.Context) error {
	if d := c.cfg.Drain; d != nil {
		c.drainSelf(ctx, *d)
	}
	c.mu.Lock()
	c.leaving = true
	c.mu.Unlock()
	c.observed.mute()
	for _, r := range c.Allocs() {
		if r.Final() == nil {
			r.Kill("the node leaves the cluster", false)
		}
	}
	err := c.waitAll(ctx, func(*runner.Runner) bool { return true })
	if err != nil && c.shortestSilence() > 0 {
		c.log.Warn("the servers are not told that the node leaves, because tasks with stop_on_client_after still run", "error", err)
		return errors.Join(err, c.Close())
	}
	req := methods.NodeHeartbeatRequest{NodeAuth: c.Auth(), Status: structs.NodeDown}
	hctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callPatience)
	defer cancel()
	if _, herr := rpc.Invoke(hctx, c.conn, methods.NodeHeartbeat, c.header(), &req); herr != nil {
		c.log.Warn("the servers did not hear that the node leaves; they will notice when its heartbeats stop", "error", herr)
	}
	if cerr := c.Close(); err == nil {
		err = cerr
	}
	return err
}

// drainSelf asks the servers to drain the node and waits until it is empty, or until the deadline.
func (c *Client) drainSelf(ctx context.Context, d DrainConfig) {
	if d.Deadline == 0 {
		d.Deadline = time.Minute
	}
	strategy := structs.DrainStrategy{Deadline: d.Deadline, IgnoreSystemJobs: d.IgnoreSystemJobs}
	if d.Force {
		strategy.Deadline = -1
	}
	ctx, cancel := context.WithTimeout(ctx, d.Deadline+c.cfg.Tasks.MaxKillTimeout)
	defer cancel()
	if _, err := rpc.Invoke(ctx, c.conn, methods.NodeLeave, c.header(), &methods.NodeLeaveRequest{NodeAuth: c.Auth(), Strategy: strategy}); err != nil {
		c.log.Warn("the node could not be drained before it leaves; its tasks are ended here", "error", err)
		return
	}
	_ = c.waitAll(ctx, func(r *runner.Runner) bool {
		t := r.Alloc().Job.Type
		return !d.IgnoreSystemJobs || t != structs.JobSystem && t != structs.JobSysBatch
	})
}

// waitAll waits until the allocations for which matters returns true have ended.
func (c *Client) waitAll(ctx context.Context, matters func(*runner.Runner) bool) error {
	for _, r := range c.Allocs() {
		if !matters(r) {
			continue
		}
		select {
		case <-r.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
