package nomadlike

import (
	"strconv"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

type (
	// AcctRecord is a line of GET /v1/acct: a job that ended. Times are Unix nanoseconds, durations nanoseconds.
	AcctRecord struct {
		ID, Namespace, JobID, Name string
		User, Queue, NodePool      string
		Priority                   int
		Type                       string
		SubmitTime                 int64
		StartTime                  int64 // of its first allocation; 0: it never started
		EndTime                    int64
		Allocs                     int64 // placed during its life
		GPUs                       float64
		GPUMemoryMiB               int64
		CPU                        int64 // MHz
		MemoryMiB                  int64
		GPUSeconds                 int64        // held
		CPUSeconds                 int64        // GHz-seconds held
		GPUUse                     *wire.GPUUse `json:",omitempty"` // measured; absent where nothing was
		Longest                    int64        // longest run of one allocation
		Limit, Expected, Predicted int64        // 0: none
		Preemptions, Requeues      int64
		Returned                   Returned // Requeues by reason
		Deadline                   int64    // Unix nanoseconds; 0: none
		DeadlineMissed             bool
		Exit                       string
		ExitCode                   int64
	}
	// Decision is a line of GET /v1/decisions: one accepted part of a plan.
	Decision struct {
		Seq, Index       uint64
		Time             int64 // Unix nanoseconds
		Namespace, JobID string
		EvalID           string
		Kind             string
		Places, Stops    int64
		Nodes            int64
		NodeID           string // the first of them
		Queue            string
		Wait             int64   // nanoseconds since the submission
		Score            float64 // of the first placement, 0 when unknown
		// In a cluster whose upgrade is not finished the following may be empty.
		Policy  string           // ORDER/BACKFILL/PREEMPT/PLACEMENT in force for the job
		Reason  string           // why it was decided on: job-register, node-update, ...; of a suspension what its user gave
		Actor   string           // who asked for it, else who submitted the job
		Victims []DecisionVictim // the other jobs whose work was preempted
	}
	// DecisionVictim is a job whose work was preempted.
	DecisionVictim struct {
		Namespace, JobID string
		Allocs           int64
		AllocID          string // one of them
		Why              string
		Saving           int64 // of Allocs, those that may save their state before they end
		LostGPUSeconds   int64 // that they worked since their newest checkpoints, or since they started
	}
)

func acctRoutes() []route {
	return []route{
		{methods: "GET", pattern: "/v1/acct", rpc: methods.AcctList.Name, handle: acctList},
		{methods: "GET", pattern: "/v1/decisions", rpc: methods.DecisionList.Name, handle: decisionList},
	}
}

// when reads an optional time: RFC 3339, Unix seconds, or a duration like 24h before now.
func (c *call) when(name string) (structs.LogTime, error) {
	v := c.r.URL.Query().Get(name)
	if v == "" {
		return 0, nil
	}
	if t, err := time.Parse(time.RFC3339, v); err == nil {
		return structs.LogTimeOf(t), nil
	}
	if n, err := strconv.ParseInt(v, 10, 64); err == nil && n > 0 && n < 1<<33 {
		return structs.LogTimeOf(time.Unix(n, 0)), nil
	}
	if d, err := time.ParseDuration(v); err == nil && d >= 0 {
		return structs.LogTimeOf(time.Now().Add(-d)), nil
	}
	return 0, structs.Errorf(structs.CodeInvalid, "%s=%q is no time: want 2026-01-31T12:00:00Z, Unix seconds, or a span before now such as 24h", name, clip(v, 40))
}

func acctList(c *call) (any, error) {
	q := c.r.URL.Query()
	req := &methods.AcctRequest{User: q.Get("user"), Queue: structs.QueuePath(q.Get("queue"))}
	var err error
	if req.Since, err = c.when("since"); err != nil {
		return nil, err
	}
	if req.Until, err = c.when("until"); err != nil {
		return nil, err
	}
	return invokeList(c, methods.AcctList, req, acctRecords)
}

func acctRecords(resp *methods.AcctResponse) []AcctRecord {
	out := []AcctRecord{}
	for _, r := range resp.Records {
		out = append(out, AcctRecord{
			ID: r.ID, Namespace: r.Namespace, JobID: r.JobID, Name: r.Name, User: r.User, Queue: string(r.Queue), NodePool: string(r.Domain),
			Priority: r.Priority, Type: string(r.Type), SubmitTime: int64(r.Submit), StartTime: int64(r.Start), EndTime: int64(r.End), Allocs: r.Allocs,
			GPUs: float64(r.Asked.GPUMilli) / 1000, GPUMemoryMiB: r.Asked.GPUMemoryMiB, CPU: r.Asked.CPU, MemoryMiB: r.Asked.MemoryMiB,
			GPUUse: wire.GPUUseOf(r.GPUUse), GPUSeconds: r.GPUSeconds, CPUSeconds: r.CPUSeconds, Longest: int64(r.Longest), Limit: int64(r.Limit), Expected: int64(r.Expected), Predicted: int64(r.Predicted),
			Preemptions: r.Preemptions, Requeues: r.Requeues, Returned: Returned(r.Returned), Deadline: int64(r.Deadline), DeadlineMissed: r.Missed, Exit: r.Exit, ExitCode: r.ExitCode,
		})
	}
	return out
}

func decisionList(c *call) (any, error) {
	q := c.r.URL.Query()
	req := &methods.DecisionsRequest{JobID: q.Get("job"), Queue: structs.QueuePath(q.Get("queue")), Kind: q.Get("kind")}
	var err error
	if req.Since, err = c.when("since"); err != nil {
		return nil, err
	}
	if req.After, _, err = c.uint("after"); err != nil {
		return nil, err
	}
	last, _, err := c.uint("last")
	if err != nil {
		return nil, err
	}
	req.Last = int(min(last, 1<<20))
	return invokeList(c, methods.DecisionList, req, decisionRows)
}

func decisionRows(resp *methods.DecisionsResponse) []Decision {
	out := []Decision{}
	for i := range resp.Rows {
		out = append(out, DecisionOf(&resp.Rows[i]))
	}
	return out
}

// DecisionOf returns a row of the decision log as the API has it.
func DecisionOf(r *structs.DecisionRow) Decision {
	d := Decision{
		Seq: r.Seq, Index: uint64(r.Index), Time: int64(r.Time), Namespace: r.Namespace, JobID: r.JobID, EvalID: r.EvalID.String(), Kind: r.Kind,
		Places: r.Places, Stops: r.Stops, Nodes: r.Nodes, Queue: string(r.Queue), Wait: int64(r.Wait), Score: float64(r.Score) / 1e6,
		Policy: r.Policy, Reason: string(r.Reason), Actor: r.Actor, Victims: []DecisionVictim{},
	}
	if !r.Node.IsZero() {
		d.NodeID = r.Node.String()
	}
	for _, v := range r.Victims {
		d.Victims = append(d.Victims, DecisionVictim{Namespace: v.Namespace, JobID: v.JobID, Allocs: v.Allocs, AllocID: v.First.String(), Why: v.Why, Saving: v.Saving, LostGPUSeconds: v.Lost})
	}
	return d
}
