package server

import (
	"maps"
	"slices"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/telemetry"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/structs"
)

type standing = *endpoint.Standing

// queueTable declares the metrics of a queue. Submitters have none: their number has no bound.
var queueTable = telemetry.Table[standing]{
	ofUse("muster_queue_jobs_running", "Jobs that hold something.", func(x standing) float64 { return float64(x.Running) }),
	telemetry.Gauge("muster_queue_jobs_waiting", "Jobs with allocations that wait.", func(x standing) int64 { return x.Waiting }),
	telemetry.Gauge("muster_queue_oldest_wait_seconds", "Time since the submission of the job that waits longest, or since its begin time or the pause after a requeue. Jobs on hold, suspended ones and those that wait for another job do not count.", func(x standing) float64 { return x.Oldest.Seconds() }),
	telemetry.Counter("muster_queue_preemptions_total", "Jobs preempted on behalf of jobs of the queue, since the cluster began.", func(x standing) int64 { return x.Preemptions }),
	ofUse("muster_queue_gpus", "GPUs that the queue holds; a share of a GPU counts as a part.", func(x standing) float64 { return float64(x.Held.GPUMilli) / 1000 }),
	ofUse("muster_queue_budget_gpu_hours", "GPU hours that the queue may use in a period (gpu_hours_max). It has none without a budget.", func(x standing) float64 { return telemetry.Known(float64(x.Budget), x.Budget > 0) }),
	ofUse("muster_queue_budget_used_gpu_hours", "GPU hours that the queue has used in the current period of its budget. It has none without a budget.", func(x standing) float64 {
		return telemetry.Known(float64(x.PeriodUse)/float64(structs.OfGPUHours(1)), x.Budget > 0)
	}),
	ofUse("muster_queue_part_ratio", "Part of the cluster that the queue holds: of the resource of which it holds the largest part, or of billing units.", func(x standing) float64 { return micro(x.Part) }),
	ofUse("muster_queue_target_ratio", "Part of the cluster that the queue is due by its weight, against the queues and submitters that take turns with it and hold or want something. It has none where it holds and wants nothing.", func(x standing) float64 { return telemetry.Known(micro(x.Target), x.Target > 0) }),
	ofUse("muster_queue_jain_ratio", "Jain's fairness index of the parts by weight of those who take turns in the queue, its submitters and the queues right below it: 1 is even, 1/n is all for one of n. It has none where nothing is held.", func(x standing) float64 { return telemetry.Known(micro(x.Jain), x.Jain > 0) }),
}.Labelled("queue")

// queueLossTable declares what queues lost, by cause.
var queueLossTable = telemetry.Table[int64]{
	telemetry.Counter("muster_queue_lost_gpu_seconds_total", "GPU time, in seconds of one GPU, that batch jobs of the queue did since their newest checkpoints, or since they started, and lost, since the cluster began. Causes: `preempt`; `node`, lost with it, or with that of another member of the gang; `drain`, they had to leave a node.", func(n int64) int64 { return n }),
}.Labelled("queue", "cause")

// ofUse declares a metric that is left out where the state keeps no usage of queues.
func ofUse(name, help string, read func(standing) float64) telemetry.Row[standing] {
	return telemetry.Gauge(name, help, func(x standing) float64 { return telemetry.Known(read(x), x.Counted) })
}

// queueMetrics appends how the queues stand. Every server reads them from its newest state. Queues that only jobs
// mention are left out, because their number has no bound (structs.QueuesMax bounds the others). The queues above them
// have their work.
func (s *Server) queueMetrics(out *telemetry.Samples) {
	p := s.Published()
	if p == nil || p.Snapshot == nil {
		return
	}
	m := s.endpoints.Standings(p.Snapshot)
	for _, path := range slices.Sorted(maps.Keys(m)) {
		x := m[path]
		known := path == structs.QueueRoot || path == structs.QueueDefault || p.Snapshot.QueueByPath(path) != nil
		if known && (path == structs.QueueRoot || x.Active() || x.Preemptions+x.Lost.Total() > 0 || x.Budget > 0) {
			queueTable.Give(out, x, string(path))
			if p.Snapshot.Has(feature.QueueLosses) {
				queueLossTable.Give(out, x.Lost.Preempt, string(path), structs.CausePreempt)
				queueLossTable.Give(out, x.Lost.Node, string(path), "node")
				queueLossTable.Give(out, x.Lost.Drain, string(path), structs.CauseDrain)
			}
		}
	}
}
