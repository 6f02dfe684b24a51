package gcpace

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestPercent(t *testing.T) {
	r := Room{Min: 128 << 20, Max: 512 << 20}
	for _, c := range []struct {
		liveMiB, rootsMiB uint64
		want              int
	}{
		{0, 0, 2000}, {1, 0, 2000}, {8, 0, 1600}, {64, 0, 200}, {128, 0, 100}, {256, 0, 100}, {512, 0, 100}, {1024, 0, 50}, {2048, 0, 25}, {100_000, 0, 25},
		{1, 63, 200}, {256, 256, 50}, {512, 512, 50}, {1024, 600, 31},
	} {
		t.Run(fmt.Sprint(c.liveMiB, c.rootsMiB), func(t *testing.T) {
			if got := r.percent(c.liveMiB<<20, c.rootsMiB<<20); got != c.want {
				t.Errorf("%d MiB live, %d MiB of roots: GOGC %d, want %d", c.liveMiB, c.rootsMiB, got, c.want)
			}
		})
	}
}

func TestLimit(t *testing.T) {
	for _, c := range []struct {
		liveMiB, rootsMiB, spansMiB, othersMiB uint64
		percent                                int
		wantMiB                                int64
	}{
		{0, 0, 0, 0, 2000, 32 + 23}, {64, 0, 64, 0, 200, 32 + 216}, {512, 0, 900, 10, 100, 32 + 1162}, {256, 256, 0, 0, 50, 32 + 864}, {2048, 0, 0, 0, 25, 32 + 2880},
		{64, 0, 1000, 200, 200, 32 + 1000 + 200 + 24},
	} {
		if got := limit(c.liveMiB<<20, c.rootsMiB<<20, c.spansMiB<<20, c.othersMiB<<20, c.percent) >> 20; got != c.wantMiB {
			t.Errorf("%+v: a limit of %d MiB", c, got)
		}
	}
}

// The pace is set again after every collection, and the limit with it.
func TestStartFollowsTheHeap(t *testing.T) {
	t.Setenv("GOGC", "")
	was, limitWas := debug.SetGCPercent(100), debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetGCPercent(was); debug.SetMemoryLimit(limitWas) })
	Start(Room{Min: 16 << 20, Max: 32 << 20})
	keep := make([]byte, 128<<20)
	deadline := time.Now().Add(30 * time.Second)
	for {
		runtime.GC()
		got := debug.SetGCPercent(77)
		debug.SetGCPercent(got)
		if got == 25 || got == 24 { // 32 of 128 MiB and the roots
			if limit := debug.SetMemoryLimit(-1) >> 20; limit < 128 || limit > 400 {
				t.Errorf("with 128 MiB live the memory limit is %d MiB, want about 128, a quarter more, an eighth more, 32, and what is not heap", limit)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("with 128 MiB live GOGC is %d, want 25", got)
		}
		time.Sleep(time.Millisecond)
	}
	runtime.KeepAlive(keep)

	// A heap that shrank to an eighth, with holes everywhere, is not collected more often because of them.
	many := make([]*[64]byte, 6<<20)
	for i := range many {
		many[i] = new([64]byte)
	}
	for i := range many {
		if i%8 != 0 {
			many[i] = nil
		}
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 4 << 20 { // 512 MiB, of which GOGC allows 32 at least
		garbage = new([128]byte)
	}
	runtime.ReadMemStats(&after)
	if n := after.NumGC - before.NumGC; n > 30 {
		t.Errorf("%d collections of 512 MiB of garbage, want 16 at most, and a few more", n)
	}
	runtime.KeepAlive(many)
}

var garbage *[128]byte
