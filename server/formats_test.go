package server

import (
	"sync"
	"sync/atomic"
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

// TestAgentsOfTheFirstMoment: agents that register while the first leader has not yet given the cluster its identity and
// format, and so lose what belongs to a newer format, get an older one for an answer; otherwise their GPUs would never be
// known to be near an RDMA adapter.
func TestAgentsOfTheFirstMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := freshServer(t, func(c *Config) {
			c.Testing.Replica.BeforeApply = func() { time.Sleep(20 * time.Millisecond) } // so that agents register between the proposal of the format and its entry
		})
		var early atomic.Int32
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				node := testNode(i)
				node.Resources.Devices = []structs.DeviceGroup{{Vendor: "nvidia", Type: "gpu", Name: "H100", Instances: []structs.DeviceInstance{{ID: "GPU-0", Healthy: true, Adapters: "mlx5_0"}}}}
				var resp *methods.NodeRegisterResponse
				for err := error(structs.ErrNoLeader); err != nil; time.Sleep(time.Millisecond) {
					resp, err = rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: node})
				}
				kept := s.Published().Snapshot.NodeByID(node.ID).Resources.Devices[0].Instances[0].Adapters != ""
				if !kept {
					early.Add(1)
				}
				if !kept && resp.Format >= feature.GPUAdapters.Format {
					t.Errorf("node %d lost its adapters, and the answer says format %d", i, resp.Format)
				}
			})
		}
		wg.Wait()
		if early.Load() == 0 {
			t.Error("no agent registered before the cluster had its format")
		}
	})
}
