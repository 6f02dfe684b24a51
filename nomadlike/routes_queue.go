package nomadlike

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// Queue objects and reservations are Muster extensions; quotas have Nomad's paths and shapes.
func queueRoutes() []route {
	return []route{
		{methods: "GET", pattern: "/v1/queues", rpc: methods.QueueTree.Name, handle: queueTree},
		{methods: "PUT,POST", pattern: "/v1/queues", rpc: methods.QueueUpsert.Name, handle: queueUpsert},
		{methods: "GET", pattern: "/v1/queue/{path}", rpc: methods.QueueGet.Name, handle: queueGet},
		{methods: "PUT,POST", pattern: "/v1/queue/{path}", rpc: methods.QueueUpsert.Name, handle: queueUpsert},
		{methods: "DELETE", pattern: "/v1/queue/{path}", rpc: methods.QueueDelete.Name, handle: queueDelete},
		{methods: "GET", pattern: "/v1/quotas", rpc: methods.QuotaList.Name, handle: quotaList},
		{methods: "GET", pattern: "/v1/quota-usages", rpc: methods.QuotaList.Name, handle: quotaUsages},
		{methods: "PUT,POST", pattern: "/v1/quota", rpc: methods.QuotaUpsert.Name, handle: quotaUpsert},
		{methods: "GET", pattern: "/v1/quota/{name}", rpc: methods.QuotaGet.Name, handle: quotaGet},
		{methods: "PUT,POST", pattern: "/v1/quota/{name}", rpc: methods.QuotaUpsert.Name, handle: quotaUpsert},
		{methods: "DELETE", pattern: "/v1/quota/{name}", rpc: methods.QuotaDelete.Name, handle: quotaDelete},
		{methods: "GET", pattern: "/v1/quota/usage/{name}", rpc: methods.QuotaGet.Name, handle: quotaUsage},
		{methods: "GET", pattern: "/v1/reservations", rpc: methods.ReservationList.Name, handle: reservationList},
		{methods: "PUT,POST", pattern: "/v1/reservations", rpc: methods.ReservationUpsert.Name, handle: reservationUpsert},
		{methods: "GET", pattern: "/v1/reservation/{name}", rpc: methods.ReservationGet.Name, handle: reservationGet},
		{methods: "PUT,POST", pattern: "/v1/reservation/{name}", rpc: methods.ReservationUpsert.Name, handle: reservationUpsert},
		{methods: "DELETE", pattern: "/v1/reservation/{name}", rpc: methods.ReservationDelete.Name, handle: reservationDelete},
	}
}

type (
	// QueueState is what GET /v1/queues lists and GET /v1/queue/:path shows.
	QueueState struct {
		wire.Queue
		Exists      bool       // false: there is no queue object, but jobs name it or it is built in
		Effective   wire.Queue // with inherited settings and defaults
		Held        *wire.Amount
		Mean        *wire.Amount // decayed usage as an amount
		Share       float64      // weighted share of what is held, relative to the whole cluster: dominant, or by billing units
		Part        float64      // of the cluster that it holds, not divided by its weight
		Target      float64      // part of the cluster that it is due by weight, against the queues and submitters that take turns with it and hold or want something; 0: it does neither
		Jain        float64      // Jain's fairness index of the parts by weight of those who take turns in it: 1 is even; 0: nothing is held
		Oldest      int64        // wait of the job that waits longest, in nanoseconds
		Preemptions int64        // jobs preempted on behalf of its jobs
		Lost        QueueLoss
		Jobs        int64 // number of jobs that hold something
		Allocs      int64
		Waiting     int64
		Submitted   int64
		GPUHours    float64     `json:",omitempty"` // used of its budget in the current period
		PeriodEnd   *time.Time  `json:",omitempty"` // when a new period of its budget begins
		Users       []QueueUser `json:",omitempty"`
	}
	// QueueLoss is the GPU time, in GPU-seconds, that batch jobs of a queue lost by a cause since the cluster began: what they
	// did since their newest checkpoints, or since they started.
	QueueLoss struct {
		Preempt int64 // they were preempted
		Node    int64 // their node, or that of another member of their gang, was lost
		Drain   int64 // they had to leave their node
	}
	// QueueUser is one submitter's usage of a queue.
	QueueUser struct {
		Name            string
		Held, Mean      *wire.Amount
		Weight          int64 // relative to the other submitters
		Share           float64
		Part, Target    float64 // as those of the queue
		Waiting, Oldest int64
		Jobs, Allocs    int64
		GPUHours        float64 `json:",omitempty"`
		Preempted       int64   // times that a job was preempted
		Lost            QueueLoss
	}
	// QueueWritten is the answer to a write of queues, and of a quota if there are warnings.
	QueueWritten struct{ Warnings []string }
)

func queueState(q *methods.QueueState) QueueState {
	out := QueueState{
		Exists: q.Queue != nil, Effective: *wire.QueueFromStructs(q.Effective), Held: wire.HeldFromStructs(q.Usage.Held, q.Usage.Models), Mean: wire.AmountFromStructs(q.Mean),
		Share: float64(q.Share) / 1e6, Jobs: q.Usage.Jobs, Allocs: q.Usage.Allocs, Waiting: q.Waiting, Submitted: q.Submitted,
		Part: float64(q.Part) / 1e6, Target: float64(q.Target) / 1e6, Jain: float64(q.Jain) / 1e6, Oldest: int64(q.Oldest), Preemptions: q.Preemptions, Lost: QueueLoss(q.Lost),
	}
	if q.PeriodEnd != 0 {
		end := q.PeriodEnd.Time().UTC()
		out.GPUHours, out.PeriodEnd = gpuHours(q.PeriodUse), &end
	}
	out.Queue.Path = string(q.Effective.Path)
	if q.Queue != nil {
		out.Queue = *wire.QueueFromStructs(q.Queue)
	}
	for i := range q.Users {
		u := &q.Users[i]
		out.Users = append(out.Users, QueueUser{Name: u.Usage.User, Held: wire.HeldFromStructs(u.Usage.Held, u.Usage.Models), Mean: wire.AmountFromStructs(u.Mean),
			Weight: u.Weight, Share: float64(u.Share) / 1e6, Part: float64(u.Part) / 1e6, Target: float64(u.Target) / 1e6, Waiting: u.Waiting, Oldest: int64(u.Oldest), Jobs: u.Usage.Jobs, Allocs: u.Usage.Allocs, GPUHours: gpuHours(u.PeriodUse),
			Preempted: u.Preempted, Lost: QueueLoss(u.Lost)})
	}
	return out
}

func gpuHours(milliSeconds int64) float64 {
	return float64(milliSeconds) / float64(structs.OfGPUHours(1))
}

func queueTree(c *call) (any, error) {
	resp, err := invoke(c, methods.QueueTree, &methods.ListRequest{})
	if err != nil {
		return nil, err
	}
	out := make([]QueueState, len(resp.Queues))
	for i := range resp.Queues {
		out[i] = queueState(&resp.Queues[i])
	}
	return out, nil
}

func queueGet(c *call) (any, error) {
	resp, err := invoke(c, methods.QueueGet, &methods.NameRequest{Name: c.params["path"]})
	if err != nil {
		return nil, err
	}
	if resp.Queue == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "queue %q not found", clip(c.params["path"], 100))
	}
	return queueState(resp.Queue), nil
}

// queueUpsert takes one queue, or a list in which parents come before children.
func queueUpsert(c *call) (any, error) {
	raw, err := c.rawBody(BodyMax)
	if err != nil {
		return nil, err
	}
	var list []*wire.Queue
	if t := bytes.TrimSpace(raw); len(t) > 0 && t[0] == '[' {
		var items []json.RawMessage
		if err := json.Unmarshal(raw, &items); err != nil {
			return nil, structs.Errorf(structs.CodeInvalid, "the body is not a list of queues: %v", err)
		}
		for _, b := range items {
			q, err := strictQueue(b)
			if err != nil {
				return nil, err
			}
			list = append(list, q)
		}
	} else {
		q, err := strictQueue(raw)
		if err != nil {
			return nil, err
		}
		list = append(list, q)
	}
	req := &methods.QueueUpsertRequest{}
	for _, w := range list {
		q, err := w.ToStructs()
		if err != nil {
			return nil, err
		}
		if path := structs.QueuePath(c.params["path"]); path != "" {
			if q.Path == "" {
				q.Path = path
			}
			if q.Path != path || len(list) > 1 {
				return nil, structs.Errorf(structs.CodeInvalid, "the path names queue %q, the body %q", clip(string(path), 100), clip(string(q.Path), 100))
			}
		}
		req.Queues = append(req.Queues, q)
	}
	resp, err := invoke(c, methods.QueueUpsert, req)
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return QueueWritten{Warnings: resp.Warnings}, nil
}

// strictQueue refuses fields that a queue does not have: a misspelled limit would limit nothing.
func strictQueue(b []byte) (*wire.Queue, error) {
	q := &wire.Queue{}
	unknown, err := wire.Decode(b, q)
	if err == nil && len(unknown) > 0 {
		err = structs.Errorf(structs.CodeInvalid, "queue: %s", clip(unknown[0], 100))
	}
	return q, err
}

func queueDelete(c *call) (any, error) {
	return c.written(invoke(c, methods.QueueDelete, &methods.NameRequest{Name: c.params["path"]}))
}

func quotaList(c *call) (any, error) {
	return invokeList(c, methods.QuotaList, &methods.ListRequest{}, func(resp *methods.QuotaListResponse) []*wire.QuotaSpec {
		return each(resp.Quotas, func(q methods.QuotaState) *wire.QuotaSpec { return wire.QuotaFromStructs(q.Quota) })
	})
}

func quotaUsages(c *call) (any, error) {
	return invokeList(c, methods.QuotaList, &methods.ListRequest{}, func(resp *methods.QuotaListResponse) []*wire.QuotaUsage {
		return each(resp.Quotas, func(q methods.QuotaState) *wire.QuotaUsage { return c.quotaUsageOf(&q) })
	})
}

func (c *call) quotaUsageOf(q *methods.QuotaState) *wire.QuotaUsage {
	region := structs.RegionDefault
	if len(q.Quota.Limits) > 0 {
		region = q.Quota.Limits[0].Region
	}
	return wire.QuotaUsageOf(q.Quota, region, q.Held, q.Models, q.Namespaces)
}

func quotaGet(c *call) (any, error) {
	resp, err := invoke(c, methods.QuotaGet, &methods.NameRequest{Name: c.params["name"]})
	if err != nil {
		return nil, err
	}
	if resp.Quota == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "quota specification not found")
	}
	return wire.QuotaFromStructs(resp.Quota.Quota), nil
}

func quotaUsage(c *call) (any, error) {
	resp, err := invoke(c, methods.QuotaGet, &methods.NameRequest{Name: c.params["name"]})
	if err != nil {
		return nil, err
	}
	if resp.Quota == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "quota specification not found")
	}
	return c.quotaUsageOf(resp.Quota), nil
}

func quotaUpsert(c *call) (any, error) {
	var body wire.QuotaSpec
	if err := c.body(&body); err != nil {
		return nil, err
	}
	if err := c.named(&body.Name, "Quota"); err != nil {
		return nil, err
	}
	q, err := body.ToStructs()
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.QuotaUpsert, &methods.QuotaUpsertRequest{Quota: q})
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	if len(resp.Warnings) == 0 {
		return nil, nil // as Nomad
	}
	return QueueWritten{Warnings: resp.Warnings}, nil
}

func quotaDelete(c *call) (any, error) {
	return c.written(invoke(c, methods.QuotaDelete, &methods.NameRequest{Name: c.params["name"]}))
}

func reservationList(c *call) (any, error) {
	resp, err := invoke(c, methods.ReservationList, &methods.ListRequest{})
	if err != nil {
		return nil, err
	}
	return each(resp.Reservations, wire.ReservationFromStructs), nil
}

func reservationGet(c *call) (any, error) {
	resp, err := invoke(c, methods.ReservationGet, &methods.NameRequest{Name: c.params["name"]})
	if err != nil {
		return nil, err
	}
	if resp.Reservation == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "reservation %q not found", clip(c.params["name"], 200))
	}
	return wire.ReservationFromStructs(resp.Reservation), nil
}

func reservationUpsert(c *call) (any, error) {
	raw, err := c.rawBody(BodyMax)
	if err != nil {
		return nil, err
	}
	var body wire.Reservation
	unknown, err := wire.Decode(raw, &body)
	if err != nil {
		return nil, err
	}
	if len(unknown) > 0 {
		return nil, structs.Errorf(structs.CodeInvalid, "a reservation has no %s", clip(unknown[0], 100))
	}
	if name := c.params["name"]; name != "" && body.ID == "" {
		body.ID = name
	}
	r, err := body.ToStructs(time.Now())
	if err != nil {
		return nil, err
	}
	if name := c.params["name"]; name != "" && r.ID != name {
		return nil, structs.Errorf(structs.CodeInvalid, "the path names reservation %q, the body %q", clip(name, 100), clip(r.ID, 100))
	}
	return c.written(invoke(c, methods.ReservationUpsert, &methods.ReserveRequest{Reservation: r}))
}

func reservationDelete(c *call) (any, error) {
	return c.written(invoke(c, methods.ReservationDelete, &methods.NameRequest{Name: c.params["name"]}))
}
