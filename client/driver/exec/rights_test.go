package exec

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/driver"
)

var probeDir string // has the probe, once it is built; TestMain removes it

// probe is a static program that tries things; see testdata/probe.
var probe = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "muster-probe-")
	if err != nil {
		return "", err
	}
	probeDir = dir
	p := filepath.Join(dir, "probe")
	cmd := exec.Command("go", "build", "-o", p, "./testdata/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), err
	}
	return p, nil
})

// probing makes a task that runs the probe, which lies in its directory.
func (n *node) probing(args ...any) *driver.TaskConfig {
	n.t.Helper()
	p, err := probe()
	if err != nil {
		n.t.Fatalf("build the probe: %v: %s", err, p)
	}
	cfg := n.config("")
	b, err := os.ReadFile(p)
	if err == nil {
		err = os.WriteFile(filepath.Join(cfg.Dirs.TaskDir, "probe"), b, 0o755)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	cfg.Env()["NOMAD_ALLOC_DIR"] = cfg.Dirs.AllocDir
	cfg.Config = map[string]any{"command": "probe", "args": args}
	return cfg
}

func TestNothingGetsOut(t *testing.T) {
	n := newNode(t)
	victim := n.probing("sleep")
	victim.User = "1000"
	mine := filepath.Join(victim.Dirs.TaskDir, "local", "mine")
	if err := os.WriteFile(mine, []byte("private"), 0o666); err != nil {
		t.Fatal(err)
	}
	vt := n.run(n.exec, victim)
	within(t, 20e9, "the neighbour to sleep", func() bool { return strings.Contains(stdout(victim), "asleep") })
	secret := filepath.Join(n.dir, "agent-secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"1000", "root"} { // the neighbour's own user, too
		cfg := n.probing("escape", strconv.Itoa(vt.Status().PID), mine, secret, filepath.Dir(mine), n.dir+"/supervisor")
		cfg.User = user
		n.wait(n.run(n.exec, cfg))
		if out := stdout(cfg); strings.Contains(out, "GOT") || !strings.HasSuffix(out, "END\n") {
			t.Errorf("as user %s:\n%s%s", user, out, stderr(cfg))
		}
	}
	if !vt.Status().Running {
		t.Error("the neighbour has ended")
	}
	for _, f := range []string{mine, secret} {
		if b, err := os.ReadFile(f); err != nil || len(b) < 2 {
			t.Errorf("%s holds %q, %v", f, b, err)
		}
	}
}

func TestSystemCallsAreFiltered(t *testing.T) {
	n := newNode(t)
	said := func(d *Driver, user string) map[string]string {
		t.Helper()
		cfg := n.probing("calls")
		cfg.User = user
		n.wait(n.run(d, cfg))
		out := map[string]string{}
		for line := range strings.Lines(stdout(cfg)) {
			k, v, _ := strings.Cut(strings.TrimSpace(line), ": ")
			out[k] = v
		}
		return out
	}
	perm, nosys := unix.EPERM.Error(), unix.ENOSYS.Error()
	want := map[string]string{
		"getpid": "errno 0", "mount": perm, "unshare": perm, "clone3": nosys, "keyctl": perm, "bpf": perm, "userfaultfd": perm, "newer": nosys,
		"io_uring_setup": nosys, "clone of a namespace": perm, "vsock": unix.EAFNOSUPPORT.Error(), "unix socket": "errno 0", "TIOCSTI": perm,
		"get_mempolicy": "errno 0", "kcmp": perm,
	}
	if unix.Access("/sys/devices/system/node", unix.F_OK) != nil {
		want["get_mempolicy"] = nosys // a kernel that knows no NUMA nodes
	}
	got := said(n.exec, "nobody")
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s answers %q, want %q", k, got[k], v)
		}
	}
	if got["FIONREAD"] == perm {
		t.Error("every ioctl is denied")
	}
	// A capability opens the calls that need it, and no others.
	open := said(New(Options{Supervisor: n.sup, AllowCaps: []string{"sys_ptrace"}}), "nobody")
	if open["kcmp"] != perm {
		t.Errorf("a capability that nobody asked for opens kcmp: %q", open["kcmp"])
	}
	// An operator may switch it off.
	off := said(New(Options{Supervisor: n.sup, NoFilter: true}), "nobody")
	if off["unshare"] != "errno 0" || off["newer"] != nosys {
		t.Errorf("without a filter unshare answers %q and a call that does not exist %q", off["unshare"], off["newer"])
	}
}

// lines are those of the probe's answer that begin with a word, without it.
func lines(cfg *driver.TaskConfig, word string) []string {
	var out []string
	for line := range strings.Lines(stdout(cfg)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), word+" "); ok {
			out = append(out, rest)
		}
	}
	return out
}

func TestCapabilities(t *testing.T) {
	n := newNode(t)
	mask := func(names ...string) string {
		m, err := ParseCaps(names)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ToLower(strconv.FormatUint(1<<60|m, 16))[1:] // padded to 15 digits
	}
	for _, c := range []struct {
		name, user string
		allow      []string
		add, drop  []any
		eff, amb   string
	}{
		{"a user has none", "1000", nil, nil, nil, mask(), mask()},
		{"asking for those of root does not make a user root", "1000", nil, []any{"dac_override", "setuid", "CAP_NET_BIND_SERVICE"}, nil, mask("net_bind_service"), mask("net_bind_service")},
		{"what the operator names is given", "1000", []string{"ipc_lock", "sys_nice"}, []any{"ipc_lock"}, nil, mask("ipc_lock"), mask("ipc_lock")},
		{"root has the default set", "root", nil, nil, nil, mask(DefaultCaps...), mask()},
		{"root has what the operator allows of it", "root", []string{"chown", "ipc_lock"}, nil, nil, mask("chown"), mask()},
		{"root may ask for more", "root", []string{"all"}, []any{"sys_nice"}, []any{"all"}, mask("sys_nice"), mask()},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := n.probing("caps")
			cfg.User = c.user
			cfg.Config["cap_add"], cfg.Config["cap_drop"] = c.add, c.drop
			n.t = t
			n.wait(n.run(New(Options{Supervisor: n.sup, AllowCaps: c.allow}), cfg))
			for word, want := range map[string]string{"CapEff:": c.eff, "CapAmb:": c.amb, "NoNewPrivs:": "1", "Seccomp:": "2"} {
				if got := lines(cfg, word); len(got) != 1 || strings.TrimPrefix(got[0], "0") != want && got[0] != want {
					t.Errorf("%s %v, want %s", word, got, want)
				}
			}
		})
	}
	cfg := n.probing("caps")
	cfg.Config["cap_add"] = []any{"sys_everything"}
	if _, err := n.exec.Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "is not a capability") {
		t.Errorf("an unknown capability: %v", err)
	}
}

// TestRoots: a read-only root, and roots of the job's own, which it cannot bend to lead out of its directory.
func TestRoots(t *testing.T) {
	n := newNode(t)
	image := filepath.Join(n.dir, "images", "small")
	for _, d := range []string{"usr/bin", "etc"} {
		if err := os.MkdirAll(filepath.Join(image, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(image, "tmp")); err != nil { // its own /etc, not the host's
		t.Fatal(err)
	}
	var ours *driver.TaskConfig
	make := func(root string, readonly bool) *driver.TaskConfig {
		ours = n.probing("see")
		ours.User = "root"
		ours.Config["rootfs"], ours.Config["readonly_rootfs"] = root, readonly
		if err := os.Chmod(filepath.Join(ours.Dirs.TaskDir), 0o755); err != nil {
			t.Fatal(err)
		}
		return ours
	}
	d := New(Options{Supervisor: n.sup, RootDirs: []string{filepath.Join(n.dir, "images")}})
	has := func(cfg *driver.TaskConfig, word, what string, want bool) {
		t.Helper()
		found := false
		for _, l := range lines(cfg, word) {
			found = found || l == what
		}
		if found != want {
			t.Errorf("%s %s is %t, want %t:\n%s%s", word, what, found, want, stdout(cfg), stderr(cfg))
		}
	}
	cfg := make("", true)
	delete(cfg.Config, "rootfs")
	n.wait(n.run(d, cfg))
	for what, want := range map[string]bool{"/": false, "/usr": false, "/etc": false, "/tmp": true, "/dev/shm": true, cfg.Dirs.AllocDir: true, cfg.Dirs.TaskDir + "/local": true} {
		has(cfg, "writes", what, want)
	}
	for _, readonly := range []bool{false, true} {
		cfg = make(image, readonly)
		n.wait(n.run(d, cfg))
		for what, want := range map[string]bool{"/": !readonly, "/etc": true, "/tmp": true, "/dev/shm": true, cfg.Dirs.AllocDir: true} {
			has(cfg, "writes", what, want) // /etc is /tmp in this image
		}
		for _, f := range []string{"/dev/null", "/proc/self/status", "/sys/kernel"} {
			has(cfg, "sees", f, true)
		}
		has(cfg, "has", "/etc", true)
		has(cfg, "has", "/root", false)
	}
	if _, err := os.Stat("/etc/written"); err == nil {
		t.Error("the task wrote to the host's /etc")
	}
	// A root within the allocation, as an unpacked archive would be, with a command that is only there.
	cfg = make("image", false)
	bin := filepath.Join(cfg.Dirs.TaskDir, "image", "usr", "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(cfg.Dirs.TaskDir, "probe"), filepath.Join(bin, "look")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("usr/bin", filepath.Join(cfg.Dirs.TaskDir, "image", "bin")); err != nil {
		t.Fatal(err)
	}
	cfg.Config["command"] = "look"
	cfg.Env()["PATH"] = "/bin"
	task := n.run(d, cfg)
	n.wait(task)
	has(cfg, "has", "/usr", true)
	has(cfg, "has", "/root", false)
	// A command in a running task is looked up there, too.
	cfg = make("image", false)
	if err := os.MkdirAll(filepath.Join(cfg.Dirs.TaskDir, "image", "usr", "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(cfg.Dirs.TaskDir, "probe"), filepath.Join(cfg.Dirs.TaskDir, "image", "usr", "bin", "look")); err != nil {
		t.Fatal(err)
	}
	cfg.Config["command"], cfg.Config["args"] = "/usr/bin/look", []any{"sleep"}
	task = n.run(d, cfg)
	within(t, 20e9, "the task to sleep", func() bool { return strings.Contains(stdout(cfg), "asleep") })
	var out strings.Builder
	if code, err := task.Exec(t.Context(), driver.ExecRequest{Command: []string{"look", "caps"}, Stdout: &out}); err != nil || code != 0 || !strings.Contains(out.String(), "Seccomp: 2") {
		t.Errorf("a command in the task: %d, %v: %s", code, err, out.String())
	}

	for name, root := range map[string]string{"another directory": "/etc", "the host's root": "/", "up": "../../..", "the images' neighbour": n.dir + "/images/../supervisor", "the allocation itself": ".."} {
		t.Run(name, func(t *testing.T) {
			if _, err := d.Start(t.Context(), make(root, false)); err == nil || !strings.Contains(err.Error(), "rootfs") {
				t.Errorf("%s as root: %v", name, err)
			}
		})
	}
	cfg = make("link", false)
	if err := os.Symlink("/", filepath.Join(cfg.Dirs.TaskDir, "link")); err != nil {
		t.Fatal(err)
	}
	cfg.Config["command"] = "/bin/sh"
	if _, err := d.Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "the task's root") {
		t.Errorf("a link to / as root: %v", err)
	}
}
