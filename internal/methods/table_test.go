package methods

import (
	"reflect"
	"testing"
)

// Struct values of a map that refer to others must be pointers. go-msgpack decodes the struct values of a map one after
// the other into the same place. Package rpc keeps such maps away from it; this is the second guard, for the worst case.
func TestNoStructValuesThatShare(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var look func(typ reflect.Type, path string)
	look = func(typ reflect.Type, path string) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array:
			look(typ.Elem(), path)
		case reflect.Map:
			if e := typ.Elem(); e.Kind() == reflect.Struct && refers(e) {
				t.Errorf("%s is a %v, whose entries would share what they refer to once they have travelled; make it a map of pointers", path, typ)
			}
			look(typ.Elem(), path)
		case reflect.Struct:
			if seen[typ] {
				return
			}
			seen[typ] = true
			for i := range typ.NumField() {
				if f := typ.Field(i); f.IsExported() && f.Tag.Get("codec") != "-" {
					look(f.Type, typ.String()+"."+f.Name)
				}
			}
		}
	}
	for _, b := range bodies {
		look(b, b.String())
	}
	if len(seen) < 100 {
		t.Errorf("only %d types were looked at", len(seen))
	}
}

// refers reports whether a value of the type shares memory with its copies, apart from strings.
func refers(typ reflect.Type) bool {
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
		return true
	case reflect.Array:
		return refers(typ.Elem())
	case reflect.Struct:
		for i := range typ.NumField() {
			if refers(typ.Field(i).Type) {
				return true
			}
		}
	}
	return false
}
