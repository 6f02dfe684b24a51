//go:build linux && cgo

package gpu

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

func TestParseXID(t *testing.T) {
	for text, want := range map[string]struct {
		bus string
		e   Event
	}{
		"4,812,5021,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.":      {"00000000:3B:00.0", Event{XID: 79, GI: -1, PID: 1234}},
		"NVRM: Xid (0000:03:00): 31, Ch 00000010, engmask 00000101, intr 10000000":                             {"00000000:03:00.0", Event{XID: 31, GI: -1}},
		"NVRM: Xid (PCI:0008:01:00 GPU-I:05): 13, Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0)":          {"00000008:01:00.0", Event{XID: 13, GI: 5}},
		"NVRM: Xid (PCI:0000:c1:00.0): 94, pid='<unknown>', name=<unknown>, Contained: CE User Channel (0x9).": {"00000000:C1:00.0", Event{XID: 94, GI: -1}},
	} {
		if bus, e, ok := parseXID(text); !ok || bus != want.bus || e != want.e {
			t.Errorf("%q: %s %+v %v", text, bus, e, ok)
		}
	}
	for _, text := range []string{"", "NVRM: GPU at PCI:0000:3b:00: GPU-1234", "NVRM: Xid (PCI:0000:3b:00): ", "NVRM: Xid (PCI:0000:3b:00): 0, x", "Xid (PCI:zzzz:3b:00): 79"} {
		if bus, e, ok := parseXID(text); ok {
			t.Errorf("%q: %s %+v", text, bus, e)
		}
	}
}

// TestKernelLog gets from the kernel log what the library cannot report because it hangs; an error reported by both
// counts once.
func TestKernelLog(t *testing.T) {
	f, dir := fake(t, "2xH100")
	path := filepath.Join(t.TempDir(), "kmsg")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cfg := quick(f, dir)
	cfg.Kernel = path
	reports := make(chan Report, 16)
	cfg.OnError = func(r Report) { reports <- r }
	culprit := structs.AllocID{7}
	cfg.Owner = func(pid int) (structs.AllocID, string, bool) { return culprit, "train", pid == 77 }
	n := watch(t, cfg)
	until(t, n, "2 GPUs", func(g []structs.DeviceGroup) bool { return count(g) == 2 })
	s, _ := f.Read()
	say := func(text string) {
		if _, err := log.WriteString("4,1,1,-;" + text + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	say("NVRM: Xid (PCI:0000:99:00): 79, GPU of another machine")
	say("NVRM: Xid (PCI:0000:11:00): 79, GPU has fallen off the bus.")
	until(t, n, "the second is quarantined", func(g []structs.DeviceGroup) bool {
		in := g[0].Instances
		return in[0].Healthy && !in[1].Healthy && strings.Contains(in[1].HealthDesc, "XID 79")
	})
	if r := <-reports; r.Devices[0] != s.GPUs[1].UUID || r.XID != 79 || !r.Device {
		t.Errorf("report %+v", r)
	}
	if err := f.XID(1, 79); err != nil { // the library reports the same error a moment later
		t.Fatal(err)
	}
	if err := f.XID(0, 31); err != nil {
		t.Fatal(err)
	}
	if r := <-reports; r.XID != 31 || r.Devices[0] != s.GPUs[0].UUID {
		t.Errorf("the same error was told twice: %+v", r)
	}
	say("NVRM: Xid (PCI:0000:10:00): 31, pid=1, name=x, Ch 00000010")
	if err := f.XID(0, 43); err != nil { // the kernel's log is later, but knows whose program it was
		t.Fatal(err)
	}
	say("NVRM: Xid (PCI:0000:10:00): 43, pid=77, name=x, Ch 00000010")
	if r := <-reports; r.XID != 43 || r.Alloc != culprit || r.Task != "train" {
		t.Errorf("whose process it was is not told: %+v", r)
	}
	say("NVRM: Xid (PCI:0000:10:00): 13, Graphics Exception")
	if r := <-reports; r.XID != 13 {
		t.Errorf("the same error was told twice: %+v", r)
	}
	for _, x := range samples(n) {
		want := map[string]float64{s.GPUs[0].UUID: 13, s.GPUs[1].UUID: 79}[x.Values[2]]
		if x.Name == "DCGM_FI_DEV_XID_ERRORS" && x.Value != want || x.Name == "DCGM_FI_DEV_POWER_USAGE" && x.Value != 70 {
			t.Errorf("%s is %v, of %v", x.Name, x.Value, x.Values)
		}
	}
}

// TestTwoSources: an error reported by two sources counts once, in any order and number of reports.
func TestTwoSources(t *testing.T) {
	for _, order := range []string{"kl", "lk", "kkll", "llkk", "klkl", "kllk", "kkklll", "k", "l", "kk"} {
		n := &NVIDIA{recentErrors: map[errorSource][]time.Time{}}
		counted := 0
		for i, who := range order {
			if !n.heard(Event{UUID: "GPU-1", XID: 31, GI: int64(i)}, who == 'k', time.Unix(int64(i)/2, 0)) {
				counted++
			}
		}
		if want := max(strings.Count(order, "k"), strings.Count(order, "l")); counted != want {
			t.Errorf("%s: %d errors are counted, want %d", order, counted, want)
		}
	}
	n := &NVIDIA{recentErrors: map[errorSource][]time.Time{}}
	e := Event{UUID: "GPU-1", XID: 31}
	if n.heard(e, true, time.Unix(0, 0)) || n.heard(e, false, time.Unix(11, 0)) {
		t.Error("errors far apart are taken for one")
	}
}

// TestWake: the device files of unified memory are asked for before the library is loaded, and that the program for it fails
// is no reason to stop.
func TestWake(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("does not apply here: only root's agent makes device files")
	}
	dir := t.TempDir()
	said := filepath.Join(dir, "said")
	if err := os.WriteFile(filepath.Join(dir, "nvidia-modprobe"), []byte("#!/bin/sh\necho \"$@\" >>"+said+"\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	wake()
	t.Setenv(LibraryEnv, "/some/library") // of no driver here
	wake()
	if b, err := os.ReadFile(said); err != nil || string(b) != "-u -c=0\n" {
		t.Errorf("%q, %v; want \"-u -c=0\\n\"", b, err)
	}
}
