package structs

import "strings"

// QuotaSpec limits what the allocations of the namespaces that name it (Namespace.Quota) hold together. A QuotaSpec in
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
	Soft   *Amount // beyond it work is served after everybody else's; nil: none
}

// Limit is the limit of a region, or nil.
func (q *QuotaSpec) Limit(region string) *QuotaLimit {
	for i := range q.Limits {
		if q.Limits[i].Region == region {
			return &q.Limits[i]
		}
	}
	return nil
}

// Unlimited is the limit that limits nothing.
var Unlimited = Amount{GPUMilli: AmountNoLimit, GPUMemoryMiB: AmountNoLimit, CPU: AmountNoLimit, MemoryMiB: AmountNoLimit}

// UseRow names one row of usage: of a queue (User "") or of a submitter in it, or of a namespace.
type UseRow struct {
	Path QueuePath
	User string
}

// UseRows are the rows that an allocation is charged to: its queue, those above it, the same of its submitter, and its
// namespace. Its queue and submitter are those of the job version that it runs.
func UseRows(a *Allocation) []UseRow {
	path, user := QueueDefault, ""
	if a.Job != nil {
		path, user = a.Job.QueueName(), a.Job.Submitter.Name
	}
	return UseRowsOf(a.Namespace, path, user)
}

// UseRowsOf are the rows of an allocation of a namespace, queue and submitter.
func UseRowsOf(namespace string, path QueuePath, user string) []UseRow {
	rows := make([]UseRow, 0, 2*strings.Count(string(path), "/")+4)
	rows = append(rows, UseRow{Path: QueueRoot}, UseRow{Path: UseNamespace(namespace)})
	for p := range path.Lineage() {
		if p == QueueRoot {
			break // it has no rows of submitters
		}
		rows = append(rows, UseRow{Path: p})
		if user != "" {
			rows = append(rows, UseRow{Path: p, User: user})
		}
	}
	return rows
}

// Charge is what an allocation counts in one row: what it has (AmountOf), less what the allocations that it waits on
// still hold and count in the same row; those whose places it takes elsewhere stay on the books of their own queue. bill
// is what an allocation counts by the weights of its queue (Billing.Of); nil: nothing.
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

// Breaks names the first component in which held + add is beyond a limit and add is positive, and by how much;
// DimensionNone when there is none. So what is beyond its limit already may still shrink.
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
