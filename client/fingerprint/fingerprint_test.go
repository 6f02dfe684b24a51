package fingerprint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	psdisk "github.com/shirou/gopsutil/v4/disk"
	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/driver/fake"
	"github.com/muster-sched/muster/structs"
)

func look(t *testing.T, o Options) *Facts {
	t.Helper()
	f := NewFacts()
	for _, p := range List(o) {
		if err := p.Look(context.Background(), f); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
	return f
}

func TestThisMachine(t *testing.T) {
	t.Setenv("MUSTER_TEST_SHOWN", "yes")
	f := look(t, Options{DataDir: t.TempDir(), Version: "1.2.3", Drivers: driver.NewSet(fake.New()), Env: []string{"MUSTER_TEST_SHOWN", "MUSTER_TEST_UNSET"}})
	host, _ := os.Hostname()
	for k, want := range map[string]string{
		"cpu.arch": runtime.GOARCH, "kernel.name": "linux", "unique.hostname": host, "muster.version": "1.2.3", "nomad.version": NomadVersion,
		"driver.fake": "1", "env.MUSTER_TEST_SHOWN": "yes", structs.BundlesAttribute: "1",
	} {
		if f.Attributes[k] != want {
			t.Errorf("%s is %q, want %q", k, f.Attributes[k], want)
		}
	}
	for _, k := range []string{"cpu.numcores", "cpu.totalcompute", "cpu.frequency", "kernel.version", "memory.totalbytes", "os.name", "unique.network.ip-address", "unique.storage.volume", "unique.storage.bytestotal", "unique.storage.bytesfree", "numa.node.count"} {
		if f.Attributes[k] == "" {
			t.Errorf("%s is missing", k)
		}
	}
	if _, ok := f.Attributes["env.MUSTER_TEST_UNSET"]; ok {
		t.Error("an unset variable is an attribute")
	}
	r := f.Resources
	if r.CPU != r.Cores*r.MHzPerCore || r.Cores < 1 || int64(len(r.ReservableCPUs)) != r.Cores || r.MemoryMiB < 1 || r.DiskMiB < 1 || len(r.Networks) == 0 || f.BootID == "" {
		t.Errorf("resources are %+v, boot id %q", r, f.BootID)
	}
	if d := f.Drivers["fake"]; !d.Healthy || !d.Detected {
		t.Errorf("driver is %+v", d)
	}
}

// TestNUMA reads machines of two NUMA nodes and of one, which is shown as two where GPUs are made up.
func TestNUMA(t *testing.T) {
	sys := t.TempDir()
	node := func(name, cores string) {
		if err := os.Mkdir(filepath.Join(sys, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sys, name, "cpulist"), []byte(cores+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, o Options, want map[string]string) {
		t.Helper()
		f := NewFacts()
		f.Attributes[structs.NUMACountAttribute] = strconv.Itoa(o.numaNodes(f, []int64{0, 1, 2, 5, 6}))
		if !maps.Equal(f.Attributes, want) {
			t.Errorf("%s: %v, want %v", what, f.Attributes, want)
		}
	}
	check("none shown", Options{SysNodes: sys}, map[string]string{"numa.node.count": "1"})
	node("node0", "0-2,5-6")
	check("one", Options{SysNodes: sys}, map[string]string{"numa.node.count": "1", "numa.node0.cores": "0-2,5-6"})
	check("made up", Options{SysNodes: sys, TwoNUMA: true}, map[string]string{"numa.node.count": "2", "numa.node0.cores": "0,1", "numa.node1.cores": "2,5,6"})
	node("node8", "7")
	two := map[string]string{"numa.node.count": "2", "numa.node0.cores": "0-2,5-6", "numa.node8.cores": "7"}
	check("two", Options{SysNodes: sys}, two)
	check("two are shown as they are", Options{SysNodes: sys, TwoNUMA: true}, two)
}

func TestOverrides(t *testing.T) {
	f := look(t, Options{DataDir: t.TempDir(), CPUMHz: 12345, MemoryMB: 777, DiskMB: 888, SpeedMB: 42, Iface: "lo"})
	if r := f.Resources; r.CPU != 12345 || r.MemoryMiB != 777 || r.DiskMiB != 888 || r.Networks[0].MBits != 42 || r.Networks[0].Device != "lo" {
		t.Errorf("resources are %+v", r)
	}
	o := Options{Iface: "no-such-interface"}
	if err := o.network(context.Background(), NewFacts()); err == nil || !strings.Contains(err.Error(), "no-such-interface") {
		t.Errorf("an unknown interface: %v", err)
	}
}

// TestNoCpuset: cores that nothing can pin a task to are not offered; the node's speed stays what it is.
func TestNoCpuset(t *testing.T) {
	f := look(t, Options{DataDir: t.TempDir(), NoCpuset: true})
	if r := f.Resources; r.Cores != 0 || r.ReservableCPUs != nil || r.CPU < 1 || f.Attributes["cpu.reservablecores"] != "0" || f.Attributes["cpu.numcores"] == "0" {
		t.Errorf("resources are %+v, %s cores of %s may be reserved", r, f.Attributes["cpu.reservablecores"], f.Attributes["cpu.numcores"])
	}
}

type broken struct{}

func (broken) Name() string { return "broken" }
func (broken) Devices(context.Context) ([]structs.DeviceGroup, error) {
	return nil, errors.New("bus error")
}

func TestDevices(t *testing.T) {
	a, err := ParseGPUs("8xH100,2xT4", structs.Seed{1})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := ParseGPUs("8xh100", structs.Seed{2})
	o := Options{Devices: []DeviceFingerprinter{a}}
	f := NewFacts()
	if err := o.devices(context.Background(), f); err != nil || len(f.Resources.Devices) != 2 || f.Resources.Devices[0].ID() != "nvidia/gpu/H100" {
		t.Fatalf("devices are %+v, %v", f.Resources.Devices, err)
	}
	seen := map[string]bool{}
	buses := map[string]bool{}
	for _, g := range append(a, b...) {
		for _, i := range g.Instances {
			if seen[i.ID] || i.MemoryMiB == 0 || !i.Healthy {
				t.Errorf("GPU %+v", i)
			}
			seen[i.ID] = true
		}
	}
	for _, g := range a {
		for _, i := range g.Instances {
			if buses[i.PCIBusID] {
				t.Errorf("two GPUs of one machine at %s", i.PCIBusID)
			}
			buses[i.PCIBusID] = true
		}
	}
	again, _ := ParseGPUs("8xH100,2xT4", structs.Seed{1})
	if again[0].Instances[3].ID != a[0].Instances[3].ID {
		t.Errorf("the same machine has other GPUs after a restart: got %v, want %v", again[0].Instances[3].ID, a[0].Instances[3].ID)
	}
	o.Devices = append(o.Devices, broken{})
	if err := o.devices(context.Background(), NewFacts()); err == nil || !strings.Contains(err.Error(), "broken: bus error") {
		t.Errorf("a broken device: %v", err)
	}
	for _, bad := range []string{"", "8", "xH100", "0xH100", "-1xH100", "8xNOPE", "8xH100,", "65xH100"} {
		if _, err := ParseGPUs(bad, structs.Seed{}); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestDivided(t *testing.T) {
	groups, err := ParseGPUs("1xA100-40GB:mig,1xh100:mig=3g+2g+1g,1xH100", structs.Seed{1})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	seen, slots := map[string]bool{}, map[string]bool{}
	for _, g := range groups {
		got = append(got, fmt.Sprintf("%d %s %q", len(g.Instances), g.Name, g.MIGProfile()))
		for _, i := range g.Instances {
			if seen[i.ID] || (i.Parent != "") != (g.MIGProfile() != "") || g.MIGProfile() != "" && i.MemoryMiB != g.Attributes["memory"].Int {
				t.Errorf("%s has %+v", g.Name, i)
			}
			seen[i.ID] = true
			for k := range i.SlotCount {
				if slot := fmt.Sprint(i.Parent, i.SlotStart+k); slots[slot] || i.SlotStart+k > 7 {
					t.Errorf("%s: a slot twice, or beyond the GPU: %+v", g.Name, i)
				} else {
					slots[slot] = true
				}
			}
		}
	}
	if want := []string{`7 A100-40GB MIG 1g.5gb "1g.5gb"`, `1 H100 MIG 3g.40gb "3g.40gb"`, `1 H100 MIG 2g.20gb "2g.20gb"`, `1 H100 MIG 1g.10gb "1g.10gb"`, `1 H100 ""`}; !slices.Equal(got, want) {
		t.Errorf("groups are %q, want %q", got, want)
	}
}

func TestOrderAndPeriods(t *testing.T) {
	var names []string
	for _, f := range List(Options{}) {
		names = append(names, f.Name)
		if f.Period != 0 && f.Period < 5*time.Second {
			t.Errorf("%s looks every %s", f.Name, f.Period)
		}
	}
	if got := strings.Join(names, " "); got != "version arch host cpu memory storage cgroup network networks of allocations rdma env drivers devices" {
		t.Errorf("order is %s", got)
	}
}

// TestStorageGrows: a disk that was full at the agent's start is used once it is not, and what allocations write does not make
// it smaller.
func TestStorageGrows(t *testing.T) {
	free := uint64(0)
	s := &storage{Options: Options{DataDir: "/"}, most: -1, usage: func(context.Context, string) (*psdisk.UsageStat, error) {
		return &psdisk.UsageStat{Total: 6400 << 20, Free: free << 20}, nil
	}}
	for _, look := range []struct {
		free uint64
		want int64
	}{{0, 0}, {90, 0}, {500, 500}, {20, 500}, {590, 500}, {601, 601}, {0, 601}} {
		free = look.free
		f := &Facts{Attributes: map[string]string{}}
		if err := s.look(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		if f.Resources.DiskMiB != look.want || f.Attributes["unique.storage.bytesfree"] != strconv.FormatInt(look.want<<20, 10) {
			t.Errorf("%d MiB are free: %d MiB offered, %s bytes, want %d MiB", free, f.Resources.DiskMiB, f.Attributes["unique.storage.bytesfree"], look.want)
		}
	}
}

// TestNVLinkDomain: a node is in an NVLink domain over several nodes if all of its GPUs are.
func TestNVLinkDomain(t *testing.T) {
	for want, islands := range map[string][]string{"ab.4": {"fabric-ab.4", "fabric-ab.4"}, "": {"fabric-ab.4", "fabric-ab.5"}} {
		for _, more := range []string{"", "nvlink-1"} {
			g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "GB200"}
			for _, name := range islands {
				g.Instances = append(g.Instances, structs.DeviceInstance{ID: name, Island: name, Healthy: true})
			}
			if more != "" {
				g.Instances = append(g.Instances, structs.DeviceInstance{ID: more, Island: more, Healthy: true})
				want = ""
			}
			f := NewFacts()
			if err := (Options{Devices: []DeviceFingerprinter{StaticDevices{g}}}).devices(context.Background(), f); err != nil {
				t.Fatal(err)
			}
			if got := f.Attributes[structs.NVLinkDomainAttribute]; got != want {
				t.Errorf("GPUs in %v %s: the domain is %q, want %q", islands, more, got, want)
			}
		}
	}
}

// TestAdaptersNearGPUs: adapters below the same port of the root complex are near a GPU, those behind the most common
// switches first; others are not.
func TestAdaptersNearGPUs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making device files needs root")
	}
	dir := t.TempDir()
	dev := filepath.Join(dir, "infiniband")
	for _, d := range []string{dev, filepath.Join(dir, "pci"), filepath.Join(dir, "rdma")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mknod(filepath.Join(dev, "uverbs0"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Skip(err)
	}
	link := func(path, at string) {
		t.Helper()
		target := filepath.Join(dir, "devices", path)
		if err := errors.Join(os.MkdirAll(target, 0o755), os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink(target, at)); err != nil {
			t.Fatal(err)
		}
	}
	gpu := func(bus, path string) { link(path+"/"+bus, filepath.Join(dir, "pci", bus)) }
	nic := func(name, path string) { link(path, filepath.Join(dir, "rdma", name, "device")) }
	gpu("0000:19:00.0", "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0")
	gpu("0000:3b:00.0", "pci0000:37/0000:37:01.0")
	gpu("0001:01:00.0", "pci0001:00")
	nic("mlx5_0", "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:03.0/0000:1a:00.0")
	nic("mlx5_1", "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:18:00.0")
	nic("mlx5_2", "pci0000:37/0000:37:03.0/0000:3d:00.0")
	nic("mlx5_3", "pci0001:00/0001:02:00.0")
	g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100", Instances: []structs.DeviceInstance{
		{ID: "a", PCIBusID: "00000000:19:00.0"}, {ID: "b", PCIBusID: "00000000:3B:00.0"}, {ID: "c", PCIBusID: "00000001:01:00.0"}, {ID: "d", PCIBusID: "00000000:99:00.0"},
	}}
	look := func(o Options) string {
		o.Devices, o.SysPCI, o.SysRDMA = []DeviceFingerprinter{StaticDevices{g}}, filepath.Join(dir, "pci"), filepath.Join(dir, "rdma")
		f := NewFacts()
		if err := o.devices(context.Background(), f); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, in := range f.Resources.Devices[0].Instances {
			out = append(out, in.ID+"="+in.Adapters)
		}
		return strings.Join(out, " ")
	}
	if got, want := look(Options{RDMADir: dev}), "a=mlx5_1,mlx5_0 b= c= d="; got != want {
		t.Errorf("near the GPUs are %s, want %s", got, want)
	}
	for i := range g.Instances {
		g.Instances[i].Adapters = ""
	}
	if got, want := look(Options{RDMADir: filepath.Join(dir, "none")}), "a= b= c= d="; got != want {
		t.Errorf("without device files, near the GPUs are %s, want %s", got, want)
	}
}
