package exec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/fingerprint"
)

// TestDevicesOfOthersAreRefused starts a task that was given GPU 3, and one that was given none, and makes both open
// device files whose permissions allow everyone: the kernel answers "no such device" (there is no driver here) for the
// task's own and "not permitted" for everything else, also in commands executed inside the task.
func TestDevicesOfOthersAreRefused(t *testing.T) {
	n := newNode(t)
	if n.sup.Devices() == cgroup.DevicesByNone {
		t.Skip("not run: this machine cannot restrict devices")
	}
	script := `for d in nvidia3 nvidia4 nvidiactl; do
		(exec 3<"$NOMAD_ALLOC_DIR/$d") 2>"$NOMAD_ALLOC_DIR/why" && echo "$d opened" && continue
		case "$(cat "$NOMAD_ALLOC_DIR/why")" in
			*"No such device"*) echo "$d passed" ;;
			*"not permitted"*|*"ermission denied"*) echo "$d refused" ;;
			*) cat "$NOMAD_ALLOC_DIR/why" ;;
		esac
	done; echo x >/dev/null && echo "null works"; sleep 300`
	start := func(devices ...driver.DeviceNode) (driver.Task, *driver.TaskConfig) {
		cfg := n.config(script)
		cfg.Env()["NOMAD_ALLOC_DIR"] = cfg.Dirs.AllocDir
		for name, minor := range map[string]uint32{"nvidia3": 3, "nvidia4": 4, "nvidiactl": 255} {
			p := filepath.Join(cfg.Dirs.AllocDir, name)
			if err := unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(195, minor))); err != nil {
				t.Skip("not run: cannot make device nodes: " + err.Error())
			}
			if err := unix.Chmod(p, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Chmod(cfg.Dirs.AllocDir, 0o777); err != nil {
			t.Fatal(err)
		}
		cfg.Resources.Devices = devices
		return n.run(n.exec, cfg), cfg
	}
	owner, ownerCfg := start(driver.DeviceNode{Major: 195, Minor: 3}, driver.DeviceNode{Major: 195, Minor: 255})
	_, bareCfg := start()
	check := func(cfg *driver.TaskConfig, want string) {
		t.Helper()
		within(t, 20e9, want, func() bool { return strings.Contains(stdout(cfg), "null works") })
		if got := stdout(cfg); got != want {
			t.Errorf("got:\n%swant:\n%s", got, want)
		}
	}
	check(ownerCfg, "nvidia3 passed\nnvidia4 refused\nnvidiactl passed\nnull works\n")
	check(bareCfg, "nvidia3 refused\nnvidia4 refused\nnvidiactl refused\nnull works\n")

	var errs strings.Builder
	code, err := owner.Exec(t.Context(), driver.ExecRequest{Command: []string{"/bin/sh", "-c", "exec 3<" + filepath.Join(ownerCfg.Dirs.AllocDir, "nvidia4")}, Stderr: &errs})
	if err != nil || code == 0 || !strings.Contains(errs.String(), "not permitted") {
		t.Errorf("a command in the task opens another's GPU: exit %d, %v: %s", code, err, errs.String())
	}
}

// TestRDMADevices shows a task the device files of made-up RDMA adapters: the adapters and the connection manager are its
// own, what manages the fabric is not, and a task that did not ask has none.
func TestRDMADevices(t *testing.T) {
	n := newNode(t)
	if n.sup.Devices() == cgroup.DevicesByNone {
		t.Skip("not run: this machine cannot restrict devices")
	}
	dir := filepath.Join(n.dir, "infiniband")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, dev := range map[string][2]uint32{"uverbs0": {231, 192}, "uverbs1": {231, 193}, "umad0": {231, 0}, "rdma_cm": {231, 240}} {
		p := filepath.Join(dir, name)
		if err := unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(dev[0], dev[1]))); err != nil {
			t.Skip("not run: cannot make device nodes: " + err.Error())
		}
		if err := unix.Chmod(p, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	files, err := fingerprint.RDMAFiles(dir)
	if err != nil || len(files) != 3 {
		t.Fatalf("found %v, %v; want rdma_cm, uverbs0 and uverbs1", files, err)
	}
	script := `for d in rdma_cm umad0 uverbs0 uverbs1; do
		why=$( (exec 3<"` + dir + `/$d") 2>&1) && echo "$d opened" && continue
		case "$why" in
			*"No such device"*) echo "$d passed" ;;
			*"not permitted"*|*"ermission denied"*) echo "$d refused" ;;
			*) echo "$why" ;;
		esac
	done; echo "locked $(ulimit -l)"; echo end; sleep 300`
	locked := "unlimited"
	if raised := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); raised != nil {
		// This machine does not let root raise limits: the task fails and says so, and the rest is looked at without.
		cfg := n.config("true")
		cfg.Ulimits = map[string]string{"memlock": "unlimited"}
		if _, err := n.exec.Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "LimitMEMLOCK") {
			t.Errorf("a limit that cannot be raised: %v", err)
		}
		locked = "64"
	}
	for want, ask := range map[string]bool{
		"rdma_cm passed\numad0 refused\nuverbs0 passed\nuverbs1 passed\nlocked " + locked + "\nend\n": true,
		"rdma_cm refused\numad0 refused\nuverbs0 refused\nuverbs1 refused\nlocked 64\nend\n":          false,
	} {
		cfg := n.config(script)
		cfg.Dirs.HideDir = ""
		cfg.Config["command"] = "/bin/bash" // whose ulimit knows locked memory
		cfg.Ulimits = map[string]string{"memlock": "65536"}
		if ask {
			cfg.Resources.RDMA = files
			if locked == "unlimited" {
				cfg.Ulimits["memlock"] = locked
			}
		}
		n.run(n.exec, cfg)
		within(t, 20e9, "the end", func() bool { return strings.Contains(stdout(cfg), "end\n") })
		if got := stdout(cfg); got != want {
			t.Errorf("asked %t, got:\n%swant:\n%s", ask, got, want)
		}
	}
}
