package jobdiff

import (
	"reflect"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// fill sets everything that a value reaches, with one element in each list.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint64:
		v.SetUint(7)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(`{"a":"b"}`))
			return
		}
		e := reflect.New(v.Type().Elem()).Elem()
		fill(e)
		v.Set(reflect.Append(v, e))
	case reflect.Map:
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(k)
		fill(e)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(k, e)
	}
}

func full() *structs.Job {
	j := &structs.Job{}
	fill(reflect.ValueOf(j).Elem())
	return j
}

// A job with every field set differs from an empty one, and not from its equal.
func TestFullJobs(t *testing.T) {
	d, err := Diff(full(), full(), false)
	if err != nil {
		t.Fatal(err)
	}
	if d.Type != None {
		raw, _ := JSON(full(), full(), false)
		t.Errorf("equal jobs differ: %s", raw)
	}
	bare := func() *structs.Job {
		return &structs.Job{Namespace: "x", ID: "x", Groups: []*structs.Group{{Name: "x", Tasks: []*structs.Task{{Name: "x"}}}}}
	}
	for _, p := range [][2]*structs.Job{{bare(), full()}, {full(), bare()}} {
		if d, err := Diff(p[0], p[1], true); err != nil || d.Type != Edited {
			t.Errorf("%v, %v; want d.Type = %v", d, err, Edited)
		}
	}
}

// The fields of a GPU request appear one by one.
func TestEveryFieldOfGPUsShows(t *testing.T) {
	for _, at := range []func(*structs.Job) reflect.Value{
		func(j *structs.Job) reflect.Value { return reflect.ValueOf(&j.Groups[0].Tasks[0].Resources).Elem() },
		func(j *structs.Job) reflect.Value {
			return reflect.ValueOf(&j.Groups[0].Tasks[0].Resources.GPU[0]).Elem()
		},
		func(j *structs.Job) reflect.Value {
			return reflect.ValueOf(j.Groups[0].Tasks[0].Resources.GPU[0].Pressure).Elem()
		},
	} {
		typ := at(full()).Type()
		for i := range typ.NumField() {
			j := full()
			if !bump(at(j).Field(i)) {
				t.Fatalf("%s.%s: of a kind that is not known", typ.Name(), typ.Field(i).Name)
			}
			if d, err := Diff(full(), j, false); err != nil || d.Type != Edited {
				t.Errorf("changing %s.%s does not show (%v)", typ.Name(), typ.Field(i).Name, err)
			}
		}
	}
}
