package pack

import (
	"bytes"
	"reflect"
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

func TestUnknownFieldsAreSkipped(t *testing.T) {
	var small struct{ Neg int64 }
	if err := Decode(Append(nil, sample()), &small); err != nil || small.Neg != -70000 {
		t.Fatalf("got %+v, %v", small, err)
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
