package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestEndedAgentUnmounts: a -dev agent that ends leaves nothing mounted in a data directory that stays. Its tasks end with it, and
// not all allocations come to unmount their secrets before it is gone.
func TestEndedAgentUnmounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not run: only root can mount")
	}
	cfg := devConfig(t, "")
	cfg.DataDir = filepath.Join(t.TempDir(), "data")
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	secrets := filepath.Join(cfg.DataDir, "client", "allocs", "x", "t", "secrets")
	if err := os.MkdirAll(secrets, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", secrets, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("not run: nothing can be mounted here: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(secrets, unix.MNT_DETACH) })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := a.Run(ctx); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(b), secrets) {
		t.Errorf("%s is still mounted (%v)", secrets, err)
	}
}
