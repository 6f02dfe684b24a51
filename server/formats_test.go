package server

import (
	"testing"
	"testing/synctest"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestAgentsKnowTheFormat: answers to registrations and heartbeats say which format is in force, so that agents register
// again when a newer one keeps more of what they report.
func TestAgentsKnowTheFormat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		node := testNode(1)
		if got := call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: node}).Format; got != feature.Newest {
			t.Errorf("the answer to a registration says format %d, want %d", got, feature.Newest)
		}
		beat := &methods.NodeHeartbeatRequest{NodeAuth: methods.NodeAuth{NodeID: node.ID, Secret: node.SecretID}, Status: structs.NodeReady}
		if got := call(t, s, methods.NodeHeartbeat, rpc.Header{}, beat).Format; got != feature.Newest {
			t.Errorf("the answer to a heartbeat says format %d, want %d", got, feature.Newest)
		}
	})
}
