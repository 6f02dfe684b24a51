package match

import (
	"reflect"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// Everything that decides where a group may run must be in its key, or the group must have no key: otherwise the
// refusal of a job that no node can run would also apply to one that asks for less. A new field has to be listed here
// or be in the key.
func TestPlainKeyTellsAsksApart(t *testing.T) {
	elsewhere := map[string]string{ // fields that are not in the key
		"Resources.CPU": "need", "Resources.MemoryMiB": "need", "Resources.DiskMiB": "need",
		"Resources.MemoryMaxMiB": "not reserved", "Resources.ShmMiB": "part of memory", "Resources.SecretsMiB": "part of memory",
		"Resources.Networks": "merged into the group's", "Resources.Ulimits": "no matter of the node", "Resources.GPU": "by its fields below",
		"GPURequest.Pressure": "no matter of the node",
	}
	key := func(change func(r *structs.Resources, g *structs.GPURequest)) string {
		gpu := structs.GPURequest{Count: 1}
		r := structs.Resources{CPU: 100, MemoryMiB: 100}
		change(&r, &gpu)
		r.GPU = []structs.GPURequest{gpu}
		job := &structs.Job{ID: "j"}
		b := CompileAsk(job, &structs.Group{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t", Driver: "exec", Resources: r}}}, "").PlainKey(1)
		return string(b)
	}
	plain := key(func(*structs.Resources, *structs.GPURequest) {})
	if plain == "" {
		t.Fatal("a plain ask has no key")
	}
	try := func(typ reflect.Type, of func(r *structs.Resources, g *structs.GPURequest) reflect.Value) {
		for i := range typ.NumField() {
			name := typ.Name() + "." + typ.Field(i).Name
			if elsewhere[name] != "" {
				continue
			}
			got := key(func(r *structs.Resources, g *structs.GPURequest) {
				f := of(r, g).Field(i)
				switch f.Kind() {
				case reflect.Int64:
					f.SetInt(f.Int() + 7)
				case reflect.String:
					f.SetString("x")
				case reflect.Bool:
					f.SetBool(true)
				case reflect.Slice:
					f.Set(reflect.MakeSlice(f.Type(), 1, 1))
				case reflect.Pointer:
					f.Set(reflect.ValueOf(&structs.NUMA{Affinity: structs.NUMARequire}))
				default:
					t.Fatalf("%s: what is a %s?", name, f.Kind())
				}
			})
			if got == plain {
				t.Errorf("%s does not change the key", name)
			}
		}
	}
	try(reflect.TypeFor[structs.Resources](), func(r *structs.Resources, _ *structs.GPURequest) reflect.Value { return reflect.ValueOf(r).Elem() })
	try(reflect.TypeFor[structs.GPURequest](), func(_ *structs.Resources, g *structs.GPURequest) reflect.Value { return reflect.ValueOf(g).Elem() })
}
