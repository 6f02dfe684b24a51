package gcra

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, r := New(), Rate{PerSecond: 10, Burst: 100 * time.Second}
		want := func(key string, n int, wait time.Duration) {
			t.Helper()
			if got := l.Take(key, n, r); got != wait {
				t.Errorf("%d for %s: wait %s, want %s", n, key, got, wait)
			}
		}
		want("a", 400, 0)
		want("a", 600, 0)
		want("a", 1, 100*time.Millisecond)
		want("b", 1, 0)
		time.Sleep(5 * time.Second)
		want("a", 51, 100*time.Millisecond)
		want("a", 50, 0)
		l.Return("a", 30, r)
		want("a", 30, 0)
		// More than the burst counts as the burst, at any size, and only when nothing was taken lately.
		want("a", 1<<40, 100*time.Second)
		time.Sleep(100 * time.Second)
		want("a", 1<<40, 0)
		want("a", 1, 100*time.Millisecond)
		if wait := l.Take("a", 1000, Rate{}); wait != 0 {
			t.Errorf("without a limit: wait %s", wait)
		}
		// Keys are forgotten, so that memory is bounded; those that wait are kept while others can go.
		for i := range KeysMax - 2 {
			want(fmt.Sprint(i), 1, 0)
		}
		time.Sleep(time.Second)
		want("c", 1, 0)
		if l.Keys() != 2 {
			t.Errorf("%d keys are remembered, want a and c", l.Keys())
		}
		want("a", 1000, 99*time.Second)
	})
}
