package server

import (
	"sync/atomic"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// metrics are the counters behind Stats.
type metrics struct {
	calls, denied, failed, forwarded, refused atomic.Int64
	streams                                   atomic.Int64
	vouching                                  atomic.Int64                                  // questions to the leader in flight
	observe                                   func(method, code string, took time.Duration) // Config.ObserveRPC
}

// Call implements rpc.Metrics.
func (m *metrics) Call(method string, peer rpc.Peer, code structs.ErrorCode, took time.Duration, in, out int) {
	m.calls.Add(1)
	if code != "" && code != structs.CodeDenied {
		m.failed.Add(1)
	}
	if m.observe == nil {
		return
	}
	if methods.Find(method) == nil {
		method = "unknown" // callers choose names, and each name is a time series
	}
	m.observe(method, string(code), took)
}

// Refused implements rpc.Metrics.
func (m *metrics) Refused(reason string) { m.refused.Add(1) }
