package match

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Refusal counts nodes refused for one reason.
type Refusal struct {
	structs.Refusal
	Free  int64 // GPU memory free on all GPUs that are too full for the ask, over all nodes counted
	Asked int64 // GPU memory that one allocation asks for
}

// Refused returns the refusal of one node for a reason.
func Refused(code structs.ReasonCode, by structs.Obstacle, cure structs.EventKind) Refusal {
	return Refusal{Refusal: structs.Refusal{Code: code, Obstacle: by, CuredBy: cure}}
}

// Cannot returns the refusal of nodes that do not meet a condition of the job.
func Cannot(what structs.Dimension, subject, detail string, cure structs.EventKind) Refusal {
	return Refused(structs.ReasonConstraint, structs.Obstacle{Dimension: what, Subject: subject, Detail: detail}, cure)
}

// Add counts one more node.
func (t *Refusal) Add(short, largest, free, asked int64) {
	t.Nodes++
	if short > 0 && (t.Short == 0 || short < t.Short) {
		t.Short = short
	}
	t.Largest, t.Free, t.Asked = max(t.Largest, largest), t.Free+free, max(t.Asked, asked)
}

// ShortageOf is a shortage and its obstacle. Every node that is rated returns one, so it is small: the obstacle is
// behind a pointer.
type ShortageOf struct {
	model.Shortage
	By        *structs.Obstacle // nil: the resource as a whole; shared by many nodes and never changed
	Largest   int64             // of GPU memory or compute: the most that is free on one GPU
	Free      int64             // GPU memory free on all GPUs that are too full, MiB
	Asked     int64             // GPU memory asked for in all, MiB
	Reserved  bool              // it is free, but reserved for another job
	Unhealthy bool              // there would be enough if all devices were healthy
	TooSmall  bool              // no device of the node is large enough, even unused
	Apart     bool              // there are enough, but not close enough to each other
}

// SameBy reports whether two shortages name the same obstacle.
func (x *ShortageOf) SameBy(y *ShortageOf) bool {
	return x.By == y.By || x.By != nil && y.By != nil && *x.By == *y.By
}

// Same reports whether two shortages are equal, amounts included.
func (x *ShortageOf) Same(y *ShortageOf) bool {
	z := *y
	z.By = x.By
	return *x == z && x.SameBy(y)
}

// ReservedFor changes the shortage to say that the resource is free but reserved for job k.
func (x *ShortageOf) ReservedFor(k structs.JobKey) {
	by := structs.Obstacle{Dimension: x.Dim}
	if x.By != nil {
		by = *x.By
	}
	by.Holder = structs.Holder{Kind: structs.HolderJob, Name: k.ID}
	x.By = &by
	x.Reserved, x.Unhealthy, x.Apart, x.TooSmall = true, false, false, false
}

// PortTakenBy returns the obstacle of a port that is not free.
func PortTakenBy(port int) *structs.Obstacle {
	return &structs.Obstacle{Dimension: structs.DimensionPort, Count: int64(port)}
}
