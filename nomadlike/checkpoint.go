package nomadlike

import (
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

type (
	// CheckpointRequest is the body of PUT /v1/job/:id/checkpoint; without a body all running allocations are meant.
	CheckpointRequest struct {
		Group string `json:",omitempty"`
		Rank  *int   `json:",omitempty"` // only the allocation that this rank of a gang runs in
	}
	// Checkpoints answers it.
	Checkpoints struct {
		Allocations []AllocCheckpoint
	}
	// AllocCheckpoint is one allocation that was notified to save its state, or could not be.
	AllocCheckpoint struct {
		AllocID, Name, Group, NodeID, NodeName string
		NodeRank                               int // -1 outside gangs
		Told                                   bool
		Error                                  string                `json:",omitempty"` // why it was not notified
		Tasks                                  []string              `json:",omitempty"`
		How                                    string                `json:",omitempty"` // "signal SIGUSR1"
		Over                                   bool                  `json:",omitempty"` // a command has returned, or a request was answered: the state is saved
		At                                     int64                 `json:",omitempty"` // Unix nanoseconds of the notice
		Grace                                  int64                 `json:",omitempty"` // nanoseconds that a save may take
		Before                                 *wire.SavedCheckpoint `json:",omitempty"` // the newest checkpoint before the notice
	}
)

// jobCheckpoint serves PUT /v1/job/:id/checkpoint.
func jobCheckpoint(c *call) (any, error) {
	var body CheckpointRequest
	if err := c.optionalBody(&body); err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.JobCheckpoint, &methods.JobCheckpointRequest{JobID: c.params["id"], Group: structs.GroupName(body.Group), Rank: body.Rank})
	if err != nil {
		return nil, err
	}
	out := Checkpoints{Allocations: []AllocCheckpoint{}}
	for _, a := range resp.Allocs {
		o := AllocCheckpoint{AllocID: a.AllocID.String(), Name: a.Name, Group: string(a.Group), NodeID: a.NodeID.String(), NodeName: a.NodeName, NodeRank: a.NodeRank, Error: a.Error}
		if n := a.Notice; n != nil {
			o.Told, o.Tasks, o.How, o.Over, o.At, o.Grace, o.Before = true, n.Tasks, n.How, n.Over, int64(n.At), int64(n.Grace), wire.SavedFrom(n.Was)
		}
		out.Allocations = append(out.Allocations, o)
	}
	return out, nil
}
