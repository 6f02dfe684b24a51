package server

import (
	"maps"
	"strconv"
	"time"
)

// Stats are this server's figures, by name. Counters begin with the process.
func (s *Server) Stats() map[string]string {
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	f, rep := &s.metrics, s.replica.Stats()
	p := s.Published()
	addr, id := s.Leader()
	out := map[string]string{
		"server":              "true",
		"leader":              strconv.FormatBool(s.IsLeader()),
		"leader_addr":         addr,
		"leader_id":           id,
		"bootstrap":           strconv.FormatBool(s.cfg.BootstrapExpect == 1),
		"known_regions":       strconv.Itoa(len(s.members.Regions())),
		"applied_index":       strconv.FormatUint(uint64(p.Index), 10),
		"apply_gap":           strconv.FormatUint(rep.Gap, 10),
		"apply_entries":       n(rep.Entries),
		"apply_batches":       n(rep.Batches),
		"apply_nanoseconds":   n(rep.ApplyNanos),
		"snapshots":           n(rep.Snapshots),
		"proposed":            n(rep.Proposed),
		"proposals_refused":   n(rep.Refused),
		"leaderships":         n(s.lead.gains.Load()),
		"rpc_calls":           n(f.calls.Load()),
		"rpc_denied":          n(f.denied.Load()),
		"rpc_failed":          n(f.failed.Load()),
		"rpc_forwarded":       n(f.forwarded.Load()),
		"rpc_refused":         n(f.refused.Load()),
		"rpc_sessions":        strconv.Itoa(s.rpc.Sessions()),
		"node_sessions":       strconv.Itoa(s.nodes.Count()),
		"reads":               n(s.hub.Reads.Load()),
		"blocking_queries":    n(s.hub.Watches.Load()),
		"event_streams":       n(f.streams.Load()),
		"log_bytes":           n(rep.LogBytes),
		"nodes":               strconv.Itoa(p.Snapshot.NodeCount()),
		"jobs":                strconv.Itoa(p.Snapshot.JobCount()),
		"allocations":         strconv.Itoa(p.Snapshot.AllocCount()),
		"allocations_running": n(rep.Running),
		"evaluations":         strconv.Itoa(p.Snapshot.EvalCount()),
		"view_chunks_copied":  strconv.Itoa(p.View.ChunksCopied()),
		"last_contact":        s.lastContact().Round(time.Millisecond).String(),
		"healthy":             strconv.FormatBool(!s.members.Unhealthy.Load()),
		"quarantined":         strconv.FormatBool(s.replica.Quarantined() != ""),
	}
	s.addDecisionStats(out)
	if s.cfg.Stats != nil {
		maps.Copy(out, s.cfg.Stats())
	}
	return out
}

// RaftStats are raft's own figures, and the backend of its log.
func (s *Server) RaftStats() map[string]string { return s.replica.RaftStats() }
