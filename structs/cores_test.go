package structs

import (
	"fmt"
	"testing"
)

func TestSameDevice(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"gpu", "gpu", true}, {"gpu", "nvidia/gpu", true}, {"nvidia/gpu", "gpu", true}, {"gpu", "nvidia/gpu/H100", true}, {"nvidia/gpu", "nvidia/gpu/H100", true},
		{"nvidia/gpu/H100", "nvidia/gpu/A100", false}, {"nvidia/gpu/H100", "gpu", true}, {"amd/gpu", "nvidia/gpu/H100", false}, {"fpga", "nvidia/gpu", false},
		{"nvidia", "nvidia/gpu", false}, {"H100", "nvidia/gpu/H100", false}, {"nvidia/gp", "nvidia/gpu/H100", false}, {"gpu", "fpga", false},
	} {
		t.Run(fmt.Sprintf("a=%q b=%q", c.a, c.b), func(t *testing.T) {
			if got := SameDevice(c.a, c.b); got != c.want {
				t.Errorf("%s and %s: %v", c.a, c.b, got)
			}
		})
	}
}
