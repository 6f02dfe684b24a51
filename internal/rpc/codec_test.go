package rpc

import (
	"reflect"
	"testing"
)

type inner struct {
	Map  map[string]string
	List []string
	Ptr  *inner
}

// The content of one entry of a map or list must not show up in the next one. The codec decodes the struct values of a
// map into the same place, so maps and lists in them would be shared; the table of methods refuses such types (package
// methods).
func TestEntriesDoNotShare(t *testing.T) {
	type outer struct {
		Pointers map[string]*inner
		Maps     map[string]map[string]string
		Lists    map[string][]string
		Slice    []inner
		Slices   [][]string
	}
	one := inner{Map: map[string]string{"x": "1"}, List: []string{"p", "q", "r"}, Ptr: &inner{Map: map[string]string{"deep": "1"}}}
	two := inner{Map: map[string]string{"y": "2"}, List: []string{"s"}, Ptr: &inner{Map: map[string]string{"other": "1"}}}
	three := inner{Map: map[string]string{"z": "3"}}
	in := outer{
		Pointers: map[string]*inner{"a": &one, "b": &two, "c": &three, "d": {}, "e": nil},
		Maps:     map[string]map[string]string{"a": one.Map, "b": two.Map, "c": {}, "d": nil},
		Lists:    map[string][]string{"a": one.List, "b": two.List, "c": {}, "d": nil},
		Slice:    []inner{one, two, three, {}},
		Slices:   [][]string{one.List, two.List, {}, nil},
	}
	for range 20 { // maps are encoded in random order
		b, err := Encode(&in)
		if err != nil {
			t.Fatal(err)
		}
		var out outer
		if err := Decode(b, &out); err != nil {
			t.Fatal(err)
		}
		for i := range reflect.TypeFor[outer]().NumField() {
			if got, want := reflect.ValueOf(out).Field(i).Interface(), reflect.ValueOf(in).Field(i).Interface(); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: got %+v\nwant %+v", reflect.TypeFor[outer]().Field(i).Name, got, want)
			}
		}
	}
}
