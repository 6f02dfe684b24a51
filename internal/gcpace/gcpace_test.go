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
		liveMiB, rootsMiB uint64
		percent           int
		wantMiB           int64
	}{
		{0, 0, 2000, 64 + 23}, {64, 0, 200, 64 + 216}, {512, 0, 100, 64 + 1152}, {256, 256, 50, 64 + 864}, {2048, 0, 25, 64 + 2880},
	} {
		if got := limit(c.liveMiB<<20, c.rootsMiB<<20, c.percent) >> 20; got != c.wantMiB {
			t.Errorf("%d MiB live, %d MiB of roots, GOGC %d: a limit of %d MiB, want %d", c.liveMiB, c.rootsMiB, c.percent, got, c.wantMiB)
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
				t.Errorf("with 128 MiB live the memory limit is %d MiB, want about 128, a quarter more, an eighth more, and 64", limit)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("with 128 MiB live GOGC is %d, want 25", got)
		}
		time.Sleep(time.Millisecond)
	}
	runtime.KeepAlive(keep)
}
