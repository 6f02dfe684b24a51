package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// Incremental counting gives the same result as counting from scratch, for allocations with ports, cores, shares of
// devices and claims on what others hold, which come one by one or together, change in size, job or devices, and go.
func TestOccupancyByDifferenceIsThatCountedAfresh(t *testing.T) {
	n := &structs.Node{}
	g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
	for i := range 8 {
		g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprint("GPU-", i), Healthy: true, MemoryMiB: 80 << 10})
	}
	n.Resources.Devices = []structs.DeviceGroup{g}
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		space := uint64(20 + rnd.IntN(400))
		var o Occupancy
		one := func(x uint64) *Held {
			h := heldNamed(x)
			h.Need = structs.Vector{CPU: rnd.Int64N(100), Cores: rnd.Int64N(3), MemoryMiB: rnd.Int64N(100), DiskMiB: rnd.Int64N(100)}
			h.Work = HeldWork{Job: &structs.Job{ID: "j"}, Yields: rnd.IntN(3) == 0, Shy: rnd.IntN(3) == 0, Ending: rnd.IntN(3) == 0}
			if rnd.IntN(4) > 0 {
				return h
			}
			h.Rare = &HeldRare{}
			switch rnd.IntN(4) {
			case 0:
				h.Rare.Ports = []structs.PortGrant{{Value: 1000 + rnd.IntN(50)}}
			case 1:
				h.Rare.Cores = []int64{rnd.Int64N(64), rnd.Int64N(64)}
			case 2:
				h.Rare.Grants = []structs.Grant{{Device: "nvidia/gpu/H100", Instance: fmt.Sprint("GPU-", rnd.IntN(8)), MemoryMiB: rnd.Int64N(2) * 1024, Compute: rnd.Int64N(30)}}
			case 3:
				if all := o.Hold.List(); len(all) > 0 && seed%2 == 0 {
					h.Rare.Waits = []structs.AllocID{all[rnd.IntN(len(all))].ID}
				}
			}
			return h
		}
		for step := range 1500 {
			x := rnd.Uint64N(space)
			switch now := o.Hold.Get(heldNamed(x).ID); {
			case step%50 == 0:
				var hs []*Held
				for range rnd.IntN(100) {
					if h := one(rnd.Uint64N(space)); step%100 == 0 || !o.Hold.Has(h.ID) {
						if was := o.Hold.Get(h.ID); was != nil && rnd.IntN(2) == 0 {
							h.Rare = was.Rare
						}
						hs = append(hs, h)
					}
				}
				slices.SortFunc(hs, func(a, b *Held) int { return CompareID(a.ID, b.ID) })
				o = o.withAll(n, slices.CompactFunc(hs, func(a, b *Held) bool { return a.ID == b.ID }))
			case now == nil:
				o = o.with(n, one(x))
			case rnd.IntN(3) == 0: // another version of the same
				h := one(x)
				h.Rare = now.Rare
				o = o.with(n, h)
			case rnd.IntN(3) == 0:
				o = o.with(n, one(x))
			default:
				o = o.Without(n, now.ID)
			}
			want := Occupied(n, slices.Clone(o.Hold.List()))
			if o.Used != want.Used {
				t.Fatalf("seed %d, step %d: %+v used, want %+v", seed, step, o.Used, want.Used)
			}
			a, b := o.Hold, want.Hold
			if a == nil || b == nil {
				if a.Size() != b.Size() {
					t.Fatalf("seed %d, step %d: %d held, want %d", seed, step, a.Size(), b.Size())
				}
				continue
			}
			if a.Size() != b.Size() || !slices.Equal(a.ports, b.ports) || !slices.Equal(a.Cores, b.Cores) || !slices.Equal(a.Devs, b.Devs) || !slices.Equal(a.Shares, b.Shares) ||
				a.rares != b.rares || a.Waits != b.Waits || a.Yields != b.Yields || a.Shy != b.Shy {
				t.Fatalf("seed %d, step %d: %+v, want %+v", seed, step, a, b)
			}
		}
	}
}
