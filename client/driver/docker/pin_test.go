package docker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/driver"
)

// The mounted source belongs to the allocation even if a task replaces it meanwhile.
func TestPinStaysInside(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("does not apply here: mounting needs root")
	}
	dir := t.TempDir()
	outside, root := filepath.Join(dir, "outside"), filepath.Join(dir, "alloc")
	for _, d := range []string{outside, root + "/t/local/x", root + "/t/local/deep"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{outside + "/who": "outside", root + "/t/local/x/who": "inside", root + "/t/local/deep/file": "file"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"l": outside, "up": "../../../outside", "in": "x"} {
		if err := os.Symlink(to, root+"/t/local/"+link); err != nil {
			t.Fatal(err)
		}
	}
	d := &Driver{opt: Options{StateDir: filepath.Join(dir, "state")}}
	cfg := &driver.TaskConfig{TaskID: "id", Env: driver.Vars(nil), Dirs: driver.Dirs{AllocRoot: root, AllocDir: root + "/alloc", TaskDir: root + "/t"}}
	pinned := func(sources ...string) (*container.HostConfig, error) {
		h := &container.HostConfig{}
		for _, s := range sources {
			h.Mounts = append(h.Mounts, mount.Mount{Type: mount.TypeBind, Source: s, Target: "/m"})
		}
		err := d.pin(cfg, h)
		return h, err
	}
	t.Cleanup(func() { d.unpin("id") })
	local := root + "/t/local"
	h, err := pinned(local, local+"/in", local+"/deep/file", outside)
	if err != nil {
		t.Fatal(err)
	}
	if h.Mounts[0].Source != local || h.Mounts[3].Source != outside {
		t.Errorf("the task's own directory and those of the node stay: %+v", h.Mounts)
	}
	if b, err := os.ReadFile(h.Mounts[1].Source + "/who"); string(b) != "inside" {
		t.Errorf(`%q %v; want "inside"`, b, err)
	}
	if b, err := os.ReadFile(h.Mounts[2].Source); string(b) != "file" {
		t.Errorf(`%q %v; want "file"`, b, err)
	}
	for _, bad := range []string{"/l", "/up"} {
		if _, err := pinned(local + bad); err == nil || !strings.Contains(err.Error(), "leads out") {
			t.Errorf(`%s: %v; want an error, "leads out" in it`, bad, err)
		}
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { // a task of the allocation
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, local+"/x", unix.AT_FDCWD, local+"/l", unix.RENAME_EXCHANGE)
				time.Sleep(50 * time.Microsecond)
			}
		}
	}()
	took := 0
	for range 500 {
		h, err := pinned(local + "/x")
		if err != nil {
			if !strings.Contains(err.Error(), "leads out") && !strings.Contains(err.Error(), "temporarily unavailable") {
				t.Error(err)
			}
			continue
		}
		took++
		if b, _ := os.ReadFile(h.Mounts[0].Source + "/who"); string(b) != "inside" {
			t.Errorf("mounted %q", b)
			break
		}
	}
	close(stop)
	<-ended
	t.Logf("%d of 500 starts found the directory", took)
	d.unpin("id")
	if b, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(b), d.opt.StateDir) {
		t.Errorf("mounts are left (%v)", err)
	}
	if left, _ := os.ReadDir(filepath.Join(d.opt.StateDir, "pins")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if b, err := os.ReadFile(outside + "/who"); string(b) != "outside" {
		t.Errorf(`%q %v; want "outside"`, b, err)
	}
	// What a start has left that was cut off goes with the next sweep, and nothing in it.
	if h, err = pinned(local + "/deep"); err != nil {
		t.Fatal(err)
	}
	d.unpinOthers(func(string) bool { return true })
	if _, err := os.Stat(h.Mounts[0].Source + "/file"); err != nil {
		t.Error(err)
	}
	d.unpinOthers(func(string) bool { return false })
	if _, err := os.Stat(h.Mounts[0].Source); !os.IsNotExist(err) {
		t.Error(err)
	}
	if b, err := os.ReadFile(local + "/deep/file"); string(b) != "file" {
		t.Errorf(`%q %v; want "file"`, b, err)
	}
}

// TestUnpinLeavesOthersMounts: where the node's mounts are shared, as systemd makes them, one that is made below a source while it
// is pinned (another task's secrets) shows in the pin as well, and must not go with it.
func TestUnpinLeavesOthersMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("does not apply here: mounting needs root")
	}
	dir := t.TempDir()
	root, state := filepath.Join(dir, "alloc"), filepath.Join(dir, "state")
	secrets := root + "/other/secrets"
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Mount("tmpfs", root, "tmpfs", 0, ""))
	t.Cleanup(func() { unix.Unmount(root, unix.MNT_DETACH) })
	must(unix.Mount("", root, "", unix.MS_SHARED, ""))
	must(os.MkdirAll(secrets, 0o755))
	must(os.MkdirAll(root+"/t", 0o755))
	d := &Driver{opt: Options{StateDir: state}}
	t.Cleanup(func() { d.unpin("id") })
	cfg := &driver.TaskConfig{TaskID: "id", Env: driver.Vars(nil), Dirs: driver.Dirs{AllocRoot: root, AllocDir: root + "/alloc", TaskDir: root + "/t"}}
	must(d.pin(cfg, &container.HostConfig{Mounts: []mount.Mount{{Type: mount.TypeBind, Source: root + "/other", Target: "/m"}}}))
	must(unix.Mount("tmpfs", secrets, "tmpfs", 0, ""))
	t.Cleanup(func() { unix.Unmount(secrets, unix.MNT_DETACH) })
	must(os.WriteFile(secrets+"/key", []byte("key"), 0o600))
	d.unpin("id")
	if b, err := os.ReadFile(secrets + "/key"); string(b) != "key" {
		t.Errorf("the secrets of another task have gone: %q %v", b, err)
	}
	if left, _ := os.ReadDir(filepath.Join(state, "pins")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}
