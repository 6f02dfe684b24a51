package server

import (
	"slices"
	"testing"
	"testing/synctest"

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
