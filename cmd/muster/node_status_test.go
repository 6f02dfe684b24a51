package main

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// TestNodesSayWhyTheyAreNotReady: the list of nodes has the reason of a node whose agent refuses the servers, and none
// for one that is ready or merely down.
func TestNodesSayWhyTheyAreNotReady(t *testing.T) {
	f := newAgentFake(t)
	f.answers["GET /v1/nodes"] = []*wire.NodeListStub{
		{ID: nodeA, Name: "gpu-01", Status: "ready"},
		{ID: nodeB, Name: "gpu-02", Status: "initializing", StatusDescription: "the agent refuses these servers, so nothing is placed here: other cluster"},
		{ID: "46f1d7d5-2222-4bbb-8bbb-000000000003", Name: "gpu-03", Status: "down", StatusDescription: "the agent left"},
	}
	r := f.run(t, "", "node", "status")
	if r.code != 0 || !strings.Contains(r.out, "gpu-02 (46f1d7d5) is initializing: the agent refuses these servers, so nothing is placed here: other cluster\n") || strings.Contains(r.out, "left") {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.errOut)
	}
}
