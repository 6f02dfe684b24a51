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

// TestMeasuredSaves: what is small, was not timed, or went to a storage without a limit says nothing of bandwidth.
func TestMeasuredSaves(t *testing.T) {
	cfg := &structs.SchedulerConfig{CheckpointStorage: map[string]int64{"x": 8}}
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
		"elsewhere":            {"y", &structs.Saved{Time: 1e18, Bytes: 1 << 30, Took: time.Second}, 0},
		"to a storage unnamed": {"", &structs.Saved{Time: 1e18, Bytes: 1 << 30, Took: time.Second}, 0},
	} {
		m := measures{}
		m.add(cfg, &structs.Allocation{Group: "g", Saved: c.saved, Job: &structs.Job{Groups: []*structs.Group{{Name: "g", Checkpoint: &structs.Checkpoint{Signal: "SIGUSR1", Storage: c.storage}}}}})
		if got := len(m[c.storage]); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
