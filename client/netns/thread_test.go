package netns

import (
	"os"
	"runtime"
	"testing"
)

// TestFirstThread: what /proc/self shows is what the process's first thread sees. It keeps its network, and its goroutines.
func TestFirstThread(t *testing.T) {
	if none, _ := probe(); none != nil {
		t.Skipf("does not apply here: %v", none)
	}
	look := func() string {
		t.Helper()
		s, err := os.Readlink("/proc/self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	runtime.LockOSThread() // what this one sees is right
	defer runtime.UnlockOSThread()
	want, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if err := inThread(func() error {
			if s, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || s == want {
				t.Errorf("a new network is %s (%v), the process's own", s, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if got := look(); got != want {
			t.Fatalf("after %d threads with networks of their own the process has %s, want %s", i+1, got, want)
		}
	}
}
