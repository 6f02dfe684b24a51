package fsm

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

func applyPoolUpsert(x *tx, c *structs.PoolUpsertCommand) *structs.Error {
	for _, p := range c.Pools {
		switch {
		case p == nil || p.Name == "":
			return structs.Errorf(structs.CodeInvalid, "a node pool needs a name")
		case p.Name == structs.NodePoolAll || p.Name == structs.NodePoolDefault:
			return structs.Errorf(structs.CodeInvalid, "node pool %q is built in and cannot be changed", p.Name)
		}
		for _, pct := range []int64{p.Overcommit.CPU, p.Overcommit.Memory} {
			if pct != 0 && (pct < structs.OvercommitMin || pct > structs.OvercommitMax) {
				return structs.Errorf(structs.CodeInvalid, "node pool %q overcommits to %d %%; give %d to %d, or 0 for 100", p.Name, pct, structs.OvercommitMin, structs.OvercommitMax)
			}
		}
		if p.PowerBudgetW < 0 {
			return structs.Errorf(structs.CodeInvalid, "node pool %q has a power budget of %d W; give watts, or 0 for no limit", p.Name, p.PowerBudgetW)
		}
		n := *p
		n.CreateIndex, n.ModifyIndex = x.index, x.index
		if old := state.Pools.Get(x, p.Name); old != nil {
			n.CreateIndex = old.CreateIndex
		}
		state.Pools.Put(x, &n)
		x.poolSays(&n)
	}
	return nil
}

// poolSays copies a pool's overcommit ratios and power budget to its nodes. The epochs of the nodes move, so that plans
// verified with the old values are refused.
func (x *tx) poolSays(p *structs.NodePool) {
	var changed []*structs.Node
	for n := range state.Nodes.All(x) {
		if n.Pool == p.Name && (n.Overcommit != p.Overcommit || n.PowerBudgetW != p.PowerBudgetW) {
			changed = append(changed, n)
		}
	}
	for _, n := range changed {
		x.editNode(n, func(to *structs.Node) { to.Overcommit, to.PowerBudgetW = p.Overcommit, p.PowerBudgetW })
	}
}

func applyPoolDelete(x *tx, c *structs.PoolDeleteCommand) *structs.Error {
	for _, name := range c.Names {
		switch {
		case name == structs.NodePoolAll || name == structs.NodePoolDefault:
			return structs.Errorf(structs.CodeInvalid, "node pool %q is built in and cannot be deleted", name)
		case state.Pools.Get(x, name) == nil:
			return structs.Errorf(structs.CodeNotFound, "node pool %q not found", name)
		}
		for n := range state.Nodes.All(x) {
			if n.Pool == name {
				return structs.Errorf(structs.CodeConflict, "node pool %q has nodes, for one %s; move or purge them first", name, n.ID)
			}
		}
		for j := range state.Jobs.All(x) {
			if j.NodePool == name && j.Status != structs.JobDead {
				return structs.Errorf(structs.CodeConflict, "node pool %q has non-terminal jobs, for one %q of namespace %q; stop them first", name, j.ID, j.Namespace)
			}
		}
		state.Pools.Delete(x, name)
	}
	return nil
}

func applyNamespaceUpsert(x *tx, c *structs.NamespaceUpsertCommand) *structs.Error {
	for _, in := range c.Namespaces {
		if in == nil || in.Name == "" {
			return structs.Errorf(structs.CodeInvalid, "a namespace needs a name")
		}
		if in.Quota != "" && state.Quotas.Get(x, in.Quota) == nil {
			return structs.Errorf(structs.CodeInvalid, "namespace %q names the quota %q, which does not exist", in.Name, in.Quota)
		}
		n := *in
		n.CreateIndex, n.ModifyIndex = x.index, x.index
		if old := state.Namespaces.Get(x, in.Name); old != nil {
			n.CreateIndex = old.CreateIndex
		}
		state.Namespaces.Put(x, &n)
	}
	return nil
}

func applyNamespaceDelete(x *tx, c *structs.NamespaceDeleteCommand) *structs.Error {
	for _, name := range c.Names {
		switch {
		case name == structs.NamespaceDefault:
			return structs.Errorf(structs.CodeInvalid, "the default namespace cannot be deleted")
		case state.Namespaces.Get(x, name) == nil:
			return structs.Errorf(structs.CodeNotFound, "namespace %q not found", name)
		}
		var dead []*structs.Job
		for j := range state.Jobs.All(x) {
			if j.Namespace != name {
				continue
			}
			if j.Status != structs.JobDead {
				return structs.Errorf(structs.CodeConflict, "namespace %q has non-terminal jobs, for one %q; stop them first", name, j.ID)
			}
			dead = append(dead, j)
		}
		for a := range state.Allocs.All(x) {
			if a.Namespace == name && structs.Holds(a) {
				return structs.Errorf(structs.CodeConflict, "namespace %q has allocations that still run, for one %s", name, a.ID)
			}
		}
		for v := range x.VariablesOf(name) {
			return structs.Errorf(structs.CodeConflict, "namespace %q has variables, for one %q; purge them first", name, v.Path)
		}
		for _, j := range dead {
			x.forget(j)
		}
		state.Namespaces.Delete(x, name)
	}
	return nil
}

func applySchedulerConfig(x *tx, c *structs.SchedulerConfigCommand) *structs.Error {
	if c.Config == nil {
		return structs.Errorf(structs.CodeInvalid, "the command carries no scheduler configuration")
	}
	n := *c.Config
	n.CreateIndex, n.ModifyIndex = x.index, x.index
	var at structs.Index
	if old := state.Scheduler.Get(x, ""); old != nil {
		at, n.CreateIndex = old.ModifyIndex, old.CreateIndex
	}
	if c.CAS && at != c.CASIndex {
		return nil // Swapped stays false: the answer of a check-and-set, not an error
	}
	x.result.Swapped = true
	if n.Order.Has(structs.OrderFair) || n.Order.Has(structs.OrderWeighted) || n.Order.Has(structs.OrderLottery) && x.Has(feature.LotteryDraws) {
		x.StartUse()
	}
	state.Scheduler.Put(x, &n)
	return nil
}

func applyAutopilotConfig(x *tx, c *structs.AutopilotConfigCommand) *structs.Error {
	if c.Config == nil {
		return structs.Errorf(structs.CodeInvalid, "the command carries no autopilot configuration")
	}
	n := *c.Config
	n.CreateIndex, n.ModifyIndex = x.index, x.index
	var at structs.Index
	if old := state.Autopilot.Get(x, ""); old != nil {
		at, n.CreateIndex = old.ModifyIndex, old.CreateIndex
	}
	if c.CAS && at != c.CASIndex {
		return nil
	}
	x.result.Swapped = true
	state.Autopilot.Put(x, &n)
	return nil
}

// applyRestored begins a new history: indexes from before it are meaningless (D14).
func applyRestored(x *tx, c *structs.RestoredCommand) *structs.Error {
	old := state.Meta.Get(x, "")
	if old == nil {
		return structs.Errorf(structs.CodeConflict, "the cluster has no identity yet; nothing can have been restored")
	}
	n := *old
	n.RestoreEpoch = max(n.RestoreEpoch+1, c.Epoch)
	state.Meta.Put(x, &n)
	return nil
}

func applySigningKey(x *tx, c *structs.SigningKeyCommand) *structs.Error {
	if c.Key == nil || c.Key.ID == "" || len(c.Key.Public) == 0 {
		return structs.Errorf(structs.CodeInvalid, "a signing key has an id and a public part")
	}
	if state.SigningKeys.Get(x, c.Key.ID) != nil {
		return structs.Errorf(structs.CodeConflict, "signing key %q exists", c.Key.ID)
	}
	var over []string
	for k := range state.SigningKeys.All(x) {
		if !k.Published(x.time) {
			over = append(over, k.ID)
		}
	}
	for _, id := range over {
		state.SigningKeys.Delete(x, id)
	}
	n := *c.Key
	n.Active, n.EndedAt, n.CreateTime, n.CreateIndex, n.ModifyIndex = true, 0, x.time, x.index, x.index
	succeed(x, state.SigningKeys, &n, func(k *structs.SigningKey) bool {
		was := k.Active
		k.Active, k.EndedAt, k.ModifyIndex = false, x.time, x.index
		return was
	})
	return nil
}

// succeed stores a new active key. end deactivates a copy of each earlier key and reports whether that copy is to be
// written.
func succeed[T any](x *tx, keys *state.Table[string, T], next *T, end func(*T) bool) {
	var ended []*T
	for k := range keys.All(x) {
		n := *k
		if end(&n) {
			ended = append(ended, &n)
		}
	}
	for _, k := range ended {
		keys.Put(x, k)
	}
	keys.Put(x, next)
}

// applyBatch carries out several commands in one entry: all of them or, if one is refused, none.
func applyBatch(x *tx, batch *structs.BatchCommand) *structs.Error {
	for i, c := range batch.Commands {
		if _, nested := c.Body.(*structs.BatchCommand); nested {
			return structs.Errorf(structs.CodeInvalid, "a batch of commands cannot hold another batch")
		}
		if c.Body == nil {
			continue // ignorable, and unknown here
		}
		if c.Seed == (structs.Seed{}) {
			c.Seed = structs.DeriveID[structs.Seed](x.cmd.Seed, "batch", "", uint64(i))
		}
		if c.By == (structs.Submitter{}) {
			c.By = x.cmd.By
		}
		var r structs.Result
		inner := &tx{
			Store: x.Store, commands: x.commands, index: x.index, time: x.time, cmd: &c, result: &r,
			touched: x.touched, order: x.order, evals: map[structs.JobKey]structs.EvalID{}, keep: false,
		}
		if err := inner.run(); err != nil {
			return structs.Errorf(err.Code, "command %d of the batch: %s", i+1, err.Msg)
		}
		x.order = inner.order
		x.keep = x.keep || inner.keep
		if x.result.EvalID.IsZero() {
			x.result.EvalID = r.EvalID
		}
		x.result.Evals = append(x.result.Evals, r.Evals...)
		if r.Plan != nil {
			x.result.Plans = append(x.result.Plans, r.Plan)
		}
		x.result.Plans = append(x.result.Plans, r.Plans...)
		if r.ChildID != "" {
			x.result.ChildID = r.ChildID
		}
		if r.SpecIndex != 0 {
			x.result.SpecIndex, x.result.Version = r.SpecIndex, r.Version
		}
		x.result.Swapped = x.result.Swapped || r.Swapped
	}
	return nil
}
