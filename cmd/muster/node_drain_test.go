package main

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// TestDrainSaysWhatHoldsItUp: who follows a drain reads once why an allocation that is marked for migration does not move, and
// again when the reason changes.
func TestDrainSaysWhatHoldsItUp(t *testing.T) {
	f := newAgentFake(t)
	node := *f.answers["GET /v1/node/"+nodeA].(*wire.Node)
	node.DrainStrategy, node.Status = &wire.DrainStrategy{}, "ready"
	var whys atomic.Int64
	const reads = 4 // of the reason; then it moves
	f.answers["GET /v1/node/"+nodeA] = func(*http.Request) any {
		n := node
		if whys.Load() >= reads {
			n.DrainStrategy = nil
		}
		return &n
	}
	f.answers["GET /v1/node/"+nodeA+"/allocations"] = func(*http.Request) any {
		al := &wire.Allocation{ID: allocA, Namespace: "default", JobID: "web", TaskGroup: "hello", DesiredStatus: "run", ClientStatus: "running", DesiredTransition: wire.DesiredTransition{Migrate: ptr(true)}}
		if whys.Load() >= reads {
			al.DesiredStatus, al.ClientStatus = "stop", "complete"
		}
		return []*wire.Allocation{al}
	}
	f.answers["GET /v1/job/web/why"] = func(*http.Request) any {
		g := nomadlike.WhyGroup{Name: "hello", Reason: structs.ReasonQuota, Wanted: 1, Refusals: []nomadlike.Refusal{
			{Code: structs.ReasonQuota, Dimension: structs.DimensionCPU, HolderKind: structs.HolderQuota, Holder: "team", Short: 10 + whys.Load(), Unit: structs.UnitMHz, CuredBy: structs.EventQueueUsage},
			{Code: structs.ReasonNodeIneligible, Dimension: structs.DimensionNodeState, Subject: "draining", Nodes: 1, CuredBy: structs.EventNodeEligible}}}
		if whys.Add(1) > 2 {
			g.Reason, g.Refusals = structs.ReasonResources, []nomadlike.Refusal{{Code: structs.ReasonResources, Dimension: structs.DimensionCPU, Nodes: 2, Short: 10, Unit: structs.UnitMHz, CuredBy: structs.EventAllocStopped}}
		}
		return &nomadlike.Why{JobID: "web", Namespace: "default", Waiting: 1, Groups: []nomadlike.WhyGroup{g}}
	}
	r := f.run(t, "", "node", "drain", "-monitor", "46f1c6c4")
	var said []string
	for line := range strings.Lines(r.out) {
		if strings.Contains(line, "cannot move yet") {
			said = append(said, line)
		}
	}
	if r.code != 0 || len(said) != 2 || !strings.Contains(said[0], "[QUOTA]") || !strings.Contains(said[0], "quota team") || strings.Contains(said[0], "drain") || !strings.Contains(said[1], "[RESOURCES]") {
		t.Errorf("exit status %d, said %q: %s", r.code, said, r.out)
	}
}
