package server

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// TestFirstMomentOfACluster: what agents report and users submit before the first leader has given the cluster its identity
// and format waits for it. In the oldest format, GPUs would never be known to be near an RDMA adapter, and a queue with
// limits for users would be refused.
func TestFirstMomentOfACluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := freshServer(t, func(c *Config) {
			c.Testing.Replica.BeforeApply = func() { time.Sleep(20 * time.Millisecond) } // between the proposal of the format and its entry
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			q := &structs.Queue{Path: "lab", UserPriorityMax: map[string]int64{"alice": 90}}
			call(t, s, methods.QueueUpsert, rpc.Header{}, &methods.QueueUpsertRequest{Queues: []*structs.Queue{q}})
		})
		for i := range 4 {
			wg.Go(func() {
				node := testNode(i)
				node.Resources.Devices = []structs.DeviceGroup{{Vendor: "nvidia", Type: "gpu", Name: "H100", Instances: []structs.DeviceInstance{{ID: "GPU-0", Healthy: true, Adapters: "mlx5_0"}}}}
				resp := call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: node})
				if s.Published().Snapshot.NodeByID(node.ID).Resources.Devices[0].Instances[0].Adapters == "" {
					t.Errorf("node %d lost its adapters; the answer says format %d", i, resp.Format)
				}
			})
		}
		wg.Wait()
	})
}

// A term that ended while it was being established may leave its mark behind. That does not make the server answer as the
// leader of the next term before everything of the terms before is applied.
func TestEstablishedInAnotherTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		if !s.IsLeader() {
			t.Fatal("the server does not lead")
		}
		for _, late := range []uint64{s.lead.term.Load() - 1, 0} {
			s.lead.ready.Store(late)
			if s.IsLeader() {
				t.Errorf("in term %d the server leads by what was established in term %d", s.lead.term.Load(), late)
			}
		}
	})
}
