// Package contend decides which work waits and which work yields: limits and amounts set aside, reservations of
// capacity in time, preemption, and the competition of running with waiting work. Decisions call it. It does not import
// them; what it needs of them it declares (place.go).
//
// Read in this order:
//
//   - workload.go, queuetable.go, line.go, chooser.go: what waits, the queues it waits in, which workload is next, which work should run
//   - env.go, place.go: what contention in a pass depends on, and what it asks of decisions
//   - limits.go, setaside.go: what must not be exceeded, by rows of usage and by node pool
//   - reservations.go, earliestfree.go, earliest.go, backfill.go: what is reserved, when there is enough room, when
//     everything would fit, and which workloads get a reservation
//   - quick.go: refusing at once what no node has room for
//   - preempt.go, reclaim.go, victims.go, eviction.go: by which rule, for which queue, from which work, and at what cost
//   - competition.go, takeover.go: contests between running and waiting work, and how their winners get their places
package contend
