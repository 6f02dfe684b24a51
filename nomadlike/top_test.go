package nomadlike

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/nomadlike/edge"
	"github.com/muster-sched/muster/structs"
)

// busyFleet is a backend with nodes of two GPUs, on each of which an allocation holds the first one.
type busyFleet struct {
	rpc.Caller
	nodes  int
	denied bool // nodes and the queue may not be read
	silent int  // number of the node that does not answer, from 1

	mu            sync.Mutex
	nodeAsks      int
	allocAsks     int
	namespaces    string // of the lists of allocations
	filters       []string
	asked         map[structs.NodeID]bool
	pagesOfAllocs int
}

func idOf[T ~[16]byte](i int) (id T) {
	binary.BigEndian.PutUint64(id[:], uint64(i))
	return id
}

func (f *busyFleet) Invoke(ctx context.Context, h rpc.Header, req, resp any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch out := resp.(type) {
	case *methods.AllocListResponse:
		r := req.(*methods.ListRequest)
		f.namespaces, f.filters = strings.TrimSpace(f.namespaces+" "+h.Namespace), append(f.filters, r.Filter)
		from := 0
		_, _ = fmt.Sscan(r.NextToken, &from)
		f.pagesOfAllocs++
		for i := from; i < min(from+100, f.nodes); i++ {
			out.Allocs = append(out.Allocs, &structs.Allocation{ID: idOf[structs.AllocID](i + 1), JobID: "j", Namespace: "ml", Group: "g", NodeID: idOf[structs.NodeID](i + 1), Client: structs.ClientRunning, StartedAt: 7,
				Job:    &structs.Job{ID: "j", Namespace: "ml", Type: structs.JobBatch, Submitter: structs.Submitter{Name: "alice"}},
				Grants: []structs.Grant{{Task: "t", Device: "nvidia/gpu/H100", Instance: "GPU-0", MemoryMiB: 1024}, {Task: "t", Device: "nic/rdma/x", Instance: "n"}}})
		}
		if from+100 < f.nodes {
			out.NextToken = fmt.Sprint(from + 100)
		}
	case *methods.QueueListResponse:
		if f.denied {
			return structs.Errorf(structs.CodeDenied, "Permission denied")
		}
		out.Items = []methods.QueueItem{{Position: 1, Workload: &structs.Workload{JobID: "w", Namespace: "ml"}}}
	case *methods.NodeListResponse:
		if f.denied {
			return structs.Errorf(structs.CodeDenied, "Permission denied")
		}
		for i := range f.nodes {
			out.Nodes = append(out.Nodes, &structs.Node{ID: idOf[structs.NodeID](i + 1), Name: fmt.Sprintf("n%d", i), Status: structs.NodeReady, Eligibility: structs.NodeEligible,
				Resources: structs.NodeResources{Devices: []structs.DeviceGroup{{Vendor: "nvidia", Type: "gpu", Name: "H100", Instances: []structs.DeviceInstance{{ID: "GPU-0", Healthy: true, MemoryMiB: 81559}, {ID: "GPU-1", HealthDesc: "Xid 79"}}}, {Vendor: "nic", Type: "rdma", Name: "x", Instances: []structs.DeviceInstance{{ID: "n"}}}}}})
		}
	case *methods.HostStatsResponse:
		id := req.(*methods.AllocNodeRequest).NodeID
		f.nodeAsks++
		f.asked[id] = true
		if f.silent > 0 && id == idOf[structs.NodeID](f.silent) {
			f.mu.Unlock()
			<-ctx.Done()
			f.mu.Lock()
			return ctx.Err()
		}
		out.MemTotal, out.MemAvailable, out.CPU = 100, 40, []methods.CoreStats{{TotalMicro: 50e6}, {TotalMicro: 100e6}}
		out.Devices = []methods.DeviceStats{{ID: "GPU-0", UsedBytes: 5 << 30, TotalBytes: 80 << 30, Utilization: 93, PowerMW: 612_000, TemperatureC: -1}}
	case *methods.AllocStatsResponse:
		f.allocAsks++
		out.Tasks = map[string]*methods.TaskStats{"t": {CPU: methods.CPUStats{PercentMicro: 150e6}, Memory: methods.MemoryStats{RSS: 10, Usage: 20},
			Devices: []methods.DeviceStats{{ID: "GPU-0", UsedBytes: 5 << 30, TotalBytes: 80 << 30, Utilization: 93, PowerMW: -1, TemperatureC: 60, Use: []methods.DeviceUse{{Task: "t", UsedBytes: 2 << 30, QuotaBytes: 1 << 30, PeakBytes: 3 << 30, SMMillis: 4, EnergyMJ: 5, Denied: 6}}}}}}
	}
	return nil
}

func topServer(f *busyFleet) *Server {
	return New(Config{Backend: f, Agent: open{}, Log: hclog.NewNullLogger(), Site: edge.NewSite(nil, []string{"example.com"})})
}

func topOf(t *testing.T, f *busyFleet, query string) *Top {
	t.Helper()
	f.asked = map[structs.NodeID]bool{}
	r := do(topServer(f), "GET", "/v1/top"+query, "")
	if r.StatusCode != 200 || r.Header.Get("X-Nomad-NextToken") != "" {
		t.Fatalf("status %d: %s; next token %q", r.StatusCode, text(t, r), r.Header.Get("X-Nomad-NextToken"))
	}
	var out Top
	if err := json.NewDecoder(r.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return &out
}

// TestTopIsWhole checks that one request gives everything of a cluster, with the measurements of nodes and tasks.
func TestTopIsWhole(t *testing.T) {
	f := &busyFleet{nodes: 3, silent: 2}
	out := topOf(t, f, "?namespace=ml")
	if len(out.Nodes) != 3 || len(out.Allocs) != 3 || len(out.Queue) != 1 || out.Unread != 0 || f.namespaces != "ml *" {
		t.Fatalf("%d nodes, %d allocations, %d waiting, %d unread in namespace %s", len(out.Nodes), len(out.Allocs), len(out.Queue), out.Unread, f.namespaces)
	}
	n, late := out.Nodes[0], out.Nodes[1]
	if n.Use == nil || *n.Use != (TopNodeUse{CPUPercent: 75, MemoryUsed: 60, MemorySize: 100}) || late.Use != nil {
		t.Errorf("use %+v; of a node that does not answer %+v", n.Use, late.Use)
	}
	if len(n.GPUs) != 2 || n.GPUs[0].Use == nil || n.GPUs[1].Use != nil || n.GPUs[1].Unhealthy != "Xid 79" || !n.GPUs[0].Held || n.GPUs[1].Held {
		t.Fatalf("GPUs %+v", n.GPUs)
	}
	if u := n.GPUs[0].Use; u.MemoryMiB != 5120 || *u.Percent != 93 || *u.PowerW != 612 || u.TemperatureC != nil {
		t.Errorf("use of the GPU %+v", u)
	}
	a := out.Allocs[0]
	if a.User != "alice" || a.Since != 7 || len(a.GPUs) != 1 || a.GPUs[0] != (TopGrant{ID: "GPU-0", Model: "H100", ShareMiB: 1024}) {
		t.Errorf("allocation %+v", a)
	}
	if len(a.Tasks) != 1 || a.Tasks[0].Name != "t" || a.Tasks[0].CPUPercent != 150 || a.Tasks[0].Memory != 20 {
		t.Fatalf("tasks %+v", a.Tasks)
	}
	if g := a.Tasks[0].GPUs[0]; g.MemoryMiB != 2048 || g.ShareMiB != 1024 || g.PeakMiB != 3072 || g.SMMillis != 4 || g.EnergyMJ != 5 || g.Refused != 6 || *g.GPU.Percent != 93 || g.GPU.PowerW != nil {
		t.Errorf("use of a GPU by a task %+v", g)
	}
	for _, s := range f.filters {
		if !strings.Contains(s, `"failed"`) {
			t.Errorf("allocations that ended are read: %q", s)
		}
	}
}

// TestTopIsBounded checks that a large cluster is listed whole, while only some of it is measured.
func TestTopIsBounded(t *testing.T) {
	f := &busyFleet{nodes: 450}
	out := topOf(t, f, "?namespace=*")
	if len(out.Nodes) != 450 || len(out.Allocs) != 450 || f.pagesOfAllocs != 5 {
		t.Errorf("%d nodes, %d allocations in %d pages", len(out.Nodes), len(out.Allocs), f.pagesOfAllocs)
	}
	if f.nodeAsks != TopNodesMax || f.allocAsks != TopAllocsMax || out.Unread != 450-TopAllocsMax {
		t.Errorf("%d nodes and %d allocations were asked; %d are unread", f.nodeAsks, f.allocAsks, out.Unread)
	}
	f = &busyFleet{nodes: 450}
	topOf(t, f, fmt.Sprintf("?node=%s&node=%s", idOf[structs.NodeID](400), idOf[structs.NodeID](7)))
	if f.nodeAsks != 2 || f.allocAsks != 2 || !f.asked[idOf[structs.NodeID](400)] {
		t.Errorf("%d nodes and %d allocations were asked", f.nodeAsks, f.allocAsks)
	}
	many := "?"
	for i := range TopNodesMax + 1 {
		many += fmt.Sprintf("node=%s&", idOf[structs.NodeID](i+1))
	}
	for _, query := range []string{many, "?node=x"} {
		if r := do(topServer(f), "GET", "/v1/top"+query, ""); r.StatusCode != 400 {
			t.Errorf("%.20s...: status %d", query, r.StatusCode)
		}
	}
}

// TestTopOfAUser checks that a token without the right to read nodes gets its allocations with their use.
func TestTopOfAUser(t *testing.T) {
	f := &busyFleet{nodes: 2, denied: true}
	out := topOf(t, f, "?namespace=ml")
	if out.Nodes != nil || out.Queue != nil || len(out.Allocs) != 2 || len(out.Allocs[1].Tasks) != 1 || f.nodeAsks != 0 {
		t.Errorf("the answer is %+v after %d questions to nodes", out, f.nodeAsks)
	}
}
