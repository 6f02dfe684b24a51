package server

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestUnknownLevelsWarn: declared levels of the topology that no node has are accepted, with a warning that names a similar key.
func TestUnknownLevelsWarn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		set := func(levels ...string) []string {
			t.Helper()
			cfg := structs.DefaultSchedulerConfig()
			cfg.TopologyLevels = levels
			r := call(t, s, methods.SchedulerConfigSet, rpc.Header{}, &methods.SchedulerConfigRequest{Config: cfg})
			if got := s.Published().Snapshot.SchedulerConfig().TopologyLevels; !r.Updated || !slices.Equal(got, levels) {
				t.Errorf("declared %v, stored %v, updated %v", levels, got, r.Updated)
			}
			return r.Warnings
		}
		if got := set("rak", "leaf"); len(got) != 0 {
			t.Errorf("a cluster without nodes warns: %q", got)
		}
		node := testNode(1)
		node.Meta = map[string]string{"rack": "r1"}
		call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: node})
		for _, c := range []struct {
			levels []string
			want   []string
		}{
			{nil, nil}, {[]string{structs.TopologyNone}, nil}, {[]string{"rack", "datacenter"}, nil},
			{[]string{"rak", "rack"}, []string{`TopologyLevels: no node has "rak" in its meta or attributes; did you mean "rack"? (nodes have datacenter, rack); gangs are placed without this level until one has it`}},
		} {
			if got := set(c.levels...); !slices.Equal(got, c.want) {
				t.Errorf("%v: warnings %q, want %q", c.levels, got, c.want)
			}
		}
	})
}

// TestSplitPlacesWarn: a rack whose nodes name different leaves, or of which one names none, counts as several places, and a
// changed configuration says so; racks that are numbered again in each leaf are no mistake.
func TestSplitPlacesWarn(t *testing.T) {
	for _, c := range []struct {
		name  string
		nodes []string // rack and leaf of each
		want  []string
	}{
		{"one leaf each", []string{"r1 l1", "r1 l1", "r2 l2"}, nil},
		{"one node names none", []string{"r1 l1", "r1 ", "r2 l2"}, []string{`TopologyLevels: rack "r1" counts as 2 places, because its nodes name several values of leaf (none, l1): a gang that requires the rack has only one of them; give these nodes one leaf in their meta`}},
		{"two leaves", []string{"r1 l1", "r1 l2", "r2 l2", "r3 l1"}, []string{`TopologyLevels: rack "r1" counts as 2 places, because its nodes name several values of leaf (l1, l2): a gang that requires the rack has only one of them; give these nodes one leaf in their meta`}},
		{"numbered in each leaf", []string{"1 l1", "2 l1", "1 l2", "2 l2"}, nil},
		{"no leaf anywhere", []string{"r1 ", "r1 "}, nil},
		{"pools with other fabrics", []string{"r1 l1", "r1 l1", "r1  other", "r1  other"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := testServer(t, nil)
				for i, at := range c.nodes {
					rack, leaf, _ := strings.Cut(at, " ")
					leaf, pool, _ := strings.Cut(leaf, " ")
					n := testNode(i)
					n.Pool = structs.PoolName(pool)
					if n.Meta = map[string]string{"rack": rack}; leaf != "" {
						n.Meta["leaf"] = leaf
					}
					mustApply(t, s, &structs.NodeRegisterCommand{Node: n})
				}
				if r := call(t, s, methods.SchedulerConfigGet, rpc.Header{}, &methods.EmptyRequest{}); !slices.Equal(r.Warnings, c.want) {
					t.Errorf("without a change, warnings %q, want %q", r.Warnings, c.want)
				}
				r := call(t, s, methods.SchedulerConfigSet, rpc.Header{}, &methods.SchedulerConfigRequest{Config: structs.DefaultSchedulerConfig()})
				if !slices.Equal(r.Warnings, c.want) {
					t.Errorf("warnings %q, want %q", r.Warnings, c.want)
				}
			})
		})
	}
}

// TestSplitPlacesLogged: the leader logs that a node that registers puts a rack into two leaves, once.
func TestSplitPlacesLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		log := hclog.New(&hclog.LoggerOptions{Output: &out, Mutex: &sync.Mutex{}})
		s := testServer(t, func(c *Config) { c.Logger = log })
		const logged = `rack "r1" counts as 2 places`
		for i, at := range []string{"r2 l1", "r3 l2", "r1 l1", "r1 l2", "r1 l2"} {
			rack, leaf, _ := strings.Cut(at, " ")
			n := testNode(i)
			n.Meta = map[string]string{"rack": rack, "leaf": leaf}
			call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: n})
			for range 20 {
				time.Sleep(5 * time.Second)
				call(t, s, methods.NodeHeartbeat, rpc.Header{}, &methods.NodeHeartbeatRequest{NodeAuth: methods.NodeAuth{NodeID: n.ID, Secret: n.SecretID}, Status: structs.NodeReady})
			}
			synctest.Wait()
			if got := strings.Count(strings.ReplaceAll(out.String(), `\"`, `"`), logged); got != i/3 { // the fourth node is in another leaf
				t.Errorf("after %d nodes it was logged %d times:\n%s", i+1, got, out.String())
			}
		}
	})
}
