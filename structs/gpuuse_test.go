package structs

import (
	"math"
	"reflect"
	"testing"
)

func TestGPUUseSums(t *testing.T) {
	got := SumGPUUse([]GPUUse{
		{Task: "a", GPU: "G", PeakMiB: 7, MiBSeconds: 10, SMMillis: 1, EnergyMJ: 5, Denied: 2},
		{Task: "b", GPU: "G", PeakMiB: 3, MiBSeconds: 20, SMMillis: 2, EnergyMJ: math.MaxInt64, Denied: 1},
		{Task: "b", GPU: "H", PeakMiB: -9, MiBSeconds: -5, SMMillis: math.MinInt64, EnergyMJ: 1},
	})
	want := GPUUse{PeakMiB: 7, MiBSeconds: 30, SMMillis: 3, EnergyMJ: math.MaxInt64, Denied: 3}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A report about GPUs that the allocation does not have, or about one twice, must not get into the books.
func TestGPUUseOfGrantsOnly(t *testing.T) {
	grants := []Grant{{Task: "a", Device: "nvidia/gpu/H100", Instance: "G"}, {Task: "a", Device: "nvidia/gpu/H100", Instance: "H"}, {Task: "a", Device: "x/nic/y", Instance: "N"}}
	got := GrantedGPUUse(grants, []GPUUse{
		{Task: "a", GPU: "H", MiBSeconds: 2}, {Task: "a", GPU: "G", MiBSeconds: -1}, {Task: "a", GPU: "H", MiBSeconds: 99},
		{Task: "b", GPU: "G", MiBSeconds: 5}, {Task: "a", GPU: "N", MiBSeconds: 5}, {Task: "a", GPU: "Z", MiBSeconds: 5},
	})
	if want := []GPUUse{{Task: "a", GPU: "H", MiBSeconds: 2}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Every field that is a number is summed: a new one must be added to Add and IsZero.
func TestGPUUseFields(t *testing.T) {
	typ := reflect.TypeFor[GPUUse]()
	for i := range typ.NumField() {
		if typ.Field(i).Type.Kind() != reflect.Int64 {
			continue
		}
		var u GPUUse
		reflect.ValueOf(&u).Elem().Field(i).SetInt(5)
		if u.IsZero() || (GPUUse{}).Add(u) != u {
			t.Errorf("the field %s is lost", typ.Field(i).Name)
		}
	}
}
