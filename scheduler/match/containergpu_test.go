package match

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/structs"
)

func TestContainersWithGPUsWantAnEngineThatTakesThem(t *testing.T) {
	node := func(mode string) *structs.Node {
		n := &structs.Node{Attributes: map[string]string{}, Drivers: map[string]*structs.DriverInfo{"docker": {Detected: true, Healthy: true}, "exec": {Detected: true, Healthy: true}}}
		if mode != "" {
			n.Attributes[structs.DockerGPUAttribute] = mode
		}
		return n
	}
	gpu := structs.Resources{GPU: []structs.GPURequest{{Count: 1}}}
	for _, c := range []struct {
		driver string
		res    structs.Resources
		node   string
		bad    bool
	}{
		{"docker", gpu, "none", true}, {"docker", gpu, "cdi", false}, {"docker", gpu, "", false}, {"exec", gpu, "none", false}, {"docker", structs.Resources{}, "none", false},
		{"docker", structs.Resources{Devices: []structs.DeviceRequest{{Name: "nvidia/gpu/H100", Count: 1}}}, "none", true},
		{"docker", structs.Resources{Devices: []structs.DeviceRequest{{Name: "fpga", Count: 1}}}, "none", false},
	} {
		a := CompileAsk(&structs.Job{ID: "j"}, &structs.Group{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t", Driver: c.driver, Resources: c.res}}}, "")
		if r, bad := a.Refuses(node(c.node)); bad != c.bad || bad && !strings.Contains(r.Text(), structs.DockerGPUAttribute) {
			t.Errorf("%+v: refused %t (%q)", c, bad, r.Text())
		}
	}
}
