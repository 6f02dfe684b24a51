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
		liveMiB uint64
		want    int
	}{{0, 2000}, {1, 2000}, {8, 1600}, {64, 200}, {128, 100}, {256, 100}, {512, 100}, {1024, 50}, {2048, 25}, {100_000, 25}} {
		t.Run(fmt.Sprint(c.liveMiB), func(t *testing.T) {
			if got := r.percent(c.liveMiB << 20); got != c.want {
				t.Errorf("%d MiB live: GOGC %d, want %d", c.liveMiB, got, c.want)
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
		if got == 25 { // 32 of 128 MiB
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("with 128 MiB live GOGC is %d, want 25", got)
		}
		time.Sleep(time.Millisecond)
	}
	runtime.KeepAlive(keep)
}
