package nomadlike

import (
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

type (
	// Gang is who runs together: GET /v1/job/:id/gangs.
	Gang struct {
		Group       string
		Epoch       uint64 // grows with every change of the members
		LaunchMode  string // "node", "rank", or "" without a launch block
		MasterAddr  string `json:",omitempty"`
		MasterPort  int    `json:",omitempty"` // 0 until node rank 0 has reserved one
		WorldSize   int
		Restarts    int64
		Reason      string   // of the last change
		AvoidNodes  []string // ids of nodes that the gang has lost members on
		Members     []GangMember
		ModifyIndex uint64
	}
	// GangMember is one of them; its place in the list is its node rank.
	GangMember struct {
		AllocID, NodeID, NodeName, Address string
		NodeRank, FirstRank, Ranks         int
		GPUs                               int64
	}
)

func gangsOf(r *methods.JobGangsResponse) []Gang {
	out := []Gang{}
	for _, ro := range r.Rosters {
		g := Gang{Group: ro.Group, Epoch: ro.Epoch, MasterPort: ro.Port, Restarts: ro.Restarts, Reason: ro.Reason, AvoidNodes: []string{},
			Members: []GangMember{}, ModifyIndex: uint64(ro.ModifyIndex)}
		var launch *structs.Launch
		if tg := r.Job.Group(ro.Group); tg != nil && tg.Launch != nil {
			launch, g.LaunchMode = tg.Launch, structs.LaunchNode
			if launch.InRanks() {
				g.LaunchMode = structs.LaunchRank
			}
		}
		for _, n := range ro.AvoidNodes {
			g.AvoidNodes = append(g.AvoidNodes, n.String())
		}
		for i, m := range ro.Members {
			n := launch.RanksOf(m.GPUs)
			g.Members = append(g.Members, GangMember{AllocID: m.Alloc.String(), NodeID: m.Node.String(), NodeName: m.Name, Address: m.Address,
				NodeRank: i, FirstRank: g.WorldSize, Ranks: n, GPUs: m.GPUs})
			g.WorldSize += n
		}
		if len(ro.Members) > 0 {
			g.MasterAddr = ro.Members[0].Address
		}
		out = append(out, g)
	}
	return out
}
