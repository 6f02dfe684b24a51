package server

import "github.com/muster-sched/muster/structs"

// clusterMetricNames are the metrics of waiting work and of granted resources. Prometheus serves them as muster_..._NAME.
// They are counted on request.
var clusterMetricNames = [...]string{
	"queue_depth",               // jobs with allocations that wait for a place
	"queue_allocations",         // allocations that wait
	"queue_oldest_wait_seconds", // since the submission of the job that waits longest
	"gpus_total",                // devices of type gpu on all nodes, MIG instances each
	"gpus_unhealthy",            // of them
	"gpus_whole_used",           // given out whole
	"gpu_shares_used",           // shares given out
	"gpu_share_memory_used_mib", // of those shares
	"accounting_records",        // jobs that ended, as far as they are kept
	"decision_rows",             // rows of the decision log
	"preempted_jobs",            // jobs evicted since ever, over all queues
	"gang_rosters",              // gangs that were placed
	"gang_restarts",             // times that those were started again
	"promises_held",             // jobs that wait and to which capacity is promised from some time on
	"jobs_past_deadline",        // jobs that have missed their deadline and not ended
}

// clusterMetrics counts them from the newest state.
func (s *Server) clusterMetrics() (out [len(clusterMetricNames)]int64) {
	p := s.Published()
	if p == nil || p.Snapshot == nil {
		return out
	}
	snap := p.Snapshot
	now := structs.LogTimeOf(s.cfg.Now())
	for w := range snap.Workloads() {
		if w.Missed != 0 {
			out[14]++
		}
		if w.Waiting == 0 {
			continue
		}
		out[0]++
		out[1] += w.Waiting
		out[2] = max(out[2], int64(now.Sub(w.SubmitTime).Seconds()))
	}
	for n := range snap.Nodes() {
		for i := range n.Resources.Devices {
			g := &n.Resources.Devices[i]
			if g.Type != "gpu" {
				continue
			}
			out[3] += int64(len(g.Instances))
			for k := range g.Instances {
				if !g.Instances[k].Healthy {
					out[4]++
				}
			}
		}
	}
	for u := range snap.Usages() {
		if u.Kind == "namespace" {
			out[5] += u.GPUs
			out[6] += u.GPUShares
			out[7] += u.GPUMemoryMiB
		}
	}
	out[8], out[9] = int64(snap.AcctCount()), int64(snap.DecisionCount())
	for q := range snap.Preempted() {
		out[10] += q.Total
	}
	for r := range snap.Rosters() {
		out[11]++
		out[12] += r.StartedAgain()
	}
	for r := range snap.Reservations() {
		if r.JobID != "" {
			out[13]++
		}
	}
	return out
}
