package gpu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/fakegpu"
	"github.com/muster-sched/muster/structs"
)

// TestLimitOfAControlGroup sets, reads and takes away a limit through the real bindings; a driver that lacks the
// functions, or a kernel that does not play along, says so.
func TestLimitOfAControlGroup(t *testing.T) {
	f, dir := fake(t, "1xH100")
	group := filepath.Join(t.TempDir(), "group")
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := f.Edit(func(s *fakegpu.State) { s.Dmem = true }); err != nil {
		t.Fatal(err)
	}
	c := quick(f, dir)
	c.Groups = true
	n := watch(t, c)
	s, err := f.Read()
	if err != nil {
		t.Fatal(err)
	}
	uuid := s.GPUs[0].UUID
	until(t, n, "the first look", func([]structs.DeviceGroup) bool { return n.Snapshot() != nil })
	if e := n.Snapshot().Enforce; strings.Join(e, ",") != "dmem,shim,watch" {
		t.Errorf("backends %v", e)
	}
	if err := n.Limit(t.Context(), group, uuid, 20<<30); err != nil {
		t.Fatal(err)
	}
	if l, err := n.LimitOf(t.Context(), group, uuid); err != nil || l.Bytes != 20<<30 || l.UsedBytes != 0 {
		t.Errorf("limit %+v, %v", l, err)
	}
	if err := n.Limit(t.Context(), group, uuid, 2000<<30); err == nil {
		t.Error("a limit beyond the GPU's memory was set")
	}
	if err := n.Limit(t.Context(), group+"-none", uuid, 1<<30); err == nil {
		t.Error("a group that does not exist was limited")
	}
	if err := n.Limit(t.Context(), group, "GPU-none", 1<<30); err == nil {
		t.Error("a GPU that does not exist was limited")
	}
	if err := n.Limit(t.Context(), group, uuid, -1); err != nil {
		t.Error(err)
	}
	if l, err := n.LimitOf(t.Context(), group, uuid); err != nil || l.Bytes != -1 {
		t.Errorf("no limit is %+v, %v", l, err)
	}
	// The kernel without the controller: the functions are there and say that they do nothing.
	if err := f.Edit(func(s *fakegpu.State) { s.Dmem = false }); err != nil {
		t.Fatal(err)
	}
	n.Release(t.Context(), time.Millisecond) // a new look
	until(t, n, "the backend is gone", func([]structs.DeviceGroup) bool { return strings.Join(n.Snapshot().Enforce, ",") == "shim,watch" })
	if err := n.Limit(t.Context(), group, uuid, 1<<30); err == nil {
		t.Error("a kernel without the controller limits a group")
	}
}
