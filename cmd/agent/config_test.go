package agent

import (
	"os"
	"regexp"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/agentconfig"
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

// TestPriorities: the settings of priorities reach the server.
func TestPriorities(t *testing.T) {
	c := &agentconfig.Config{}
	c.Server = agentconfig.Server{Enabled: true, JobMaxPriority: 80, JobDefaultPriority: 40}
	cfg, err := FromConfig(c, hclog.NewInterceptLogger(nil))
	if want := (endpoint.Priorities{Max: 80, Default: 40}); err != nil || cfg.Server.Priorities != want {
		t.Errorf("the server gets %+v, %v; want %+v", cfg.Server.Priorities, err, want)
	}
}
