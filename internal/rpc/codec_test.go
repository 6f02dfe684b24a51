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

// The content of one entry of a map or list must not show up in the next one. The library decodes the struct values of a
// map into the same place, so package pack decodes messages that hold such maps.
func TestEntriesDoNotShare(t *testing.T) {
	type outer struct {
		Structs  map[string]inner
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
		Structs:  map[string]inner{"a": one, "b": two, "c": three, "d": {}},
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
		var scalars struct{ V map[string]struct{ A, B int } }
		if err := Decode([]byte("\x81\xa1V\x82\xa1x\x82\xa1A\x01\xa1B\x02\xa1y\x81\xa1B\x03"), &scalars); err != nil || scalars.V["y"].A != 0 {
			t.Fatalf("got %+v, %v; want no A in y", scalars, err)
		}
		for i := range reflect.TypeFor[outer]().NumField() {
			if got, want := reflect.ValueOf(out).Field(i).Interface(), reflect.ValueOf(in).Field(i).Interface(); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: got %+v\nwant %+v", reflect.TypeFor[outer]().Field(i).Name, got, want)
			}
		}
	}
}

// TestUnknownFieldsAreIgnored: an agent of a later release may send fields that this one does not know (ADR 0024).
func TestUnknownFieldsAreIgnored(t *testing.T) {
	type later struct {
		Name    string
		Unheard map[string][]int
		Zone    *struct{ Of string }
	}
	type now struct{ Name string }
	b, err := Encode(&later{Name: "n", Unheard: map[string][]int{"a": {1}}, Zone: &struct{ Of string }{"z"}})
	if err != nil {
		t.Fatal(err)
	}
	var got now
	if err := Decode(b, &got); err != nil || got.Name != "n" {
		t.Errorf("got %+v, %v", got, err)
	}
	var back later
	if b, err = Encode(&got); err != nil {
		t.Fatal(err)
	}
	if err := Decode(b, &back); err != nil || back.Name != "n" || back.Zone != nil {
		t.Errorf("without the later fields: %+v, %v", back, err)
	}
}

// TestRepliesReuseBuffers: nodes poll so often that copies of the answers were a tenth of a server's garbage.
func TestRepliesReuseBuffers(t *testing.T) {
	reply, buf := RawReply(make([]byte, 100_000)), make([]byte, 0, 200_000)
	if n := testing.AllocsPerRun(100, func() { tagged(buf, reply) }); n != 0 {
		t.Errorf("a reply that fits into the buffer takes %.0f more", n)
	}
	for _, r := range []*Reply{nil, RawReply([]byte{7}), ValueReply(&inner{List: []string{"a"}})} {
		b, err := r.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tagged([]byte("before"), r); err != nil || string(got) != "before\x00"+string(b) {
			t.Errorf("%q, %v; want the bytes of the reply, %q, after those that were there", got, err, b)
		}
	}
}
