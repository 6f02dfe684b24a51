package structs

import (
	"fmt"
	"testing"
)

func TestIsModel(t *testing.T) {
	for _, c := range []struct {
		name, words string
		want        bool
	}{
		{"NVIDIA H100 80GB HBM3", "H100", true}, {"NVIDIA H100 80GB HBM3", "h100", true}, {"NVIDIA H100 80GB HBM3", "h100 80gb", true}, {"H100", "", true},
		{"NVIDIA H100 80GB HBM3", "H10", false}, {"NVIDIA A100-SXM4-40GB", "A100", true}, {"NVIDIA A100-SXM4-40GB", "A100-SXM4", true},
		{"H100", "H200|H100", true}, {"A100", "H200|H100", false}, {"T4", "T40", false}, {"T4", "--", false},
	} {
		t.Run(fmt.Sprintf("name=%q words=%q", c.name, c.words), func(t *testing.T) {
			if got := IsModel(c.name, c.words); got != c.want {
				t.Errorf("%q names %q: %v", c.words, c.name, got)
			}
		})
	}
}

func TestGPURequestMemory(t *testing.T) {
	for _, c := range []struct {
		r    GPURequest
		want int64
	}{{GPURequest{MemoryMiB: 500}, 500}, {GPURequest{Share: 25}, 20011}, {GPURequest{Share: 1}, 800}, {GPURequest{}, 0}} {
		if got := c.r.MemoryOn(80047); got != c.want {
			t.Errorf("%+v takes %d MiB, want %d", c.r, got, c.want)
		}
	}
	if r := (GPURequest{Share: 1}); r.MemoryOn(10) != 1 {
		t.Errorf("a share of a tiny device is at least 1 MiB: got %v, want 1", r.MemoryOn(10))
	}
	n := &Node{Attributes: map[string]string{GPUReserveAttribute: "7"}, Meta: map[string]string{GPUReserveAttribute: "9"}}
	if got := n.GPUReserveMiB(); got != 7 {
		t.Errorf("the attribute goes before the meta: got %v, want 7", got)
	}
	if n.Attributes = nil; n.GPUReserveMiB() != 9 {
		t.Errorf("the meta counts where there is no attribute: got %v, want 9", n.GPUReserveMiB())
	}
	if n.Meta[GPUReserveAttribute] = "-1"; n.GPUReserveMiB() != 0 {
		t.Errorf("nonsense counts as nothing: got %v, want 0", n.GPUReserveMiB())
	}
}

// What asked for whole GPUs is not what a MIG instance was given for, nor the other way round: a power limit would else be set for all who
// use the GPU of the instance.
func TestGPURequestOfTellsInstancesFromGPUs(t *testing.T) {
	whole := GPURequest{Count: 1, PowerLimitW: 300}
	part := GPURequest{Count: 1, MIG: "1g.10gb"}
	share := GPURequest{Count: 1, MemoryMiB: 1024, Pressure: &GPUPressure{At: []int64{90}}}
	gpu := Grant{Device: "nvidia/gpu/NVIDIA H100", Instance: "GPU-1"}
	instance := Grant{Device: "nvidia/gpu/NVIDIA H100 MIG 1g.10gb", Instance: "MIG-1", Backend: BackendMIG}
	shared := Grant{Device: "nvidia/gpu/NVIDIA H100 MIG 1g.10gb", Instance: "MIG-1", Backend: BackendMIG, MemoryMiB: 1024}
	for _, c := range []struct {
		name string
		of   []GPURequest
		got  Grant
		want int // position; -1: none
	}{
		{"a GPU, or an instance: the GPU", []GPURequest{whole, part}, gpu, 0},
		{"a GPU, or an instance: the instance", []GPURequest{whole, part}, instance, 1},
		{"an instance, or a GPU: the GPU", []GPURequest{part, whole}, gpu, 1},
		{"a share held by MIG", []GPURequest{whole, share}, shared, 1},
	} {
		want := (*GPURequest)(nil)
		if c.want >= 0 {
			want = &c.of[c.want]
		}
		if got := GPURequestOf(c.of, []Grant{c.got}); got != want {
			t.Errorf("%s: %+v; want %v", c.name, got, want)
		}
	}
}

// TestEnforceValues: each value of enforce asks for other backends than each other one, on some node; "" is auto, and driver is
// another word for hard.
func TestEnforceValues(t *testing.T) {
	nodes := []string{"", BackendWatch, BackendShim, BackendMIG, BackendDmem, BackendDmem + "," + BackendMIG + "," + BackendShim + "," + BackendWatch, BackendMIG + "," + BackendShim}
	seen := map[string]string{}
	for _, v := range append([]string{""}, Enums["GPURequest.Enforce"]...) {
		said := ""
		for _, have := range nodes {
			backend, ok := GPUBackend(v, have)
			said += fmt.Sprint(backend, ok, " ")
		}
		other, has := seen[said]
		if want := map[string]string{"auto": "", "driver": "hard"}; has && (want[v] != other || v != "auto" && v != "driver") {
			t.Errorf("%q does what %q does: %s", v, other, said)
		}
		seen[said] = v
	}
	if n := len(GPUEnforces) - 1; len(seen) != n {
		t.Errorf("%d outcomes of %d values", len(seen), len(GPUEnforces))
	}
}
