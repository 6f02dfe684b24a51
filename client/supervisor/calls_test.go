package supervisor

import (
	"bytes"
	"encoding/gob"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

// fill sets every exported field that v has to something other than zero.
func fill(t *testing.T, v reflect.Value, r *rand.Rand) {
	t.Helper()
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(0, r.Int64()).UTC()))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(t, v.Field(i), r)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), r)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(t, v.Index(i), r)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(t, k, r)
		fill(t, e, r)
		v.SetMapIndex(k, e)
	case reflect.String:
		v.SetString(string(rune('a'+r.IntN(26))) + "\x00ä")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1 + r.Int64N(1<<40))
	case reflect.Uint8:
		v.SetUint(7)
	case reflect.Uint32:
		v.SetUint(1 + r.Uint64N(1<<30))
	case reflect.Uint64:
		v.SetUint(1 + r.Uint64())
	default:
		t.Fatalf("a field of type %s", v.Type())
	}
}

// TestCallsCarryEverything sends every type that calls have through gob: with every field set, with none, and with pointers
// to zero values. A field that gob cannot carry fails here.
func TestCallsCarryEverything(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, v := range []any{new(Spec), new(Reply), new(Hello), new(Nothing), new(WaitArgs), new(SignalArgs), new(string)} {
		for name, prepare := range map[string]func(reflect.Value){
			"every field":      func(x reflect.Value) { fill(t, x, r) },
			"no field":         func(x reflect.Value) { x.SetZero() },
			"pointers to zero": func(x reflect.Value) { x.SetZero(); point(x) },
		} {
			t.Run(reflect.TypeOf(v).Elem().Name()+"/"+name, func(t *testing.T) {
				prepare(reflect.ValueOf(v).Elem())
				var b bytes.Buffer
				if err := gob.NewEncoder(&b).Encode(v); err != nil {
					t.Fatal(err)
				}
				got := reflect.New(reflect.TypeOf(v).Elem())
				if err := gob.NewDecoder(&b).Decode(got.Interface()); err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got.Interface(), v) {
					t.Errorf("got %+v, want %+v", got.Interface(), v)
				}
			})
		}
	}
}

// point sets every pointer that v has to a zero value.
func point(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.CanSet() {
			v.Set(reflect.New(v.Type().Elem()))
			point(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			point(v.Field(i))
		}
	}
}
