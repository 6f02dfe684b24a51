package agent

import (
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/agentconfig"
	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/server/raftlog"
)

func TestRaftLogStore(t *testing.T) {
	c := &agentconfig.Config{}
	c.Server.Enabled = true
	c.Server.RaftBoltDB.NoFreelistSync = true
	c.Server.RaftLogStore = agentconfig.RaftLogStore{Backend: "boltdb", DisableLogCache: true, WAL: agentconfig.WAL{SegmentSizeMB: 3}}
	cfg, err := FromConfig(c, hclog.NewInterceptLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	want := raftlog.Options{Backend: raftlog.BoltDB, SegmentBytes: 3 << 20, NoFreelistSync: true}
	if r := cfg.Server.Raft; r.Log != want || !r.NoLogCache {
		t.Errorf("the server gets %+v, no cache: %v; want %+v without a cache", r.Log, r.NoLogCache, want)
	}
}

// TestDefaultBackend keeps the documented default equal to the one that servers have.
func TestDefaultBackend(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `backend` .*Default: \"(\\w+)\"").FindSubmatch(page)
	if row == nil || string(row[1]) != string(raftlog.Default) {
		t.Errorf("the page says %q, servers use %q", row, raftlog.Default)
	}
}

// TestCollectLimits: the settings of garbage collection reach the server, which keeps its defaults for what is not set.
func TestCollectLimits(t *testing.T) {
	c := &agentconfig.Config{}
	c.Server = agentconfig.Server{Enabled: true, JobGCInterval: 1, JobGCThreshold: 2, EvalGCThreshold: 3, BatchEvalGCThreshold: 4, NodeGCThreshold: 5, AcctRetention: 6, AcctMaxRecords: 700}
	cfg, err := FromConfig(c, hclog.NewInterceptLogger(nil))
	if want := (duty.CollectLimits{Interval: 1, JobAge: 2, EvalAge: 3, BatchAge: 4, NodeAge: 5, AcctAge: 6, AcctKept: 700}); err != nil || cfg.Server.Collect != want {
		t.Errorf("the server gets %+v, %v; want %+v", cfg.Server.Collect, err, want)
	}
	got := (duty.CollectLimits{JobAge: time.Minute}).OrDefaults()
	want := duty.DefaultCollectLimits
	if want.JobAge = time.Minute; got != want {
		t.Errorf("with one limit set: %+v, want %+v", got, want)
	}
}

// TestPriorities: the settings of priorities reach the server.
func TestPriorities(t *testing.T) {
	c := &agentconfig.Config{}
	c.Server = agentconfig.Server{Enabled: true, JobMaxPriority: 80, JobDefaultPriority: 40}
	cfg, err := FromConfig(c, hclog.NewInterceptLogger(nil))
	if want := (endpoint.Priorities{Max: 80, Default: 40}); err != nil || cfg.Server.Priorities != want {
		t.Errorf("the server gets %+v, %v; want %+v", cfg.Server.Priorities, err, want)
	}
}
