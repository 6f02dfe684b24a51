package checkpoint

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TestStorageLearns lets saves run in bursts on random storages, with as many at a time as was learned from the bursts before.
// The first burst has the configured number. After some, no save takes more than 2.5 times as long as alone, the storage is
// busy if it can be, and never are there more saves at a time than configured.
func TestStorageLearns(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 5))
		alone := float64(int64(50+rng.IntN(1000)) << 20)
		serves := 0.5 + 40*rng.Float64()*rng.Float64() // saves that it serves as fast as one
		most := int64(1 + rng.IntN(100))
		m := measures{}
		now := structs.LogTime(1e18)
		if rng.IntN(2) == 0 { // one has saved alone before
			bytes := int64(10 << 30)
			m["x"] = append(m["x"], measuredSave{now, now.Add(time.Duration(float64(bytes) / min(alone, serves*alone) * 1e9)), bytes, structs.AllocID{1}})
		}
		now = now.Add(time.Hour)
		for burst := range 12 {
			x := m.storage("x", most)
			if len(m["x"]) == 0 && x.Limit != most || x.Limit > most || x.Limit < 1 {
				t.Fatalf("seed %d, burst %d: %+v", seed, burst, x)
			}
			n := float64(x.Limit)
			each := min(alone, serves*alone/n)
			best := min(alone, serves*alone)
			if slow := best / each; burst >= 9 && slow > 2.51 {
				t.Errorf("seed %d, burst %d: a save takes %.2f times as long as alone: serves %.1f of %d, %+v", seed, burst, slow, serves, most, x)
			}
			if full := min(serves, float64(most)); burst >= 9 && n < math.Floor(full) {
				t.Errorf("seed %d, burst %d: %v saves at a time of a storage that serves %.1f, of at most %d", seed, burst, n, serves, most)
			}
			bytes := int64(10 << 30)
			for i := range x.Limit {
				end := now.Add(time.Duration(float64(bytes) / each * 1e9))
				m["x"] = append(m["x"], measuredSave{now, end, bytes, structs.AllocID{2, byte(burst), byte(i)}})
			}
			now = now.Add(3 * time.Hour)
		}
	}
}

// TestStorageLearnsUnconfigured is TestStorageLearns without a configured number: as many save at a time as want to, or
// as was learned. After some bursts no save takes more than 2.5 times as long as alone, and a storage that serves all
// never makes one wait.
func TestStorageLearnsUnconfigured(t *testing.T) {
	limited, idle := 0, 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 6))
		alone := float64(int64(50+rng.IntN(1000)) << 20)
		serves := 1 + 40*rng.Float64()*rng.Float64()
		m := measures{}
		now := structs.LogTime(1e18)
		for burst := range 16 {
			x := m.storage("x", 0)
			n := int64(1 + rng.IntN(100))
			if x.Limit > 0 {
				n = min(n, x.Limit)
				limited++
			}
			each := min(alone, serves*alone/float64(n))
			if slow := alone / each; burst >= 12 && slow > 2.51 {
				t.Errorf("seed %d, burst %d: a save takes %.2f times as long as alone: serves %.1f, %d save, %+v", seed, burst, slow, serves, n, x)
			}
			if x.Limit > 0 && burst >= 12 && float64(x.Limit) < math.Floor(serves) {
				idle++ // fewer are tried, to learn how fast they are
			}
			bytes := int64(10 << 30)
			for i := range n {
				m["x"] = append(m["x"], measuredSave{now, now.Add(time.Duration(float64(bytes) / each * 1e9)), bytes, structs.AllocID{2, byte(burst), byte(i)}})
			}
			now = now.Add(3 * time.Hour)
		}
	}
	if limited == 0 || idle > 12 {
		t.Errorf("a limit in %d bursts; of the last %d, %d left a storage idle that was wanted", limited, 300*4, idle)
	}
}

// TestMeasuredSaves: what is small, was not timed, or went to no named storage says nothing of bandwidth.
func TestMeasuredSaves(t *testing.T) {
	for name, c := range map[string]struct {
		storage string
		saved   *structs.Saved
		want    int
	}{
		"a measurement":        {"x", &structs.Saved{Time: 1e18, Bytes: 1 << 30, Took: time.Second}, 1},
		"not saved":            {"x", nil, 0},
		"by itself":            {"x", &structs.Saved{Time: 1e18, Bytes: 1 << 30}, 0},
		"small":                {"x", &structs.Saved{Time: 1e18, Bytes: 1 << 10, Took: time.Second}, 0},
		"in an instant":        {"x", &structs.Saved{Time: 1e18, Bytes: 1 << 30, Took: time.Millisecond}, 0},
		"longer than it may":   {"x", &structs.Saved{Time: 1e18, Bytes: 1 << 30, Took: time.Hour}, 0},
		"to another storage":   {"y", &structs.Saved{Time: 1e18, Bytes: 1 << 30, Took: time.Second}, 1},
		"to a storage unnamed": {"", &structs.Saved{Time: 1e18, Bytes: 1 << 30, Took: time.Second}, 0},
	} {
		m := measures{}
		m.add(&structs.Allocation{Group: "g", Saved: c.saved, Job: &structs.Job{Groups: []*structs.Group{{Name: "g", Checkpoint: &structs.Checkpoint{Signal: "SIGUSR1", Storage: c.storage}}}}})
		if got := len(m[c.storage]); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
