package duty

import (
	"cmp"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TestQueue compares the queue with a map that is searched for its first key.
func TestQueue(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 1))
	q := NewQueue(cmp.Compare[int])
	model := map[int]structs.LogTime{}
	first := func() (key int, at structs.LogTime) {
		for k, x := range model {
			if at == 0 || x < at || x == at && k < key {
				key, at = k, x
			}
		}
		return key, at
	}
	for step := range 20_000 {
		switch r.IntN(8) {
		case 0:
			k := r.IntN(50)
			q.Set(k, 0)
			delete(model, k)
		case 1, 2:
			now := structs.LogTime(r.IntN(100))
			wantKey, wantAt := first()
			k, at, ok := q.Take(now)
			if want := wantAt != 0 && wantAt <= now; ok != want || ok && (k != wantKey || at != wantAt) {
				t.Fatalf("seed %d, step %d: at %d took %d of %d (%v), want %d of %d", seed, step, now, k, at, ok, wantKey, wantAt)
			}
			if ok {
				delete(model, k)
			}
		default:
			k, at := r.IntN(50), structs.LogTime(1+r.IntN(100))
			q.Set(k, at)
			model[k] = at
		}
		if _, at := first(); q.Next() != at || len(q.heap) != len(model) {
			t.Fatalf("seed %d, step %d: next at %d of %d keys, want %d of %d", seed, step, q.Next(), len(q.heap), at, len(model))
		}
	}
	if q.Clear(); q.Next() != 0 || len(q.keys) != 0 {
		t.Errorf("after Clear: next at %d, %d keys", q.Next(), len(q.keys))
	}
}
