package wire

import (
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// VariableMetadata is a variable in a list: without its items.
type VariableMetadata struct {
	Namespace   string
	Path        string
	CreateIndex uint64
	CreateTime  int64 // Unix nanoseconds
	ModifyIndex uint64
	ModifyTime  int64 // Unix nanoseconds
}

// Variable is a variable with its items.
type Variable struct {
	VariableMetadata
	Items map[string]string
	Lock  *VariableLock `json:",omitempty"`
}

// VariableLock is a lock that a client asks for. Locks are not supported: a request with one is refused.
type VariableLock struct{ ID, TTL, LockDelay string }

// VariableMetadataFrom converts a variable without its items.
func VariableMetadataFrom(v *methods.VariableMeta) *VariableMetadata {
	return &VariableMetadata{
		Namespace: v.Namespace, Path: v.Path, CreateIndex: uint64(v.CreateIndex), CreateTime: int64(v.CreateTime),
		ModifyIndex: uint64(v.ModifyIndex), ModifyTime: int64(v.ModifyTime),
	}
}

// VariableFrom converts a variable.
func VariableFrom(v *methods.Variable) *Variable {
	return &Variable{VariableMetadata: *VariableMetadataFrom(&v.VariableMeta), Items: v.Items}
}

// VariableMetadataFromStructs converts a stored variable, for filters.
func VariableMetadataFromStructs(v *structs.Variable) *VariableMetadata {
	return &VariableMetadata{
		Namespace: v.Namespace, Path: v.Path, CreateIndex: uint64(v.CreateIndex), CreateTime: int64(v.CreateTime),
		ModifyIndex: uint64(v.ModifyIndex), ModifyTime: int64(v.ModifyTime),
	}
}
