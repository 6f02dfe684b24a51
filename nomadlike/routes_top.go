package nomadlike

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Limits of one answer of /v1/top, for a cluster of any size.
const (
	TopNodesMax  = 64              // nodes that are measured
	TopAllocsMax = 200             // running allocations that are measured
	topPatience  = 2 * time.Second // a node that answers later is not measured
	topAsks      = 16              // calls to nodes at the same time
)

// allNamespaces is the value of ?namespace= for all that the token may read.
const allNamespaces = "*"

type (
	// Top is the cluster at one time, with what runs and what waits: GET /v1/top.
	Top struct {
		Time   int64     // Unix nanoseconds
		Nodes  []TopNode // null if the token may not read nodes
		Allocs []TopAlloc
		Queue  []QueueItem // null if the token may not list jobs
		Unread int64       // running allocations beyond TopAllocsMax, which were not measured
	}
	// TopNode is a node with its GPUs.
	TopNode struct {
		ID, Name, Pool      string
		Status, Eligibility string
		Drain               bool `json:",omitempty"`
		CPU, MemoryMiB      int64
		GPUs                []TopGPU    `json:",omitempty"`
		Use                 *TopNodeUse `json:",omitempty"` // absent: not measured
	}
	// TopNodeUse is the current use of a machine.
	TopNodeUse struct {
		CPUPercent             float64 // of all cores
		MemoryUsed, MemorySize int64   // bytes
	}
	// TopGPU is a GPU or a MIG instance.
	TopGPU struct {
		ID, Model string
		MemoryMiB int64
		Held      bool       `json:",omitempty"` // by an allocation of any namespace that the token may read
		Unhealthy string     `json:",omitempty"` // why, absent for a healthy one
		Use       *TopGPUUse `json:",omitempty"` // absent: not measured
	}
	// TopGPUUse is the current use of a whole GPU by all its tasks. What the driver does not report is absent.
	TopGPUUse struct {
		MemoryMiB    int64
		Percent      *int64 `json:",omitempty"`
		PowerW       *int64 `json:",omitempty"`
		TemperatureC *int64 `json:",omitempty"`
	}
	// TopAlloc is an allocation that has not ended.
	TopAlloc struct {
		ID, Name, JobID, Namespace string
		User, Type, Queue          string
		Priority                   int
		NodeID, NodeName           string
		Status                     string
		Suspension                 string     `json:",omitempty"` // "suspending", "suspended", "resuming"
		Since                      int64      // start of its first task, or its placement; Unix nanoseconds
		CPU, MemoryMiB             int64      // reserved
		GPUs                       []TopGrant `json:",omitempty"`
		Tasks                      []TopTask  `json:",omitempty"` // measured ones, by name
	}
	// TopGrant is a GPU that an allocation holds.
	TopGrant struct {
		ID, Model string
		ShareMiB  int64 `json:",omitempty"` // absent: the whole GPU
	}
	// TopTask is the current use of resources by a task.
	TopTask struct {
		Name       string
		CPUPercent float64      // of one core
		Memory     uint64       // bytes
		GPUs       []TopTaskGPU `json:",omitempty"`
	}
	// TopTaskGPU is a task's use of one GPU, since the agent first saw the task there.
	TopTaskGPU struct {
		ID                           string
		MemoryMiB, ShareMiB, PeakMiB int64
		SMMillis, EnergyMJ, Refused  int64
		GPU                          TopGPUUse // of all tasks on it
	}
)

func topRoutes() []route {
	return []route{{methods: "GET", pattern: "/v1/top", rpc: methods.AllocList.Name, handle: top}}
}

// top answers with three lists and with measurements of some nodes: those of ?node=, or else the ones that run GPU work.
func top(c *call) (any, error) {
	wanted := map[string]bool{}
	for _, s := range c.r.URL.Query()["node"] {
		id, err := structs.ParseID[structs.NodeID](s)
		if err != nil {
			return nil, structs.Errorf(structs.CodeInvalid, "node: %v", err)
		}
		if wanted[id.String()] = true; len(wanted) > TopNodesMax {
			return nil, structs.Errorf(structs.CodeInvalid, "at most %d nodes can be measured by one request", TopNodesMax)
		}
	}
	out := &Top{Time: time.Now().UnixNano(), Allocs: []TopAlloc{}}
	stale := c.query.Stale
	read := func(filter string) {
		c.query = methods.Query{Stale: stale, Filter: filter}
	}
	live := func() ([]*structs.Allocation, error) {
		read(`ClientStatus != "complete" and ClientStatus != "failed" and ClientStatus != "lost"`)
		return allRows(c, methods.AllocList, func(resp *methods.AllocListResponse) []*structs.Allocation {
			linkJobs(resp.Allocs, resp.Jobs)
			return resp.Allocs
		})
	}
	allocs, err := live()
	if err != nil {
		return nil, err
	}
	for _, a := range allocs {
		out.Allocs = append(out.Allocs, topAllocOf(a))
	}
	if asked := c.hdr.Namespace; asked != allNamespaces { // GPUs that other namespaces hold are not free
		c.hdr.Namespace = allNamespaces
		allocs, err = live()
		c.hdr.Namespace = asked
		if err != nil {
			return nil, err
		}
	}
	held := map[gpuKey]bool{}
	for _, a := range allocs {
		for i := range a.Grants {
			held[gpuKey{a.NodeID.String(), a.Grants[i].Instance}] = true
		}
	}
	read("")
	waiting, err := allRows(c, methods.QueueList, func(resp *methods.QueueListResponse) []methods.QueueItem { return resp.Items })
	if err == nil {
		out.Queue = queueOf(waiting)
	} else if structs.CodeOf(err) != structs.CodeDenied {
		return nil, err
	}
	read("")
	nodes, err := allRows(c, methods.NodeList, func(resp *methods.NodeListResponse) []*structs.Node { return resp.Nodes })
	if err == nil {
		out.Nodes = each(nodes, topNodeOf)
		for i := range out.Nodes {
			for k := range out.Nodes[i].GPUs {
				g := &out.Nodes[i].GPUs[k]
				g.Held = held[gpuKey{out.Nodes[i].ID, g.ID}]
			}
		}
	} else if structs.CodeOf(err) != structs.CodeDenied {
		return nil, err
	}
	c.w.Header().Del("X-Nomad-NextToken")
	c.measure(out, wanted)
	return out, nil
}

// gpuKey names a GPU in the cluster.
type gpuKey struct{ node, gpu string }

// allRows reads all pages of a list.
func allRows[Resp, Row any](c *call, m rpc.Method[methods.ListRequest, Resp], rows func(*Resp) []Row) ([]Row, error) {
	var out []Row
	for {
		resp, err := invokePage(c, m, &methods.ListRequest{})
		if err != nil {
			return nil, err
		}
		out = append(out, rows(resp)...)
		next := tokenAfter(resp)
		if next == "" {
			return out, nil
		}
		if next == c.query.NextToken {
			return nil, structs.Errorf(structs.CodeInternal, "the page at %q continues with itself", next)
		}
		c.query.NextToken = next
	}
}

func topAllocOf(a *structs.Allocation) TopAlloc {
	out := TopAlloc{
		ID: a.ID.String(), Name: a.Name(), JobID: a.JobID, Namespace: a.Namespace, NodeID: a.NodeID.String(), NodeName: a.NodeName,
		Status: string(a.Client), Suspension: a.Standing(), Since: int64(cmp.Or(a.StartedAt, a.CreateTime)),
		CPU: a.Resources.CPU, MemoryMiB: a.Resources.MemoryMiB,
	}
	if j := a.Job; j != nil {
		out.User, out.Type, out.Queue, out.Priority = j.Submitter.Name, string(j.Type), string(j.Queue), j.Priority
	}
	for i := range a.Grants {
		if g := &a.Grants[i]; g.IsGPU() {
			out.GPUs = append(out.GPUs, TopGrant{ID: g.Instance, Model: modelOf(g.Device), ShareMiB: g.MemoryMiB})
		}
	}
	return out
}

// modelOf returns the model of a group's id, "vendor/type/model".
func modelOf(device string) string {
	parts := strings.SplitN(device, "/", 3)
	return parts[len(parts)-1]
}

func topNodeOf(n *structs.Node) TopNode {
	out := TopNode{
		ID: n.ID.String(), Name: n.Name, Pool: string(n.Pool), Status: string(n.Status), Eligibility: string(n.Eligibility), Drain: n.Drain != nil,
		CPU: n.Resources.CPU, MemoryMiB: n.Resources.MemoryMiB,
	}
	for i := range n.Resources.Devices {
		d := &n.Resources.Devices[i]
		if d.Type != "gpu" {
			continue
		}
		for k := range d.Instances {
			in := &d.Instances[k]
			g := TopGPU{ID: in.ID, Model: d.Name, MemoryMiB: in.MemoryMiB}
			if !in.Healthy {
				g.Unhealthy = cmp.Or(in.HealthDesc, "unhealthy")
			}
			out.GPUs = append(out.GPUs, g)
		}
	}
	return out
}

// measure asks nodes for the use of their resources, and adds what comes within topPatience.
func (c *call) measure(out *Top, wanted map[string]bool) {
	ctx, cancel := context.WithTimeout(c.r.Context(), topPatience)
	defer cancel()
	var asks []func()
	for _, n := range topNodes(out, wanted) {
		id, _ := structs.ParseID[structs.NodeID](n.ID)
		asks = append(asks, func() {
			if resp, err := rpc.Invoke(ctx, c.cfg.Backend, methods.ClientHostStats, c.hdr, &methods.AllocNodeRequest{NodeID: id}); err == nil {
				n.measured(resp)
			}
		})
	}
	allocs, unread := topAllocs(out, wanted)
	out.Unread = unread
	for _, a := range allocs {
		id, _ := structs.ParseID[structs.AllocID](a.ID)
		asks = append(asks, func() {
			if resp, err := rpc.Invoke(ctx, c.cfg.Backend, methods.ClientStats, c.hdr, &methods.AllocNodeRequest{AllocID: id}); err == nil {
				a.measured(resp)
			}
		})
	}
	next := make(chan func())
	var wg sync.WaitGroup
	for range min(topAsks, len(asks)) {
		wg.Go(func() {
			for ask := range next {
				ask()
			}
		})
	}
	for _, ask := range asks {
		next <- ask
	}
	close(next)
	wg.Wait()
}

// topNodes chooses which nodes are measured. Each is changed by one call only.
func topNodes(out *Top, wanted map[string]bool) []*TopNode {
	busy := map[string]int{}
	for i := range out.Allocs {
		busy[out.Allocs[i].NodeID] += len(out.Allocs[i].GPUs)
	}
	var list []*TopNode
	for i := range out.Nodes {
		n := &out.Nodes[i]
		if n.Status == string(structs.NodeReady) && (len(wanted) == 0 || wanted[n.ID]) {
			list = append(list, n)
		}
	}
	slices.SortStableFunc(list, func(a, b *TopNode) int {
		return cmp.Or(cmp.Compare(min(busy[b.ID], 1), min(busy[a.ID], 1)), cmp.Compare(min(len(b.GPUs), 1), min(len(a.GPUs), 1)), cmp.Compare(a.Name, b.Name))
	})
	return list[:min(len(list), TopNodesMax)]
}

// topAllocs chooses which allocations are measured, those with GPUs first, and counts the running ones that are not.
func topAllocs(out *Top, wanted map[string]bool) (list []*TopAlloc, unread int64) {
	running := int64(0)
	for i := range out.Allocs {
		a := &out.Allocs[i]
		if a.Status != string(structs.ClientRunning) {
			continue
		}
		if running++; len(wanted) == 0 || wanted[a.NodeID] {
			list = append(list, a)
		}
	}
	slices.SortStableFunc(list, func(a, b *TopAlloc) int { return cmp.Compare(min(len(b.GPUs), 1), min(len(a.GPUs), 1)) })
	list = list[:min(len(list), TopAllocsMax)]
	return list, running - int64(len(list))
}

func (n *TopNode) measured(r *methods.HostStatsResponse) {
	n.Use = &TopNodeUse{MemoryUsed: r.MemTotal - r.MemAvailable, MemorySize: r.MemTotal}
	for _, core := range r.CPU {
		n.Use.CPUPercent += micro(core.TotalMicro) / float64(len(r.CPU))
	}
	for i := range n.GPUs {
		for k := range r.Devices {
			if d := &r.Devices[k]; d.ID == n.GPUs[i].ID {
				n.GPUs[i].Use = topGPUUseOf(d)
			}
		}
	}
}

func topGPUUseOf(d *methods.DeviceStats) *TopGPUUse {
	known := func(n, unit int64) *int64 {
		if n < 0 {
			return nil
		}
		n /= unit
		return &n
	}
	return &TopGPUUse{MemoryMiB: d.UsedBytes / mibBytes, Percent: known(d.Utilization, 1), PowerW: known(d.PowerMW, 1000), TemperatureC: known(d.TemperatureC, 1)}
}

func (a *TopAlloc) measured(r *methods.AllocStatsResponse) {
	names := make([]string, 0, len(r.Tasks))
	for name := range r.Tasks {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		t := r.Tasks[name]
		task := TopTask{Name: name, CPUPercent: micro(t.CPU.PercentMicro), Memory: uint64(max(t.Memory.RSS, t.Memory.Usage))}
		for i := range t.Devices {
			d := &t.Devices[i]
			g := TopTaskGPU{ID: d.ID, GPU: *topGPUUseOf(d)}
			for _, u := range d.Use {
				g.MemoryMiB, g.ShareMiB, g.PeakMiB = max(u.UsedBytes, 0)/mibBytes, cmp.Or(u.QuotaBytes, d.TotalBytes)/mibBytes, max(u.PeakBytes, 0)/mibBytes
				g.SMMillis, g.EnergyMJ, g.Refused = max(u.SMMillis, 0), max(u.EnergyMJ, 0), max(u.Denied, 0)
			}
			task.GPUs = append(task.GPUs, g)
		}
		a.Tasks = append(a.Tasks, task)
	}
}
