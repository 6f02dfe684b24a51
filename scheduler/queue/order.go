package queue

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// Order is the rule that orders the workloads of a queue and the heads of its child queues. Implementations are pure: a
// key depends only on the arguments, and neither is kept or changed.
type Order interface {
	// Name returns the name in configuration.
	Name() structs.Order
	// Key rates a workload: the smallest goes first. Ties go by submit index, then job.
	Key(w *contend.Workload, at *Scene) Key
	// Terms are the parts of the key by name, as `job why` shows them: in millionths of what their names say.
	Terms(w *contend.Workload, at *Scene) []structs.ScoreTerm
}

// Sharer is an Order under which child queues, and the submitters of the queue's own workloads, take turns. Key orders
// the workloads of one submitter.
type Sharer interface {
	Order
	// Share rates an entity that takes turns: the smallest goes first. Ties go by name.
	Share(e *Entity, at *Scene) int64
}

// Key is compared number by number.
type Key [4]int64

// Less reports whether k goes before o.
func (k Key) Less(o Key) bool {
	for i := range k {
		if k[i] != o[i] {
			return k[i] < o[i]
		}
	}
	return false
}

// Entity is a child queue or a submitter that takes turns at one node of the tree.
type Entity struct {
	Name   string // of the child queue (its path), or of the submitter
	Weight int64
	Held   structs.Amount      // now, including what this pass has placed
	Usage  *structs.QueueUsage // as it was at the beginning of the pass, or nil for nothing
	Turns  int64               // turns in this pass
	Last   int64               // its Share at its last turn; 0 before
}

// Scene is what a key may depend on in addition to the workload.
type Scene struct {
	Now   structs.LogTime
	Seed  uint64
	Queue structs.Queue  // the queue with this order, with every setting filled in
	Total structs.Amount // what the cluster has; Billed by the weights of Queue
	// Turnover is the mean time until what is held now becomes free; 0: unknown.
	Turnover time.Duration
}

// Expect returns how long an allocation of the workload is expected to run: as predicted, as its submitter estimates,
// or its limit; 0 if nothing is known.
func (at *Scene) Expect(w *contend.Workload) time.Duration {
	if w.Expect > 0 || w.Job == nil {
		return w.Expect
	}
	if w.Job.Runtime.Expected > 0 {
		return w.Job.Runtime.Expected
	}
	longest := time.Duration(0)
	for _, g := range w.Job.Groups {
		limit := w.Job.RunLimit(g)
		if limit <= 0 {
			return 0
		}
		longest = max(longest, limit)
	}
	return longest
}

// Waited returns how long the workload has waited.
func (at *Scene) Waited(w *contend.Workload) time.Duration {
	since := w.WaitingSince()
	if since == 0 || since > at.Now {
		return 0
	}
	return at.Now.Sub(since)
}

// Dominant returns the largest share that an amount has of the cluster's resources, in units of 1e-9 (DRF, Ghodsi et
// al., NSDI'11), and the name of that resource. Resources that the cluster does not have are ignored.
func (at *Scene) Dominant(a structs.Amount) (share int64, resource string) {
	for _, c := range [...]struct {
		name    string
		of, all int64
	}{{"gpu", a.GPUMilli, at.Total.GPUMilli}, {"gpu_memory", a.GPUMemoryMiB, at.Total.GPUMemoryMiB}, {"cpu", a.CPU, at.Total.CPU}, {"memory", a.MemoryMiB, at.Total.MemoryMiB}} {
		if s := ratio(c.of, c.all, nano); s > share {
			share, resource = s, c.name
		}
	}
	return share, resource
}

// Share returns the share of an amount in the cluster, in units of 1e-9: its dominant share, or that of its billing
// units if the queue has billing weights.
func (at *Scene) Share(a structs.Amount) int64 {
	if at.Queue.Billing != nil {
		return ratio(a.Billed, max(at.Total.Billed, 1), nano)
	}
	s, _ := at.Dominant(a)
	return s
}

const (
	nano  = 1_000_000_000
	micro = 1_000_000
)

// ratio returns a * unit / b without overflow; 0 when b is 0.
func ratio(a, b, unit int64) int64 {
	if a <= 0 || b <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a), uint64(unit))
	if hi >= uint64(b) {
		return 1<<63 - 1
	}
	q, _ := bits.Div64(hi, lo, uint64(b))
	return int64(min(q, 1<<63-1))
}

// Builtin are all orders, by the name used in configuration.
var Builtin = map[structs.Order]Order{
	structs.OrderFCFS:     FCFS{},
	structs.OrderEDF:      EDF{},
	structs.OrderPriority: Priority{},
	structs.OrderFair:     Fair{},
	structs.OrderWeighted: Weighted{},
	structs.OrderLottery:  Lottery{},
	structs.OrderAdaptive: Adaptive{},
	structs.OrderSJF:      SJF{},
	structs.OrderSRTF:     SRTF{},
	structs.OrderSRSF:     SRSF{},
	structs.OrderMLFQ:     MLFQ{},
}

// Default is the order of a cluster without a configured one.
const Default = structs.OrderDefault

// Named returns the rule of an order: that of its name, or of several names (Several). Every order that a queue may be
// configured with is known here (a test compares them); an unknown name, from a newer build, gives Default.
func Named(name structs.Order) Order {
	if o := Builtin[name]; o != nil {
		return o
	}
	if name.List() {
		if o := named(name); o != nil {
			return o
		}
	}
	return Builtin[Default]
}

// Known reports whether this build has an order of that name, or all orders of a list.
func Known(name structs.Order) bool { return Builtin[name] != nil || lists(name) }

// Names returns the names of all ordering policies, sorted.
func Names() []structs.Order {
	out := make([]structs.Order, 0, len(Builtin))
	for n := range Builtin {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// Compare orders by submission within a priority. It depends only on the queue entries, and is the last tie-break of
// every other order. It returns 0 only for the same job.
func Compare(a, b *structs.Workload) int {
	return cmp.Or(
		cmp.Compare(b.Priority, a.Priority),
		cmp.Compare(a.SubmitIndex, b.SubmitIndex),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.JobID, b.JobID),
	)
}
