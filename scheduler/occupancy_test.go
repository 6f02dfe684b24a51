package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// What is counted by difference is what counting afresh gives, of allocations with ports, cores, shares of devices and claims on what others
// hold, that come one by one or together, change in size, job or devices, and go.
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
		var o occupancy
		one := func(x uint64) *held {
			h := heldNamed(x)
			h.need = structs.Vector{CPU: rnd.Int64N(100), Cores: rnd.Int64N(3), MemoryMiB: rnd.Int64N(100), DiskMiB: rnd.Int64N(100)}
			h.work = heldWork{job: &structs.Job{ID: "j"}, yields: rnd.IntN(3) == 0, shy: rnd.IntN(3) == 0, ending: rnd.IntN(3) == 0}
			if rnd.IntN(4) > 0 {
				return h
			}
			h.rare = &heldRare{}
			switch rnd.IntN(4) {
			case 0:
				h.rare.ports = []structs.PortGrant{{Value: 1000 + rnd.IntN(50)}}
			case 1:
				h.rare.cores = []int64{rnd.Int64N(64), rnd.Int64N(64)}
			case 2:
				h.rare.grants = []structs.Grant{{Device: "nvidia/gpu/H100", Instance: fmt.Sprint("GPU-", rnd.IntN(8)), MemoryMiB: rnd.Int64N(2) * 1024, Compute: rnd.Int64N(30)}}
			case 3:
				if all := o.hold.list(); len(all) > 0 && seed%2 == 0 {
					h.rare.waits = []structs.AllocID{all[rnd.IntN(len(all))].ID}
				}
			}
			return h
		}
		for step := range 1500 {
			x := rnd.Uint64N(space)
			switch now := o.hold.get(heldNamed(x).ID); {
			case step%50 == 0:
				var fresh []*held
				for range rnd.IntN(100) {
					if h := one(rnd.Uint64N(space)); !o.hold.has(h.ID) {
						fresh = append(fresh, h)
					}
				}
				o = o.withAll(n, fresh)
			case now == nil:
				o = o.with(n, one(x))
			case rnd.IntN(3) == 0: // another version of the same
				h := one(x)
				h.rare = now.rare
				o = o.with(n, h)
			case rnd.IntN(3) == 0:
				o = o.with(n, one(x))
			default:
				o = o.without(n, now.ID)
			}
			want := occupied(n, slices.Clone(o.hold.list()))
			if o.used != want.used {
				t.Fatalf("seed %d, step %d: %+v used, want %+v", seed, step, o.used, want.used)
			}
			a, b := o.hold, want.hold
			if a == nil || b == nil {
				if a.size() != b.size() {
					t.Fatalf("seed %d, step %d: %d held, want %d", seed, step, a.size(), b.size())
				}
				continue
			}
			if a.size() != b.size() || !slices.Equal(a.ports, b.ports) || !slices.Equal(a.cores, b.cores) || !slices.Equal(a.devs, b.devs) || !slices.Equal(a.shares, b.shares) ||
				a.rares != b.rares || a.waits != b.waits || a.yields != b.yields || a.shy != b.shy {
				t.Fatalf("seed %d, step %d: %+v, want %+v", seed, step, a, b)
			}
		}
	}
}
