// Package sim is a cluster in virtual time: it replays traces and the cluster's own past through the production
// scheduler. It keeps a view and queue state of its own and no store; every decision is scheduler.Schedule's, checked by
// scheduler.Verify. It orders and rates nothing itself: what comes first, and where it goes, is up to scheduler/queue and
// scheduler/policy. See DESIGN.md.
//
// What traces may look like and what is reported of them is told in docs/reference/simulator.md.
package sim
