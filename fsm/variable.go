package fsm

import "github.com/muster-sched/muster/structs"

// applyVariableSet writes a variable. A check-and-set that fails changes nothing and is no error: Swapped stays false.
func applyVariableSet(x *tx) *structs.Error {
	c := x.cmd.Body.(*structs.VariableSetCommand)
	if c.Variable == nil || len(c.Variable.Sealed) == 0 {
		return structs.Errorf(structs.CodeInvalid, "a variable needs items")
	}
	n := *c.Variable
	if err := structs.CheckVariablePath(n.Path); err != nil {
		return err
	}
	if x.Namespaces.Get(n.Namespace) == nil {
		return structs.Errorf(structs.CodeInvalid, "variable %q is in namespace %q, which does not exist", n.Path, n.Namespace)
	}
	if x.SealKeys.Get(n.KeyID) == nil {
		return structs.Errorf(structs.CodeInvalid, "variable %q is sealed with a key that the cluster does not have", n.Path)
	}
	n.CreateTime, n.ModifyTime, n.CreateIndex, n.ModifyIndex = x.time, x.time, x.index, x.index
	var at structs.Index
	grow := int64(len(n.Sealed) + len(n.Path))
	if old := x.Variables.Get(n.Key()); old != nil {
		at, n.CreateTime, n.CreateIndex = old.ModifyIndex, old.CreateTime, old.CreateIndex
		grow -= int64(len(old.Sealed) + len(old.Path))
	}
	if c.CAS && at != c.CASIndex {
		return nil
	}
	if grow > 0 && x.VariableBytes()+grow > structs.VariablesSizeMax {
		return structs.Errorf(structs.CodeUnprocessable, "all variables together take %d MiB and may take no more; purge some first", structs.VariablesSizeMax>>20)
	}
	x.result.Swapped = true
	x.Variables.Put(&n)
	return nil
}

// applyVariableDelete deletes a variable, if there is one.
func applyVariableDelete(x *tx) *structs.Error {
	c := x.cmd.Body.(*structs.VariableDeleteCommand)
	k := structs.VariableKey{Namespace: c.Namespace, Path: c.Path}
	old := x.Variables.Get(k)
	var at structs.Index
	if old != nil {
		at = old.ModifyIndex
	}
	if c.CAS && at != c.CASIndex {
		return nil
	}
	x.result.Swapped = true
	if old != nil {
		x.Variables.Delete(k)
	}
	return nil
}

// applySealKey names a key for variables; the one before it stays for what it sealed.
func applySealKey(x *tx) *structs.Error {
	c := x.cmd.Body.(*structs.SealKeyCommand)
	if c.ID == "" {
		return structs.Errorf(structs.CodeInvalid, "a key for variables needs a name")
	}
	if x.SealKeys.Get(c.ID) != nil {
		return structs.Errorf(structs.CodeConflict, "the key %q for variables exists", c.ID)
	}
	var active []*structs.SealKey
	for k := range x.SealKeys.All() {
		if k.Active {
			active = append(active, k)
		}
	}
	for _, k := range active {
		n := *k
		n.Active, n.ModifyIndex = false, x.index
		x.SealKeys.Put(&n)
	}
	x.SealKeys.Put(&structs.SealKey{ID: c.ID, Active: true, CreateTime: x.time, CreateIndex: x.index, ModifyIndex: x.index})
	return nil
}
