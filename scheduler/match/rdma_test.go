package match

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/structs"
)

func TestRDMAWantsANodeThatHasIt(t *testing.T) {
	with := &structs.Node{Attributes: map[string]string{structs.RDMAAttribute: "mlx5_0"}, Drivers: map[string]*structs.DriverInfo{"exec": {Detected: true, Healthy: true}}}
	without := &structs.Node{Drivers: with.Drivers}
	task := &structs.Task{Name: "t", Driver: "exec", Resources: structs.Resources{RDMA: true}}
	a := CompileAsk(&structs.Job{ID: "j"}, &structs.Group{Name: "g", Count: 1, Tasks: []*structs.Task{task}}, "")
	if r, bad := a.Refuses(with); bad {
		t.Errorf("a node with RDMA is refused: %+v", r)
	}
	if r, bad := a.Refuses(without); !bad || !strings.Contains(r.Text(), structs.RDMAAttribute) {
		t.Errorf("a node without RDMA is taken (%t), or the reason is not told: %q", !bad, r.Text())
	}
}
