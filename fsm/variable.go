package fsm

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// applyVariableSet writes a variable. A failed check-and-set changes nothing and is not an error: Swapped stays false, and
// the result has the variable that stood in its way.
func applyVariableSet(x *tx, c *structs.VariableSetCommand) *structs.Error {
	if c.Variable == nil || len(c.Variable.Sealed) == 0 {
		return structs.Errorf(structs.CodeInvalid, "a variable needs items")
	}
	n := *c.Variable
	if err := structs.CheckVariablePath(n.Path); err != nil {
		return err
	}
	if state.Namespaces.Get(x, n.Namespace) == nil {
		return structs.Errorf(structs.CodeInvalid, "variable %q is in namespace %q, which does not exist", n.Path, n.Namespace)
	}
	switch k := state.SealKeys.Get(x, n.KeyID); {
	case k == nil:
		return structs.Errorf(structs.CodeInvalid, "variable %q is sealed with a key that the cluster does not have", n.Path)
	case k.Retired:
		return structs.Errorf(structs.CodeConflict, "variable %q is sealed with a key that was rotated away meanwhile; write it again", n.Path)
	}
	n.CreateTime, n.ModifyTime, n.CreateIndex, n.ModifyIndex = x.time, x.time, x.index, x.index
	var at structs.Index
	grow := int64(len(n.Sealed) + len(n.Path))
	old := state.Variables.Get(x, n.Key())
	if old != nil {
		at, n.CreateTime, n.CreateIndex = old.ModifyIndex, old.CreateTime, old.CreateIndex
		grow -= int64(len(old.Sealed) + len(old.Path))
	}
	if c.CAS && at != c.CASIndex {
		x.result.Variable = old
		return nil
	}
	if grow > 0 && x.VariableBytes()+grow > structs.VariablesSizeMax {
		return structs.Errorf(structs.CodeUnprocessable, "all variables together take %d MiB and may take no more; purge some first", structs.VariablesSizeMax>>20)
	}
	x.result.Swapped, x.result.Variable = true, &n
	state.Variables.Put(x, &n)
	return nil
}

// applyVariableDelete deletes a variable, if there is one.
func applyVariableDelete(x *tx, c *structs.VariableDeleteCommand) *structs.Error {
	k := structs.VariableKey{Namespace: c.Namespace, Path: c.Path}
	old := state.Variables.Get(x, k)
	var at structs.Index
	if old != nil {
		at = old.ModifyIndex
	}
	if c.CAS && at != c.CASIndex {
		x.result.Variable = old
		return nil
	}
	x.result.Swapped = true
	if old != nil {
		state.Variables.Delete(x, k)
	}
	return nil
}

// applySealKey makes a new key for variables active. Earlier keys are kept for what they sealed.
func applySealKey(x *tx, c *structs.SealKeyCommand) *structs.Error {
	return x.activateSealKey(c.ID, false)
}

// applySealRekey also retires every earlier key: it seals nothing new, and the leader seals its variables again.
func applySealRekey(x *tx, c *structs.SealRekeyCommand) *structs.Error {
	return x.activateSealKey(c.ID, true)
}

func (x *tx) activateSealKey(id string, retire bool) *structs.Error {
	if id == "" {
		return structs.Errorf(structs.CodeInvalid, "a key for variables needs a name")
	}
	if state.SealKeys.Get(x, id) != nil {
		return structs.Errorf(structs.CodeConflict, "the key %q for variables exists", id)
	}
	succeed(x, state.SealKeys, &structs.SealKey{ID: id, Active: true, CreateTime: x.time, CreateIndex: x.index, ModifyIndex: x.index}, func(k *structs.SealKey) bool {
		changes := k.Active || retire && !k.Retired
		k.Active, k.Retired, k.ModifyIndex = false, k.Retired || retire, x.index
		return changes
	})
	return nil
}

// applySealKeyDelete deletes a key that is no longer needed.
func applySealKeyDelete(x *tx, c *structs.SealKeyDeleteCommand) *structs.Error {
	if s := state.SigningKeys.Get(x, c.ID); s != nil && !s.Active {
		state.SigningKeys.Delete(x, c.ID)
		return nil
	} else if s != nil {
		return structs.Errorf(structs.CodeConflict, "the key %q is the active one and cannot be removed; rotate first", c.ID)
	}
	k := state.SealKeys.Get(x, c.ID)
	switch {
	case k == nil:
		return structs.Errorf(structs.CodeNotFound, "there is no key %q", c.ID)
	case k.Active:
		return structs.Errorf(structs.CodeConflict, "the key %q is the active one and cannot be removed; rotate first", c.ID)
	}
	for v := range state.Variables.All(x) {
		if v.KeyID == c.ID {
			return structs.Errorf(structs.CodeConflict, "the key %q cannot be removed: variables are sealed with it, for one %q of namespace %q; rotate with full to seal them again", c.ID, v.Path, v.Namespace)
		}
	}
	state.SealKeys.Delete(x, c.ID)
	return nil
}

// applyVariableReseal replaces the sealed items of variables and their key, and no other field.
func applyVariableReseal(x *tx, c *structs.VariableResealCommand) *structs.Error {
	if k := state.SealKeys.Get(x, c.KeyID); k == nil || k.Retired {
		return structs.Errorf(structs.CodeConflict, "variables cannot be sealed again with the key %q: the cluster does not have it, or uses it no more", c.KeyID)
	}
	for i := range c.Variables {
		r := &c.Variables[i]
		if len(r.Sealed) == 0 {
			return structs.Errorf(structs.CodeInvalid, "variable %q is sealed again without items", r.Path)
		}
		old := state.Variables.Get(x, structs.VariableKey{Namespace: r.Namespace, Path: r.Path})
		if old == nil || old.ModifyIndex != r.ModifyIndex || old.KeyID != r.OldKeyID {
			continue // written or deleted meanwhile, or already sealed with the new key
		}
		n := *old
		n.KeyID, n.Sealed = c.KeyID, r.Sealed
		state.Variables.Put(x, &n)
	}
	return nil
}
