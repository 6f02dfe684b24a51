package pack

import (
	"fmt"
	"reflect"
	"strconv"
	"sync"
)

// A field with the tag `since:"N"` belongs to version N of a format. Since finds those that are set, so that a writer can
// refuse what a reader of an older version would not know. A value of a type that is a Versioned belongs to the version
// that it returns. A type without such fields and values costs one look into a map.

// Versioned is a type of which some values are of a later version than others, such as one that lists kinds.
type Versioned interface {
	Since() uint64 // 0: every version has this value
}

// gates are the tagged fields in and below a type.
type gates struct {
	fields []gatedField // of a struct
	elem   *gates       // of a pointer, slice, array or map
	value  bool         // the type is a Versioned

	standIn bool // elem is of the value that it stands for
}

type gatedField struct {
	name  string
	index int
	since uint64 // 0: only fields below it are tagged
	below *gates // or nil
}

var gated sync.Map // reflect.Type -> *gates; nil for a type without tagged fields

// Since returns the highest version that a set field of v needs, and the name of that field; 0 if none is tagged. v is a
// pointer or a value of a type that Append can write, or that has its own encoding.
func Since(v any) (version uint64, field string) {
	if v == nil {
		return 0, ""
	}
	rv := reflect.ValueOf(v)
	gatesOf(rv.Type()).find(rv, "", &version, &field)
	return version, field
}

func gatesOf(t reflect.Type) *gates {
	if g, ok := gated.Load(t); ok {
		return g.(*gates)
	}
	g := learnGates(t, map[reflect.Type]*gates{})
	gated.Store(t, g)
	return g
}

func learnGates(t reflect.Type, done map[reflect.Type]*gates) *gates {
	if !hasGates(t, map[reflect.Type]bool{}) {
		return nil
	}
	if g, ok := done[t]; ok {
		return g
	}
	g := &gates{}
	done[t] = g
	if of := Expands(t); of != nil {
		g.standIn, g.elem = true, learnGates(of, done)
		return g
	}
	if t.Kind() != reflect.Struct {
		if g.value = isVersioned(t); !g.value {
			g.elem = learnGates(t.Elem(), done)
		}
		return g
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if !written(f) {
			continue
		}
		since, below := sinceOf(t, f), learnGates(f.Type, done)
		if since != 0 || below != nil {
			g.fields = append(g.fields, gatedField{f.Name, i, since, below})
		}
	}
	return g
}

// hasGates reports whether a tagged field is in or below a type.
func hasGates(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	if of := Expands(t); of != nil {
		return hasGates(of, seen)
	}
	if isVersioned(t) {
		return true
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return hasGates(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); written(f) && (sinceOf(t, f) != 0 || hasGates(f.Type, seen)) {
				return true
			}
		}
	}
	return false
}

// isVersioned reports whether a type, which is not a struct, is a Versioned.
func isVersioned(t reflect.Type) bool {
	return t.Kind() != reflect.Struct && t.Kind() != reflect.Pointer && t.Implements(reflect.TypeFor[Versioned]())
}

// written reports whether a field is in the log and the state.
func written(f reflect.StructField) bool { return f.IsExported() && f.Tag.Get("codec") != "-" }

// sinceOf returns the version in a field's tag, or 0. It panics on a tag that is not a number, which any test that packs
// the type finds.
func sinceOf(t reflect.Type, f reflect.StructField) uint64 {
	tag, ok := f.Tag.Lookup("since")
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(tag, 10, 64)
	if err != nil || n == 0 {
		panic(fmt.Sprintf("pack: %s.%s: the tag since:%q is not the number of a version", t, f.Name, tag))
	}
	return n
}

func (g *gates) find(v reflect.Value, path string, version *uint64, field *string) {
	if g == nil {
		return
	}
	if g.value {
		if n := v.Interface().(Versioned).Since(); n > *version {
			*version, *field = n, fmt.Sprintf("%s, which is %v,", path, v)
		}
		return
	}
	if g.standIn {
		g.elem.find(Expand(v), path, version, field)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			g.elem.find(v.Elem(), path, version, field)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			g.elem.find(v.Index(i), path, version, field)
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			g.elem.find(it.Value(), path, version, field)
		}
	case reflect.Struct:
		for _, f := range g.fields {
			at := v.Field(f.index)
			if at.IsZero() {
				continue
			}
			name := f.name
			if path != "" {
				name = path + "." + f.name
			}
			if f.since > *version {
				*version, *field = f.since, name
			}
			f.below.find(at, name, version, field)
		}
	}
}

// Omit clears the fields and values below v, a pointer, that need a later version.
func Omit(v any, version uint64) {
	rv := reflect.ValueOf(v)
	gatesOf(rv.Type()).omit(rv, version)
}

func (g *gates) omit(v reflect.Value, version uint64) {
	if g == nil {
		return
	}
	if g.value {
		if v.Interface().(Versioned).Since() > version {
			v.SetZero()
		}
		return
	}
	if g.standIn {
		x := reflect.New(Expands(v.Type()))
		x.Elem().Set(Expand(v))
		g.elem.omit(x.Elem(), version)
		Compact(v, x.Elem())
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			g.elem.omit(v.Elem(), version)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			g.elem.omit(v.Index(i), version)
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			at := reflect.New(v.Type().Elem()).Elem()
			at.Set(it.Value())
			g.elem.omit(at, version)
			v.SetMapIndex(it.Key(), at)
		}
	case reflect.Struct:
		for _, f := range g.fields {
			if f.since > version {
				v.Field(f.index).SetZero()
			} else {
				f.below.omit(v.Field(f.index), version)
			}
		}
	}
}
