package methods

import (
	"reflect"
	"testing"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"github.com/muster-sched/muster/internal/pack"
)

// fill makes a value without zero fields, a few levels deep.
func fill(v reflect.Value, n *int, depth int) {
	*n++
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
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.Tag.Get("codec") != "-" && (f.IsExported() || f.Anonymous) {
				fill(v.Field(i), n, depth)
			}
		}
	}
}

// Two versions of the program talk to each other with two codecs: either reads what the other wrote, for every body of
// every method, full and empty.
func TestBothCodecsAgree(t *testing.T) {
	h := &codec.MsgpackHandle{WriteExt: true}
	h.RawToString = true
	fast := 0
	for _, typ := range bodies {
		for _, depth := range []int{0, 6} {
			in := reflect.New(typ)
			n := 0
			if depth > 0 {
				fill(in.Elem(), &n, depth)
			}
			b, ok := pack.Wire.Append(nil, in.Interface())
			if !ok {
				t.Logf("%v goes through the library", typ)
				break
			}
			fast++
			out := reflect.New(typ)
			if err := codec.NewDecoderBytes(b, h).Decode(out.Interface()); err != nil {
				t.Errorf("%v: the library cannot read it: %v", typ, err)
			} else if !reflect.DeepEqual(in.Interface(), out.Interface()) {
				t.Errorf("%v: the library reads\n%+v, written was\n%+v", typ, out.Elem(), in.Elem())
			}
			b = nil
			if err := codec.NewEncoderBytes(&b, h).Encode(in.Interface()); err != nil {
				t.Fatal(err)
			}
			out = reflect.New(typ)
			n = 1000
			fill(out.Elem(), &n, 3) // what stands there already does not show through
			if _, err := pack.Wire.Decode(b, out.Interface()); err != nil {
				t.Errorf("%v: cannot read what the library wrote: %v", typ, err)
			} else if !reflect.DeepEqual(in.Interface(), out.Interface()) {
				t.Errorf("%v: read\n%+v, the library wrote\n%+v", typ, out.Elem(), in.Elem())
			}
		}
	}
	if fast < 100 {
		t.Errorf("only %d bodies go the fast way", fast)
	}
}
