package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/taskenv"
	"github.com/muster-sched/muster/client/taskfs"
	"github.com/muster-sched/muster/structs"
)

// How the members of a gang find each other. The servers send the roster with the allocations. The agent of node rank 0
// reserves a port and reports it. Apply writes the port into the roster, once in an epoch. Every agent starts its tasks
// when its roster has a port:
//
//	plan -> roster (epoch 1, port 0) -> rank 0 reserves and reports -> roster (epoch 1, port 61234) -> all start
//	members change -> roster (epoch 2, port 0) -> the tasks of the remaining members end, and it starts over
//
// The record of each run has the epoch that it was started with, so an agent that was killed still knows whether the
// run is outdated. A group with a launch block that is not a gang is treated as a gang of one.

// rendezvousPretended is the rendezvous port of every gang on simulated nodes.
const rendezvousPretended = 29500

// errEnding means that a start was abandoned because the task must end.
var errEnding = errors.New("stopped while it waited for the other members of its gang")

// Roster takes over a roster of the allocation's gang from the servers.
func (r *Runner) Roster(ro *structs.Roster) {
	r.mu.Lock()
	old := r.gang.roster
	if old != nil && old.ModifyIndex == ro.ModifyIndex {
		r.mu.Unlock()
		return
	}
	r.gang.roster = ro
	r.gang.changed.send()
	r.mu.Unlock()
	r.changed() // for the first roster, too: tasks found after an agent restart may belong to an earlier epoch
}

// regroup restarts all tasks if one of them was started for an earlier epoch of the gang.
func (r *Runner) regroup(ms []member) {
	r.mu.Lock()
	ro, again := r.gang.roster, r.again
	r.mu.Unlock()
	if ro == nil || again != nil {
		return
	}
	for _, m := range ms {
		if m.role == roleStop || m.dead() {
			continue
		}
		if e := m.epoch(); e != 0 && e != ro.Epoch {
			ev := event(EventGang, fmt.Sprintf("the gang restarts with %d members (epoch %d: %s)", len(ro.Members), ro.Epoch, ro.Reason), "epoch", fmt.Sprint(ro.Epoch))
			r.mu.Lock()
			r.again = &ev
			r.mu.Unlock()
			return
		}
	}
}

func (t *task) epoch() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rec.Epoch
}

// restarts returns how often the task was restarted on this node, and the last reason.
func (t *task) restarts() (int64, string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := int64(t.rec.State.Restarts)
	if n == 0 {
		return 0, ""
	}
	for i := len(t.rec.State.Events) - 1; i >= 0; i-- {
		switch e := &t.rec.State.Events[i]; e.Type {
		case EventGang:
			t.r.mu.Lock()
			defer t.r.mu.Unlock()
			if t.r.gang.roster != nil {
				return n, t.r.gang.roster.Reason
			}
			return n, "gang"
		case EventRestartSignal:
			return n, "requested"
		case EventStarted: // the previous run
			return n, "failed"
		}
	}
	return n, "failed"
}

// joinGang waits for the roster and the port of the task's gang.
func joinGang(ctx context.Context, a *attempt) error {
	r := a.task.r
	g := r.group()
	if g == nil || g.Gang == nil && g.Launch == nil {
		return nil
	}
	var ro *structs.Roster
	var err error
	if g.Gang == nil {
		ro, err = r.alone(g)
	} else {
		ro, err = a.task.awaitRoster(ctx, g)
	}
	if err != nil {
		return err
	}
	a.gang = &taskenv.Gang{Roster: ro, Rank: ro.Rank(r.id), Launch: g.Launch}
	if a.gang.Muster, err = a.showProgram(); err != nil {
		return fmt.Errorf("show the task this program, for muster rsh: %w", err)
	}
	if g.Gang != nil {
		a.joined(ro.Epoch)
	}
	return nil
}

// alone returns the roster of a group that is not a gang: the allocation is its only member.
func (r *Runner) alone(g *structs.Group) (*structs.Roster, error) {
	a := r.Alloc()
	port, err := r.reservePort(g, 1, 0)
	if err != nil {
		return nil, err
	}
	return &structs.Roster{
		Namespace: a.Namespace, JobID: a.JobID, Group: a.Group, Epoch: 1, Port: port, CreateIndex: a.CreateIndex,
		Members: []structs.RosterMember{r.self()},
	}, nil
}

// self returns this allocation as a roster member.
func (r *Runner) self() structs.RosterMember {
	a, n := r.Alloc(), r.cfg.Host.Node()
	m := structs.RosterMember{Alloc: a.ID, Node: n.ID, Name: n.Name, Address: "127.0.0.1", Index: a.NameIndex}
	if len(n.Resources.Networks) > 0 {
		m.Address = n.Resources.Networks[0].IP
	}
	for i := range a.Grants {
		if a.Grants[i].IsGPU() {
			m.GPUs++
		}
	}
	return m
}

// awaitRoster waits for a roster that has this allocation and a port. A kill of the task ends the wait.
func (t *task) awaitRoster(ctx context.Context, g *structs.Group) (*structs.Roster, error) {
	r := t.r
	for {
		r.mu.Lock()
		ro, changed := r.gang.roster, r.gang.changed.next()
		r.mu.Unlock()
		if ro != nil {
			rank := ro.Rank(r.id)
			if rank == 0 {
				if _, err := r.reservePort(g, ro.Epoch, ro.Port); err != nil {
					return nil, driver.Permanent(err)
				}
			}
			if rank >= 0 && ro.Port != 0 {
				return ro, nil
			}
		}
		wctx, cancel := t.waiting(ctx, wishRestart) // a task that has not started need not restart
		select {
		case <-changed:
		case <-wctx.Done():
		}
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case t.wanted().kind == wishKill:
			return nil, errEnding
		case t.wanted().kind == wishRestart:
			t.mu.Lock()
			t.want = nil
			t.mu.Unlock()
		}
	}
}

// reservePort reserves the gang's port on this node and reports a new one. known is the port in the roster, or 0.
func (r *Runner) reservePort(g *structs.Group, epoch uint64, known int) (int, error) {
	want := known
	if want == 0 && g.Launch != nil {
		want = g.Launch.Port
	}
	port := want
	if r.cfg.Host.Ports == nil {
		if port == 0 {
			port = rendezvousPretended
		}
	} else {
		r.mu.Lock()
		renew := r.gang.epoch != epoch && r.gang.port != 0 && known == 0
		r.mu.Unlock()
		if renew {
			r.cfg.Host.Ports.Release(r.id) // tasks of the previous epoch may still hold it
		}
		var err error
		if port, err = r.cfg.Host.Ports.Reserve(r.id, want); err != nil {
			return 0, fmt.Errorf("the port on which the members of the gang find each other is not free here: %w", err)
		}
	}
	r.mu.Lock()
	news := r.gang.port != port || r.gang.epoch != epoch
	r.gang.port, r.gang.epoch = port, epoch
	r.mu.Unlock()
	if news && known == 0 && g.Gang != nil {
		if o := r.observe(); o != nil {
			r.cfg.Servers.Report(o)
		}
	}
	return port, nil
}

// openPort closes the socket that reserved the port, so that the first main task can bind it.
func openPort(_ context.Context, a *attempt) error {
	if p := a.task.r.cfg.Host.Ports; p != nil && a.gang != nil && roleOf(a.spec) == roleMain {
		p.Open(a.task.r.id)
	}
	return nil
}

func dropPort(r *Runner) {
	if r.cfg.Host.Ports != nil {
		r.cfg.Host.Ports.Release(r.id)
	}
}

// hostfileName is the name of the MPI hostfile in the task's directory.
const hostfileName = "muster.hostfile"

// hostsOf lists each address of a gang once, with the slots of all members on it: MPI launchers and DeepSpeed refuse a
// file that names a host twice.
func hostsOf(g *taskenv.Gang) string {
	var order []string
	slots := map[string]int{}
	for _, m := range g.Roster.Members {
		if _, known := slots[m.Address]; !known {
			order = append(order, m.Address)
		}
		slots[m.Address] += g.Launch.RanksOf(m.GPUs)
	}
	var b strings.Builder
	for _, address := range order {
		fmt.Fprintf(&b, "%s slots=%d\n", address, slots[address])
	}
	return b.String()
}

// writeHostfile writes the members with their slots, as MPI launchers read them. Tasks with their own root see a copy
// that nothing in the allocation can replace while the driver mounts it.
func writeHostfile(_ context.Context, a *attempt) error {
	r := a.task.r
	if a.gang == nil || r.dir == nil {
		return nil
	}
	text := []byte(hostsOf(a.gang))
	dir, _, err := r.dir.Part(a.spec.Name)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Replace(hostfileName, text, 0o644, taskfs.Agent); err != nil || elsewhere(a.driver) == nil {
		return err
	}
	own, err := r.dir.Private(filepath.Join(etcDir, a.spec.Name), 0o755)
	if err != nil {
		return err
	}
	defer own.Close()
	if err := own.Replace(hostfileName, text, 0o644, taskfs.Agent); err != nil {
		return err
	}
	source := filepath.Join(r.dir.Root, etcDir, a.spec.Name, hostfileName)
	a.config.Etc = append(a.config.Etc, driver.Mount{Source: source, Target: a.env.Get("MUSTER_HOSTFILE"), ReadOnly: true})
	return nil
}

// Where tasks see this program: below the allocation's directory, or in a root of their own in a directory of PATH.
const (
	programDir       = ".bin"
	programName      = "muster"
	programElsewhere = "/usr/local/bin/muster"
)

// showProgram returns the path by which the task can run this program, and has the driver show it there. It may be
// installed below /tmp, where exec tasks see their own directory, or below one that the task's user may not enter.
func (a *attempt) showProgram() (string, error) {
	own, err := os.Executable()
	if err != nil {
		return programName, nil
	}
	if _, err := os.Lstat(own); err != nil { // a later version was installed elsewhere; only muster rsh needs it
		return own, nil
	}
	r := a.task.r
	m, ok := a.driver.(driver.ProgramMounter)
	if !ok || !m.MountsProgram() || r.dir == nil {
		return own, nil
	}
	a.config.Muster = driver.Mount{Source: own, Target: programElsewhere, ReadOnly: true}
	if elsewhere(a.driver) != nil {
		return programElsewhere, nil
	}
	dir, err := r.dir.Private(programDir, 0o755)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	// The mount point. It is never replaced: the kernel would unmount what tasks that run see there.
	f, err := dir.Create(programName, 0o644, taskfs.Agent) // not executable, so that nothing takes it for the program
	switch {
	case err == nil:
		f.Close()
	case !errors.Is(err, fs.ErrExist):
		return "", err
	}
	a.config.Muster.Target = filepath.Join(r.dir.Root, programDir, programName)
	return a.config.Muster.Target, nil
}
