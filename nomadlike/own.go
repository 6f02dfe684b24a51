package nomadlike

import (
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// The shapes of endpoints that Nomad does not have. Field names are CamelCase, like the rest of the surface.
type (
	// Why answers "why is my job pending": GET /v1/job/:id/why.
	Why struct {
		JobID, Namespace, Status string
		Priority                 int
		Queue                    string
		Reason                   structs.ReasonCode // "" when nothing waits
		Waiting                  int64              // allocations that wait
		Position                 int64              // in the queue, 1 is next; 0 when nothing waits
		QueueLength              int64
		Ahead                    []string    // "namespace/job", nearest to the front first, at most 10
		AheadAsks                []Ask       // of each of them
		Asks                     Ask         // the waiting part of the job
		Order                    []OrderTerm // why it has this place in the queue; empty when nothing waits
		User                     string
		StartEstimate            int64             // Unix nanoseconds; 0: unknown
		Starts                   string            `json:",omitempty"` // the event that it starts after, if that is something other than free capacity
		OtherQueues              []string          `json:",omitempty"` // what they hold of what it waits for, and whether its queue may take it
		Advice                   *Advice           `json:",omitempty"`
		SubmitTime               int64             // Unix nanoseconds
		PendingSince             int64             `json:",omitempty"` // Unix nanoseconds: when it was submitted or, if it has run, became pending last; absent when nothing waits
		Saving                   *Saving           `json:",omitempty"` // absent: no work, neither in its way nor its own, waits for a turn to save its state
		Suspended                *Suspended        `json:",omitempty"` // absent: no part of it is suspended
		Topology                 map[string]string `json:",omitempty"` // by gang: how near its members are to each other, as "all 8 in leaf l2, 2 racks"
		Silent                   *Silent           `json:",omitempty"` // absent: no part of it is on a silent node that must end it
		Refused                  string            `json:",omitempty"` // why the namespace refuses launches of this periodic or parameterized job now
		Returned                 Returned
		GivenUp                  string // why some work does not return to the queue again; "" for none
		Deadline                 int64  // Unix nanoseconds; 0: none
		DeadlineMissed           bool
		EvalID                   string
		Groups                   []WhyGroup
		Summary                  *wire.JobSummary
		Updating                 []Updating     `json:",omitempty"` // the groups with a rolling update that has not ended
		Excluded                 []ExcludedNode `json:",omitempty"` // with ?nodes=true, at most 10,000
	}
	// Updating is a rolling update of a group that has not ended: Old allocations are of an older version, of which From is the
	// newest. Of the New ones, Settled have been healthy for min_healthy_time. Times are Unix nanoseconds.
	Updating struct {
		Group             string
		From, To          uint64 // versions
		Old, New, Settled int64
		AtOnce            int64        // max_parallel
		Since             int64        // when the last allocation was replaced, or the job submitted
		Next              int64        // when the job is decided about again; 0: when something changes
		Holds             []UpdateHold // those of New that are not settled, at most 5
		MoreHolds         int64        // beyond these
		Failed            string       `json:",omitempty"` // why the update of the job stopped: nothing more is replaced
	}
	// UpdateHold is an allocation of the new version that is not healthy for long enough yet: "starting", "unhealthy" (its checks do
	// not pass), "settling", "restarting" (a task has failed and waits for its restart) or "failed". Times are Unix nanoseconds.
	UpdateHold struct {
		AllocID, Name, NodeName string
		Why                     string
		Since                   int64
		Until                   int64 // when it counts as healthy, or is started again; 0: not known
		Restarts                int64 `json:",omitempty"` // of its tasks, in place
		ExitCode                int64 `json:",omitempty"` // the newest of its tasks that is not 0
	}
	// ExcludedNode is a node that cannot take an allocation of a group now, and why.
	ExcludedNode struct {
		Group, NodeID, NodeName string
		Why                     Refusal
	}
	// Plan answers PUT /v1/job/:id/plan: Nomad's answer, and what `why` would say about the job after its submission.
	Plan struct {
		wire.JobPlanResponse
		Why  *Why      `json:",omitempty"` // absent for a periodic or parameterized job
		Risk *PlanRisk `json:",omitempty"` // absent where nothing was measured, the run time is unknown, or the job has no GPUs
		// Where allocations would be placed, by group and index; beyond 256, MorePlaces counts them.
		Places     []PlannedPlace `json:",omitempty"`
		MorePlaces int64          `json:",omitempty"`
		Use        []PlannedUse   `json:",omitempty"` // of the limits that the job is charged to
	}
	// PlannedPlace is where an allocation would be placed.
	PlannedPlace struct {
		Group            string
		Index            int
		NodeID, NodeName string
		GPUs             []PlannedGPU `json:",omitempty"`
	}
	// PlannedGPU is a GPU that it would have.
	PlannedGPU struct {
		ID, Model string
		Index     int64 // among the node's devices of this model; -1: unknown
		ShareMiB  int64 `json:",omitempty"` // absent: all of it
	}
	// PlannedUse is what is held of a limit before the job starts, and after: with all allocations that it asks for, those that
	// would wait included.
	PlannedUse struct {
		Kind, Name           string // "quota" of the namespace, or "queue": the job's and those above it
		Before, After, Limit *wire.Amount
	}
	// PlanRisk is what interruptions are expected to cost a job, by the jobs that ended in the last 30 days. Times are
	// nanoseconds.
	PlanRisk struct {
		AllocTime int64 // that allocations ran, in sum
		Lost      int64 // of these allocations: lost with their node
		JobTime   int64 // that jobs of its queue, of at most its priority, ran
		Preempted int64 // preemptions of these jobs
		Groups    []GroupRisk
	}
	// GroupRisk is what interruptions are expected to cost a group before it ends.
	GroupRisk struct {
		Group                   string
		ExpectedRun             int64   // without interruptions
		NodeLosses, Preemptions float64 // expected
		LostGPUSeconds          int64   // expected
		CheckpointInterval      int64   // as the job says; 0: it does not
		BestInterval            int64   // the interval with the least loss; 0: there is none
		WorstNode               *WorstNode
	}
	// WorstNode is the node that is expected to be lost first, of those on which a group would run.
	WorstNode struct {
		NodeID, NodeName string
		wire.NodeReliability
	}
	// Saving counts allocations that must end and save their state first: those that save now, and those that wait for
	// their turn, with the limit that delays most of them.
	Saving struct {
		Now, Waiting int64
		Where        string
		Limit        int64
	}
	// Silent counts the allocations that are not replaced yet because their nodes, which fell silent, may still run their
	// tasks: each node ends them after stop_on_client_after.
	Silent struct {
		Allocs            int64
		Nodes             []string // at most 10
		Until             int64    // when the first of them is replaced, in Unix nanoseconds
		StopOnClientAfter int64    // nanoseconds
	}
	// Suspended counts the allocations of a job that must be frozen and those that are. All means that the whole job is
	// suspended: nothing more of it is placed.
	Suspended struct {
		Allocs, Frozen int64
		All            bool
		Since          int64  // Unix nanoseconds
		By             string // the user of the last suspension
		Reason         string
	}
	// Returned counts how often work has returned to the queue, by reason; a gang that returns as one counts once.
	Returned struct {
		Preempt, Limit, NodeLost, GPUError, Failure, ByHand int64
	}
	// OrderTerm is one part of a place in the queue: the share of a queue or submitter, from the root down, then the
	// values that the queue's own order compares. Names that end in _seconds state their unit.
	OrderTerm struct {
		Name  string
		Value float64
	}
	// Ask is an amount of what queues share out.
	Ask struct {
		GPUs                         float64
		GPUMemoryMiB, CPU, MemoryMiB int64
	}
	// Advice lists changes that would start a waiting job: each alone would, the smallest first. Never says why not
	// even an empty cluster could hold the job.
	Advice struct {
		Starts  bool   `json:",omitempty"`
		Never   string `json:",omitempty"`
		Changes []AdviceChange
		Holders *Holders `json:",omitempty"` // absent: no work would make room if it were preemptible
	}
	// Holders is work that holds the room of a job only because it is not preemptible.
	Holders struct {
		Allocations, Jobs int64
		Names             []string // of jobs, at most 5, those that the caller may see
		Until             int64    `json:",omitempty"` // when the last of it is expected to end, nanoseconds since 1970; absent: unknown
	}
	// AdviceChange is one such change. Job is the changed job, absent if something else changes.
	AdviceChange struct {
		Kind, Text string
		Job        *wire.Job `json:",omitempty"`
	}
	// WhyGroup is the report of one group.
	WhyGroup struct {
		Name                                                    string
		Reason                                                  structs.ReasonCode
		Wanted, Placed, InPool, Considered, Filtered, Exhausted int64
		Available                                               map[string]int64
		Refusals                                                []Refusal
		Scores                                                  []Score
	}
	// Refusal says how many nodes one reason refused, and which event would cure it.
	Refusal = wire.Refusal
	// Score is the score of a node. Values are in [0,1] before their weights.
	Score struct {
		NodeID, NodeName string
		Score            float64
		Terms            map[string]float64
	}
	// Predictions reports the accuracy of predicted run times, for the batch work that ended last: GET
	// /v1/operator/scheduler/predictions.
	Predictions struct {
		Ended, Predicted    int64   // pieces of work, and those with a predicted run time
		PredictedShare      float64 // of what ended
		UnderestimatedShare float64 // of what was predicted: the work ran longer
		MedianFactor        float64 // error factor of the median prediction, in either direction; 1 is perfect, 0 none
		MeanAbsolute        int64   // mean error of predictions in nanoseconds
		RelativeError       float64 // sum of absolute errors over the sum of run times
	}
	// QueueItem is a line of GET /v1/queue.
	QueueItem struct {
		Position             int64
		JobID, Namespace     string
		User                 string
		Queue, NodePool      string
		Priority             int
		Waiting              int64
		Reason               string
		SubmitTime           int64  // Unix nanoseconds
		GPUs, CPU, MemoryMiB int64  // of all allocations that wait
		GPUMemoryMiB         int64  `json:",omitempty"` // of parts of GPUs: all that wait
		Model                string // of the GPUs, "" for any
		StartEstimate        int64  // Unix nanoseconds; 0: not known
		Starts               string `json:",omitempty"` // the event that it starts after, if that is something other than free capacity
		Short                int64  // amount missing, in the unit of the reason; 0: not an amount
		Held                 bool   `json:",omitempty"` // on hold until it is released
	}
)

func whyOf(r *methods.JobWhyResponse) *Why {
	w := &Why{
		JobID: r.Job.ID, Namespace: r.Job.Namespace, Status: string(r.Job.Status), Priority: r.Job.Priority, Queue: string(r.Job.Queue),
		Position: r.Position, QueueLength: r.QueueLen, SubmitTime: int64(r.Job.SubmitTime), Summary: summaryOf(r.Summary),
		Ahead: []string{}, Groups: []WhyGroup{},
	}
	w.User, w.Asks, w.AheadAsks, w.Advice = r.Job.Submitter.Name, askOf(r.Asks), []Ask{}, adviceOf(r.Advice)
	for g, text := range r.Topology {
		if w.Topology == nil {
			w.Topology = make(map[string]string, len(r.Topology))
		}
		w.Topology[string(g)] = text
	}
	w.Deadline = int64(r.Job.Deadline)
	w.Refused, w.OtherQueues = r.Refused, r.Others
	if r.Saving != nil {
		w.Saving = &Saving{Now: r.Saving.Now, Waiting: r.Saving.Waiting, Where: r.Saving.Where, Limit: r.Saving.Limit}
	}
	if s := r.Silent; s != nil {
		w.Silent = &Silent{Allocs: s.Allocs, Nodes: s.Nodes, Until: int64(s.Until), StopOnClientAfter: int64(s.Limit)}
	}
	if s := r.Suspended; s != nil {
		w.Suspended = &Suspended{Allocs: s.Allocs, Frozen: s.Frozen, All: s.All, Since: int64(s.Since), By: s.By, Reason: s.Reason}
	}
	if r.Workload == nil && !r.Job.Stop {
		w.GivenUp = r.Job.StatusDesc
	}
	w.Order = []OrderTerm{}
	for _, t := range r.Terms {
		w.Order = append(w.Order, OrderTerm{Name: t.Name, Value: float64(t.Micro) / 1e6})
	}
	for _, a := range r.AheadAsk {
		w.AheadAsks = append(w.AheadAsks, askOf(a))
	}
	if r.Workload != nil {
		w.StartEstimate, w.Starts = startOf(r.StartEst, r.Workload, r.Starts), r.Starts
		w.Returned, w.GivenUp, w.DeadlineMissed = Returned(r.Workload.Returned), r.Workload.Spent, r.Workload.Missed != 0
		w.Reason, w.Waiting, w.SubmitTime, w.PendingSince = r.Workload.Reason, r.Workload.Waiting, int64(r.Workload.SubmitTime), int64(r.Since)
	}
	if r.Eval != nil {
		w.EvalID = r.Eval.ID.String()
	}
	for _, k := range r.Ahead {
		w.Ahead = append(w.Ahead, k.String())
	}
	for _, g := range r.Reports {
		w.Groups = append(w.Groups, whyGroup(g, r.NodeNames))
	}
	for _, u := range r.Updating {
		up := Updating{Group: string(u.Group), From: u.From, To: u.To, Old: u.Old, New: u.New, Settled: u.Settled, AtOnce: u.AtOnce, Since: int64(u.Since), Next: int64(u.Next),
			Holds: []UpdateHold{}, MoreHolds: u.MoreHolds, Failed: u.Failed}
		for _, h := range u.Holds {
			up.Holds = append(up.Holds, UpdateHold{AllocID: h.ID.String(), Name: h.Name, NodeName: h.NodeName, Why: h.Why, Since: int64(h.Since), Until: int64(h.Until), Restarts: h.Restarts, ExitCode: h.ExitCode})
		}
		w.Updating = append(w.Updating, up)
	}
	for _, x := range r.Excluded {
		w.Excluded = append(w.Excluded, ExcludedNode{Group: string(x.Group), NodeID: x.NodeID.String(), NodeName: x.NodeName, Why: wire.RefusalFromStructs(x.Why)})
	}
	return w
}

// startOf returns when a workload is expected to start: the newest estimate, else that of the pass.
func startOf(newest structs.LogTime, w *structs.Workload, starts string) int64 {
	if newest == 0 && starts == "" {
		newest = w.StartEst
	}
	return int64(newest)
}

func askOf(a structs.Amount) Ask {
	return Ask{GPUs: float64(a.GPUMilli) / 1000, GPUMemoryMiB: a.GPUMemoryMiB, CPU: a.CPU, MemoryMiB: a.MemoryMiB}
}

func adviceOf(a *methods.Advice) *Advice {
	if a == nil {
		return nil
	}
	out := &Advice{Starts: a.Starts, Never: a.Never, Changes: []AdviceChange{}}
	for _, c := range a.Changes {
		ch := AdviceChange{Kind: c.Kind, Text: c.Text}
		if c.Job != nil {
			ch.Job = wire.JobFromStructs(c.Job)
		}
		out.Changes = append(out.Changes, ch)
	}
	if h := a.Holders; h != nil {
		out.Holders = &Holders{Allocations: h.Allocs, Jobs: h.Jobs, Names: []string{}, Until: int64(h.Until)}
		for _, k := range h.Names {
			out.Holders.Names = append(out.Holders.Names, k.String())
		}
	}
	return out
}

func whyGroup(g *structs.GroupReport, names map[string]string) WhyGroup {
	out := WhyGroup{
		Name: string(g.Group), Reason: g.Code, Wanted: g.Wanted, Placed: g.Placed, InPool: g.InPool, Considered: g.Considered,
		Filtered: g.Filtered, Exhausted: g.Exhausted, Available: g.Available, Refusals: []Refusal{}, Scores: []Score{},
	}
	for _, f := range g.Refusals {
		out.Refusals = append(out.Refusals, wire.RefusalFromStructs(f))
	}
	for _, s := range g.Scores {
		sc := Score{NodeID: s.NodeID.String(), NodeName: names[s.NodeID.String()], Score: float64(s.Micro) / 1e6, Terms: map[string]float64{}}
		for _, t := range s.Terms {
			sc.Terms[t.Name] = float64(t.Micro) / 1e6
		}
		out.Scores = append(out.Scores, sc)
	}
	return out
}

func queueOf(items []methods.QueueItem) []QueueItem {
	out := []QueueItem{}
	for _, it := range items {
		q := QueueItem{
			Position: it.Position, JobID: it.Workload.JobID, Namespace: it.Workload.Namespace, Queue: string(it.Workload.Queue),
			NodePool: string(it.Workload.Domain), Priority: it.Workload.Priority, Waiting: it.Workload.Waiting,
			Reason: string(it.Workload.Reason), SubmitTime: int64(it.Workload.SubmitTime),
			StartEstimate: startOf(it.StartEst, it.Workload, it.Starts), Starts: it.Starts, Short: it.Workload.Amount, Held: it.Workload.Held,
		}
		if it.Job != nil {
			q.User = it.Job.Submitter.Name
			for _, g := range it.Job.Groups {
				v := structs.GroupVector(g)
				n := it.Workload.Waiting
				if len(it.Job.Groups) > 1 {
					n = int64(g.Count)
				}
				q.CPU += v.CPU * n
				q.MemoryMiB += v.MemoryMiB * n
				q.GPUMemoryMiB += structs.GroupAmount(g).GPUMemoryMiB * n
				for _, t := range g.Tasks {
					for _, d := range t.Resources.Devices {
						q.GPUs += d.Count * n
					}
					if rs := t.Resources.GPU; len(rs) > 0 {
						q.GPUs += max(rs[0].Count, 1) * n
						q.Model = rs[0].Model
					}
				}
			}
		}
		out = append(out, q)
	}
	return out
}
