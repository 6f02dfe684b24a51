package runner

import (
	"fmt"
	"sync"

	"github.com/muster-sched/muster/structs"
)

// Ledger holds what the allocations of this node were granted of devices (whole or in shares), cores and ports. It is
// the second check after the servers': it refuses a grant that conflicts with another.
type Ledger struct {
	mu    sync.Mutex
	holds map[structs.AllocID]*structs.Allocation
}

// NewLedger makes an empty ledger.
func NewLedger() *Ledger { return &Ledger{holds: map[structs.AllocID]*structs.Allocation{}} }

// Claim reserves what a was granted, among the devices that node has now. A repeated claim is a no-op.
func (l *Ledger) Claim(a *structs.Allocation, node *structs.Node) error {
	if len(a.Grants) == 0 && len(a.Cores) == 0 && len(a.Ports) == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holds[a.ID] != nil {
		return nil
	}
	for _, g := range a.Grants {
		if err := l.device(a, g, node); err != nil {
			return err
		}
	}
	for id, b := range l.holds {
		for _, c := range a.Cores {
			for _, d := range b.Cores {
				if c == d {
					return fmt.Errorf("core %d is still held by allocation %s", c, id.Short())
				}
			}
		}
		for _, p := range a.Ports {
			for _, q := range b.Ports {
				if p.Value == q.Value && (p.HostIP == q.HostIP || p.HostIP == "" || q.HostIP == "") {
					return fmt.Errorf("port %d is still held by allocation %s", p.Value, id.Short())
				}
			}
		}
	}
	l.holds[a.ID] = a
	return nil
}

// Adopt reserves what a holds without a check: its tasks run already.
func (l *Ledger) Adopt(a *structs.Allocation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds[a.ID] = a
}

// Release gives back what an allocation held.
func (l *Ledger) Release(id structs.AllocID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.holds, id)
}

// Held returns how many allocations hold something.
func (l *Ledger) Held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.holds)
}

// device checks one grant. The caller holds mu.
func (l *Ledger) device(a *structs.Allocation, g structs.Grant, node *structs.Node) error {
	inst := findInstance(node, g)
	if inst == nil {
		return fmt.Errorf("device %s %s is not on this node", g.Device, g.Instance)
	}
	if !inst.Healthy {
		return fmt.Errorf("device %s %s is not healthy: %s", g.Device, g.Instance, inst.HealthDesc)
	}
	var memory, compute, times int64
	for _, h := range a.Grants { // tasks of one allocation may share a device
		if h.Instance == g.Instance && h.Device == g.Device {
			memory, compute, times = memory+h.MemoryMiB, compute+h.Compute, times+1
			if times > 1 && (g.MemoryMiB == 0 || h.MemoryMiB == 0) {
				return fmt.Errorf("device %s is granted whole and once more", g.Instance)
			}
		}
	}
	for id, b := range l.holds {
		for _, h := range b.Grants {
			if h.Instance != g.Instance || h.Device != g.Device {
				continue
			}
			if g.MemoryMiB == 0 || h.MemoryMiB == 0 {
				return fmt.Errorf("device %s is still held by allocation %s", g.Instance, id.Short())
			}
			memory, compute = memory+h.MemoryMiB, compute+h.Compute
		}
	}
	if g.MemoryMiB == 0 {
		return nil
	}
	if capacity := inst.MemoryMiB - node.GPUReserveMiB(); memory > capacity {
		return fmt.Errorf("device %s has %d MiB to share and %d would be in use", g.Instance, capacity, memory)
	}
	if compute > structs.GPUComputeMax {
		return fmt.Errorf("device %s would have %d %% of its compute in use", g.Instance, compute)
	}
	return nil
}

func findInstance(node *structs.Node, g structs.Grant) *structs.DeviceInstance {
	for i := range node.Resources.Devices {
		d := &node.Resources.Devices[i]
		if d.ID() != g.Device {
			continue
		}
		for k := range d.Instances {
			if d.Instances[k].ID == g.Instance {
				return &d.Instances[k]
			}
		}
	}
	return nil
}
