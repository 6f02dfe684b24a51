package clientfake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Job makes a legal job with one group "g" of the given tasks.
func Job(id string, typ structs.JobType, tasks ...*structs.Task) *structs.Job {
	return &structs.Job{
		Namespace: structs.NamespaceDefault, ID: id, Name: id, Type: typ, Priority: structs.JobPriorityDefault,
		Region: structs.RegionDefault, Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault,
		Groups: []*structs.Group{{
			Name: "g", Count: 1, Tasks: tasks,
			Restart: structs.Restart{Attempts: 2, Interval: time.Minute, Delay: 10 * time.Millisecond, Mode: "fail"},
			Disk:    structs.EphemeralDisk{SizeMiB: 10},
		}},
	}
}

// Task makes a legal task for a driver; config is its JSON block.
func Task(name, driver, config string) *structs.Task {
	return &structs.Task{
		Name: name, Driver: driver, Config: structs.RawConfig(config),
		Resources: structs.Resources{CPU: 100, MemoryMiB: 64}, KillTimeout: 2 * time.Second,
		Logs: structs.LogConfig{MaxFiles: 2, MaxFileSizeMB: 1},
	}
}

// Place creates an allocation of a job's first group on a node; edit may change it before it is visible.
func (s *Server) Place(node structs.NodeID, job *structs.Job, edit ...func(*structs.Allocation)) structs.AllocID {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextID++
	id := structs.DeriveID[structs.AllocID](structs.Seed{2}, "alloc", job.ID, s.nextID)
	idx := s.touch()
	a := &structs.Allocation{
		ID: id, Namespace: job.Namespace, JobID: job.ID, JobVersion: job.Version, Job: job, Group: job.Groups[0].Name,
		NodeID: node, Resources: structs.GroupVector(job.Groups[0]), Desired: structs.DesiredRun, Client: structs.ClientPending,
		CreateIndex: idx, AllocIndex: idx, ModifyIndex: idx, CreateTime: structs.LogTimeOf(time.Now()),
	}
	for _, e := range edit {
		e(a)
	}
	s.allocs[id] = a
	s.hub(node).allocs[id] = true
	s.publish(node, idx)
	return id
}

// Roster writes a gang's roster and sends it to the members' nodes.
func (s *Server) Roster(ro structs.Roster) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ro.ModifyIndex = s.touch()
	s.rosters[ro.Key()] = &ro
	for i := range ro.Members {
		s.publish(ro.Members[i].Node, ro.ModifyIndex)
	}
}

// Change makes a new version of an allocation.
func (s *Server) Change(id structs.AllocID, edit func(*structs.Allocation)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.allocs[id]
	if a == nil {
		return
	}
	next := *a
	edit(&next)
	next.AllocIndex = s.touch()
	s.allocs[id] = &next
	s.publish(a.NodeID, next.AllocIndex)
}

// Stop asks for an allocation to end.
func (s *Server) Stop(id structs.AllocID) {
	s.Change(id, func(a *structs.Allocation) { a.Desired, a.DesiredDesc = structs.DesiredStop, "stopped by the test" })
}

// Forget removes an allocation, as garbage collection does.
func (s *Server) Forget(id structs.AllocID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(id)
	s.publishAll(s.touch())
}

// Restore turns the servers into a cluster that was restored from a backup: an older index in a newer epoch, without
// the named allocations.
func (s *Server) Restore(without ...structs.AllocID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range without {
		s.drop(id)
	}
	s.epoch++
	s.index = 1
	for _, a := range s.allocs {
		s.index = max(s.index, a.AllocIndex)
	}
	s.publishAll(s.touch())
}

// Become turns the servers into those of another cluster, and returns what they were.
func (s *Server) Become(cluster structs.ClusterID) (was structs.ClusterID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, s.cluster = s.cluster, cluster
	s.publishAll(s.touch())
	return was
}

// drop removes an allocation. The caller holds mu.
func (s *Server) drop(id structs.AllocID) {
	if a := s.allocs[id]; a != nil {
		delete(s.hub(a.NodeID).allocs, id)
		delete(s.allocs, id)
	}
}

// Fail makes calls fail for which fault returns an error; nil ends that.
func (s *Server) Fail(fault func(method string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// Answer changes every answer to a poll, and answers polls at once; nil ends that.
func (s *Server) Answer(change func(*methods.NodePollResponse)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = change
	s.touch()
	for _, h := range s.hubs { // wake the polls; nothing has changed
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// Servers sets the server addresses in answers to nodes.
func (s *Server) Servers(addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers = addrs
}

// Nodes returns the ids of the registered nodes, unordered.
func (s *Server) Nodes() []structs.NodeID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.nodes))
}

// Node is a registered node, or nil.
func (s *Server) Node(id structs.NodeID) *structs.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[id]
}

// Unregister makes the servers forget a node.
func (s *Server) Unregister(id structs.NodeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, id)
	s.touch()
}

// Beats counts a node's heartbeats.
func (s *Server) Beats(id structs.NodeID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.beats[id]
}

// Calls counts calls of each method.
func (s *Server) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// SetFormat sets the format that the servers say is in force.
func (s *Server) SetFormat(f structs.Format) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.format = f
	s.touch()
}

// Events returns the node events received.
func (s *Server) Events() []structs.NodeEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// Back calls a node.
func (s *Server) Back(id structs.NodeID) rpc.Caller {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.back[id]
}

// Alloc returns an allocation in the servers' state, or nil.
func (s *Server) Alloc(id structs.AllocID) *structs.Allocation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.allocs[id]
}

// Seen returns every report about an allocation.
func (s *Server) Seen(id structs.AllocID) []structs.AllocObserved {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen[id])
}

// patience bounds every wait of a test.
const patience = time.Minute

// Wait waits until ok holds, looking again at every change of the servers, and fails the test otherwise.
func (s *Server) Wait(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond) // for conditions about the node
	defer tick.Stop()
	for !ok() {
		s.mu.Lock()
		ch := s.changed
		s.mu.Unlock()
		select {
		case <-ch:
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waited %s for: %s\n%s", patience, what, s.dump())
		}
	}
}

// WaitStatus waits until an allocation has a client status.
func (s *Server) WaitStatus(t testing.TB, id structs.AllocID, want structs.ClientStatus) *structs.Allocation {
	t.Helper()
	s.Wait(t, fmt.Sprintf("allocation %s to be %s", id.Short(), want), func() bool {
		a := s.Alloc(id)
		return a != nil && a.Client == want
	})
	return s.Alloc(id)
}

// dump formats the servers' state for the message of a failed test.
func (s *Server) dump() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := ""
	for id, a := range s.allocs {
		out += fmt.Sprintf("alloc %s of %s: %s/%s %q\n", id.Short(), a.JobID, a.Desired, a.Client, a.ClientDesc)
		for name, st := range a.TaskStates.All() {
			out += fmt.Sprintf("  task %s: %s failed=%t restarts=%d\n", name, st.State, st.Failed, st.Restarts)
			for _, e := range st.Events {
				out += fmt.Sprintf("    %s: %s\n", e.Type, e.Message)
			}
		}
	}
	return out
}
