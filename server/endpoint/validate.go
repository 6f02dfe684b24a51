package endpoint

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Limits on what a node may report.
const (
	nodeAttributesMax = 2000
	nodeTextMax       = 4096
	nodeDevicesMax    = 1024
)

// validateNode checks what a node reports about itself.
func (s *Set) validateNode(n *structs.Node) error {
	bad := func(format string, args ...any) error {
		return structs.Errorf(structs.CodeInvalid, "node registration: "+format, args...)
	}
	switch {
	case n == nil:
		return bad("no node")
	case n.ID.IsZero() || n.SecretID.IsZero():
		return bad("id and secret are required")
	case n.Name == "" || len(n.Name) > 253:
		return bad("the name has 1 to 253 characters, %q has %d", n.Name, len(n.Name))
	case n.Datacenter == "" || len(n.Datacenter) > 128:
		return bad("the datacenter has 1 to 128 characters")
	case len(n.Attributes) > nodeAttributesMax || len(n.Meta) > nodeAttributesMax:
		return bad("more than %d attributes or meta entries", nodeAttributesMax)
	case n.Resources.CPU < 0 || n.Resources.MemoryMiB < 0 || n.Resources.DiskMiB < 0 || n.Resources.Cores < 0:
		return bad("resources must not be negative")
	case n.Reserved.CPU < 0 || n.Reserved.MemoryMiB < 0 || n.Reserved.DiskMiB < 0:
		return bad("reserved resources must not be negative")
	}
	for name, d := range n.Drivers {
		if d == nil {
			return bad("driver %.80q: its state is missing", name)
		}
	}
	for _, m := range []map[string]string{n.Attributes, n.Meta} {
		for k, v := range m {
			if k == "" || len(k) > 256 || len(v) > nodeTextMax {
				return bad("attribute or meta key %.80q: keys have 1 to 256 bytes, values at most %d", k, nodeTextMax)
			}
		}
	}
	devices := 0
	seen := map[string]bool{}
	for _, g := range n.Resources.Devices {
		for _, d := range g.Instances {
			devices++
			if d.ID == "" || seen[g.ID()+"\x00"+d.ID] {
				return bad("device %s: instance %q is empty or reported twice", g.ID(), d.ID)
			}
			seen[g.ID()+"\x00"+d.ID] = true
		}
	}
	if devices > nodeDevicesMax {
		return bad("%d devices are over the limit of %d", devices, nodeDevicesMax)
	}
	if n.Pool == structs.NodePoolAll {
		return bad("the pool %q contains every node; name another", structs.NodePoolAll)
	}
	if n.Pool != "" {
		if err := validName("node pool", string(n.Pool), 128); err != nil {
			return err
		}
	}
	return nil
}

// sameReport reports whether a node reports what the state already has, so that registering it again writes nothing.
func sameReport(old, n *structs.Node) bool {
	a, b := *old, *n
	for _, x := range []*structs.Node{&a, &b} {
		x.Status, x.StatusDesc, x.Eligibility, x.StatusAt, x.SilentAt = "", "", "", 0, 0
		x.Drain, x.LastDrain, x.Tainted, x.Events, x.Periods, x.GPUFaults = nil, nil, nil, nil, nil, nil
		x.ComputedClass, x.Epoch, x.CreateIndex, x.ModifyIndex = 0, 0, 0, 0
		if x.Pool == "" {
			x.Pool = structs.NodePoolDefault
		}
	}
	return reflect.DeepEqual(a, b)
}

// validName checks a name that becomes part of paths and addresses.
func validName(what, name string, most int) error {
	if name == "" || len(name) > most {
		return structs.Errorf(structs.CodeInvalid, "a %s has 1 to %d characters, %.80q has %d", what, most, name, len(name))
	}
	for _, r := range name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.') {
			return structs.Errorf(structs.CodeInvalid, "%s %q: only letters, digits, -, _ and . are allowed, not %q", what, name, r)
		}
	}
	return nil
}

func sortAllocsByIndex(as []*structs.Allocation) {
	slices.SortFunc(as, func(a, b *structs.Allocation) int { return cmp.Compare(a.AllocIndex, b.AllocIndex) })
}

func validZone(name string) bool {
	_, err := time.LoadLocation(name)
	return err == nil && len(name) <= 64
}

// problems collects what is wrong with a job, at most jobErrorsShown messages.
type problems struct {
	list []string
}

func (p *problems) addf(format string, args ...any) {
	if len(p.list) < jobErrorsShown {
		p.list = append(p.list, fmt.Sprintf(format, args...))
	}
}
