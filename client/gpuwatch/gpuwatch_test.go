package gpuwatch

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/client/gpu/shim"
	"github.com/muster-sched/muster/client/notify"
	"github.com/muster-sched/muster/structs"
)

// A node that cannot measure its GPUs watches nothing and reports no use.
func TestNoSamples(t *testing.T) {
	n := newNode("")
	a := n.place(structs.BackendWatch, 100)
	w := New(Config{}, n, hclog.NewNullLogger())
	w.Run(t.Context())
	w.Settle(a)
	if got := w.Use(&a.alloc); got != nil {
		t.Errorf("use is %v, want none", got)
	}
}

// A task that holds more than its share at two looks is stopped; one look is not enough, and a silent driver is no excess.
func TestExcessStopsTask(t *testing.T) {
	n := newNode("watch")
	a := n.place(structs.BackendWatch, 300)
	run(t, n, Config{Pressure: Pressure{Share: []int{}}}, func(w watching) {
		n.use(200)
		w.wait(3 * time.Second)
		w.want(a, "within the share", "")
		n.use(800)
		w.wait(time.Second)
		n.use(200)
		w.wait(3 * time.Second)
		w.want(a, "after one look above it", "")
		n.use(800)
		n.mu.Lock()
		n.down = errDown
		n.mu.Unlock()
		w.wait(3 * time.Second)
		w.want(a, "while the driver is silent", "")
		n.mu.Lock()
		n.down = nil
		n.mu.Unlock()
		w.wait(2 * time.Second)
		w.want(a, "after two looks above it", "exceeds: 800 of 300 MiB of GPU-1")
	})
}

// Shares are looked at each second. Whole GPUs are measured every 5 s, but for tasks that are new.
func TestHowOftenIsLooked(t *testing.T) {
	for _, c := range []struct {
		name  string
		mib   int64
		after time.Duration // from the start of the task
		want  int           // looks in 10 s
	}{
		{"a share", 100, time.Minute, 10},
		{"a whole GPU", 0, time.Minute, 2},
		{"a new task", 0, 0, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode("watch")
			n.place(structs.BackendWatch, c.mib)
			run(t, n, Config{}, func(w watching) {
				w.wait(c.after)
				n.mu.Lock()
				n.asked = 0
				n.mu.Unlock()
				time.Sleep(10 * time.Second) // virtual
				n.mu.Lock()
				defer n.mu.Unlock()
				if n.asked != c.want {
					t.Errorf("%d looks in 10 s, want %d", n.asked, c.want)
				}
			})
		})
	}
}

// shimAlloc places an allocation under the backend "shim" with the files of its share.
func shimAlloc(t *testing.T, n *fakeNode, quotaMiB int64) *fakeAlloc {
	t.Helper()
	if why := shim.Built(); why != "" {
		t.Skip("the library is " + why)
	}
	a := n.place(structs.BackendShim, quotaMiB)
	a.dir = filepath.Join(t.TempDir(), "shared", "gpu", train)
	if err := os.MkdirAll(filepath.Dir(filepath.Dir(a.dir)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := shim.Place(a.dir, map[string]int64{gpu1: quotaMiB * mib}); err != nil {
		t.Fatal(err)
	}
	return a
}

// write writes numbers into the file of a share, as the library does: client/gpu/shim has the layout.
func (a *fakeAlloc) write(t *testing.T, values map[int64]uint64) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(a.dir, gpu1), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for at, v := range values {
		if _, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, v), at); err != nil {
			t.Fatal(err)
		}
	}
}

// Offsets in the file of a share.
const (
	fileLimit  = 8
	filePeak   = 24
	fileDenied = 32
	slot0PID   = 64
	slot0Start = slot0PID + 8
	slot0Used  = slot0PID + 24
)

func (a *fakeAlloc) books(t *testing.T) shim.Usage {
	t.Helper()
	f, err := shim.Open(a.dir, gpu1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	u, err := f.Read()
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// The books of a share are corrected: what a dead process booked is freed, a limit that the task overwrote is restored, and
// what the driver counts beyond the books is added once two looks agree.
func TestBooksAreCorrected(t *testing.T) {
	n := newNode("shim")
	a := shimAlloc(t, n, 500)
	gone := uint64(1<<22 + 1) // above every pid
	a.write(t, map[int64]uint64{
		fileLimit: 1 << 40, filePeak: 60 * mib, fileDenied: 3,
		slot0PID: gone, slot0Start: 1, slot0Used: 40 * mib,
	})
	run(t, n, Config{Pressure: Pressure{Share: []int{}}}, func(w watching) {
		n.use(90)
		w.wait(time.Second)
		u := a.books(t)
		if u.LimitBytes != 500*mib || u.UsedBytes != 0 || u.UntrackedBytes != 0 {
			t.Errorf("after one look the books say %+v, want the limit restored, nothing used, nothing untracked", u)
		}
		w.wait(time.Second)
		if u := a.books(t); u.UntrackedBytes != 50*mib { // the smaller of 90-40 and 90
			t.Errorf("after two looks %d bytes are untracked, want %d", u.UntrackedBytes, 50*mib)
		}
		w.wait(time.Second)
		if u := a.books(t); u.UntrackedBytes != 90*mib {
			t.Errorf("after three looks %d bytes are untracked, want %d", u.UntrackedBytes, 90*mib)
		}
		uses := w.Uses()
		if len(uses) != 1 || uses[0].PeakBytes != 90*mib || uses[0].Denied != 3 {
			t.Errorf("uses are %+v, want a peak of 90 MiB and 3 refused allocations", uses)
		}
		w.want(a, "after three looks", "")
		if err := os.Remove(filepath.Join(a.dir, gpu1)); err != nil {
			t.Fatal(err)
		}
		w.wait(time.Second)
		w.want(a, "without the file", "lost GPU-1: its share is no longer enforced by shim: the share's file is gone")
	})
}

// What a task booked between two looks is known from its books at its end.
func TestSettle(t *testing.T) {
	n := newNode("shim")
	a := shimAlloc(t, n, 500)
	run(t, n, Config{}, func(w watching) {
		a.write(t, map[int64]uint64{filePeak: 70 * mib, fileDenied: 2})
		w.Settle(a)
		use := w.Use(&a.alloc)
		if len(use) != 1 || use[0].PeakMiB != 70 || use[0].Denied != 2 {
			t.Errorf("use is %+v, want a peak of 70 MiB and 2 refused allocations", use)
		}
		if got := w.UsesOf(a.alloc.ID); len(got) != 1 {
			t.Errorf("uses of the allocation are %v, want one", got)
		}
	})
}

// A task under "dmem" is stopped when the driver's limit is not the share, or when the node no longer offers the backend. A
// driver that does not answer may still enforce the share.
func TestDriverLimit(t *testing.T) {
	limit := func(bytes int64, err error) func(context.Context, string, string) (gpu.MemoryLimit, error) {
		return func(context.Context, string, string) (gpu.MemoryLimit, error) {
			return gpu.MemoryLimit{Bytes: bytes}, err
		}
	}
	for _, c := range []struct {
		name    string
		enforce string
		limit   func(context.Context, string, string) (gpu.MemoryLimit, error)
		stopped bool
		want    string
	}{
		{"in force", "dmem", limit(100*mib, nil), false, ""},
		{"another limit", "dmem", limit(-1, nil), false, "lost GPU-1: its share is no longer enforced by dmem: the driver limits it to -1 bytes instead of 104857600"},
		{"silent", "dmem", limit(0, errDown), false, ""},
		{"not offered", "watch", limit(0, errDown), false, "lost GPU-1: its share is no longer enforced by dmem: the driver does not answer"},
		{"cannot ask", "dmem", nil, false, "lost GPU-1: its share is no longer enforced by dmem: this agent cannot ask the driver for it"},
		{"not running", "dmem", limit(-1, nil), true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(c.enforce)
			a := n.place(structs.BackendDmem, 100)
			if c.stopped {
				a.run = ""
			}
			run(t, n, Config{Device: Device{MemoryLimit: c.limit}}, func(w watching) {
				w.wait(2 * time.Second)
				got := a.said()
				if c.want == "" && got != "" || !strings.HasPrefix(got, c.want) {
					t.Errorf("got %q, want %q", got, c.want)
				}
			})
		})
	}
}

// LimitMemory asks for each grant, names the GPU that fails, and fails on a node without the backend.
func TestLimitMemory(t *testing.T) {
	grants := []structs.Grant{{Instance: gpu1, MemoryMiB: 5}, {Instance: "GPU-2", MemoryMiB: 6}}
	asked := map[string]int64{}
	w := New(Config{Device: Device{LimitMemory: func(_ context.Context, task, uuid string, bytes int64) error {
		asked[task+" "+uuid] = bytes
		if uuid == "GPU-2" {
			return errDown
		}
		return nil
	}}}, newNode(""), hclog.NewNullLogger())
	err := w.LimitMemory(t.Context(), "run", grants)
	if asked["run "+gpu1] != 5*mib || asked["run GPU-2"] != 6*mib || !errors.Is(err, errDown) || !strings.Contains(err.Error(), "GPU-2") {
		t.Errorf("asked for %v, with error %v", asked, err)
	}
	if err := New(Config{}, newNode(""), hclog.NewNullLogger()).LimitMemory(t.Context(), "run", grants); err == nil {
		t.Error("a node without the backend did not refuse")
	}
}

// Errors of the driver are noted at the tasks of that GPU alone, as the program's fault or the device's.
func TestReports(t *testing.T) {
	n := newNode("watch")
	a, b := n.place("", 0), n.place("", 0)
	run(t, n, Config{}, func(w watching) {
		n.reports <- gpu.Report{Devices: []string{gpu1}, XID: 13, Text: "XID 13 (w)", Alloc: b.Alloc().ID, Task: b.Alloc().Grants[0].Task}
		n.reports <- gpu.Report{Devices: []string{"GPU-9"}, XID: 13, Text: "XID 13 (x)"}
		n.reports <- gpu.Report{Devices: []string{"GPU-9", gpu1}, XID: 31, Text: "XID 31 (y)"}
		n.reports <- gpu.Report{Devices: []string{gpu1}, XID: 79, Text: "XID 79 (z)", Device: true}
		w.wait(0)
		both := "GPU Fault: GPU GPU-1: XID 31 (y), a program's fault\n" + structs.TaskEventGPUError + ": GPU GPU-1: XID 79 (z), the device's fault"
		w.want(a, "after three errors", both)
		w.want(b, "after these and one of its own", "GPU Fault: GPU GPU-1: XID 13 (w), a program's fault\n"+both)
	})
}

// Each change of a GPU's health is noted once.
func TestHealth(t *testing.T) {
	n := newNode("watch")
	a := n.place("", 0)
	set := func(list ...structs.DeviceInstance) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.node.Resources.Devices = []structs.DeviceGroup{{Instances: list}}
	}
	run(t, n, Config{}, func(w watching) {
		w.wait(2 * time.Second)
		w.want(a, "healthy", "")
		set(structs.DeviceInstance{ID: gpu1, HealthDesc: "ECC errors"})
		w.wait(3 * time.Second)
		w.want(a, "ill", "GPU Health: GPU GPU-1: ECC errors")
		set(structs.DeviceInstance{ID: gpu1})
		w.wait(2 * time.Second)
		w.want(a, "ill without a reason", "GPU Health: GPU GPU-1: unhealthy")
		set(structs.DeviceInstance{ID: gpu1, Healthy: true})
		w.wait(2 * time.Second)
		w.want(a, "healthy again", "GPU Health: GPU GPU-1 is healthy again")
		set()
		w.wait(5 * time.Second)
		w.want(a, "absent", "GPU Health: GPU GPU-1: it is no longer on this node")
	})
}

// A task is ended when its MIG instance has been absent for three looks while the driver showed others.
func TestMIGInstanceDestroyed(t *testing.T) {
	for _, c := range []struct {
		name string
		left []structs.DeviceInstance
		want bool
	}{
		{"others are there", []structs.DeviceInstance{{ID: "MIG-2", Healthy: true}}, true},
		{"the driver shows nothing", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode("watch")
			a := n.place(structs.BackendMIG, 0)
			n.node.Resources.Devices[0].Instances = c.left
			run(t, n, Config{}, func(w watching) {
				w.wait(2 * time.Second)
				if got := a.said(); strings.Contains(got, "lost") {
					t.Errorf("after two looks: %q", got)
				}
				w.wait(time.Second)
				if got := a.said(); strings.Contains(got, "lost GPU-1: its share is no longer enforced by mig: the MIG instance is no longer on this node") != c.want {
					t.Errorf("after three looks: %q, want the task ended %v", got, c.want)
				}
			})
		})
	}
}

// A task whose GPU idles is notified once; time that it is suspended does not count.
func TestIdleIsNoted(t *testing.T) {
	n := newNode("watch")
	a := n.place("", 0)
	n.samples[0].UtilPercent = 0
	run(t, n, Config{Idle: time.Minute}, func(w watching) {
		a.set(func() { a.suspended = true })
		w.wait(5 * time.Minute)
		w.want(a, "suspended", "")
		a.set(func() { a.suspended = false })
		w.wait(50 * time.Second)
		w.want(a, "resumed for 50 s", "")
		w.wait(30 * time.Second)
		w.want(a, "resumed for 80 s", "GPU Idle: GPU GPU-1: nothing has been computed for 1m0s")
		w.wait(5 * time.Minute)
		w.want(a, "later", "")
	})
}

// A share that passes a threshold is noted at the task, and the task is notified as its job asks for.
func TestSharePressure(t *testing.T) {
	n := newNode("watch")
	a := n.place(structs.BackendWatch, 800)
	to := &target{}
	run(t, n, Config{Pressure: Pressure{Targets: []notify.Target{to}}}, func(w watching) {
		n.use(400)
		w.wait(time.Second)
		w.want(a, "at 50 %", "")
		n.use(730)
		w.wait(3 * time.Second)
		w.want(a, "at 91 %", "GPU Memory Pressure: 730 of 800 MiB of GPU GPU-1 are in use (91 %)")
		n.use(100)
		w.wait(time.Second)
		a.set(func() {
			a.request = &structs.GPURequest{Pressure: &structs.GPUPressure{At: []int64{50}, Signal: "SIGUSR1"}}
		})
		n.use(420)
		w.wait(time.Second)
		w.want(a, "at 52 %, with a threshold and a signal of its own", "GPU Memory Pressure: 420 of 800 MiB of GPU GPU-1 are in use (52 %)\nsignal SIGUSR1")
		n.use(0)
		w.wait(time.Second)
		a.set(func() {
			a.request = &structs.GPURequest{Pressure: &structs.GPUPressure{Command: []string{"/bin/save"}}}
			a.broken = errors.New("exit code 3")
		})
		n.use(790)
		w.wait(time.Second)
		w.want(a, "at 98 %, with a command that fails", strings.Join([]string{
			"GPU Memory Pressure: 790 of 800 MiB of GPU GPU-1 are in use (98 %)", "run [/bin/save]", "GPU Memory Pressure: Could not be notified: exit code 3",
		}, "\n"))
		want := "share above 90 at 91% task=train\nshare below 0 at 12% task=train\nshare above 50 at 52% task=train\nshare below 0 at 0% task=train\nshare above 98 at 98% task=train"
		if got := to.said(); got != want {
			t.Errorf("notices:\n%s\nwant:\n%s", got, want)
		}
	})
}

// GPUs that run full are reported to the servers and the operator's targets, also while no task has them. A GPU that is
// lost keeps its threshold.
func TestDevicePressure(t *testing.T) {
	n := newNode("watch")
	to := &target{}
	run(t, n, Config{Pressure: Pressure{Device: []int{80}, Targets: []notify.Target{to}}}, func(w watching) {
		n.use(850)
		w.wait(6 * time.Second)
		n.mu.Lock()
		n.samples[0].Lost = true
		n.mu.Unlock()
		w.wait(6 * time.Second)
		n.use(100)
		w.wait(6 * time.Second)
		if got, want := to.said(), "device above 80 at 85% task=\ndevice below 0 at 10% task="; got != want {
			t.Errorf("notices:\n%s\nwant:\n%s", got, want)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.events) != 2 || n.events[0].Subsystem != "GPU" || !strings.HasPrefix(n.events[0].Message, "850 of 1000 MiB of GPU GPU-1") || !strings.HasSuffix(n.events[1].Message, "below all thresholds again") {
			t.Errorf("events of the node are %+v, want that the GPU is full and is not", n.events)
		}
	})
}

// Power limits are restored each second for what no allocation wants. A driver that hangs does not block the watch.
func TestPowerLimits(t *testing.T) {
	n := newNode("watch")
	a, ended := n.place(structs.BackendWatch, 100), n.place("", 0)
	a.request, ended.request, ended.ended = &structs.GPURequest{PowerLimitW: 200}, &structs.GPURequest{PowerLimitW: 300}, true
	var asked []map[string]bool
	restore := func(_ context.Context, wanted func() map[string]bool) error {
		asked = append(asked, wanted())
		if len(asked) == 2 {
			<-n.hang
			return errDown
		}
		return nil
	}
	run(t, n, Config{Device: Device{RestorePower: restore}}, func(w watching) {
		w.wait(10 * time.Second)
		if len(asked) != 2 || !asked[0][gpu1] {
			t.Errorf("asked for %v, want twice, with the limit of the GPU kept", asked)
		}
		n.mu.Lock()
		looks := n.asked
		n.mu.Unlock()
		if looks < 9 {
			t.Errorf("%d looks in 10 s while the driver hangs, want 9 or more", looks)
		}
		close(n.hang)
		a.set(func() { a.ended = true })
		w.wait(2 * time.Second)
		if last := asked[len(asked)-1]; last[gpu1] {
			t.Errorf("the limit of an allocation that has ended is kept: %v", last)
		}
	})
	if err := New(Config{}, n, hclog.NewNullLogger()).LimitPower(t.Context(), gpu1, 5); err == nil {
		t.Error("a node that cannot limit power did not refuse")
	}
	if err := New(Config{}, n, hclog.NewNullLogger()).RestorePower(t.Context()); err != nil {
		t.Errorf("a node that cannot limit power fails to restore it: %v", err)
	}
	w := New(Config{Device: Device{LimitPower: func(_ context.Context, uuid string, watts int64) error { return errDown }}}, n, hclog.NewNullLogger())
	if err := w.LimitPower(t.Context(), gpu1, 5); !errors.Is(err, errDown) {
		t.Errorf("the driver's error is %v", err)
	}
}

// Use is stored every 15 s and when the watch ends; the next run of the agent continues from it. After a reboot, the time in
// between does not count.
func TestUseIsKept(t *testing.T) {
	n := newNode("watch")
	a := n.place(structs.BackendWatch, 800)
	n.use(100)
	run(t, n, Config{}, func(w watching) { w.wait(35 * time.Second) })
	if len(n.stored) != 4 { // after 1, 16 and 31 s, and at the end
		t.Fatalf("use was stored %d times, want 4", len(n.stored))
	}
	last := n.stored[3]
	if last.BootID != "boot-1" || len(last.List) != 1 || last.List[0].PeakBytes != 100*mib || last.List[0].Task != train {
		t.Fatalf("stored %+v", last)
	}
	n.full = errors.New("no space left") // is logged
	run(t, n, Config{}, func(w watching) {
		if use := w.Use(&a.alloc); len(use) != 0 {
			t.Errorf("without a record the use is %+v", use)
		}
		w.Restore(last, "boot-1")
		use := w.Use(&a.alloc)
		if len(use) != 1 || use[0].PeakMiB != 100 || use[0].MiBSeconds < 3000 {
			t.Errorf("restored use is %+v, want the stored one", use)
		}
		w.Restore(&agentstore.GPUUses{}, "boot-2")
	})
}
