package server

import (
	"github.com/muster-sched/muster/internal/telemetry"
	"github.com/muster-sched/muster/scheduler/predict"
)

// clusterReading is the source of the cluster's metrics. Every server reads them from its newest state; only the leader
// knows the predictions.
type clusterReading struct {
	nodes, jobs, allocs, running, evals      int64
	queued, queuedAllocs, oldestWait         int64
	pastDeadline                             int64
	gpus, unhealthy, wholeUsed, shares       int64
	shareMiB                                 int64
	records, decisions, rosters, reservation int64
	predicted                                predict.Errors
}

var clusterTable = telemetry.Table[*clusterReading]{
	telemetry.Gauge("muster_server_nodes", "Nodes.", func(c *clusterReading) int64 { return c.nodes }),
	telemetry.Gauge("muster_server_jobs", "Jobs.", func(c *clusterReading) int64 { return c.jobs }),
	telemetry.Gauge("muster_server_allocations", "Allocations, ended ones included as long as they are kept.", func(c *clusterReading) int64 { return c.allocs }),
	telemetry.Gauge("muster_server_allocations_running", "Allocations that agents report as running.", func(c *clusterReading) int64 { return c.running }),
	telemetry.Gauge("muster_server_evaluations", "Evaluations, ended ones included as long as they are kept.", func(c *clusterReading) int64 { return c.evals }),
	telemetry.Gauge("muster_server_queue_depth", "Jobs with allocations that wait.", func(c *clusterReading) int64 { return c.queued }),
	telemetry.Gauge("muster_server_queue_allocations", "Allocations that wait.", func(c *clusterReading) int64 { return c.queuedAllocs }),
	telemetry.Gauge("muster_server_queue_oldest_wait_seconds", "Time since the submission of the job that waits longest.", func(c *clusterReading) int64 { return c.oldestWait }),
	telemetry.Gauge("muster_server_jobs_past_deadline", "Jobs that have missed their deadline and not ended.", func(c *clusterReading) int64 { return c.pastDeadline }),
	telemetry.Gauge("muster_server_gpus", "GPUs of all nodes; of a GPU that is divided, its MIG instances.", func(c *clusterReading) int64 { return c.gpus }),
	telemetry.Gauge("muster_server_gpus_unhealthy", "GPUs that are not healthy.", func(c *clusterReading) int64 { return c.unhealthy }),
	telemetry.Gauge("muster_server_gpus_whole_used", "GPUs given out whole.", func(c *clusterReading) int64 { return c.wholeUsed }),
	telemetry.Gauge("muster_server_gpu_shares_used", "Shares of GPUs given out.", func(c *clusterReading) int64 { return c.shares }),
	telemetry.Gauge("muster_server_gpu_share_memory_used_bytes", "GPU memory of the shares given out.", func(c *clusterReading) int64 { return c.shareMiB << 20 }),
	telemetry.Gauge("muster_server_gangs", "Gangs that are placed.", func(c *clusterReading) int64 { return c.rosters }),
	telemetry.Gauge("muster_server_reservations", "Jobs that wait and have a reservation.", func(c *clusterReading) int64 { return c.reservation }),
	telemetry.Gauge("muster_server_accounting_records", "Accounting records of jobs, as far as they are kept.", func(c *clusterReading) int64 { return c.records }),
	telemetry.Gauge("muster_server_decision_rows", "Rows of the decision log.", func(c *clusterReading) int64 { return c.decisions }),
	telemetry.Gauge("muster_server_run_times_ended", "Pieces of batch work that ended lately: of the last 8,000 to 16,000 jobs, about, as far as they are kept.", func(c *clusterReading) int64 { return c.predicted.N + c.predicted.Unknown }),
	telemetry.Gauge("muster_server_run_times_predicted", "Of those, the ones whose run time had been predicted when they were placed.", func(c *clusterReading) int64 { return c.predicted.N }),
	telemetry.Gauge("muster_server_run_times_underestimated", "Of the predicted ones, those that ran longer.", func(c *clusterReading) int64 { return c.predicted.Under }),
	telemetry.Gauge("muster_server_run_times_median_factor_ratio", "Factor by which the median prediction was off: 1.4 is 1.4 times too long or too short.", func(c *clusterReading) float64 { return float64(c.predicted.MedianFactor()) / 1000 }),
	telemetry.Gauge("muster_server_run_times_mean_error_seconds", "Mean error of predictions.", func(c *clusterReading) float64 { return c.predicted.MeanAbsolute().Seconds() }),
}

// clusterMetrics counts objects in the newest state; nil before there is one.
func (s *Server) clusterMetrics() *clusterReading {
	p := s.Published()
	if p == nil || p.Snapshot == nil {
		return nil
	}
	snap := p.Snapshot
	now := s.replica.Now()
	c := &clusterReading{
		nodes: int64(snap.NodeCount()), jobs: int64(snap.JobCount()), allocs: int64(snap.AllocCount()), running: s.replica.Stats().Running,
		evals: int64(snap.EvalCount()), records: int64(snap.AcctCount()), decisions: int64(snap.DecisionCount()), predicted: s.endpoints.Predictions(),
	}
	for w := range snap.Workloads() {
		if w.Missed != 0 {
			c.pastDeadline++
		}
		if w.Waiting == 0 {
			continue
		}
		c.queued++
		c.queuedAllocs += w.Waiting
		c.oldestWait = max(c.oldestWait, int64(now.Sub(w.SubmitTime).Seconds()))
	}
	for n := range snap.Nodes() {
		for i := range n.Resources.Devices {
			g := &n.Resources.Devices[i]
			if g.Type != "gpu" {
				continue
			}
			c.gpus += int64(len(g.Instances))
			for k := range g.Instances {
				if !g.Instances[k].Healthy {
					c.unhealthy++
				}
			}
		}
	}
	for u := range snap.Usages() {
		if u.Kind == "namespace" {
			c.wholeUsed += u.GPUs
			c.shares += u.GPUShares
			c.shareMiB += u.GPUMemoryMiB
		}
	}
	for range snap.Rosters() {
		c.rosters++
	}
	for r := range snap.Reservations() {
		if r.JobID != "" {
			c.reservation++
		}
	}
	return c
}
