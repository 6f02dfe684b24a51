package structs

import (
	"slices"
	"strings"
)

// QuotaSpec limits what the allocations of all namespaces that use it (Namespace.Quota) hold together. A QuotaSpec in
// the store is immutable.
type QuotaSpec struct {
	Name        string
	Description string
	Limits      []QuotaLimit // by region
	CreateIndex Index
	ModifyIndex Index
}

// QuotaLimit is the limit in one region. Components of an Amount that are AmountNoLimit are not limited.
type QuotaLimit struct {
	Region string
	Hard   Amount  // refused beyond it
	Soft   *Amount // beyond it work is served after all other work; nil: none

	// Limits of the GPUs of a model, by model, in addition to Hard and Soft.
	HardModels []ModelAmount `since:"2"`
	SoftModels []ModelAmount `since:"2"`
}

// Limit returns the limit of a region, or nil.
func (q *QuotaSpec) Limit(region string) *QuotaLimit {
	for i := range q.Limits {
		if q.Limits[i].Region == region {
			return &q.Limits[i]
		}
	}
	return nil
}

// Unlimited limits nothing.
var Unlimited = Amount{GPUMilli: AmountNoLimit, GPUMemoryMiB: AmountNoLimit, CPU: AmountNoLimit, MemoryMiB: AmountNoLimit}

// UseRow is the key of one row of usage: of a queue (User "") or of a submitter in it, or of a namespace.
type UseRow struct {
	Path QueuePath
	User string
}

// UseRows returns the rows that an allocation is charged to: its queue and its ancestors, its submitter in each of
// these, and its namespace. Queue and submitter are those of the job version that it runs.
func UseRows(a *Allocation) []UseRow {
	path, user := QueueDefault, ""
	if a.Job != nil {
		path, user = a.Job.QueueName(), a.Job.Submitter.Name
	}
	return UseRowsOf(a.Namespace, path, user)
}

// UseRowsOf returns the rows of an allocation of a namespace, queue and submitter.
func UseRowsOf(namespace string, path QueuePath, user string) []UseRow {
	rows := make([]UseRow, 0, 2*strings.Count(string(path), "/")+4)
	rows = append(rows, UseRow{Path: QueueRoot}, UseRow{Path: UseNamespace(namespace)})
	for p := range path.Lineage() {
		if p == QueueRoot {
			break // the root has no rows of submitters
		}
		rows = append(rows, UseRow{Path: p})
		if user != "" {
			rows = append(rows, UseRow{Path: p, User: user})
		}
	}
	return rows
}

// Charge returns what an allocation counts in one row: what it has (AmountOf), less what the allocations that it waits
// on still hold and count in the same row. Allocations of other queues whose places it takes stay charged to their own
// queue. bill returns what an allocation counts by the weights of its queue (Billing.Of); nil: nothing.
func Charge(a *Allocation, row UseRow, get func(AllocID) *Allocation, bill func(*Allocation) int64) Amount {
	if !Holds(a) {
		return Amount{}
	}
	sum := AmountOf(a)
	if bill != nil {
		sum.Billed = bill(a)
	}
	if len(a.WaitsOn) == 0 {
		return sum
	}
	for _, id := range a.WaitsOn {
		v := get(id)
		if v == nil || !Holds(v) {
			continue
		}
		for _, r := range UseRows(v) {
			if r == row {
				sum = sum.Sub(AmountOf(v))
				if bill != nil {
					sum.Billed -= bill(v)
				}
				break
			}
		}
	}
	return sum.each(func(v int64) int64 { return max(v, 0) })
}

// Moves reports whether what replaces an allocation is charged only for what it needs beyond it: the allocation was not
// asked to end before, and its node works but takes no new work (it drains, or is not eligible). So the replacement cannot
// wait for its place there, as it would elsewhere (WaitsOn), and a limit that is used up would hold up the drain. While
// the old allocation ends, both are counted. n is its node, or nil.
func Moves(a *Allocation, n *Node) bool {
	return Holds(a) && !a.ServerTerminal() && n != nil && n.Status == NodeReady && !n.Ready()
}

// ChargeBeyond is Charge for an allocation that replaces one that moves (Moves); nil: none.
func ChargeBeyond(a, moved *Allocation, row UseRow, get func(AllocID) *Allocation) Amount {
	sum := Charge(a, row, get, nil)
	if moved == nil || !slices.Contains(UseRows(moved), row) {
		return sum
	}
	return sum.Sub(AmountOf(moved)).each(func(v int64) int64 { return max(v, 0) })
}

// Breaks returns the first component in which add is positive and held + add exceeds the limit, and by how much, or
// DimensionNone. So a holder beyond its limit may still shrink.
func Breaks(held, add, limit Amount) (what Dimension, over int64) {
	for _, c := range [...]struct {
		add, limit *int64
	}{{&add.GPUMilli, &limit.GPUMilli}, {&add.GPUMemoryMiB, &limit.GPUMemoryMiB}, {&add.CPU, &limit.CPU}, {&add.MemoryMiB, &limit.MemoryMiB}} {
		if *c.add <= 0 {
			*c.limit = AmountNoLimit
		}
	}
	return held.Add(add).Exceeds(limit)
}
