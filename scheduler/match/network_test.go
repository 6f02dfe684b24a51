package match

import (
	"fmt"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// TestLacksNetwork keeps groups that want a separate network off nodes that cannot provide one, and says why.
func TestLacksNetwork(t *testing.T) {
	for _, c := range []struct {
		mode, driver string
		attributes   map[string]string
		want         string
	}{
		{"", "exec", nil, ""},
		{"host", "exec", nil, ""},
		{"bridge", "exec", map[string]string{"network.bridge": "muster"}, ""},
		{"bridge", "raw_exec", nil, "missing network of mode bridge"},
		{"bridge", "exec", map[string]string{"network.none": "1", "network.bridge.lacks": "the kernel has no bridges"}, "missing network of mode bridge; the kernel has no bridges"},
		{"none", "exec", map[string]string{"network.none": "1"}, ""},
		{"none", "exec", map[string]string{"network.none.lacks": "not root"}, "missing network of mode none; not root"},
		{"none", "docker", nil, ""}, // its engine provides it
	} {
		t.Run(fmt.Sprintf("mode=%q driver=%q want=%q", c.mode, c.driver, c.want), func(t *testing.T) {
			g := &structs.Group{Name: "g", Networks: []structs.Network{{Mode: c.mode}}, Tasks: []*structs.Task{{Name: "t", Driver: c.driver}}}
			n := &structs.Node{Attributes: c.attributes, Drivers: map[string]*structs.DriverInfo{c.driver: {Detected: true, Healthy: true}}}
			r, refused := CompileAsk(&structs.Job{Groups: []*structs.Group{g}}, g, "").Refuses(n)
			if refused != (c.want != "") || r.Text() != c.want {
				t.Errorf("mode %q, driver %s, %v: %v %q, want %q", c.mode, c.driver, c.attributes, refused, r.Text(), c.want)
			}
		})
	}
}
