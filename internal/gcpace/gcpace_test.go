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

// The pace is set again after every collection.
func TestStartFollowsTheHeap(t *testing.T) {
	t.Setenv("GOGC", "")
	was := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(was) })
	Start(Room{Min: 16 << 20, Max: 32 << 20})
	keep := make([]byte, 128<<20)
	deadline := time.Now().Add(30 * time.Second)
	for {
		runtime.GC()
		got := debug.SetGCPercent(77)
		debug.SetGCPercent(got)
		if got == 25 || got == 24 { // 32 of 128 MiB and the roots
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("with 128 MiB live GOGC is %d, want 25", got)
		}
		time.Sleep(time.Millisecond)
	}
	runtime.KeepAlive(keep)
}
