package gpu

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/structs"
)

func TestDeviceFiles(t *testing.T) {
	proc := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		p := filepath.Join(proc, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := &Snapshot{GPUs: []Device{
		{UUID: "GPU-a", Minor: 0}, {UUID: "GPU-b", Minor: 3}, {UUID: "GPU-odd", Minor: -1},
		{UUID: "GPU-m", Minor: 5, MIG: []MIG{{UUID: "MIG-1", GI: 7, CI: 0}, {UUID: "MIG-2", GI: 9, CI: 0}}},
	}}
	grants := func(ids ...string) (out []structs.Grant) {
		for _, id := range ids {
			out = append(out, structs.Grant{Device: "nvidia/gpu/H100", Instance: id})
		}
		return out
	}
	nodes := func(want ...driver.DeviceNode) []driver.DeviceNode { return want }

	got, err := nodesOf(s, grants("GPU-b", "GPU-a", "GPU-b"), proc)
	if want := nodes(driver.DeviceNode{Major: 195, Minor: 3}, driver.DeviceNode{Major: 195, Minor: 0}, driver.DeviceNode{Major: 195, Minor: 255}); err != nil || !slices.Equal(got, want) {
		t.Errorf("two GPUs without unified memory: %v, %v", got, err)
	}
	if _, err := nodesOf(s, grants("MIG-1"), proc); err == nil || !strings.Contains(err.Error(), "gpu5/gi7/access") {
		t.Errorf("a MIG instance whose capabilities are not known: %v", err)
	}
	write("devices", "Character devices:\n  1 mem\n195 nvidia\n234 nvidia-caps\n511 nvidia-uvm\n\nBlock devices:\n  8 sd\n")
	write("driver/nvidia-caps/mig-minors", "config 1\nmonitor 2\ngpu5/gi7/access 66\ngpu5/gi7/ci0/access 67\ngpu5/gi9/access 84\n")
	got, err = nodesOf(s, grants("MIG-1"), proc)
	want := nodes(driver.DeviceNode{Major: 195, Minor: 5}, driver.DeviceNode{Major: 234, Minor: 66}, driver.DeviceNode{Major: 234, Minor: 67},
		driver.DeviceNode{Major: 195, Minor: 255}, driver.DeviceNode{Major: 511, Minor: 0}, driver.DeviceNode{Major: 511, Minor: 1})
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("a MIG instance: %v, %v", got, err)
	}
	for _, id := range []string{"MIG-2", "GPU-odd", "GPU-gone"} {
		if got, err := nodesOf(s, grants(id), proc); err == nil {
			t.Errorf("%s: %v", id, got)
		}
	}
	if got, err := nodesOf(s, []structs.Grant{{Device: "acme/tpu/v1", Instance: "t"}}, proc); err != nil || got != nil {
		t.Errorf("no GPU: %v, %v", got, err)
	}
}
