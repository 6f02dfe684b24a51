package top

import (
	"cmp"
	"slices"
	"strings"

	"github.com/muster-sched/muster/nomadlike"
)

// row is a line of a table: a GPU, a job, a node or what waits. What does not concern it is nil or zero.
type row struct {
	key    string
	node   *nomadlike.TopNode
	gpu    *nomadlike.TopGPU
	index  int                   // of the GPU on its node
	allocs []*nomadlike.TopAlloc // on the GPU, of the job, on the node
	wait   *nomadlike.QueueItem

	gpus, held          int     // GPUs of the node, and those that are held; of a job only held
	util                float64 // share of the GPUs' time, the mean of those measured; -1: unknown
	memUsed, memSize    int64   // MiB of GPU memory
	cpu                 float64 // percent, of one core for jobs; -1: unknown
	ramUsed, ramSize    int64   // bytes; -1: unknown
	past                *history
	since               int64
	status, user, model string
}

// matches reports whether a row has all words of a filter.
func (r *row) matches(words []string) bool {
	if len(words) == 0 {
		return true
	}
	parts := []string{r.status, r.user, r.model}
	if r.node != nil {
		parts = append(parts, r.node.Name, r.node.Pool, r.node.ID)
	}
	if r.gpu != nil {
		parts = append(parts, r.gpu.ID, r.gpu.Model)
	}
	for _, a := range r.allocs[:min(len(r.allocs), 8)] {
		parts = append(parts, a.JobID, a.Namespace, a.User, a.ID, a.NodeName)
	}
	if w := r.wait; w != nil {
		parts = append(parts, w.JobID, w.Namespace, w.User, w.Queue, w.Reason, w.Model, w.NodePool)
	}
	text := strings.ToLower(strings.Join(parts, "\x00"))
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

func (r *row) jobName() string {
	switch {
	case r.wait != nil:
		return r.wait.JobID
	case len(r.allocs) == 0:
		return ""
	}
	name := r.allocs[0].JobID
	for _, a := range r.allocs[1:] {
		if a.JobID != name || a.Namespace != r.allocs[0].Namespace {
			return name + " and more"
		}
	}
	return name
}

func (r *row) namespace() string {
	if r.wait != nil {
		return r.wait.Namespace
	}
	if len(r.allocs) > 0 {
		return r.allocs[0].Namespace
	}
	return ""
}

// command returns the command that a key runs for a row, or nil.
func (r *row) command(tab int, key string) []string {
	job := func(verb ...string) []string {
		if r.jobName() == "" || tab == tabNodes {
			return nil
		}
		name := r.allocsOrWait()
		return append(append([]string{"job"}, verb...), "-namespace", r.namespace(), name)
	}
	node := func() []string {
		switch {
		case r.node != nil:
			return []string{"node", "status", r.node.ID}
		case len(r.allocs) > 0:
			return []string{"node", "status", r.allocs[0].NodeID}
		}
		return nil
	}
	switch key {
	case "n":
		return node()
	case "w":
		return job("why")
	case "l":
		if tab == tabGPUs && len(r.allocs) > 0 {
			return []string{"alloc", "logs", "-namespace", r.namespace(), "-tail", "-n", "500", r.allocs[0].ID}
		}
		if tab == tabQueue {
			return nil
		}
		return job("logs", "-tail", "-n", "500")
	}
	switch {
	case tab == tabGPUs && len(r.allocs) > 0:
		return []string{"alloc", "status", "-namespace", r.namespace(), r.allocs[0].ID}
	case tab == tabJobs:
		return job("status")
	case tab == tabQueue:
		return job("why")
	}
	return node()
}

func (r *row) allocsOrWait() string {
	if r.wait != nil {
		return r.wait.JobID
	}
	return r.allocs[0].JobID
}

// measured keeps the last measurements of nodes and allocations that a later answer did not ask for.
type measured struct {
	nodes  map[string]*nomadlike.TopNodeUse
	gpus   map[string]*nomadlike.TopGPUUse
	allocs map[string][]nomadlike.TopTask
}

func newMeasured() measured {
	return measured{map[string]*nomadlike.TopNodeUse{}, map[string]*nomadlike.TopGPUUse{}, map[string][]nomadlike.TopTask{}}
}

// totals are the figures above the table.
type totals struct {
	gpus, held, unhealthy int
	nodes, ready          int
	jobs, waiting         int
	util                  float64 // -1: unknown
	memUsed, memSize      int64   // MiB, of the measured GPUs
	utilPast, memPast     history
}

// take makes rows of an answer.
func (m *Model) take(t *nomadlike.Top) {
	m.data = t
	m.remember(t)
	byNode := make(map[string][]*nomadlike.TopAlloc, len(t.Nodes))
	onGPU := map[string][]*nomadlike.TopAlloc{}
	for i := range t.Allocs {
		a := &t.Allocs[i]
		byNode[a.NodeID] = append(byNode[a.NodeID], a)
		for _, g := range a.GPUs {
			if l := onGPU[a.NodeID+g.ID]; len(l) == 0 || l[len(l)-1] != a {
				onGPU[a.NodeID+g.ID] = append(l, a)
			}
		}
	}
	nodes := t.Nodes
	if nodes == nil {
		nodes = nodesOf(t.Allocs)
	}
	slices.SortStableFunc(nodes, func(a, b nomadlike.TopNode) int { return natural(a.Name, b.Name) })
	utilPast, memPast := m.totals.utilPast, m.totals.memPast
	m.totals = totals{util: -1, waiting: len(t.Queue), utilPast: utilPast, memPast: memPast}
	m.rows[tabGPUs], m.rows[tabNodes] = nil, nil
	var mean average
	for i := range nodes {
		n := &nodes[i]
		nr := m.nodeRow(n, byNode[n.ID])
		var here average
		for k := range n.GPUs {
			r := m.gpuRow(n, k, onGPU[n.ID+n.GPUs[k].ID])
			m.rows[tabGPUs] = append(m.rows[tabGPUs], r)
			here.add(r.util)
			mean.add(r.util)
			nr.memUsed, nr.memSize = nr.memUsed+r.memUsed, nr.memSize+r.memSize
			if r.gpu.Use != nil {
				m.totals.memUsed, m.totals.memSize = m.totals.memUsed+r.memUsed, m.totals.memSize+r.memSize
			}
			nr.held += r.held
			if r.gpu.Unhealthy != "" {
				m.totals.unhealthy++
			}
		}
		nr.util = here.value()
		nr.past = m.sample("node/"+n.ID, nr.util)
		m.totals.gpus, m.totals.held = m.totals.gpus+nr.gpus, m.totals.held+nr.held
		m.totals.nodes++
		if n.Status == "ready" {
			m.totals.ready++
		}
		m.rows[tabNodes] = append(m.rows[tabNodes], nr)
	}
	if t.Nodes == nil {
		m.rows[tabNodes], m.totals.nodes = nil, 0
	}
	m.totals.util = mean.value()
	m.totals.utilPast.add(t.Time, m.totals.util)
	m.totals.memPast.add(t.Time, share(m.totals.memUsed, m.totals.memSize))
	m.jobRows(t)
	m.rows[tabQueue] = nil
	for i := range t.Queue {
		w := &t.Queue[i]
		m.rows[tabQueue] = append(m.rows[tabQueue], &row{key: w.Namespace + "/" + w.JobID, wait: w, user: w.User, util: -1, cpu: -1, status: queueStatus(w)})
	}
	for key, h := range m.past {
		if h.at != t.Time {
			delete(m.past, key)
		}
	}
	for i := range m.views {
		m.arrange(i)
	}
}

// remember completes an answer by earlier measurements of what it did not ask for, and forgets what has gone.
func (m *Model) remember(t *nomadlike.Top) {
	now := newMeasured()
	old := func(node string) bool { return m.asked != nil && !m.asked[node] }
	for i := range t.Nodes {
		n := &t.Nodes[i]
		if n.Use == nil && old(n.ID) {
			n.Use = m.known.nodes[n.ID]
		}
		if n.Use != nil {
			now.nodes[n.ID] = n.Use
		}
		for k := range n.GPUs {
			g := &n.GPUs[k]
			if g.Use == nil && old(n.ID) {
				g.Use = m.known.gpus[n.ID+g.ID]
			}
			if g.Use != nil {
				now.gpus[n.ID+g.ID] = g.Use
			}
		}
	}
	for i := range t.Allocs {
		a := &t.Allocs[i]
		if a.Tasks == nil && old(a.NodeID) {
			a.Tasks = m.known.allocs[a.ID]
		}
		if a.Tasks != nil {
			now.allocs[a.ID] = a.Tasks
		}
	}
	m.known = now
}

// nodesOf makes nodes of allocations, with the GPUs that these hold, for a token that may not read nodes.
func nodesOf(allocs []nomadlike.TopAlloc) []nomadlike.TopNode {
	var out []nomadlike.TopNode
	at := map[string]int{}
	for i := range allocs {
		a := &allocs[i]
		if len(a.GPUs) == 0 {
			continue
		}
		k, ok := at[a.NodeID]
		if !ok {
			k = len(out)
			at[a.NodeID] = k
			out = append(out, nomadlike.TopNode{ID: a.NodeID, Name: a.NodeName})
		}
		for _, g := range a.GPUs {
			n := &out[k]
			if slices.ContainsFunc(n.GPUs, func(have nomadlike.TopGPU) bool { return have.ID == g.ID }) {
				continue
			}
			gpu := nomadlike.TopGPU{ID: g.ID, Model: g.Model}
			for _, t := range a.Tasks {
				for k := range t.GPUs {
					if t.GPUs[k].ID == g.ID {
						gpu.Use = &t.GPUs[k].GPU
						gpu.MemoryMiB = t.GPUs[k].ShareMiB
					}
				}
			}
			n.GPUs = append(n.GPUs, gpu)
		}
	}
	return out
}

func (m *Model) sample(key string, share float64) *history {
	h := m.past[key]
	if h == nil {
		if share < 0 {
			return nil // most of a large cluster is not measured at the same time
		}
		h = &history{}
		m.past[key] = h
	}
	h.add(m.data.Time, share)
	return h
}

// foreignMiB is the memory beyond which a GPU is in use even if no allocation is visible. Drivers need less for themselves.
const foreignMiB = 1024

func (m *Model) gpuRow(n *nomadlike.TopNode, i int, holders []*nomadlike.TopAlloc) *row {
	g := &n.GPUs[i]
	r := &row{key: n.ID + g.ID, node: n, gpu: g, index: i, allocs: holders, util: -1, cpu: -1, memSize: g.MemoryMiB, model: g.Model}
	if g.Held || len(holders) > 0 {
		r.held = 1
	}
	if len(holders) > 0 {
		r.user = holders[0].User
	}
	switch {
	case g.Unhealthy != "":
		r.status = "unhealthy"
	case len(holders) > 0:
	case g.Held:
		r.status = "others" // another namespace
	case g.Use != nil && g.Use.MemoryMiB > foreignMiB:
		r.status = "in use" // by what the token may not see, or by something outside of the cluster
	default:
		r.status = "free"
	}
	if g.Use != nil {
		r.memUsed = g.Use.MemoryMiB
		if g.Use.Percent != nil {
			r.util = float64(*g.Use.Percent) / 100
		}
	}
	r.past = m.sample("gpu/"+r.key, r.util)
	return r
}

func (m *Model) nodeRow(n *nomadlike.TopNode, allocs []*nomadlike.TopAlloc) *row {
	r := &row{key: n.ID, node: n, allocs: allocs, gpus: len(n.GPUs), util: -1, cpu: -1, ramUsed: -1, status: nodeStatus(n)}
	if n.Use != nil {
		r.cpu, r.ramUsed, r.ramSize = n.Use.CPUPercent, n.Use.MemoryUsed, n.Use.MemorySize
	}
	return r
}

func nodeStatus(n *nomadlike.TopNode) string {
	switch {
	case n.Status != "ready":
		return n.Status
	case n.Drain:
		return "draining"
	case n.Eligibility != "" && n.Eligibility != "eligible":
		return n.Eligibility
	}
	return n.Status
}

func queueStatus(w *nomadlike.QueueItem) string {
	if w.Held {
		return "on hold"
	}
	return w.Reason
}

// jobRows makes a row of each job with allocations.
func (m *Model) jobRows(t *nomadlike.Top) {
	m.rows[tabJobs] = nil
	at := map[string]*row{}
	for i := range t.Allocs {
		a := &t.Allocs[i]
		key := a.Namespace + "/" + a.JobID
		r := at[key]
		if r == nil {
			r = &row{key: key, user: a.User, since: a.Since, util: -1, cpu: -1, ramUsed: -1}
			at[key] = r
			m.rows[tabJobs] = append(m.rows[tabJobs], r)
		}
		r.allocs = append(r.allocs, a)
		r.held += len(a.GPUs)
		r.since = min(r.since, a.Since)
		if len(a.GPUs) > 0 {
			r.model = a.GPUs[0].Model
		}
	}
	for _, r := range m.rows[tabJobs] {
		var mean average
		for _, a := range r.allocs {
			for _, task := range a.Tasks {
				r.cpu, r.ramUsed = max(r.cpu, 0)+task.CPUPercent, max(r.ramUsed, 0)+int64(task.Memory)
				for i := range task.GPUs {
					r.memUsed, r.memSize = r.memUsed+task.GPUs[i].MemoryMiB, r.memSize+task.GPUs[i].ShareMiB
				}
			}
			for _, g := range a.GPUs {
				if u := m.useOf(a, g.ID); u != nil && u.Percent != nil {
					mean.add(float64(*u.Percent) / 100)
				}
			}
		}
		r.util = mean.value()
		r.past = m.sample("job/"+r.key, r.util)
		r.status = jobStatus(r.allocs)
	}
	m.totals.jobs = len(m.rows[tabJobs])
}

// useOf returns the measurement of a GPU that an allocation holds, or nil.
func (m *Model) useOf(a *nomadlike.TopAlloc, gpu string) *nomadlike.TopGPUUse {
	for i := range a.Tasks {
		for k := range a.Tasks[i].GPUs {
			if g := &a.Tasks[i].GPUs[k]; g.ID == gpu {
				return &g.GPU
			}
		}
	}
	return m.known.gpus[a.NodeID+gpu]
}

// jobStatus returns the state of a job's allocations; the one that is not as it should be counts.
func jobStatus(allocs []*nomadlike.TopAlloc) string {
	word := "running"
	for _, a := range allocs {
		switch {
		case a.Suspension != "":
			return a.Suspension
		case a.Status == "pending":
			word = "starting"
		case a.Status != "running":
			word = cmp.Or(a.Status, word)
		}
	}
	return word
}

// average is a mean of known values.
type average struct {
	sum float64
	n   int
}

func (a *average) add(v float64) {
	if v >= 0 {
		a.sum += v
		a.n++
	}
}

func (a *average) value() float64 {
	if a.n == 0 {
		return -1
	}
	return a.sum / float64(a.n)
}

func share(part, whole int64) float64 {
	if whole <= 0 {
		return -1
	}
	return float64(part) / float64(whole)
}
