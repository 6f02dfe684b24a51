package match

import (
	"fmt"
	"testing"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

func testNode() *structs.Node {
	return &structs.Node{
		ID: structs.NodeID{1}, Name: "n1", Datacenter: "east-1", Class: "big", Pool: "gpu",
		Attributes: map[string]string{"kernel.name": "linux", "cpu.numcores": "16", "os.version": "22.04", "v": "1.7.0-beta", "set": "a, b,c", "unique.hostname": "h1", "load": "0.75"},
		Meta:       map[string]string{"rack": "r1"},
		Drivers:    map[string]*structs.DriverInfo{"exec": {Detected: true, Healthy: true, Attributes: map[string]string{"version": "2"}}, "docker": {Detected: true}},
	}
}

func TestConditions(t *testing.T) {
	n := testNode()
	for _, c := range []struct {
		l, op, r string
		want     bool
	}{
		{"${attr.kernel.name}", "=", "linux", true},
		{"${attr.kernel.name}", "==", "windows", false},
		{"${attr.kernel.name}", "is", "linux", true},
		{"${attr.none}", "=", "", false},
		{"${attr.none}", "!=", "x", true},
		{"${attr.none}", "not", "x", true},
		{"${attr.kernel.name}", "!=", "linux", false},
		{"linux", "=", "${attr.kernel.name}", true},
		{"${node.datacenter}", "=", "east-1", true},
		{"${node.class}", "=", "big", true},
		{"${node.pool}", "=", "gpu", true},
		{"${node.unique.name}", "=", "n1", true},
		{"${node.unique.id}", "=", "01000000-0000-0000-0000-000000000000", true},
		{"${node.bogus}", "is_set", "", false},
		{"${meta.rack}", "=", "r1", true},
		{"${attr.unique.hostname}", "=", "h1", true},
		{"${driver.exec}", "=", "1", true},
		{"${driver.docker}", "is_set", "", false},
		{"${driver.exec.version}", ">=", "2", true},
		{"${attr.cpu.numcores}", ">", "9", true}, // as numbers, not as text
		{"${attr.cpu.numcores}", "<", "9", false},
		{"${attr.cpu.numcores}", ">=", "16", true},
		{"${attr.cpu.numcores}", "<=", "15.5", false},
		{"${attr.load}", ">", "0.7", true},
		{"${attr.kernel.name}", "<", "mac", true},
		{"${attr.none}", "<", "5", false},
		{"${attr.kernel.name}", "regexp", "^lin", true},
		{"${attr.kernel.name}", "regexp", "^win", false},
		{"${attr.kernel.name}", "regexp", "(", false},
		{"${attr.os.version}", "version", ">= 20.04, < 24", true},
		{"${attr.os.version}", "version", "~> 22.0", true},
		{"${attr.os.version}", "version", "> 22.04", false},
		{"${attr.v}", "version", ">= 1.6", false}, // a prerelease does not satisfy a range
		{"${attr.v}", "semver", ">= 1.6.0", true}, // in semver order it does
		{"${attr.v}", "semver", ">= 1.7.0", false},
		{"${attr.v}", "semver", "~> 1.6", false},
		{"${attr.kernel.name}", "version", ">= 1", false},
		{"${attr.set}", "set_contains", "a,c", true},
		{"${attr.set}", "set_contains_all", "a,d", false},
		{"${attr.set}", "set_contains_any", "d, b", true},
		{"${attr.set}", "set_contains_any", "d,e", false},
		{"${meta.rack}", "is_set", "", true},
		{"${meta.none}", "is_not_set", "", true},
		{"", "distinct_hosts", "", true},
		{"${attr.kernel.name}", "frobnicate", "linux", false},
	} {
		t.Run(fmt.Sprintf("l=%q op=%q r=%q", c.l, c.op, c.r), func(t *testing.T) {
			x := compileCondition(c.l, c.r, c.op)
			if got := x.Holds(n); got != c.want {
				t.Errorf("%s %s %s: %v, want %v", c.l, c.op, c.r, got, c.want)
			}
		})
	}
	for target, want := range map[string]bool{"${node.unique.id}": true, "${attr.unique.x}": true, "${meta.unique.x}": true, "${attr.x}": false, "unique.": false} {
		t.Run(target, func(t *testing.T) {
			if unique(target) != want {
				t.Errorf("unique(%s) is %v", target, !want)
			}
		})
	}
}

func TestDeviceConditions(t *testing.T) {
	g := &structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100", Instances: []structs.DeviceInstance{{ID: "GPU-1"}, {ID: "GPU-2"}},
		Attributes: map[string]structs.Attribute{
			"memory":        {Kind: "int", Int: 80, Unit: "GiB"},
			"clock":         {Kind: "int", Int: 1980, Unit: "MHz"},
			"power":         {Kind: "micro", Int: 700_500_000, Unit: "W"},
			"driver":        {Kind: "string", Str: "550.54"},
			"ecc":           {Kind: "bool", Bool: true},
			"cuda.capacity": {Kind: "micro", Int: 9_000_000},
		}}
	for _, c := range []struct {
		l, op, r string
		want     bool
	}{
		{"${device.model}", "=", "H100", true},
		{"${device.vendor}", "!=", "amd", true},
		{"${device.type}", "regexp", "^g", true},
		{"${device.attr.memory}", ">=", "80 GiB", true},
		{"${device.attr.memory}", ">=", "81920 MiB", true},
		{"${device.attr.memory}", "=", "81920MiB", true},
		{"${device.attr.memory}", ">", "85 GB", true}, // 85.9 GB
		{"${device.attr.memory}", ">", "86 GB", false},
		{"${device.attr.memory}", ">", "1 GHz", false}, // not comparable
		{"${device.attr.memory}", "!=", "1 GHz", true},
		{"${device.attr.clock}", ">", "1.9 GHz", true},
		{"${device.attr.power}", ">=", "700.5 W", true},
		{"${device.attr.power}", "<", "700501 mW", true},
		{"${device.attr.driver}", "version", ">= 535", true},
		{"${device.attr.driver}", "=", "550.54", true},
		{"${device.attr.ecc}", "=", "true", true},
		{"${device.attr.cuda.capacity}", ">=", "8.9", true},
		{"${device.attr.cuda.capacity}", "is_set", "", true},
		{"${device.attr.none}", "is_not_set", "", true},
		{"${device.attr.none}", ">", "1", false},
	} {
		t.Run(fmt.Sprintf("l=%q op=%q r=%q", c.l, c.op, c.r), func(t *testing.T) {
			x := compileCondition(c.l, c.r, c.op)
			if got := x.holdsOnDevice(g); got != c.want {
				t.Errorf("%s %s %s: %v, want %v", c.l, c.op, c.r, got, c.want)
			}
		})
	}
	for name, want := range map[string]bool{"gpu": true, "nvidia/gpu": true, "nvidia/gpu/H100": true, "nvidia/gpu/A100": false, "amd/gpu": false, "tpu": false} {
		t.Run(name, func(t *testing.T) {
			d := DeviceAlt{name: name}
			if d.names(g) != want {
				t.Errorf("%q names the group: %v", name, !want)
			}
		})
	}
}

func TestMIGIsAskedForByProfile(t *testing.T) {
	whole := &structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "NVIDIA H100 80GB HBM3"}
	slice := &structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
		Attributes: map[string]structs.Attribute{"mig_profile": {Kind: "string", Str: "1g.10gb"}}}
	for _, c := range []struct {
		d            DeviceAlt
		whole, slice bool
	}{
		{DeviceAlt{name: "gpu"}, true, false},
		{DeviceAlt{name: "nvidia/gpu"}, true, false},
		{DeviceAlt{name: gpuName, model: "H100"}, true, false},
		{DeviceAlt{name: gpuName, mig: "1g.10gb"}, false, true},
		{DeviceAlt{name: gpuName, mig: "1g.10gb", model: "H100"}, false, true},
		{DeviceAlt{name: gpuName, mig: "1g.10gb", model: "A100"}, false, false},
		{DeviceAlt{name: gpuName, mig: "2g.20gb"}, false, false},
		{DeviceAlt{name: "nvidia/gpu/" + slice.Name}, false, true},
	} {
		if got := c.d.names(whole); got != c.whole {
			t.Errorf("%+v names a whole GPU: %v", c.d, got)
		}
		if got := c.d.names(slice); got != c.slice {
			t.Errorf("%+v names a MIG instance: %v", c.d, got)
		}
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		p, s string
		want bool
	}{{"*", "dc1", true}, {"dc?", "dc1", true}, {"dc?", "dc12", false}, {"east-*", "east-1", true}, {"east-*", "west-1", false}, {"*-1", "east-1", true},
		{"a*b*c", "axxbxxc", true}, {"a*b*c", "axxbxx", false}, {"", "", true}, {"*", "", true}} {
		t.Run(fmt.Sprintf("p=%q s=%q", c.p, c.s), func(t *testing.T) {
			if glob(c.p, c.s) != c.want {
				t.Errorf("glob(%q, %q) is %v", c.p, c.s, !c.want)
			}
		})
	}
}

func TestPow10(t *testing.T) {
	for _, c := range []struct{ num, den, want int64 }{{0, 5, 1_000_000}, {5, 5, 10_000_000}, {-1, 5, 1_000_000}, {9, 5, 10_000_000}, {1, 0, 1_000_000}, {1, 2, 3_162_278}, {1, 4, 1_778_279}} {
		t.Run(fmt.Sprintf("num=%v den=%v", c.num, c.den), func(t *testing.T) {
			if got := model.Pow10(c.num, c.den); got < c.want-2 || got > c.want+2 {
				t.Errorf("Pow10(%d/%d) = %d, want %d", c.num, c.den, got, c.want)
			}
		})
	}
	last := int64(0)
	for i := range int64(10_000) {
		p := model.Pow10(i, 10_000)
		if p < last {
			t.Fatalf("Pow10 falls at %d", i)
		}
		last = p
	}
}
