package admit

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/structs"
)

// load is an open loop: calls come at a rate whether or not others have been answered.
type load struct {
	g       *Gate
	service time.Duration // of a call, once admitted
	wg      sync.WaitGroup

	done, refused atomic.Int64
	worst         atomic.Int64 // longest wait of a call that was admitted, ns
	idle          atomic.Int64 // calls of nodes that did not pass at once
}

func (l *load) run(c Class, rate float64, for_ time.Duration, rng *rand.Rand) {
	end := time.Now().Add(for_)
	for time.Now().Before(end) {
		time.Sleep(time.Duration(rng.ExpFloat64() / rate * float64(time.Second)))
		l.wg.Go(func() {
			came := time.Now()
			leave, err := l.g.Enter(context.Background(), c)
			waited := int64(time.Since(came))
			switch {
			case err != nil && structs.CodeOf(err) != structs.CodeBusy || c == Node && (err != nil || waited > 0):
				l.idle.Add(1)
			case err != nil:
				l.refused.Add(1)
			default:
				for old := l.worst.Load(); waited > old && !l.worst.CompareAndSwap(old, waited); old = l.worst.Load() {
				}
				time.Sleep(l.service)
				leave()
				l.done.Add(1)
			}
		})
	}
}

// TestOverload: at five times what the server can do, it still does what it can, with short waits, nodes pass at
// once, and the moment the load drops below its capacity nothing is refused any more.
func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New()
		const service = 50 * time.Millisecond
		capacity := float64(g.lines[Write].places) / service.Seconds()
		rng := rand.New(rand.NewPCG(1, 2))
		phase := func(times float64, d time.Duration) *load {
			l, nodes := &load{g: g, service: service}, &load{g: g}
			nodes.wg.Go(func() { nodes.run(Node, 100, d, rand.New(rand.NewPCG(3, 4))) })
			l.run(Write, times*capacity, d, rng)
			l.wg.Wait()
			nodes.wg.Wait()
			if n := nodes.idle.Load() + l.idle.Load(); n != 0 {
				t.Errorf("%.1f of capacity: %d calls of nodes waited, or calls failed otherwise", times, n)
			}
			return l
		}
		if l := phase(0.8, 5*time.Second); l.refused.Load() != 0 {
			t.Errorf("below capacity: %d calls refused", l.refused.Load())
		}
		if g.Stressed() {
			t.Error("below capacity: stressed")
		}
		l := phase(5, 20*time.Second)
		if goodput := float64(l.done.Load()) / 20; goodput < 0.95*capacity {
			t.Errorf("overload: %.0f calls a second of %.0f", goodput, capacity)
		}
		if worst := time.Duration(l.worst.Load()); worst > patienceCalm {
			t.Errorf("overload: an admitted call had waited for %s", worst)
		}
		if !g.Stressed() || g.Counts(Write).Refused != l.refused.Load() || l.refused.Load() == 0 {
			t.Errorf("overload: stressed %v, %d refused, counted %d", g.Stressed(), l.refused.Load(), g.Counts(Write).Refused)
		}
		if l := phase(0.8, 5*time.Second); l.refused.Load() != 0 {
			t.Errorf("after the overload: %d calls refused", l.refused.Load())
		}
		time.Sleep(overloadMemory)
		if g.Stressed() || len(g.lines[Write].waiting) != 0 || g.lines[Write].taken != 0 {
			t.Errorf("in the end: %+v", g.lines[Write])
		}
	})
}

// TestClasses: writes without end keep neither reads nor operators out.
func TestClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New()
		var held sync.WaitGroup
		defer held.Wait()
		end := make(chan struct{})
		defer close(end)
		for range 10 * g.lines[Write].places {
			held.Go(func() {
				if leave, err := g.Enter(t.Context(), Write); err == nil {
					<-end
					leave()
				}
			})
		}
		time.Sleep(time.Second)
		for _, c := range []Class{Node, Operator, Read} {
			leave, err := g.Enter(t.Context(), c)
			if err != nil {
				t.Fatalf("%s: %v", c, err)
			}
			leave()
		}
		if _, err := g.Enter(t.Context(), Write); structs.CodeOf(err) != structs.CodeBusy {
			t.Errorf("a write beyond the places: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := g.Enter(ctx, Write); err == nil {
			t.Error("a call whose caller has gone was admitted")
		}
	})
}
