package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// openInGroup opens device nodes for reading and writing in a process of the group, and gives what each open answered.
func openInGroup(t *testing.T, g Group, paths ...string) []string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=TestHelperOpen")
	cmd.Env = append(os.Environ(), "CGROUP_OPEN="+strings.Join(paths, ":"), "CGROUP_JOIN="+strings.Join(g.JoinFiles(), ":"))
	if g.V2 {
		d, err := os.Open(g.Main)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(d.Fd())}
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(strings.SplitAfter(string(out), "\n")[0])
}

// TestHelperOpen is the process that openInGroup starts.
func TestHelperOpen(t *testing.T) {
	paths := os.Getenv("CGROUP_OPEN")
	if paths == "" {
		return
	}
	for _, f := range strings.FieldsFunc(os.Getenv("CGROUP_JOIN"), func(r rune) bool { return r == ':' }) {
		if err := os.WriteFile(filepath.Join(filepath.Dir(f), "cgroup.procs"), []byte("0"), 0o644); err != nil {
			fmt.Println("join:", err)
			os.Exit(1)
		}
	}
	for _, p := range strings.Split(paths, ":") {
		fd, err := unix.Open(p, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			fmt.Print(unix.ErrnoName(err.(syscall.Errno)), " ")
			continue
		}
		unix.Close(fd)
		fmt.Print("ok ")
	}
	fmt.Println()
	os.Exit(0)
}

// TestDevices gives a group one of two GPUs that have no driver: opening the device file of that one passes the
// kernel's check and finds no driver (ENXIO), opening the other one's is refused (EPERM). It tries every mechanism that
// the machine has.
func TestDevices(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not run: needs root")
	}
	m, err := Open("test-" + filepath.Base(t.TempDir()))
	if err != nil {
		t.Skip("not run: " + err.Error())
	}
	t.Cleanup(m.Close)
	best := m.Devices()
	if best == DevicesByNone {
		t.Skip("not run: this machine cannot restrict devices")
	}
	dir := t.TempDir()
	node := func(name string, minor uint32) string {
		p := filepath.Join(dir, name)
		if err := unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(195, minor))); err != nil {
			t.Skip("not run: cannot make device nodes: " + err.Error())
		}
		return p
	}
	mine, other, ctl := node("nvidia3", 3), node("nvidia4", 4), node("nvidiactl", 255)
	if fd, err := unix.Open(mine, unix.O_RDWR, 0); err == nil || err == unix.EPERM {
		unix.Close(fd)
		t.Skipf("not run: a device of the same number is here, or this machine forbids it altogether (%v)", err)
	}
	ways := []string{best}
	if best == DevicesByBPF && m.Layout.V1["devices"] != "" {
		if err := os.MkdirAll(m.dir(m.Layout.V1["devices"]), 0o755); err == nil {
			ways = append(ways, DevicesByV1)
		}
	}
	for _, way := range ways {
		m.devices = way
		g, err := m.Create("devices-"+way, Limits{Devices: append(DevicesStandard(), DeviceRule{Major: 195, Minor: 3, Access: "rw"}, DeviceRule{Major: 195, Minor: 255, Access: "rw"})})
		if err != nil {
			t.Fatalf("%s: %v", way, err)
		}
		got := openInGroup(t, g, mine, other, ctl, "/dev/null", "/dev/zero")
		if want := "ENXIO EPERM ENXIO ok ok"; strings.Join(got, " ") != want {
			t.Errorf("%s: own GPU, other GPU, control, null, zero: %v, want %s", way, got, want)
		}
		bare, err := m.Create("bare-"+way, Limits{Devices: DevicesStandard()})
		if err != nil {
			t.Fatalf("%s: %v", way, err)
		}
		if got := openInGroup(t, bare, mine, ctl, "/dev/urandom"); strings.Join(got, " ") != "EPERM EPERM ok" {
			t.Errorf("%s: without a GPU: %v", way, got)
		}
		for _, x := range []Group{g, bare} {
			if err := x.Remove(); err != nil {
				t.Error(err)
			}
		}
	}
	t.Logf("devices restricted by %v", ways)
}

// TestKeysOfRules: rules that differ have different keys, and equal ones the same.
func TestKeysOfRules(t *testing.T) {
	base := DeviceRule{Major: 1, Minor: 3, Access: "rwm"}
	lists := [][]DeviceRule{
		nil, {base}, {base, base}, {{Block: true, Major: 1, Minor: 3, Access: "rwm"}}, {{Major: AnyDevice, Minor: 3, Access: "rwm"}}, {{Major: 1, Minor: AnyDevice, Access: "rwm"}},
		{{Major: 3, Minor: 1, Access: "rwm"}}, {{Major: 1, Minor: 3, Access: "r"}}, {{Major: 13, Access: "rwm"}}, {{Major: 1, Minor: 3}}, {{Major: 300, Minor: 3, Access: "rwm"}}, DevicesStandard(),
	}
	seen := map[string]int{}
	for i, l := range lists {
		key := keyOf(l)
		if j, ok := seen[key]; ok {
			t.Errorf("%v and %v have the same key", lists[j], l)
		}
		seen[key] = i
		if again := keyOf(slices.Clone(l)); again != key {
			t.Errorf("%v has two keys", l)
		}
	}
}
