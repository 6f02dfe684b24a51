package nomadlike

import (
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

type (
	// Gang describes the members of a gang: GET /v1/job/:id/gangs.
	Gang struct {
		Group       string
		State       string // "waiting", "assembling", "running", "complete", "ended"
		Running     int
		Asked       int    // members
		Min         int    // members without which it does not start
		Max         int    // the largest number of members
		Epoch       uint64 // grows with every change of the members; 0 before the first
		LaunchMode  string // "node", "rank", or "" without a launch block
		MasterAddr  string `json:",omitempty"`
		MasterPort  int    `json:",omitempty"` // 0 until node rank 0 has reserved a port
		WorldSize   int
		Topology    string `json:",omitempty"` // how near the members are to each other, as "all 8 in leaf l2, 2 racks"
		Restarts    int64
		Resizes     *GangResizes    `json:",omitempty"` // of an elastic gang; nil: none yet
		Checkpoint  *GangCheckpoint `json:",omitempty"` // nil: no member has written one yet
		Reason      string          // of the last change
		Deadline    int64           `json:",omitempty"` // Unix nanoseconds until which the minimum must run; 0 once it does
		AvoidNodes  []string        // ids of nodes on which the gang has lost members
		Members     []GangMember
		Missing     []GangMissing
		Standby     int           // standby places that it asks for
		Standbys    []GangStandby // standby places that it holds
		ModifyIndex uint64
	}
	// GangResizes counts how often an elastic gang continued with more or with fewer members.
	GangResizes struct {
		Grown, Shrunk int64
		Time          int64 // of the last one, in Unix nanoseconds
		From, To      int   // members before and after the last one
	}
	// GangCheckpoint is the newest checkpoint that all members have written.
	GangCheckpoint struct {
		Complete *wire.SavedCheckpoint `json:",omitempty"` // the part that was written first; nil: none is complete
		Parts    int                   // members that wrote it; 1: one saves for all
		Newer    int                   // members that have written one since
	}
	// GangMember is one member; its place in the list is its node rank.
	GangMember struct {
		AllocID, NodeID, NodeName, Address string
		NodeRank, FirstRank, Ranks         int
		GPUs                               int64
		Status                             string                // of the allocation: "pending", "running", "complete", ...
		DesiredStatus                      string                `json:",omitempty"`
		StartTime                          int64                 `json:",omitempty"` // Unix nanoseconds
		Event                              string                `json:",omitempty"` // the newest event of its tasks
		Checkpoint                         *wire.SavedCheckpoint `json:",omitempty"` // the newest one that it has written
	}
	// GangStandby is a standby place of a gang: an allocation that starts nothing until a member is lost.
	GangStandby struct {
		AllocID, NodeID, NodeName string
	}
	// GangMissing is one member that does not run and why, or a number of members without a place.
	GangMissing struct {
		Members  int
		NodeRank int       // -1: they have no place
		NodeName string    `json:",omitempty"`
		Why      string    `json:",omitempty"` // for members without a place the reason may be in Report instead
		Report   *WhyGroup `json:",omitempty"`
	}
)

func gangsOf(r *methods.JobGangsResponse) []Gang {
	out := []Gang{}
	for _, st := range r.States {
		ro := &structs.Roster{Group: st.Group}
		for _, x := range r.Rosters {
			if x.Group == st.Group {
				ro = x
			}
		}
		g := Gang{Group: string(st.Group), State: st.State, Running: st.Running, Asked: st.Asked, Min: st.Min, Max: st.Max, Epoch: ro.Epoch, MasterPort: ro.Port,
			Restarts: ro.StartedAgain(), Reason: ro.Reason, Deadline: int64(ro.Deadline), AvoidNodes: []string{}, Members: []GangMember{}, Missing: []GangMissing{}, Standby: st.Standby, Standbys: []GangStandby{}, Topology: st.Topology,
			ModifyIndex: uint64(ro.ModifyIndex)}
		if x := &ro.Resizes; x.Total() > 0 {
			g.Resizes = &GangResizes{Grown: x.Grown, Shrunk: x.Shrunk, Time: int64(x.At), From: x.From, To: x.To}
		}
		if c := ro.Checkpoint; c != nil && c.Parts > 0 {
			g.Checkpoint = &GangCheckpoint{Complete: wire.SavedFrom(c.Newest)}
			if c.Newest != nil {
				g.Checkpoint.Parts = c.Parts
			}
			for i := range st.Status {
				if s := st.Status[i].Saved; s != nil && s.Time > max(c.Last, c.Since) {
					g.Checkpoint.Newer++
				}
			}
		}
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
			x := GangMember{AllocID: m.Alloc.String(), NodeID: m.Node.String(), NodeName: m.Name, Address: m.Address,
				NodeRank: i, FirstRank: g.WorldSize, Ranks: n, GPUs: m.GPUs}
			if i < len(st.Status) {
				s := &st.Status[i]
				x.Status, x.DesiredStatus, x.StartTime, x.Event = string(s.Client), string(s.Desired), int64(s.StartedAt), s.Event
				x.Checkpoint = wire.SavedFrom(s.Saved)
			}
			g.Members = append(g.Members, x)
			g.WorldSize += n
		}
		for _, m := range st.Missing {
			x := GangMissing{Members: m.Members, NodeRank: m.NodeRank, Why: m.Why}
			if m.NodeRank >= 0 && m.NodeRank < len(ro.Members) {
				x.NodeName = ro.Members[m.NodeRank].Name
			}
			if m.Report != nil {
				w := whyGroup(m.Report, nil)
				w.Scores = []Score{} // they belong to places that were not taken
				x.Report = &w
			}
			g.Missing = append(g.Missing, x)
		}
		for _, s := range st.Standbys {
			g.Standbys = append(g.Standbys, GangStandby{AllocID: s.Alloc.String(), NodeID: s.Node.String(), NodeName: s.Name})
		}
		if len(ro.Members) > 0 {
			g.MasterAddr = ro.Members[0].Address
		}
		out = append(out, g)
	}
	return out
}
