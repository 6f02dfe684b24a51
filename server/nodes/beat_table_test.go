package nodes

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TestBeatTableAgainstOracle: the heap returns what a scan returns, in the same order.
func TestBeatTableAgainstOracle(t *testing.T) {
	for _, nodes := range []int{1, 3, 50} { // a small fleet often has one timer, or none
		t.Run(fmt.Sprint(nodes), func(t *testing.T) { beatTableAgainstOracle(t, nodes) })
	}
}

func beatTableAgainstOracle(t *testing.T, nodes int) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewSource(seed))
	tab := &beatTable{nodes: map[structs.NodeID]*beat{}}
	want := map[structs.NodeID]time.Time{}
	now := time.Unix(1000, 0)
	expired := 0
	for range 20_000 {
		id := beatID(r.Intn(nodes))
		switch r.Intn(6) {
		case 0, 1, 2:
			ttl := tab.beat(id, now)
			if ttl < beatTTL || ttl > beatTTL+beatTTL/beatJitter {
				t.Fatalf("time of %s in a fleet of %d", ttl, len(tab.nodes))
			}
			want[id] = now.Add(ttl + beatGrace)
		case 3:
			tab.remove(id)
			delete(want, id)
		case 4:
			now = now.Add(time.Duration(r.Intn(150_000/nodes)) * time.Millisecond)
			if r.Intn(200) == 0 {
				tab.delay(time.Second)
				for k, d := range want {
					want[k] = d.Add(time.Second)
				}
			}
			if r.Intn(200) == 0 {
				floor := now.Add(time.Second)
				tab.floor(floor)
				for k, d := range want {
					if d.Before(floor) {
						want[k] = floor
					}
				}
			}
		default:
			var due []structs.NodeID
			for k, d := range want {
				if !d.After(now) {
					due = append(due, k)
				}
			}
			slices.SortFunc(due, func(a, b structs.NodeID) int {
				if c := want[a].Compare(want[b]); c != 0 {
					return c
				}
				return slices.Compare(a[:], b[:])
			})
			due = due[:min(len(due), 3)]
			got := tab.expired(now, 3)
			if !slices.Equal(got, due) {
				t.Fatalf("expired %v, want %v", got, due)
			}
			for _, k := range got {
				delete(want, k)
			}
			expired += len(got)
		}
	}
	if expired == 0 {
		t.Error("nothing expired: the run proves nothing")
	}
}

// TestBeatRateIsBounded: nodes of a large fleet send heartbeats less often, spread over time.
func TestBeatRateIsBounded(t *testing.T) {
	tab := &beatTable{nodes: map[structs.NodeID]*beat{}}
	now := time.Unix(1000, 0)
	for i := range 50_000 {
		tab.nodes[beatID(i)] = &beat{id: beatID(i), pos: -1}
	}
	var sum time.Duration
	for i := range 50_000 {
		sum += tab.beat(beatID(i), now)
	}
	if mean := sum / 50_000; time.Duration(50_000)*time.Second/mean > beatRateMax {
		t.Errorf("a mean time of %s for 50,000 nodes is more than %d beats a second", mean, beatRateMax)
	}
}

func beatID(i int) structs.NodeID {
	return structs.DeriveID[structs.NodeID](structs.Seed{}, "n", "", uint64(i))
}

// TestStretchedIntervals: an overloaded server gives nodes a longer interval, and judges each by what it gave it.
func TestStretchedIntervals(t *testing.T) {
	now, stressed, id := time.Unix(1000, 0), true, structs.NodeID{1}
	table := &beatTable{nodes: map[structs.NodeID]*beat{}, stressed: func() bool { return stressed }}
	ttl := table.beat(id, now)
	if ttl < beatStretch*beatTTL {
		t.Fatalf("under load the interval is %s, want at least %s", ttl, beatStretch*beatTTL)
	}
	stressed = false
	if due := table.expired(now.Add(ttl+beatGrace-time.Second), 10); len(due) != 0 {
		t.Error("a node was judged by a shorter interval than it was told")
	}
	if due := table.expired(now.Add(ttl+beatGrace), 10); len(due) != 1 {
		t.Error("a silent node was not noticed after its interval and the grace")
	}
	if next := table.beat(id, now); next > beatTTL+beatTTL/beatJitter {
		t.Errorf("after the load the interval is %s", next)
	}
}
