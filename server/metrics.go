package server

import (
	"maps"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/telemetry"
	"github.com/muster-sched/muster/server/admit"
	"github.com/muster-sched/muster/server/decide"
	"github.com/muster-sched/muster/server/nodes"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// metrics has the counters and histograms of a server, and the set of all its metrics.
type metrics struct {
	calls, denied, failed, forwarded, refused atomic.Int64
	vouching                                  atomic.Int64 // questions to the leader in flight about callers unknown here
	permitting                                atomic.Int64 // and about calls that nodes and agents answer

	set                  telemetry.Set
	rpc                  *telemetry.Histogram
	apply, pass, commit  *telemetry.Histogram // seconds
	planDepth, planPlans *telemetry.Histogram // of a log entry that is sent
	stalls               *telemetry.Histogram // seconds
}

// declare declares all metrics. The tables are below and in cluster_metrics.go and gpu_metrics.go.
func (m *metrics) declare(s *Server) {
	m.rpc = m.set.Histogram("muster_rpc_request_seconds", "Time to answer remote procedure calls, blocking queries included.", telemetry.Latency, "method", "code")
	m.apply = m.set.Histogram("muster_server_apply_seconds", "Time to apply a batch of log entries and to publish the state.", telemetry.Latency)
	m.pass = m.set.Histogram("muster_server_pass_seconds", "Time to compute a scheduling pass of a node pool.", telemetry.Latency)
	m.commit = m.set.Histogram("muster_server_plan_commit_seconds", "Time from sending a log entry of plans to its answer.", telemetry.Latency)
	m.planDepth = m.set.Histogram("muster_server_plan_depth", "Log entries of plans in flight when one is sent, the new one included.", telemetry.Counts)
	m.planPlans = m.set.Histogram("muster_server_plan_entry_plans", "Plans in a log entry.", telemetry.Counts)
	m.stalls = m.set.Histogram("muster_server_stall_seconds", "Stalls of at least 100 ms in work that raft or a change of leaders waits for. Causes: apply, publish, restore, snapshot, disk, process (nothing ran: no processor, garbage collection, or stopped), queue (the same, and goroutines that waited for their turn), services.", telemetry.Latency, "cause")
	m.set.Read(func(out *telemetry.Samples) {
		serverMetrics.Give(out, &serverReading{s, s.replica.Stats(), s.decide.Metrics(), s.nodes.Beats.Metrics(), s.nodes.Reports.Metrics(), s.nodes.Probes.Metrics(), s.RaftStats()})
	}, serverMetrics)
	m.set.Read(func(out *telemetry.Samples) {
		if c := s.clusterMetrics(); c != nil {
			clusterTable.Give(out, c)
		}
	}, clusterTable)
	m.set.Read(func(out *telemetry.Samples) {
		for _, c := range admit.Classes {
			admitTable.Give(out, s.gate.Counts(c), c.String())
		}
	}, admitTable)
	m.set.Read(s.gpuMetrics, gpuOfNode, gpuOfModel, gpuOfCluster)
	m.set.Read(s.queueMetrics, queueTable, queueLossTable)
}

// stalled counts a stall.
func (m *metrics) stalled(cause replica.Stall, took time.Duration) {
	m.stalls.Observe(took.Seconds(), string(cause))
}

// observers returns the histograms for the deciding service.
func (m *metrics) observers() decide.Observers {
	return decide.Observers{
		Pass:      func(v float64) { m.pass.Observe(v) },
		Commit:    func(v float64) { m.commit.Observe(v) },
		PlanDepth: func(v float64) { m.planDepth.Observe(v) },
		PlanPlans: func(v float64) { m.planPlans.Observe(v) },
	}
}

// Metrics returns all metrics of the server.
func (s *Server) Metrics() *telemetry.Set { return &s.metrics.set }

// Call implements rpc.Metrics.
func (m *metrics) Call(method string, peer rpc.Peer, code structs.ErrorCode, took time.Duration, in, out int) {
	m.calls.Add(1)
	if code != "" && code != structs.CodeDenied {
		m.failed.Add(1)
	}
	if methods.Find(method) == nil {
		method = "unknown" // callers choose the names, and each name is a time series
	}
	m.rpc.Observe(took.Seconds(), method, string(code))
}

// Refused implements rpc.Metrics.
func (m *metrics) Refused(reason string) { m.refused.Add(1) }

// serverReading is the source of the metrics of a server's own work.
type serverReading struct {
	s      *Server
	rep    replica.Stats
	pass   decide.Metrics
	beats  nodes.HeartbeatMetrics
	report nodes.ReportMetrics
	probes nodes.ProbeMetrics
	raft   map[string]string
}

type (
	reading = *serverReading
	table   = telemetry.Table[reading]
)

func counter(name, help string, read func(r reading) int64) telemetry.Row[reading] {
	return telemetry.Counter(name, help, read)
}

func gauge(name, help string, read func(r reading) float64) telemetry.Row[reading] {
	return telemetry.Gauge(name, help, read)
}

// raftGauge declares a gauge of one of raft's statistics.
func raftGauge(name, help, key string) telemetry.Row[reading] {
	return gauge(name, help, func(r reading) float64 {
		v, err := strconv.ParseFloat(r.raft[key], 64)
		return telemetry.Known(v, err == nil)
	})
}

// serverMetrics are the metrics of a server's own work. Counters begin with the process and continue over terms.
// Counters of a leader's work stay the same on other servers.
var serverMetrics = table{
	gauge("muster_server_leader", "Whether this server leads: 1 or 0.", func(r reading) float64 { return telemetry.Bool(r.s.IsLeader()) }),
	gauge("muster_server_healthy", "Whether the leader's autopilot finds all servers healthy: 1 or 0.", func(r reading) float64 { return telemetry.Bool(!r.s.members.Unhealthy.Load()) }),
	gauge("muster_server_quarantined", "Whether this server distrusts its own state: 1 or 0.", func(r reading) float64 { return telemetry.Bool(r.s.replica.Quarantined() != "") }),
	gauge("muster_server_last_contact_seconds", "Time since this server heard from the leader.", func(r reading) float64 { return r.s.lastContact().Seconds() }),
	gauge("muster_server_problem", "Whether this server does not do its part, for the reason that /v1/agent/health tells: 1 or 0.", func(r reading) float64 { return telemetry.Bool(r.s.replica.Problem(0) != "") }),
	counter("muster_server_leaderships_total", "Terms in which this server began to lead.", func(r reading) int64 { return r.s.lead.gains.Load() }),

	gauge("muster_server_applied_index", "Index of the newest log entry that was applied.", func(r reading) float64 { return float64(r.s.Published().Index) }),
	gauge("muster_server_apply_gap", "Committed log entries that are not applied yet.", func(r reading) float64 { return float64(r.rep.Gap) }),
	counter("muster_server_apply_entries_total", "Log entries applied.", func(r reading) int64 { return r.rep.Entries }),
	counter("muster_server_snapshots_total", "Snapshots of the state written.", func(r reading) int64 { return r.rep.Snapshots }),
	gauge("muster_server_log_bytes", "Log applied since the last snapshot.", func(r reading) float64 { return float64(r.rep.LogBytes) }),
	counter("muster_server_proposed_total", "Commands proposed to the log.", func(r reading) int64 { return r.rep.Proposed }),
	counter("muster_server_proposals_refused_total", "Commands refused because too many waited for the log.", func(r reading) int64 { return r.rep.Refused }),
	gauge("muster_server_view_chunks_copied", "Parts of the scheduler's view of the nodes that the newest state did not share with the one before.", func(r reading) float64 { return float64(r.s.Published().View.ChunksCopied()) }),
	raftGauge("muster_raft_term", "Raft's term.", "term"),
	raftGauge("muster_raft_last_log_index", "Index of the last entry in raft's log.", "last_log_index"),
	raftGauge("muster_raft_commit_index", "Index of the last entry that raft knows as committed.", "commit_index"),
	raftGauge("muster_raft_applied_index", "Index of the last entry that raft gave to the state machine.", "applied_index"),
	raftGauge("muster_raft_last_snapshot_index", "Index of raft's last snapshot.", "last_snapshot_index"),
	raftGauge("muster_raft_fsm_pending", "Batches of entries that wait for the state machine.", "fsm_pending"),

	counter("muster_server_rpc_calls_total", "Remote procedure calls answered.", func(r reading) int64 { return r.s.metrics.calls.Load() }),
	counter("muster_server_rpc_denied_total", "Remote procedure calls denied to their caller.", func(r reading) int64 { return r.s.metrics.denied.Load() }),
	counter("muster_server_rpc_failed_total", "Remote procedure calls that failed, denied ones left out.", func(r reading) int64 { return r.s.metrics.failed.Load() }),
	counter("muster_server_rpc_forwarded_total", "Remote procedure calls forwarded to another server or a node.", func(r reading) int64 { return r.s.metrics.forwarded.Load() }),
	counter("muster_server_rpc_refused_total", "Connections and streams refused.", func(r reading) int64 { return r.s.metrics.refused.Load() }),
	gauge("muster_server_rpc_sessions", "Sessions of agents to this server.", func(r reading) float64 { return float64(r.s.rpc.Sessions()) }),
	gauge("muster_server_node_sessions", "Sessions through which this server reaches a node.", func(r reading) float64 { return float64(r.s.nodes.Sessions.Count()) }),
	counter("muster_server_reads_total", "Queries of the state.", func(r reading) int64 { return r.s.hub.Reads.Load() }),
	gauge("muster_server_blocking_queries", "Queries that wait for a change.", func(r reading) float64 { return float64(r.s.hub.Watches.Load()) }),
	gauge("muster_server_bundle_bytes", "Bytes of bundles, the directories that were sent along with jobs, on this server's disk.", func(r reading) float64 { return float64(r.s.bundles.Bytes()) }),
	gauge("muster_server_event_streams", "Event streams that are open.", func(r reading) float64 { return float64(r.s.endpoints.Streams()) }),

	counter("muster_server_heartbeats_total", "Heartbeats of nodes.", func(r reading) int64 { return r.beats.Beats }),
	counter("muster_server_heartbeats_missed_total", "Nodes whose time ended, by missed heartbeats or by a probe.", func(r reading) int64 { return r.beats.Missed }),
	counter("muster_server_heartbeats_spared_total", "Late heartbeats of nodes whose agents answered on their sessions, so that they got more time.", func(r reading) int64 { return r.beats.Spared }),
	counter("muster_server_heartbeat_stalls_total", "Times this server was too late itself to judge heartbeats.", func(r reading) int64 { return r.beats.Stalls }),

	gauge("muster_server_reports_bytes", "Bytes of agents' reports that wait to be written or applied, on the leader.", func(r reading) float64 { return float64(r.report.Waiting) }),
	counter("muster_server_report_entries_total", "Log entries that reports of agents took.", func(r reading) int64 { return r.report.Entries }),
	counter("muster_server_reports_refused_total", "Reports of agents refused because the log was late with others. The agent keeps what it reports and is told when to return.", func(r reading) int64 { return r.report.Refused }),
	counter("muster_server_reports_superseded_total", "Observations of allocations that a later report replaced before they were written.", func(r reading) int64 { return r.report.Superseded }),

	gauge("muster_server_nodes_reached", "Nodes that this server has reached at their gossip address. It does not trust the silence of others.", func(r reading) float64 { return float64(r.probes.Reached) }),
	counter("muster_server_node_doubts_total", "Nodes that may be lost: their session ended or is silent, gossip suspects them, or they missed an interval.", func(r reading) int64 { return r.probes.Doubts }),
	counter("muster_server_node_probes_total", "Probes of such nodes, by the leader.", func(r reading) int64 { return r.probes.Probes }),
	counter("muster_server_node_probes_unsure_total", "Probes without a result: too few servers saw the node silent, or could tell.", func(r reading) int64 { return r.probes.Unsure }),
	counter("muster_server_nodes_gone_total", "Nodes that went down because their machine answered no server.", func(r reading) int64 { return r.probes.Gone }),
	counter("muster_server_nodes_ended_total", "Nodes whose agent had ended while their machine answered.", func(r reading) int64 { return r.probes.Ended }),

	counter("muster_server_broker_passes_total", "Scheduling passes begun.", func(r reading) int64 { return r.pass.Broker.Passes }),
	counter("muster_server_broker_taken_total", "Jobs given to passes.", func(r reading) int64 { return r.pass.Broker.Taken }),
	counter("muster_server_broker_coalesced_total", "Evaluations answered by another evaluation of the same pass.", func(r reading) int64 { return r.pass.Broker.Coalesced }),
	counter("muster_server_broker_unblocked_total", "Blocked jobs made ready by an event.", func(r reading) int64 { return r.pass.Broker.Unblocked }),
	counter("muster_server_broker_skipped_total", "Events that unblocked none of the blocked jobs of their node pool.", func(r reading) int64 { return r.pass.Broker.Skipped }),
	counter("muster_server_broker_raced_total", "Jobs that would have blocked on a state older than an event that unblocks them, and were decided again.", func(r reading) int64 { return r.pass.Broker.Raced }),
	counter("muster_server_broker_refused_total", "Jobs decided again because a plan of theirs was refused.", func(r reading) int64 { return r.pass.Broker.Refused }),
	counter("muster_server_broker_speculated_total", "Jobs decided before their registration was committed.", func(r reading) int64 { return r.pass.Broker.Speculated }),
	gauge("muster_server_broker_ready", "Jobs that are ready to be decided.", func(r reading) float64 { return float64(r.pass.Holding.Ready) }),
	gauge("muster_server_broker_blocked", "Jobs that are blocked until an event.", func(r reading) float64 { return float64(r.pass.Holding.Blocked) }),
	gauge("muster_server_broker_delayed", "Evaluations that wait for a time.", func(r reading) float64 { return float64(r.pass.Holding.Delayed) }),
	gauge("muster_server_broker_in_flight", "Jobs that are being decided or written.", func(r reading) float64 { return float64(r.pass.Holding.Flight) }),

	counter("muster_server_plans_total", "Plans put into the log.", func(r reading) int64 { return r.pass.Planner.Plans }),
	counter("muster_server_plan_entries_total", "Log entries that plans took.", func(r reading) int64 { return r.pass.Planner.Entries }),
	counter("muster_server_plan_places_total", "Placements committed.", func(r reading) int64 { return r.pass.Planner.Places }),
	counter("muster_server_plan_parts_refused_total", "Parts of plans refused before the log.", func(r reading) int64 { return r.pass.Planner.PartsRefused }),
	counter("muster_server_plan_parts_stale_total", "Parts of plans refused by the state machine, because a node had changed.", func(r reading) int64 { return r.pass.Planner.PartsStale }),
	counter("muster_server_plan_refreshes_total", "Plans with a refused part.", func(r reading) int64 { return r.pass.Planner.Refreshes }),
	counter("muster_server_plan_unknown_total", "Plans whose outcome was lost with leadership.", func(r reading) int64 { return r.pass.Planner.Unknown }),
	gauge("muster_server_plan_depth_max", "Most log entries of plans in flight at a time, since the process began.", func(r reading) float64 { return float64(r.pass.Planner.DepthMax) }),
	gauge("muster_server_plan_entry_plans_max", "Most plans in one log entry, since the process began.", func(r reading) float64 { return float64(r.pass.Planner.PlansMax) }),

	counter("muster_server_backfilled_jobs_total", "Jobs placed while capacity was reserved for others.", func(r reading) int64 { return r.pass.Backfilled }),
	counter("muster_server_preempted_jobs_total", "Jobs preempted for others.", func(r reading) int64 { return r.pass.Preempted }),
	counter("muster_server_gang_restarts_total", "Gangs started again.", func(r reading) int64 { return r.pass.GangRestarts }),
	counter("muster_server_gang_resizes_total", "Elastic gangs that continued with more or fewer members. Each of them restarted.", func(r reading) int64 { return r.pass.GangResizes }),
	counter("muster_server_reservations_made_total", "Reservations made for jobs that wait.", func(r reading) int64 { return r.pass.Reservations.Made }),
	counter("muster_server_reservations_moved_earlier_total", "Reservations moved to an earlier time.", func(r reading) int64 { return r.pass.Reservations.Earlier }),
	counter("muster_server_reservations_moved_later_total", "Reservations moved to a later time, mostly because work ran longer than it was expected to.", func(r reading) int64 { return r.pass.Reservations.Later }),
	counter("muster_server_reservations_kept_total", "Jobs placed by the time of their reservation.", func(r reading) int64 { return r.pass.Reservations.Kept }),
	counter("muster_server_reservations_late_total", "Jobs placed after the time of their reservation.", func(r reading) int64 { return r.pass.Reservations.Late }),
	counter("muster_server_reservations_dropped_total", "Reservations dropped, because the job ended or others got ahead by the order of the queue.", func(r reading) int64 { return r.pass.Reservations.Dropped }),
	counter("muster_server_decision_panics_total", "Decisions about a job that failed by a fault of the server.", func(r reading) int64 { return r.pass.Panics }),
	counter("muster_server_decision_reloads_total", "Times the queue was built from the state.", func(r reading) int64 { return r.pass.Reloads }),

	counter("muster_server_duty_commands_total", "Commands written by the leader's duties.", func(r reading) int64 { return r.s.duties.written.Load() }),
	counter("muster_server_duty_refused_total", "Commands of duties refused because the state had moved on.", func(r reading) int64 { return r.s.duties.refused.Load() }),
	counter("muster_server_duty_retries_total", "Times a duty's command could not be written.", func(r reading) int64 { return r.s.duties.retried.Load() }),
}

// admitTable counts calls by whose they are (admit.Class): node, operator, read and write.
var admitTable = telemetry.Table[admit.Counts]{
	telemetry.Counter("muster_server_calls_admitted_total", "Calls that this server took on, by class: node (of nodes and servers), operator, and reads and writes of users.", func(c admit.Counts) int64 { return c.Admitted }),
	telemetry.Counter("muster_server_calls_delayed_total", "Calls that waited for a place before this server took them on or refused them, by class.", func(c admit.Counts) int64 { return c.Waited }),
	telemetry.Counter("muster_server_calls_refused_total", "Calls refused because this server was overloaded, by class. Those of nodes and servers never are.", func(c admit.Counts) int64 { return c.Refused }),
}.Labelled("class")

// Stats returns values for agent-info: the metrics without labels, and values that are not numbers. What RaftStats has is
// left out.
func (s *Server) Stats() map[string]string {
	out := s.metrics.set.Stats()
	addr, id := s.Leader()
	maps.Copy(out, map[string]string{
		"server":        "true",
		"leader":        strconv.FormatBool(s.IsLeader()),
		"leader_addr":   addr,
		"leader_id":     id,
		"bootstrap":     strconv.FormatBool(s.cfg.BootstrapExpect == 1),
		"known_regions": strconv.Itoa(len(s.members.Regions())),
		"healthy":       strconv.FormatBool(!s.members.Unhealthy.Load()),
		"quarantined":   strconv.FormatBool(s.replica.Quarantined() != ""),
	})
	for name := range s.RaftStats() {
		delete(out, name)
	}
	return out
}

// RaftStats returns raft's own statistics and the backend of its log.
func (s *Server) RaftStats() map[string]string { return s.replica.RaftStats() }
