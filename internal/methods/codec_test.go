package methods

import (
	"bytes"
	"reflect"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"

	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// fill sets fields a few levels deep to values that are not zero.
func fill(v reflect.Value, n *int, depth int) {
	*n++
	if of := pack.Expands(v.Type()); of != nil {
		x := reflect.New(of).Elem()
		fill(x, n, depth)
		pack.Compact(v, x)
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(1 + *n%120))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(1 + *n%250))
	case reflect.String:
		v.SetString("s" + string(rune('a'+*n%26)))
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), n, depth)
		}
	case reflect.Pointer:
		if depth > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), n, depth-1)
		}
	case reflect.Slice:
		if depth > 0 {
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
			fill(v.Index(0), n, depth-1)
			fill(v.Index(1), n, depth-1)
		}
	case reflect.Map:
		if depth > 0 {
			v.Set(reflect.MakeMap(v.Type()))
			for range 2 {
				k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				fill(k, n, depth-1)
				fill(e, n, depth-1)
				v.SetMapIndex(k, e)
			}
			// Zero values between them show whether an entry keeps fields of the one before.
			for range 2 {
				k := reflect.New(v.Type().Key()).Elem()
				fill(k, n, depth-1)
				if !v.MapIndex(k).IsValid() {
					v.SetMapIndex(k, reflect.Zero(v.Type().Elem()))
				}
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.Tag.Get("codec") != "-" && (f.IsExported() || f.Anonymous) {
				fill(v.Field(i), n, depth)
			}
		}
	}
}

// Lists and maps may be empty instead of nil. That is part of a job's meaning, and both codecs keep it.
func TestEmptyIsNotNil(t *testing.T) {
	in := &struct{ V *JobRegisterRequest }{&JobRegisterRequest{Job: &structs.Job{Datacenters: []string{}, Meta: map[string]string{}, Groups: []*structs.Group{{Tasks: []*structs.Task{}}}}}}
	b, err := rpc.Encode(in)
	if err != nil {
		t.Fatal(err)
	}
	var out struct{ V *JobRegisterRequest }
	if err := rpc.Decode(b, &out); err != nil || !reflect.DeepEqual(in.V, out.V) {
		t.Fatalf("got %+v, %v", out.V.Job, err)
	}
}

// An invalid body gives one error that names the type, from either codec. Unknown fields are skipped.
func TestStrangeBodies(t *testing.T) {
	encode := func(v any) []byte {
		b, err := rpc.Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, c := range []struct {
		name string
		body []byte
		into any
		want string // part of the error; "": none
	}{
		{"a string for a job", encode(map[string]string{"Job": "x"}), &JobRegisterRequest{}, "decode *methods.JobRegisterRequest: "},
		{"a map for a number", encode(map[string]map[string]string{"EvalPriority": {"a": "b"}}), &JobRegisterRequest{}, "decode *methods.JobRegisterRequest: "},
		{"a string for a list", encode(map[string]string{"Changed": "x"}), &NodePollResponse{}, "decode *methods.NodePollResponse: "},
		{"too short an id of a packed message", encode(map[string][]byte{"Cluster": {1}}), &NodePollResponse{}, "decode *methods.NodePollResponse: "},
		{"a number that does not fit", encode(map[string]int64{"Version": -1}), &JobRegisterResponse{}, "decode *methods.JobRegisterResponse: "},
		{"a list as the body", []byte{0x91, 0x01}, &AllocStopRequest{}, "decode *methods.AllocStopRequest: "},
		{"nesting", bytes.Repeat([]byte{0x91}, 200), &JobRegisterRequest{}, "the body nests deeper than 128"},
		{"items", append([]byte{0xdd, 0, 8, 0, 1}, make([]byte, 8<<16+1)...), &JobRegisterRequest{}, "the body has a list or map of more than 262144 items"},
		{"a length that lies", []byte{0xdb, 0xff, 0xff, 0xff, 0xff}, &JobRegisterRequest{}, "the body ends inside a value"},
		{"unknown fields", encode(map[string]any{"Later": map[string]any{"x": []int{1}}, "EnforceIndex": true}), &JobRegisterRequest{}, ""},
		{"unknown fields of a packed message", encode(map[string]any{"Later": map[string]any{"x": []int{1}}, "Partial": true}), &NodePollResponse{}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := rpc.Decode(c.body, c.into)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// FuzzBodies feeds bytes to the body of any method. Nothing crashes, memory stays in proportion to the bytes, and an
// accepted body can be sent again.
func FuzzBodies(f *testing.F) {
	for i := range 8 {
		v := reflect.New(bodies[i*7%len(bodies)])
		n := i
		fill(v.Elem(), &n, 4)
		b, err := rpc.Encode(v.Interface())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint16(i*7), b)
	}
	nils := append([]byte{0xdd, 0, 0, 0x40, 0}, bytes.Repeat([]byte{0xc0}, 1<<14)...)
	for i, typ := range bodies {
		for _, field := range pack.Wire.Fields(typ) {
			if field.Type.Kind() == reflect.Slice && field.Type.Elem().Kind() == reflect.Struct {
				f.Add(uint16(i), slices.Concat([]byte{0x81, 0xa0 | byte(len(field.Name))}, []byte(field.Name), nils))
			}
		}
	}
	f.Fuzz(func(t *testing.T, which uint16, b []byte) {
		v := reflect.New(bodies[int(which)%len(bodies)]).Interface()
		before := allocated()
		err := rpc.Decode(b, v)
		if took := allocated() - before; took > 1<<20+4096*uint64(len(b)) {
			t.Fatalf("%T: %d bytes took %d of memory", v, len(b), took)
		}
		if err != nil {
			return
		}
		again, err := rpc.Encode(v)
		if err != nil {
			t.Fatalf("%T: what decodes does not encode: %v", v, err)
		}
		if err := rpc.Decode(again, v); err != nil {
			t.Fatalf("%T: what was encoded does not decode: %v", v, err)
		}
	})
}

// allocated returns the bytes that were ever allocated. It does not stop the world, as runtime.ReadMemStats does, which
// took most of an execution's time.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// wrapped returns a struct type with a field of type t. It is never rpc.Packed, so package rpc uses go-msgpack for it.
func wrapped(t reflect.Type) reflect.Type {
	return reflect.StructOf([]reflect.StructField{{Name: "V", Type: t}})
}

// Both codecs write the same bytes for every body of every method, full and empty, and read them as the same value.
func TestBothCodecsAgree(t *testing.T) {
	for _, typ := range bodies {
		for depth := range 7 {
			in := reflect.New(wrapped(typ))
			n := 0
			if depth > 0 {
				fill(in.Elem(), &n, depth)
			}
			unhide(in.Elem().Field(0))
			packed, ok := pack.Wire.Append(nil, in.Interface())
			if !ok {
				t.Fatalf("%v has no form in package pack", typ)
			}
			b, err := rpc.Encode(in.Interface())
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(b, packed) {
				t.Errorf("%v: go-msgpack writes\n%q, package pack\n%q", typ, b, packed)
			}
			for name, decode := range map[string]func([]byte, any) error{"go-msgpack": rpc.Decode, "pack": unpack} {
				out := reflect.New(in.Type().Elem())
				n = 1000
				fill(out.Elem(), &n, 3) // old content must not show through
				if err := decode(b, out.Interface()); err != nil {
					t.Errorf("%v: %s cannot read it: %v", typ, name, err)
				} else if !reflect.DeepEqual(in.Interface(), out.Interface()) {
					t.Errorf("%v: %s reads\n%+v, written was\n%+v", typ, name, out.Elem(), in.Elem())
				}
			}
		}
	}
}

func unpack(b []byte, v any) error {
	_, err := pack.Wire.Decode(b, v)
	return err
}

// unhide clears fields of embedded structs that a field of the outer struct hides, because they are not sent.
func unhide(v reflect.Value) {
	if v.Kind() != reflect.Struct {
		return
	}
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.Anonymous {
			for k := range f.Type.NumField() {
				if top, _ := v.Type().FieldByName(f.Type.Field(k).Name); len(top.Index) == 1 {
					v.Field(i).Field(k).SetZero()
				}
			}
		}
	}
}
