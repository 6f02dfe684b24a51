package wire

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Amount is the unit of queues. A nil field means no limit, or nothing.
type Amount struct {
	GPUs        *float64 `json:",omitempty"` // 0.5 is half a GPU
	GPUMemoryMB *int64   `json:",omitempty"`
	CPU         *int64   `json:",omitempty"` // MHz
	MemoryMB    *int64   `json:",omitempty"`
	Billed      *float64 `json:",omitempty"` // billing units, of what is held or used; never a limit

	Models map[string]float64 `json:",omitempty"` // GPUs of a model: of a limit by words of the model, of what is held by its name
}

// AmountFromStructs converts an amount; components that are structs.AmountNoLimit are left out.
func AmountFromStructs(a structs.Amount) *Amount {
	out := &Amount{}
	if a.GPUMilli != structs.AmountNoLimit {
		out.GPUs = ptr(float64(a.GPUMilli) / 1000)
	}
	for _, c := range []struct {
		v  int64
		to **int64
	}{{a.GPUMemoryMiB, &out.GPUMemoryMB}, {a.CPU, &out.CPU}, {a.MemoryMiB, &out.MemoryMB}} {
		if c.v != structs.AmountNoLimit {
			*c.to = ptr(c.v)
		}
	}
	if a.Billed != 0 {
		out.Billed = ptr(float64(a.Billed) / 1000)
	}
	return out
}

// withModels adds GPUs by model to an amount; a nil one has no other part.
func (a *Amount) withModels(models []structs.ModelAmount) *Amount {
	if len(models) == 0 {
		return a
	}
	if a == nil {
		a = &Amount{}
	}
	a.Models = map[string]float64{}
	for _, m := range models {
		a.Models[m.Model] = float64(m.Milli) / 1000
	}
	return a
}

// HeldFromStructs converts what is held, with the GPUs by model.
func HeldFromStructs(a structs.Amount, models []structs.ModelAmount) *Amount {
	return AmountFromStructs(a).withModels(models)
}

// milliGPUs converts a number of GPUs to thousandths.
func milliGPUs(n float64) (int64, error) {
	m := math.Round(n * 1000)
	if m < 0 || m > 1e12 || math.IsNaN(m) {
		return 0, structs.Errorf(structs.CodeInvalid, "%v GPUs: give 0 to 1000000000", n)
	}
	return int64(m), nil
}

// modelLimits converts limits by model, sorted by model.
func (a *Amount) modelLimits() (out []structs.ModelAmount, err error) {
	for _, m := range slices.Sorted(maps.Keys(a.Models)) {
		milli, err := milliGPUs(a.Models[m])
		if err != nil {
			return nil, structs.Errorf(structs.CodeInvalid, "models: %q: %s", m, err)
		}
		out = append(out, structs.ModelAmount{Model: m, Milli: milli})
	}
	return out, nil
}

const queueAmountMax = 1 << 50 // of a part of an amount that is not GPUs

// ToStructs converts an amount. A nil field becomes missing.
func (a *Amount) ToStructs(missing int64) (structs.Amount, error) {
	out := structs.Amount{GPUMilli: missing, GPUMemoryMiB: missing, CPU: missing, MemoryMiB: missing}
	if a.Billed != nil {
		return out, structs.Errorf(structs.CodeInvalid, "billed: billing units are counted, they cannot be limited or guaranteed")
	}
	if len(a.Models) > 0 {
		return out, structs.Errorf(structs.CodeInvalid, "models: GPUs of a model can be limited by limit, user_limit and soft_limit; they cannot be guaranteed, borrowed, lent or reserved")
	}
	if a.GPUs != nil {
		m, err := milliGPUs(*a.GPUs)
		if err != nil {
			return out, err
		}
		out.GPUMilli = m
	}
	for _, c := range []struct {
		name string
		v    *int64
		to   *int64
	}{{"GPUMemoryMB", a.GPUMemoryMB, &out.GPUMemoryMiB}, {"CPU", a.CPU, &out.CPU}, {"MemoryMB", a.MemoryMB, &out.MemoryMiB}} {
		if c.v == nil {
			continue
		}
		if *c.v < 0 || *c.v > queueAmountMax {
			return out, structs.Errorf(structs.CodeInvalid, "%s of %d: give 0 to %d", c.name, *c.v, int64(queueAmountMax))
		}
		*c.to = *c.v
	}
	return out, nil
}

// Billing holds the weights that turn what a queue's work holds into billing units.
type Billing struct {
	GPU         *float64           `json:",omitempty"` // of a whole GPU of a model that is not in Models; 1 by default
	GPUMemoryGB float64            `json:",omitempty"`
	CPUGHz      float64            `json:",omitempty"`
	MemoryGB    float64            `json:",omitempty"`
	Models      map[string]float64 `json:",omitempty"` // of a whole GPU, by a word of its model
}

// billingFromStructs converts weights.
func billingFromStructs(b *structs.Billing) *Billing {
	if b == nil {
		return nil
	}
	out := &Billing{GPU: ptr(unmicro(b.GPU)), GPUMemoryGB: unmicro(b.GPUMemory), CPUGHz: unmicro(b.CPU), MemoryGB: unmicro(b.Memory)}
	for m, w := range b.Models {
		if out.Models == nil {
			out.Models = map[string]float64{}
		}
		out.Models[m] = unmicro(w)
	}
	return out
}

func unmicro(v int64) float64 { return float64(v) / 1e6 }

// micro returns a weight in millionths; an invalid weight becomes -1, which the check refuses.
func micro(w float64) int64 {
	if !(w >= 0 && w <= structs.BillingMax/1e6) {
		return -1
	}
	return int64(math.Round(w * 1e6))
}

// toStructs converts weights.
func (b *Billing) toStructs() *structs.Billing {
	if b == nil {
		return nil
	}
	out := &structs.Billing{GPU: 1_000_000, GPUMemory: micro(b.GPUMemoryGB), CPU: micro(b.CPUGHz), Memory: micro(b.MemoryGB)}
	if b.GPU != nil {
		out.GPU = micro(*b.GPU)
	}
	for m, w := range b.Models {
		if out.Models == nil {
			out.Models = map[string]int64{}
		}
		out.Models[m] = micro(w)
	}
	return out
}

// Queue is a node of the tree that shares the cluster out, in the form of PUT /v1/queues.
type Queue struct {
	Path                 string           // also read from Name
	Name                 string           `json:",omitempty"` // the label of an HCL block; Path wins
	Description          string           `json:",omitempty"`
	Weight               int64            `json:",omitempty"`
	UserWeights          map[string]int64 `json:",omitempty"`
	Billing              *Billing         `json:",omitempty"`
	Guarantee            *Amount
	Limit                *Amount
	Borrow               *Amount `json:",omitempty"`
	Lend                 *Amount `json:",omitempty"`
	UserLimit            *Amount `json:",omitempty"` // of each submitter
	SoftLimit            *Amount
	Order                OrderList         `json:",omitempty"`
	Preempt              string            `json:",omitempty"`
	Backfill             string            `json:",omitempty"`
	ReserveDepth         int64             `json:",omitempty"`
	Ends                 string            `json:",omitempty"`
	PriorityMax          int64             `json:",omitempty"`
	PriorityDefault      int64             `json:",omitempty"`
	UserPriorityMax      map[string]int64  `json:",omitempty"` // of the jobs of submitters, by name; PriorityMax for all others
	UserPriorityDefault  map[string]int64  `json:",omitempty"` // the same for PriorityDefault
	MaxWait              *TextDuration     `json:",omitempty"` // 0: work may wait for ever
	HalfLife             TextDuration      `json:",omitempty"`
	Aging                TextDuration      `json:",omitempty"`
	RunningMax           int64             `json:",omitempty"`
	SubmittedMax         int64             `json:",omitempty"`
	RunningUserMax       int64             `json:",omitempty"`
	SubmittedUserMax     int64             `json:",omitempty"`
	GPUMinutesMax        int64             `json:",omitempty"`
	GPUMinutesUserMax    int64             `json:",omitempty"`
	GPUHoursMax          int64             `json:",omitempty"`
	GPUHoursUserMax      int64             `json:",omitempty"`
	GPUHoursPeriod       string            `json:",omitempty"` // day, week or month, in UTC; month
	PreemptGrace         TextDuration      `json:",omitempty"`
	PreemptMinRuntime    TextDuration      `json:",omitempty"`
	PreemptMax           int64             `json:",omitempty"`
	PreemptRate          int64             `json:",omitempty"`
	PreemptAfter         TextDuration      `json:",omitempty"`
	PreemptPriorityDelta int64             `json:",omitempty"`
	AgingMax             int64             `json:",omitempty"`
	BackfillWindow       TextDuration      `json:",omitempty"`
	BackfillMaxJobs      int64             `json:",omitempty"`
	AllowedUsers         []string          `json:",omitempty"`
	Meta                 map[string]string `json:",omitempty"`
	CreateIndex          uint64
	ModifyIndex          uint64
}

// OrderList is one order, or several separated by commas; in JSON and HCL also a list.
type OrderList string

// UnmarshalJSON reads a text or a list of texts.
func (o *OrderList) UnmarshalJSON(b []byte) error {
	var list []string
	if len(b) > 0 && b[0] == '[' {
		if err := json.Unmarshal(b, &list); err != nil {
			return err
		}
		*o = OrderList(strings.Join(list, ","))
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("an order is a name or a list of names: %w", err)
	}
	*o = OrderList(strings.Join(strings.Fields(strings.ReplaceAll(s, ",", " ")), ","))
	return nil
}

// QueueFromStructs converts a queue.
func QueueFromStructs(q *structs.Queue) *Queue {
	limit := func(a *structs.Amount, models ...structs.ModelAmount) *Amount {
		if a == nil {
			return (*Amount)(nil).withModels(models)
		}
		return AmountFromStructs(*a).withModels(models)
	}
	return &Queue{
		Path: string(q.Path), Description: q.Description, Weight: q.Weight, UserWeights: q.UserWeights, Billing: billingFromStructs(q.Billing), Guarantee: limit(q.Guarantee), Limit: limit(q.Limit, q.LimitModels...), Borrow: limit(q.Borrow), Lend: limit(q.Lend), UserLimit: limit(q.UserLimit, q.UserLimitModels...), SoftLimit: limit(q.SoftLimit, q.SoftLimitModels...),
		Order: OrderList(q.Order), Preempt: q.Preempt, Backfill: q.Backfill, ReserveDepth: q.ReserveDepth, Ends: q.Ends, PriorityMax: q.PriorityMax, PriorityDefault: q.PriorityDefault,
		UserPriorityMax: q.UserPriorityMax, UserPriorityDefault: q.UserPriorityDefault,
		MaxWait: maxWaitFromStructs(q.MaxWait), HalfLife: TextDuration(q.HalfLife), Aging: TextDuration(q.Aging),
		RunningMax: q.RunningMax, SubmittedMax: q.SubmittedMax, RunningUserMax: q.RunningUserMax, SubmittedUserMax: q.SubmittedUserMax,
		GPUMinutesMax: q.GPUMinutesMax, GPUMinutesUserMax: q.GPUMinutesUserMax, GPUHoursMax: q.GPUHoursMax, GPUHoursUserMax: q.GPUHoursUserMax, GPUHoursPeriod: q.GPUHoursPeriod,
		PreemptGrace: TextDuration(q.PreemptGrace), PreemptMinRuntime: TextDuration(q.PreemptMinRuntime), PreemptMax: q.PreemptMax, PreemptRate: q.PreemptRate,
		PreemptAfter: TextDuration(q.PreemptAfter), PreemptPriorityDelta: q.PreemptDelta, AgingMax: q.AgingMax, BackfillWindow: TextDuration(q.BackfillWindow), BackfillMaxJobs: q.BackfillMaxJobs,
		AllowedUsers: q.AllowedUsers, Meta: q.Meta, CreateIndex: uint64(q.CreateIndex), ModifyIndex: uint64(q.ModifyIndex),
	}
}

func maxWaitFromStructs(d time.Duration) *TextDuration {
	switch d {
	case 0:
		return nil
	case structs.MaxWaitOff:
		d = 0
	}
	out := TextDuration(d)
	return &out
}

func maxWaitToStructs(d *TextDuration) time.Duration {
	switch {
	case d == nil:
		return 0
	case *d == 0:
		return structs.MaxWaitOff
	}
	return time.Duration(*d)
}

// ToStructs converts a queue.
func (q *Queue) ToStructs() (*structs.Queue, error) {
	out := &structs.Queue{
		Path: structs.QueuePath(q.Path), Description: q.Description, Weight: q.Weight, UserWeights: maps.Clone(q.UserWeights), Billing: q.Billing.toStructs(), Order: structs.Order(q.Order), Preempt: q.Preempt, Backfill: q.Backfill, ReserveDepth: q.ReserveDepth, Ends: q.Ends, PriorityMax: q.PriorityMax, PriorityDefault: q.PriorityDefault,
		UserPriorityMax: maps.Clone(q.UserPriorityMax), UserPriorityDefault: maps.Clone(q.UserPriorityDefault),
		MaxWait: maxWaitToStructs(q.MaxWait), HalfLife: time.Duration(q.HalfLife), Aging: time.Duration(q.Aging),
		RunningMax: q.RunningMax, SubmittedMax: q.SubmittedMax, RunningUserMax: q.RunningUserMax, SubmittedUserMax: q.SubmittedUserMax,
		GPUMinutesMax: q.GPUMinutesMax, GPUMinutesUserMax: q.GPUMinutesUserMax, GPUHoursMax: q.GPUHoursMax, GPUHoursUserMax: q.GPUHoursUserMax, GPUHoursPeriod: q.GPUHoursPeriod,
		PreemptGrace: time.Duration(q.PreemptGrace), PreemptMinRuntime: time.Duration(q.PreemptMinRuntime), PreemptMax: q.PreemptMax, PreemptRate: q.PreemptRate,
		PreemptAfter: time.Duration(q.PreemptAfter), PreemptDelta: q.PreemptPriorityDelta, AgingMax: q.AgingMax, BackfillWindow: time.Duration(q.BackfillWindow), BackfillMaxJobs: q.BackfillMaxJobs,
		AllowedUsers: q.AllowedUsers, Meta: cloneMap(q.Meta),
	}
	if out.Path == "" {
		out.Path = structs.QueuePath(q.Name)
	}
	for _, c := range []struct {
		name    string
		in      *Amount
		to      **structs.Amount
		models  *[]structs.ModelAmount
		missing int64
	}{{"guarantee", q.Guarantee, &out.Guarantee, nil, 0}, {"limit", q.Limit, &out.Limit, &out.LimitModels, structs.AmountNoLimit}, {"borrow", q.Borrow, &out.Borrow, nil, structs.AmountNoLimit},
		{"lend", q.Lend, &out.Lend, nil, structs.AmountNoLimit}, {"user_limit", q.UserLimit, &out.UserLimit, &out.UserLimitModels, structs.AmountNoLimit},
		{"soft_limit", q.SoftLimit, &out.SoftLimit, &out.SoftLimitModels, structs.AmountNoLimit}} {
		if c.in == nil {
			continue
		}
		in := *c.in
		if c.models != nil {
			limits, err := in.modelLimits()
			if err != nil {
				return nil, structs.Errorf(structs.CodeInvalid, "queue %q: %s: %s", out.Path, c.name, err)
			}
			*c.models, in.Models = limits, nil
		}
		a, err := in.ToStructs(c.missing)
		if err != nil {
			return nil, structs.Errorf(structs.CodeInvalid, "queue %q: %s: %s", out.Path, c.name, err)
		}
		*c.to = &a
	}
	return out, nil
}

// convertAll converts a list of strings of one type to another; nil stays nil.
func convertAll[To, From ~string](in []From) []To {
	if in == nil {
		return nil
	}
	out := make([]To, len(in))
	for i, s := range in {
		out[i] = To(s)
	}
	return out
}

// Reservation is what an operator keeps free for a time, or the reservation of a waiting job.
type Reservation struct {
	ID          string
	Name        string `json:",omitempty"` // the label of an HCL block; ID wins
	NodePool    string
	Namespace   string    `json:",omitempty"`
	JobID       string    `json:",omitempty"` // of the waiting job; "" for an operator's
	Start       time.Time // not set: now
	End         time.Time
	Duration    TextDuration `json:",omitempty"` // instead of End
	Basis       string       `json:",omitempty"`
	Nodes       []string     `json:",omitempty"`
	Amount      *Amount      `json:",omitempty"`
	Users       []string     `json:",omitempty"`
	Queues      []string     `json:",omitempty"`
	Maintenance bool         `json:",omitempty"`
	Description string       `json:",omitempty"`
	Allocations int          `json:",omitempty"` // of a waiting job's reservation: the number of places
	CreateIndex uint64
	ModifyIndex uint64
}

// ReservationFromStructs converts a reservation.
func ReservationFromStructs(r *structs.Reservation) *Reservation {
	out := &Reservation{
		ID: r.ID, NodePool: string(r.Domain), Namespace: r.Namespace, JobID: r.JobID, Start: r.Start.Time(), End: r.End.Time(), Basis: r.Basis,
		Users: r.Users, Queues: convertAll[string](r.Queues), Maintenance: r.Maintenance, Description: r.Description, Allocations: len(r.Places),
		CreateIndex: uint64(r.CreateIndex), ModifyIndex: uint64(r.ModifyIndex),
	}
	if r.Amount != nil {
		out.Amount = AmountFromStructs(*r.Amount)
	}
	seen := map[structs.NodeID]bool{}
	for _, n := range r.Nodes {
		out.Nodes = append(out.Nodes, n.String())
	}
	for i := range r.Places {
		if n := r.Places[i].Node; !seen[n] {
			seen[n] = true
			out.Nodes = append(out.Nodes, n.String())
		}
	}
	return out
}

// ToStructs converts an operator's reservation.
func (r *Reservation) ToStructs(now time.Time) (*structs.Reservation, error) {
	if r.JobID != "" || r.Allocations != 0 || r.Basis != "" {
		return nil, structs.Errorf(structs.CodeInvalid, "reservation %q: the scheduler makes the reservations for jobs", r.ID)
	}
	out := &structs.Reservation{ID: r.ID, Domain: structs.PoolName(r.NodePool), Users: r.Users, Queues: convertAll[structs.QueuePath](r.Queues), Maintenance: r.Maintenance, Description: r.Description}
	if out.ID == "" {
		out.ID = r.Name
	}
	if out.Domain == "" {
		out.Domain = structs.NodePoolDefault
	}
	start := r.Start
	if start.IsZero() {
		start = now
	}
	end := r.End
	if r.Duration != 0 {
		if !end.IsZero() {
			return nil, structs.Errorf(structs.CodeInvalid, "reservation %q: give End or Duration, not both", out.ID)
		}
		end = start.Add(time.Duration(r.Duration))
	}
	out.Start, out.End = structs.LogTimeOf(start), structs.LogTimeOf(end)
	for _, text := range r.Nodes {
		id, err := structs.ParseID[structs.NodeID](text)
		if err != nil {
			return nil, structs.Errorf(structs.CodeInvalid, "reservation %q: node %.40q is not an id", out.ID, text)
		}
		out.Nodes = append(out.Nodes, id)
	}
	if r.Amount != nil {
		a, err := r.Amount.ToStructs(0)
		if err != nil {
			return nil, structs.Errorf(structs.CodeInvalid, "reservation %q: %s", out.ID, err)
		}
		out.Amount = &a
	}
	return out, nil
}
