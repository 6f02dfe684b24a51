package suggest

import (
	"fmt"
	"testing"
)

func TestNearest(t *testing.T) {
	names := []string{"count", "constraint", "priority", "datacenters", "type", "dev-gpus", "max_size", "min_size", "cpu", "gpus", "allowed"}
	for word, want := range map[string]string{
		"cuont": "count", "contraint": "constraint", "Priority": "priority", "datacenter": "datacenters", "zzzz": "", "": "", "dev_gpus": "dev-gpus", "size": "", "gpu": "gpus", "allow": "allowed", "prio": "priority",
	} {
		t.Run(fmt.Sprintf("%q", word), func(t *testing.T) {
			if got := Nearest(word, names); got != want {
				t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
			}
		})
	}
}
