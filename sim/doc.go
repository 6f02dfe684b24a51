// Package sim simulates a cluster in virtual time: it replays traces and the cluster's own history through the production
// scheduler. It has its own view and queue state and no store; scheduler.Schedule makes every decision, and
// scheduler.Verify checks it. Order and placement are those of scheduler/queue and scheduler/policy. See DESIGN.md.
//
// docs/reference/simulator.md describes the formats of traces and the results.
package sim
