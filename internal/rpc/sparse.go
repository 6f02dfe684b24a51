package rpc

import (
	"encoding"
	"reflect"
	"sync"

	"github.com/muster-sched/muster/internal/pack"
)

// go-msgpack can omit zero fields by tags on every type, but then it also omits empty lists, and it never omits arrays
// of zeros. Whether a list is nil or empty matters in a job, and a record has many zero IDs. So a struct is given to
// the library as a list of its non-zero fields, which gives the same bytes as package pack.

// sparse is a map as a list of alternating keys and values.
type sparse []any

// MapBySlice marks the list as a map for the library.
func (sparse) MapBySlice() {}

// shape describes how values of a type are shortened.
type shape struct {
	plain  bool   // contains no struct: the library writes it unchanged
	expand bool   // of a stand-in; elem is the shape of what it stands for
	elem   *shape // of a pointer, list or map
	fields []part // of a struct, sorted by name
}

type part struct {
	name  any // a string
	index []int
	shape *shape
}

var shapes sync.Map // reflect.Type -> *shape

// sparseOf returns v without its zero fields, for the encoder.
func sparseOf(v any) any {
	rv := reflect.ValueOf(v)
	if !rv.IsValid() {
		return nil
	}
	s, ok := shapes.Load(rv.Type())
	if !ok {
		known := map[reflect.Type]*shape{}
		s = shapeOf(rv.Type(), known)
		shapes.Store(rv.Type(), s)
	}
	return s.(*shape).of(rv)
}

var binaryType = reflect.TypeFor[encoding.BinaryMarshaler]()

// shapeOf examines a type. known holds the types in progress, for recursive types.
func shapeOf(t reflect.Type, known map[reflect.Type]*shape) *shape {
	if s := known[t]; s != nil {
		return s
	}
	s := &shape{}
	known[t] = s
	if of := pack.Expands(t); of != nil {
		s.expand, s.elem = true, shapeOf(of, known)
		return s
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		s.elem = shapeOf(t.Elem(), known)
		s.plain = s.elem.plain
	case reflect.Struct:
		if s.plain = t.Implements(binaryType); s.plain {
			break
		}
		for _, f := range pack.Wire.Fields(t) {
			s.fields = append(s.fields, part{f.Name, f.Index, shapeOf(f.Type, known)})
		}
	default:
		s.plain = true
	}
	return s
}

func (s *shape) of(v reflect.Value) any {
	if s.plain {
		if v.CanAddr() {
			return v.Addr().Interface() // a pointer needs no copy
		}
		return v.Interface()
	}
	if s.expand {
		return s.elem.of(pack.Expand(v))
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return s.elem.of(v.Elem())
		}
	case reflect.Slice:
		if !v.IsNil() {
			out := make([]any, v.Len())
			for i := range out {
				out[i] = s.elem.of(v.Index(i))
			}
			return out
		}
	case reflect.Map:
		if !v.IsNil() {
			return s.entries(v)
		}
	case reflect.Struct:
		var few [32]any
		out := few[:0]
		for i := range s.fields {
			p := &s.fields[i]
			f := v.Field(p.index[0])
			if len(p.index) > 1 {
				f, _ = v.FieldByIndexErr(p.index) // the pointer to an inline struct may be nil
			}
			if f.IsValid() && !f.IsZero() {
				out = append(out, p.name, p.shape.of(f))
			}
		}
		return append(make(sparse, 0, len(out)), out...)
	}
	return nil
}

var anyType = reflect.TypeFor[any]()

// entries returns a map with shortened values; the library sorts the keys.
func (s *shape) entries(v reflect.Value) any {
	out := reflect.MakeMapWithSize(reflect.MapOf(v.Type().Key(), anyType), v.Len())
	for it := v.MapRange(); it.Next(); {
		e := reflect.New(anyType).Elem()
		if of := s.elem.of(it.Value()); of != nil {
			e.Set(reflect.ValueOf(of))
		}
		out.SetMapIndex(it.Key(), e)
	}
	return out.Interface()
}

var packDecoded sync.Map // reflect.Type -> bool

// packDecodes reports whether values of the type hold a map whose values are structs, a stand-in or an inline struct.
// Package pack decodes these messages. The library decodes all values of such a map into the same place, where the zero
// fields that a body leaves out keep what the entry before had; and it knows neither stand-ins nor inline structs.
func packDecodes(t reflect.Type) bool {
	if held, ok := packDecoded.Load(t); ok {
		return held.(bool)
	}
	held := findPackDecodes(t, map[reflect.Type]bool{})
	packDecoded.Store(t, held)
	return held
}

func findPackDecodes(t reflect.Type, seen map[reflect.Type]bool) bool {
	if t == nil || seen[t] || t.Implements(binaryType) {
		return false
	}
	seen[t] = true
	if pack.Expands(t) != nil {
		return true
	}
	switch t.Kind() {
	case reflect.Map:
		e := t.Elem()
		return e.Kind() == reflect.Struct && !e.Implements(binaryType) || findPackDecodes(e, seen)
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return findPackDecodes(t.Elem(), seen)
	case reflect.Struct:
		for _, f := range pack.Wire.Fields(t) {
			if len(f.Index) > 1 && t.Field(f.Index[0]).Type.Kind() == reflect.Pointer || findPackDecodes(f.Type, seen) {
				return true
			}
		}
	}
	return false
}
