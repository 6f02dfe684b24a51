package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// VarMeta describes a variable without its items. Templates read its fields.
type VarMeta struct {
	Namespace, Path          string
	CreateTime, ModifyTime   int64 // Unix nanoseconds
	CreateIndex, ModifyIndex uint64
}

// String returns the path.
func (m VarMeta) String() string { return m.Path }

// VarItem is one item of a variable.
type VarItem struct {
	Key, Value string
	meta       *VarMeta
}

// String returns the value.
func (i VarItem) String() string { return i.Value }

// K returns the key, and V the value.
func (i VarItem) K() string { return i.Key }

// V returns the value.
func (i VarItem) V() string { return i.Value }

// Metadata returns that of the item's variable.
func (i VarItem) Metadata() *VarMeta { return i.meta }

// VarItems are the items of a variable by key.
type VarItems map[string]VarItem

// NewVarItems makes the items that a template sees.
func NewVarItems(meta VarMeta, items map[string]string) VarItems {
	out := make(VarItems, len(items))
	for k, v := range items {
		out[k] = VarItem{Key: k, Value: v, meta: &meta}
	}
	return out
}

// Keys returns the keys in order.
func (v VarItems) Keys() []string { return slices.Sorted(maps.Keys(v)) }

// Values returns the values in the order of their keys.
func (v VarItems) Values() []string {
	var out []string
	for _, k := range v.Keys() {
		out = append(out, v[k].Value)
	}
	return out
}

// Tuples returns the items in the order of their keys.
func (v VarItems) Tuples() []VarItem {
	var out []VarItem
	for _, k := range v.Keys() {
		out = append(out, v[k])
	}
	return out
}

// Metadata returns that of the variable, or nil if it has no items.
func (v VarItems) Metadata() *VarMeta {
	for _, i := range v {
		return i.meta
	}
	return nil
}

// Variables looks up variables with the task's rights. A path is "PATH" or "PATH@NAMESPACE".
type Variables interface {
	// Variable returns a variable, or nil when there is none.
	Variable(path string) (VarItems, error)
	// Variables lists those whose path begins with prefix, by path.
	Variables(prefix string) ([]VarMeta, error)
	// Name returns the path with its namespace and region, for people.
	Name(path string) string
}

// MissingError names the variables that a template needs and that are missing.
type MissingError struct{ Names []string }

func (e *MissingError) Error() string {
	return "Missing: " + strings.Join(e.Names, ", ")
}

// missing collects the missing variables of a rendering.
type missing struct{ names []string }

func (m *missing) add(name string) {
	if !slices.Contains(m.names, name) {
		m.names = append(m.names, name)
	}
}

// err returns the error of a rendering that ended with err.
func (m *missing) err(err error) error {
	if len(m.names) == 0 {
		return err
	}
	slices.Sort(m.names)
	return &MissingError{Names: m.names}
}

// variableFunctions are the functions that look up variables. A missing one is recorded, and the template continues
// with an empty value, so that all missing ones are known at once.
func variableFunctions(in Input, lack *missing) map[string]any {
	get := func(path string) (VarItems, error) {
		if in.Vars == nil {
			return nil, bad{fmt.Errorf("variables cannot be read here")}
		}
		return in.Vars.Variable(path)
	}
	list := func(args []string) ([]VarMeta, error) {
		if in.Vars == nil {
			return nil, bad{fmt.Errorf("variables cannot be read here")}
		}
		if len(args) > 1 {
			return nil, bad{fmt.Errorf("want one prefix at most, not %d", len(args))}
		}
		return in.Vars.Variables(strings.Join(args, ""))
	}
	return map[string]any{
		"nomadVar": func(path string) (VarItems, error) {
			v, err := get(path)
			if err == nil && v == nil {
				lack.add("nomad.var.block(" + in.Vars.Name(path) + ")")
			}
			return v, err
		},
		"nomadVarExists": func(path string) (bool, error) {
			v, err := get(path)
			return v != nil, err
		},
		"nomadVarList": func(args ...string) ([]VarMeta, error) { return list(args) },
		"nomadVarListSafe": func(args ...string) ([]VarMeta, error) {
			l, err := list(args)
			if err == nil && len(l) == 0 {
				lack.add("nomad.var.list(" + in.Vars.Name(strings.Join(args, "")) + ")")
			}
			return l, err
		},
	}
}
