package pack

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

type inner struct {
	A int64
	B string
}

type outer struct {
	Bool    bool
	Small   int8
	Neg     int64
	U       uint64
	Text    string
	Raw     []byte
	ID      [16]byte
	Wait    time.Duration
	List    []inner
	Ptrs    []*inner
	Map     map[string]inner
	Nums    map[uint64]*inner
	Opt     *int64
	Self    *outer
	Skipped *inner `codec:"-"`
	hidden  int
}

func sample() *outer {
	zero := int64(0)
	return &outer{
		Bool: true, Small: -128, Neg: -70000, U: 1 << 63, Text: strings.Repeat("x", 300), Raw: []byte{1, 2},
		ID: [16]byte{9}, Wait: time.Hour, List: []inner{{1, "a"}, {}}, Ptrs: []*inner{nil, {B: "z"}},
		Map: map[string]inner{"b": {A: 2}, "a": {}}, Nums: map[uint64]*inner{7: {A: 1}, 1: nil}, Opt: &zero,
		Self: &outer{Neg: -1, List: []inner{}, Map: map[string]inner{}},
	}
}

func TestRoundTrip(t *testing.T) {
	in := sample()
	b := Append(nil, in)
	var out outer
	if err := Decode(b, &out); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(in, &out) {
		t.Fatalf("got %+v, want %+v", out, in)
	}
	if !bytes.Equal(b, Append(nil, &out)) {
		t.Fatal("equal values gave different bytes")
	}
	if got := Append(nil, &outer{Skipped: &inner{}, hidden: 3}); !bytes.Equal(got, []byte{0x80}) {
		t.Fatalf("a zero value takes %x, want an empty map", got)
	}
}

// TestOtherReader reads bytes of package pack with the msgpack library that the log store uses.
func TestOtherReader(t *testing.T) {
	h := &codec.MsgpackHandle{WriteExt: true}
	h.RawToString = true
	var m map[string]any
	if err := codec.NewDecoderBytes(Append(nil, sample()), h).Decode(&m); err != nil {
		t.Fatal(err)
	}
	if m["Neg"] != int64(-70000) || m["Bool"] != true {
		t.Fatalf("read %v", m)
	}
}

// TestUnknownFields wants a message to be read as far as it is known, and a log entry or a row of the state to be refused.
func TestUnknownFields(t *testing.T) {
	type known struct{ Neg int64 }
	var small known
	b, _ := Wire.Append(nil, sample())
	if ok, err := Wire.Decode(b, &small); !ok || err != nil || small.Neg != -70000 {
		t.Fatalf("got %+v, %v", small, err)
	}
	var unknown *UnknownFieldError
	if err := Decode(Append(nil, sample()), &small); !errors.As(err, &unknown) || unknown.Field != "Bool" {
		t.Fatalf("got %v, want an error about the first unknown field", err)
	}
}

// kind has a value that version 3 added.
type kind string

func (k kind) Since() uint64 {
	if k == "new" {
		return 3
	}
	return 0
}

// compactLeafs stands for a list.
type compactLeafs struct{ of []gatedLeaf }

type gatedLeaf struct {
	Old int64
	New string `since:"3"`
}

func (c compactLeafs) Expand() []gatedLeaf     { return slices.Clone(c.of) }
func (c *compactLeafs) Compact(of []gatedLeaf) { c.of = of }

func TestSince(t *testing.T) {
	type leaf struct {
		Old int64
		New string `since:"3"`
	}
	type node struct {
		Name  string
		Next  *node
		Leafs []leaf
		ByKey map[string]*leaf
		Flag  bool  `since:"2"`
		Only  *leaf `since:"4"`
		Kind  kind
		Kinds []kind
		Few   compactLeafs
	}
	for name, c := range map[string]struct {
		v     any
		since uint64
		field string
	}{
		"nil":                 {nil, 0, ""},
		"untagged":            {&struct{ A int64 }{1}, 0, ""},
		"unset":               {&node{Name: "n", Leafs: []leaf{{Old: 1}}}, 0, ""},
		"set":                 {&node{Flag: true}, 2, "Flag"},
		"below a pointer":     {&node{Next: &node{Next: &node{Flag: true}}}, 2, "Next.Next.Flag"},
		"in a list":           {&node{Leafs: []leaf{{}, {New: "x"}}}, 3, "Leafs.New"},
		"in a stand-in":       {&node{Few: compactLeafs{[]gatedLeaf{{Old: 1}, {New: "x"}}}}, 3, "Few.New"},
		"in a map":            {&node{ByKey: map[string]*leaf{"a": nil, "b": {New: "x"}}}, 3, "ByKey.New"},
		"the highest":         {&node{Flag: true, Only: &leaf{}, Leafs: []leaf{{New: "x"}}}, 4, "Only"},
		"an old kind":         {&node{Kind: "old", Kinds: []kind{"old"}}, 0, ""},
		"a new kind":          {&node{Next: &node{Kind: "new"}}, 3, "Next.Kind, which is new,"},
		"a list of kinds":     {&node{Kinds: []kind{"old", "new"}}, 3, "Kinds, which is new,"},
		"a value, no address": {node{Flag: true}, 2, "Flag"},
	} {
		if since, field := Since(c.v); since != c.since || field != c.field {
			t.Errorf("%s: got %d %q, want %d %q", name, since, field, c.since, c.field)
		}
		if n, ok := c.v.(*node); ok {
			Omit(n, 2)
			if since, field := Since(n); since > 2 || min(c.since, 2) != since && c.since == 2 {
				t.Errorf("%s: without fields after version 2, %q of version %d is left", name, field, since)
			}
		}
	}
}

func TestFloatsAreRefused(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("a float was accepted")
		}
	}()
	Append(nil, &struct{ F float64 }{})
}

func TestEveryPrefixIsRefused(t *testing.T) {
	b := Append(nil, sample())
	for i := range b {
		var out outer
		if Decode(b[:i], &out) == nil {
			t.Fatalf("the first %d of %d bytes decoded", i, len(b))
		}
	}
	var out outer
	if Decode(append(b, 0), &out) == nil {
		t.Fatal("a trailing byte was accepted")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Append(nil, sample()))
	f.Add(bytes.Repeat([]byte{0x91}, 1000))
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		var out outer
		if Decode(b, &out) != nil {
			return
		}
		var again outer
		c := Append(nil, &out)
		if err := Decode(c, &again); err != nil || !bytes.Equal(c, Append(nil, &again)) {
			t.Fatalf("not canonical: %x: %v", c, err)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	in, buf := sample(), []byte(nil)
	b.ReportAllocs()
	for b.Loop() {
		buf = Append(buf[:0], in)
	}
}
