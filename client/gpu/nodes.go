package gpu

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/structs"
)

// Numbers of the driver's device files (Documentation/admin-guide/devices.txt of Linux): /dev/nvidiaN is 195:N, and
// /dev/nvidiactl 195:255. Those of nvidia-uvm and nvidia-caps are assigned at load time.
const (
	majorNVIDIA  = 195
	minorControl = 255
)

// Nodes returns the device files that the programs of a task with these grants need: each GPU's own, the two
// capabilities that open a MIG instance, and the common ones (control and unified memory). nvidia-modeset and the
// capabilities to configure and monitor MIG are not among them.
func (n *NVIDIA) Nodes(grants []structs.Grant) ([]driver.DeviceNode, error) {
	s := n.Snapshot()
	if s == nil {
		return nil, fmt.Errorf("the GPUs have not been looked at yet")
	}
	return nodesOf(s, grants, n.cfg.Proc)
}

func nodesOf(s *Snapshot, grants []structs.Grant, proc string) ([]driver.DeviceNode, error) {
	var out []driver.DeviceNode
	add := func(major, minor int64) {
		d := driver.DeviceNode{Major: major, Minor: minor}
		for _, have := range out {
			if have == d {
				return
			}
		}
		out = append(out, d)
	}
	var caps map[string]int64
	for i := range grants {
		g := &grants[i]
		if !g.IsGPU() {
			continue
		}
		dev, mig := findUUID(s, g.Instance)
		switch {
		case dev == nil:
			return nil, fmt.Errorf("GPU %s is not on this node", g.Instance)
		case dev.Minor < 0:
			return nil, fmt.Errorf("the driver does not report the device file of GPU %s", g.Instance)
		}
		add(majorNVIDIA, dev.Minor)
		if mig == nil {
			continue
		}
		if caps == nil {
			caps = migMinors(proc)
		}
		major, ok := majorOf(proc, "nvidia-caps")
		for _, name := range []string{
			fmt.Sprintf("gpu%d/gi%d/access", dev.Minor, mig.GI), fmt.Sprintf("gpu%d/gi%d/ci%d/access", dev.Minor, mig.GI, mig.CI),
		} {
			minor, known := caps[name]
			if !ok || !known {
				return nil, fmt.Errorf("the driver does not report the device file of MIG instance %s (%s)", g.Instance, name)
			}
			add(major, minor)
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	add(majorNVIDIA, minorControl)
	if uvm, ok := majorOf(proc, "nvidia-uvm"); ok {
		add(uvm, 0)
		add(uvm, 1) // tools
	}
	return out, nil
}

// findUUID finds a GPU, or a MIG instance with its GPU.
func findUUID(s *Snapshot, uuid string) (*Device, *MIG) {
	for i := range s.GPUs {
		d := &s.GPUs[i]
		if d.UUID == uuid {
			return d, nil
		}
		for k := range d.MIG {
			if d.MIG[k].UUID == uuid {
				return d, &d.MIG[k]
			}
		}
	}
	return nil, nil
}

// Instance returns the GPU that holds a MIG instance and the instance's number there; ok is false for other UUIDs, and
// before the first query.
func (n *NVIDIA) Instance(uuid string) (parent string, gi int64, ok bool) {
	s := n.Snapshot()
	if s == nil {
		return "", 0, false
	}
	if d, m := findUUID(s, uuid); m != nil {
		return d.UUID, m.GI, true
	}
	return "", 0, false
}

// majorOf returns the major number of a character driver in /proc/devices.
func majorOf(proc, name string) (int64, bool) {
	b, err := os.ReadFile(proc + "/devices")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 2 && f[1] == name {
			if n, err := strconv.ParseInt(f[0], 10, 64); err == nil {
				return n, true
			}
		}
	}
	return 0, false
}

// migMinors reads the minor numbers of capabilities, by name: "gpu0/gi1/ci0/access 12".
func migMinors(proc string) map[string]int64 {
	out := map[string]int64{}
	b, err := os.ReadFile(proc + "/driver/nvidia-caps/mig-minors")
	if err != nil {
		return out
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 2 {
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				out[f[0]] = n
			}
		}
	}
	return out
}
