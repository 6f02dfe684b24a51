package fsm

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// conversions rewrite the rows that have another form in a format. They run in the entry that puts the format in force,
// in the order of formats, so a conversion sees what the one before it wrote.
var conversions = map[structs.Format]func(x *tx){}

// applyClusterInit sets the cluster's ID and its first format, once.
func applyClusterInit(x *tx, c *structs.ClusterInitCommand) *structs.Error {
	if c.ID.IsZero() || c.Format == 0 {
		return structs.Errorf(structs.CodeInvalid, "the cluster needs an ID and a format")
	}
	if state.Meta.Get(x, "") == nil {
		state.Meta.Put(x, &structs.ClusterMeta{ID: c.ID, CreateTime: x.time, Format: c.Format, FormatBy: c.By, CreateIndex: x.index})
	}
	return nil
}

// applyUpgradeFinish raises the format in force. The leader has made sure that every server reads it.
func applyUpgradeFinish(x *tx, c *structs.UpgradeFinishCommand) *structs.Error {
	old := state.Meta.Get(x, "")
	if old == nil {
		return structs.Errorf(structs.CodeConflict, "the cluster has no identity yet; there is no format to raise")
	}
	if c.Format <= old.Format {
		return structs.Errorf(structs.CodeConflict, "the cluster is at format %d; it cannot be put to format %d", old.Format, c.Format)
	}
	if f := feature.FairWeek.Format; old.Format < f && f <= c.Format {
		x.SettleUse(structs.QueueRoot) // until now it decayed by the old half-life
	}
	n := *old
	n.Format, n.FormatBy = c.Format, c.By
	state.Meta.Put(x, &n)
	if f := feature.LotteryDraws.Format; old.Format < f && f <= c.Format {
		x.StartDraws()
	}
	for f := old.Format + 1; f <= c.Format; f++ {
		if convert := conversions[f]; convert != nil {
			convert(x)
		}
	}
	return nil
}
