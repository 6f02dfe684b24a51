// Package contend decides who waits and who yields: limits and amounts set aside, reservations of capacity in time,
// preemption, and the competition of running with waiting work. It is asked by decisions, which it does not know. What it
// needs of them it declares (place.go).
//
// Read in this order:
//
//   - workload.go, queuetable.go, line.go, chooser.go: what waits, the queues it waits in, who is next, who should run
//   - env.go, place.go: what contention in a pass depends on, and what it asks of decisions
//   - limits.go, setaside.go: what may not be exceeded, by rows of usage and by node pool
//   - reservations.go, earliestfree.go, earliest.go, backfill.go: what is reserved, since when there is room, when
//     everything would fit, and who gets a reservation
//   - quick.go: refusing at once what no node has room for
//   - preempt.go, reclaim.go, victims.go, eviction.go: by which rule, on whose behalf, from whom, and at what cost
//   - competition.go, takeover.go: contests between running and waiting work, and how their winners get their places
package contend
