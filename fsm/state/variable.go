package state

import (
	"iter"
	"strings"

	"github.com/muster-sched/muster/structs"
)

func (s *Store) variableChanged(before, after *structs.Variable) {
	s.variableBytes += sealedBytes(after) - sealedBytes(before)
}

func sealedBytes(v *structs.Variable) int64 {
	if v == nil {
		return 0
	}
	return int64(len(v.Sealed) + len(v.Path))
}

// VariableBytes returns the sealed size of all variables.
func (s *Store) VariableBytes() int64 { return s.variableBytes }

// VariablesOf returns the variables of a namespace by path.
func (s *Store) VariablesOf(namespace string) iter.Seq[*structs.Variable] {
	return variablesBelow(s, namespace, "")
}

func variablesBelow(r Reader, namespace, prefix string) iter.Seq[*structs.Variable] {
	return while(Variables.from(r, structs.VariableKey{Namespace: namespace, Path: prefix}), func(v *structs.Variable) bool {
		return v.Namespace == namespace && strings.HasPrefix(v.Path, prefix)
	})
}

// Variable returns a variable, sealed, or nil.
func (s *Snapshot) Variable(namespace, path string) *structs.Variable {
	return Variables.Get(s, structs.VariableKey{Namespace: namespace, Path: path})
}

// Variables returns the variables of a namespace ("*": of all) whose path begins with prefix, by namespace, then path.
func (s *Snapshot) Variables(namespace, prefix string) iter.Seq[*structs.Variable] {
	if namespace != "*" {
		return variablesBelow(s, namespace, prefix)
	}
	return filter(Variables.All(s), func(v *structs.Variable) bool { return strings.HasPrefix(v.Path, prefix) })
}

// SealKeys returns the keys that variables are, or may be, sealed with, without the key material.
func (s *Snapshot) SealKeys() iter.Seq[*structs.SealKey] { return SealKeys.All(s) }

// SealKey returns one of SealKeys, or nil.
func (s *Snapshot) SealKey(id string) *structs.SealKey { return SealKeys.Get(s, id) }

// ActiveSealKey returns the id of the key that seals new variables, or "".
func (s *Snapshot) ActiveSealKey() string {
	for k := range s.SealKeys() {
		if k.Active {
			return k.ID
		}
	}
	return ""
}
