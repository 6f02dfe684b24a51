//go:build linux && cgo

package gpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/hashicorp/go-hclog"

	"go.uber.org/goleak"

	"github.com/muster-sched/muster/internal/fakegpu"
	"github.com/muster-sched/muster/internal/fakegpu/lib"
	"github.com/muster-sched/muster/structs"
)

func TestMain(m *testing.M) {
	MaybeRun()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if libs.dir != "" {
			os.RemoveAll(libs.dir)
		}
		os.Exit(code)
	}))
}

var libs struct {
	once sync.Once
	dir  string
	err  error
}

// fake is a machine with made-up GPUs, and the libraries to see them.
func fake(t *testing.T, spec string) (*fakegpu.File, string) {
	t.Helper()
	libs.once.Do(func() {
		if libs.dir, libs.err = os.MkdirTemp("", "fakegpu-test-"); libs.err == nil {
			libs.err = lib.Build(libs.dir)
		}
	})
	needCompiler(t, libs.err)
	s, err := fakegpu.New(spec, t.Name())
	if spec == "" {
		s, err = &fakegpu.State{Driver: "580.159.04", NVML: "13", CUDA: 13000}, nil
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := fakegpu.Create(filepath.Join(t.TempDir(), "gpus"), s)
	if err != nil {
		t.Fatal(err)
	}
	return f, libs.dir
}

func needCompiler(t *testing.T, err error) {
	t.Helper()
	switch {
	case errors.Is(err, lib.ErrNoCompiler) && os.Getenv("CI") == "":
		t.Skip("not run: no C compiler")
	case err != nil:
		t.Fatal(err)
	}
}

// quick are short periods, so that tests need not wait long for a change.
func quick(f *fakegpu.File, dir string) Config {
	return Config{
		Library: filepath.Join(dir, lib.NVML), Env: []string{fakegpu.Env + "=" + f.Path, "LD_BIND_NOW="},
		Every: 50 * time.Millisecond, WiresEvery: time.Millisecond, ReplyWithin: 3 * time.Second, InitWithin: 4 * time.Second, SilentAfter: 300 * time.Millisecond,
		BackoffMin: 20 * time.Millisecond, BackoffMax: 200 * time.Millisecond, FirstWithin: 20 * time.Second, RetryMissing: 200 * time.Millisecond,
	}
}

func watch(t *testing.T, cfg Config) *NVIDIA {
	t.Helper()
	if testing.Verbose() {
		cfg.Log = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: os.Stderr})
	}
	n := New(cfg)
	t.Cleanup(n.Close)
	return n
}

// until polls until ok, and says what was there when the time is over.
func until(t *testing.T, n *NVIDIA, what string, ok func([]structs.DeviceGroup) bool) []structs.DeviceGroup {
	t.Helper()
	over := time.Now().Add(30 * time.Second)
	for {
		g, _ := n.Devices(context.Background())
		if ok(g) {
			return g
		}
		if time.Now().After(over) {
			t.Fatalf("%s: never; devices are %+v, verdicts %v", what, g, n.Verdicts())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// unhealthy finds the instances that are, as "index: reason" by place in the state.
func unhealthy(groups []structs.DeviceGroup) map[string]string {
	out := map[string]string{}
	for _, g := range groups {
		for _, i := range g.Instances {
			if !i.Healthy {
				out[i.ID] = i.HealthDesc
			}
		}
	}
	return out
}

func count(groups []structs.DeviceGroup) int {
	n := 0
	for _, g := range groups {
		n += len(g.Instances)
	}
	return n
}

// TestErrorsThatTheOperatorDecides has numbers ignored, and others taken for worse than they are by default.
func TestErrorsThatTheOperatorDecides(t *testing.T) {
	f, dir := fake(t, "4xH100")
	cfg := quick(f, dir)
	cfg.Kernel = filepath.Join(dir, "none") // what the library reports is not held back for it
	cfg.XIDs = map[int64]XIDAction{79: XIDIgnore, 74: XIDDegrade, 31: XIDQuarantine, 95: XIDProgram}
	var mu sync.Mutex
	told := map[int64]bool{}
	cfg.OnError = func(r Report) {
		mu.Lock()
		defer mu.Unlock()
		told[r.XID] = r.Device
	}
	n := watch(t, cfg)
	until(t, n, "4 GPUs", func(g []structs.DeviceGroup) bool { return count(g) == 4 })
	s, _ := f.Read()
	for gpu, code := range []int{79, 74, 95, 31} {
		if err := f.XID(gpu, code); err != nil {
			t.Fatal(err)
		}
	}
	until(t, n, "31, the last one, quarantines", func(g []structs.DeviceGroup) bool {
		return strings.Contains(unhealthy(g)[s.GPUs[3].UUID], "XID 31")
	})
	v := n.Verdicts()
	for gpu, want := range []State{Healthy, Degraded, Healthy, Quarantined} {
		if got := v[s.GPUs[gpu].UUID]; got.State != want {
			t.Errorf("GPU %d is %+v, want %s", gpu, got, want)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if want := map[int64]bool{74: true, 95: false, 31: true}; !reflect.DeepEqual(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
	for _, x := range samples(n) {
		if x.Name == "DCGM_FI_DEV_XID_ERRORS" && x.Value == 0 {
			t.Errorf("the metrics know of no error of %v", x.Values)
		}
	}
}

func TestFingerprint(t *testing.T) {
	f, dir := fake(t, "8xH100,4xV100,2xT4")
	n := watch(t, quick(f, dir))
	g := until(t, n, "14 GPUs", func(g []structs.DeviceGroup) bool { return count(g) == 14 })
	s, _ := f.Read()
	byName := map[string]structs.DeviceGroup{}
	for _, x := range g {
		byName[x.Name] = x
	}
	h := byName["NVIDIA H100 80GB HBM3"]
	if h.ID() != "nvidia/gpu/NVIDIA H100 80GB HBM3" || len(h.Instances) != 8 {
		t.Fatalf("groups are %+v", g)
	}
	want := map[string]structs.Attribute{
		"memory": number(81559, "MiB"), "memory_reserved": number(563, "MiB"), "bar1": number(131072, "MiB"), "power": number(700, "W"), "power_max": number(700, "W"), "power_min": number(210, "W"),
		"temperature_slowdown": number(89, ""), "temperature_shutdown": number(92, ""), "board_part": words("692-2G520-0200-000"), "accounting_mode": words("Disabled"),
		"virtualization_mode": words("none"),
		"cores_clock":         number(1980, "MHz"), "memory_clock": number(2619, "MHz"), "pci_bandwidth": number(63015, "MB/s"), "pcie_generation": number(5, ""),
		"pcie_width": number(16, ""), "driver_version": words("580.159.04"), "cuda_version": words("13.0"), "nvml_version": words("13.580.159.04"),
		"cuda_compute": words("9.0"), "architecture": words("hopper"), "brand": words("NVIDIA"), "display_state": words("Disabled"), "persistence_mode": words("Enabled"),
		"ecc_mode": words("Enabled"), "mig_mode": words("Disabled"), "compute_mode": words("default"), "nvlinks": number(18, ""), "nvlink_version": number(6, ""),
		"muster.island_size": number(8, ""), "muster.dmem": {Kind: "bool"}, "enforce": words("shim,watch"),
	}
	for k, v := range want {
		if h.Attributes[k] != v {
			t.Errorf("attribute %s is %+v, want %+v", k, h.Attributes[k], v)
		}
	}
	for k := range h.Attributes {
		if _, ok := want[k]; !ok {
			t.Errorf("attribute %s is not expected", k)
		}
	}
	for i, in := range h.Instances {
		if in.ID != s.GPUs[i].UUID || in.NUMANode != int64(i/4) || in.MemoryMiB != 81559-563 || in.Island == "" || in.Island != h.Instances[0].Island || !in.Healthy {
			t.Errorf("instance %d is %+v", i, in)
		}
	}
	if h.Instances[3].PCIBusID != "00000000:13:00.0" {
		t.Errorf("bus is %s", h.Instances[3].PCIBusID)
	}
	v := byName["Tesla V100-SXM2-32GB"]
	if len(v.Instances) != 4 || v.Instances[0].Island == "" || v.Instances[0].Island == h.Instances[0].Island || v.Instances[3].Island != v.Instances[0].Island {
		t.Errorf("V100 islands: %+v", v.Instances)
	}
	t4 := byName["Tesla T4"]
	if len(t4.Instances) != 2 || t4.Instances[0].Island != "" || t4.Attributes["mig_mode"] != (structs.Attribute{}) {
		t.Errorf("T4: %+v", t4)
	}
	if d := n.Snapshot().GPUs[0]; d.Minor != 0 || d.Serial == "" || d.MIGMode != "Disabled" || d.CPUs != "0-15" || len(d.Peers) != 13 || d.Peers[0].Level != 40 || !d.Peers[0].Read || !d.Peers[0].NVLink {
		t.Errorf("device is %+v", d)
	}
}

func TestIslandsWithoutSwitches(t *testing.T) {
	f, dir := fake(t, "8xV100")
	g := until(t, watch(t, quick(f, dir)), "8 GPUs", func(g []structs.DeviceGroup) bool { return count(g) == 8 })[0]
	for i, in := range g.Instances {
		if in.Island == "" || (in.Island == g.Instances[0].Island) != (i < 4) {
			t.Errorf("GPU %d is in island %q; the first is in %q", i, in.Island, g.Instances[0].Island)
		}
	}
}

func TestMIGOfSeveralSizes(t *testing.T) {
	f, dir := fake(t, "1xH100:mig=3g+2g+1g,1xA100-40GB:mig")
	n := watch(t, quick(f, dir))
	g := until(t, n, "10 instances", func(g []structs.DeviceGroup) bool { return count(g) == 10 })
	var got []string
	for _, g := range g {
		for _, in := range g.Instances[:1] {
			got = append(got, fmt.Sprintf("%d of %s with %d MiB from slot %d on", len(g.Instances), g.MIGProfile(), in.MemoryMiB, in.SlotStart))
		}
	}
	want := []string{"7 of 1g.5gb with 5120 MiB from slot 0 on", "1 of 1g.10gb with 10194 MiB from slot 6 on", "1 of 2g.20gb with 20389 MiB from slot 4 on", "1 of 3g.40gb with 40779 MiB from slot 0 on"}
	if !slices.Equal(got, want) {
		t.Errorf("instances are %q, want %q", got, want)
	}
}

func TestMIG(t *testing.T) {
	f, dir := fake(t, "2xH100")
	n := watch(t, quick(f, dir))
	until(t, n, "2 GPUs", func(g []structs.DeviceGroup) bool { return count(g) == 2 })
	_ = f.Edit(func(s *fakegpu.State) { s.Split(0, 7) })
	g := until(t, n, "a GPU and 7 instances", func(g []structs.DeviceGroup) bool { return count(g) == 8 })
	if len(g) != 2 || g[1].Name != "NVIDIA H100 80GB HBM3 MIG 1g.10gb" || len(g[1].Instances) != 7 {
		t.Fatalf("groups are %+v", g)
	}
	s, _ := f.Read()
	in := g[1].Instances[2]
	if in.ID != s.MIGs[2].UUID || in.MemoryMiB != 81559/8 || in.Island != "" || !in.Healthy || g[1].Attributes["memory"].Int != 81559/8 ||
		g[1].Attributes["mig_profile"].Str != "1g.10gb" || g[1].Attributes["mig_slices"].Int != 1 || g[1].Attributes["mig_mode"].Str != "Enabled" {
		t.Errorf("instance is %+v, attributes %+v", in, g[1].Attributes)
	}
	if in.Parent != s.GPUs[0].UUID || in.SlotStart != 2 || in.SlotCount != 1 {
		t.Errorf("the third instance has slots %d+%d of %s", in.SlotStart, in.SlotCount, in.Parent)
	}
	shape := n.Geometry()
	if len(shape) != 1 || shape[0].GPU != s.GPUs[0].UUID || len(shape[0].Profiles) != 6 {
		t.Fatalf("geometry is %+v", shape)
	}
	if want := (structs.MIGProfile{Name: "3g.40gb", ID: 9, Slices: 3, Slots: 4, MemoryMiB: 81559 * 4 / 8, Max: 2, Starts: []int64{0, 4}}); !reflect.DeepEqual(shape[0].Profiles[2], want) {
		t.Errorf("the third profile is %+v, want %+v", shape[0].Profiles[2], want)
	}
	// An error of one instance is not one of its neighbours.
	_ = f.Edit(func(s *fakegpu.State) {
		s.XIDs = append(s.XIDs, fakegpu.XID{Seq: 1, GPU: 0, Code: 95, GI: s.MIGs[4].GI})
	})
	g = until(t, n, "one unhealthy", func(g []structs.DeviceGroup) bool { return len(unhealthy(g)) == 1 })
	if r := unhealthy(g)[s.MIGs[4].UUID]; !strings.Contains(r, "XID 95") {
		t.Errorf("unhealthy are %v", unhealthy(g))
	}
	_ = f.Edit(func(s *fakegpu.State) { s.MIGs, s.GPUs[0].MIG = nil, 0 })
	until(t, n, "2 GPUs again", func(g []structs.DeviceGroup) bool { return count(g) == 2 && len(g) == 1 })
}

func TestUUIDsAfterReboot(t *testing.T) {
	f, dir := fake(t, "4xH100")
	n := watch(t, quick(f, dir))
	until(t, n, "4 GPUs", func(g []structs.DeviceGroup) bool { return count(g) == 4 })
	s, _ := f.Read()
	_ = f.Edit(func(s *fakegpu.State) { // one was replaced, and the others are counted in another order
		s.GPUs[0].UUID, s.GPUs[3].UUID = s.GPUs[3].UUID, "GPU-00000000-0000-0000-0000-0000000000ff"
	})
	g := until(t, n, "the new UUID", func(g []structs.DeviceGroup) bool {
		return count(g) == 4 && slices.ContainsFunc(g[0].Instances, func(i structs.DeviceInstance) bool { return strings.HasSuffix(i.ID, "ff") })
	})
	for _, in := range g[0].Instances {
		if in.ID == s.GPUs[0].UUID || !in.Healthy {
			t.Errorf("instance %+v; the GPU %s was taken out", in, s.GPUs[0].UUID)
		}
		if in.ID == s.GPUs[3].UUID && in.PCIBusID != "00000000:10:00.0" {
			t.Errorf("the GPU that moved is at %s", in.PCIBusID)
		}
	}
}

func TestHealth(t *testing.T) {
	f, dir := fake(t, "8xH100")
	changes := make(chan struct{}, 100)
	cfg := quick(f, dir)
	cfg.OnChange = func() { changes <- struct{}{} }
	cfg.RecoverAfter = 1500 * time.Millisecond
	n := watch(t, cfg)
	until(t, n, "8 GPUs", func(g []structs.DeviceGroup) bool { return count(g) == 8 })
	s, _ := f.Read()
	ids := s.UUIDs()
	only := func(i int, reason string) {
		t.Helper()
		until(t, n, reason, func(g []structs.DeviceGroup) bool {
			u := unhealthy(g)
			return len(u) == 1 && strings.Contains(u[ids[i]], reason) && count(g) == 8
		})
	}
	well := func() {
		t.Helper()
		until(t, n, "all healthy", func(g []structs.DeviceGroup) bool { return len(unhealthy(g)) == 0 && count(g) == 8 })
	}
	began := time.Now()
	_ = f.XID(3, 79)
	only(3, "XID 79 (fell off the bus)")
	t.Logf("XID to verdict: %s", time.Since(began))
	well() // quiet for long enough
	_ = f.XID(2, 31)
	_ = f.XID(4, 119) // comes later than 31, which is a fault of the program
	only(4, "XID 119")
	well()
	_ = f.XID(5, 94)
	until(t, n, "degraded", func(g []structs.DeviceGroup) bool {
		return n.Verdicts()[ids[5]].State == Degraded && g[0].Instances[5].Healthy && strings.Contains(g[0].Instances[5].HealthDesc, "degraded: XID 94")
	})
	_ = f.Lose(6)
	only(6, "lost")
	if v := n.Verdicts()[ids[6]]; v.State != Lost {
		t.Errorf("verdict is %+v", v)
	}
	_ = f.Find(6)
	well()
	_ = f.Edit(func(s *fakegpu.State) { s.GPUs[1].ECCVolatile = 2 })
	only(1, "2 new uncorrected memory errors")
	well()
	_ = f.Edit(func(s *fakegpu.State) { s.GPUs[7].RowsFailed = 1 })
	only(7, "replace the GPU")
	_ = f.Edit(func(s *fakegpu.State) { s.GPUs[7].RowsFailed, s.GPUs[0].Recovery = 0, 2 })
	only(0, "a reboot of the node")
	_ = f.Edit(func(s *fakegpu.State) { s.GPUs[0].Recovery = 0 })
	well()
	if len(changes) < 8 {
		t.Errorf("told of %d changes", len(changes))
	}
}

// TestHangs stops the driver in each call that a look makes: the agent gets answers at once all the same, learns which
// call it is, and everything is well again when the driver is.
func TestHangs(t *testing.T) {
	f, dir := fake(t, "2xH100")
	cfg := quick(f, dir)
	cfg.ReplyWithin = 1300 * time.Millisecond
	n := watch(t, cfg)
	until(t, n, "2 GPUs", func(g []structs.DeviceGroup) bool { return count(g) == 2 })
	calls := []string{"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlInit_v2"}
	if testing.Short() {
		calls = calls[:1]
	}
	for _, call := range calls {
		_ = f.Hang(call)
		if call == "nvmlInit_v2" { // only a new child calls it
			n.mu.Lock()
			pid := n.pid
			n.mu.Unlock()
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		until(t, n, call+" hangs", func(g []structs.DeviceGroup) bool {
			u := unhealthy(g)
			for _, r := range u {
				if !strings.Contains(r, strings.TrimSuffix(call, "_v2")) {
					return false
				}
			}
			return len(u) == 2
		})
		quickest := time.Minute // of some: a busy machine may hold one up
		for range 5 {
			began := time.Now()
			if _, err := n.Devices(context.Background()); err != nil {
				t.Errorf("%s: %v", call, err)
			}
			quickest = min(quickest, time.Since(began))
		}
		if quickest > 500*time.Millisecond {
			t.Errorf("%s: the agent waited at least %s", call, quickest)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		if _, err := n.Refresh(ctx); err == nil {
			t.Errorf("%s: Refresh answered", call)
		}
		cancel()
		_ = f.Heal(call)
		until(t, n, call+" returns", func(g []structs.DeviceGroup) bool { return count(g) == 2 && len(unhealthy(g)) == 0 })
	}
	// Events hang by themselves: nothing else does.
	_ = f.Hang("nvmlEventSetWait_v2")
	if _, err := n.Refresh(t.Context()); err != nil {
		t.Errorf("while waiting for events hangs: %v", err)
	}
}

func TestSlow(t *testing.T) {
	f, dir := fake(t, "2xH100")
	_ = f.Delay("nvmlInit_v2", 400)
	_ = f.Delay("nvmlDeviceGetTemperature", 100)
	g := until(t, watch(t, quick(f, dir)), "2 GPUs", func(g []structs.DeviceGroup) bool { return count(g) == 2 })
	if u := unhealthy(g); len(u) != 0 {
		t.Errorf("a slow driver is not a broken one: %v", u)
	}
}

func TestCrash(t *testing.T) {
	f, dir := fake(t, "2xH100")
	n := watch(t, quick(f, dir))
	until(t, n, "2 GPUs", func(g []structs.DeviceGroup) bool { return count(g) == 2 })
	_ = f.Crash("nvmlDeviceGetPowerUsage")
	until(t, n, "crashed", func(g []structs.DeviceGroup) bool { return len(unhealthy(g)) == 2 && count(g) == 2 })
	n.mu.Lock()
	starts := n.starts
	n.mu.Unlock()
	_ = f.Heal("nvmlDeviceGetPowerUsage")
	until(t, n, "well again", func(g []structs.DeviceGroup) bool { return len(unhealthy(g)) == 0 && count(g) == 2 })
	if starts < 2 {
		t.Errorf("%d children started", starts)
	}
	// Killed from outside, it is replaced before the devices count as unhealthy.
	n.mu.Lock()
	pid := n.pid
	n.mu.Unlock()
	_ = syscall.Kill(pid, syscall.SIGKILL)
	until(t, n, "another child", func([]structs.DeviceGroup) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.pid != pid && n.pid != 0 && n.silent == ""
	})
}

func TestOldDriver(t *testing.T) {
	f, _ := fake(t, "4xA100")
	dir := t.TempDir()
	absent := []string{
		"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetMigMode", "nvmlDeviceGetFieldValues",
		"nvmlDeviceGetRemappedRows", "nvmlEventSetCreate", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetArchitecture",
	}
	needCompiler(t, lib.Build(dir, absent...))
	n := watch(t, quick(f, dir))
	g := until(t, n, "4 GPUs", func(g []structs.DeviceGroup) bool { return count(g) == 4 })
	if u := unhealthy(g); len(u) != 0 || g[0].Attributes["memory"].Int != 81920 || g[0].Attributes["architecture"] != (structs.Attribute{}) {
		t.Errorf("groups are %+v", g)
	}
	for _, s := range absent {
		if s != "nvmlEventSetCreate" && !slices.Contains(n.Snapshot().Absent, s) {
			t.Errorf("%s is not among the absent %v", s, n.Snapshot().Absent)
		}
	}
	s, err := n.Refresh(t.Context())
	if err != nil || len(s) != 4 || s[0].TotalBytes != 81920<<20 {
		t.Errorf("samples %+v, %v", s, err)
	}
}

func TestNoDriver(t *testing.T) {
	var out bytes.Buffer
	var mu sync.Mutex
	cfg := quick(&fakegpu.File{}, t.TempDir())
	cfg.RetryMissing = 20 * time.Millisecond
	cfg.Log = hclog.New(&hclog.LoggerOptions{Output: &out, Mutex: &mu})
	n := New(cfg)
	defer n.Close()
	began := time.Now()
	if g, err := n.Devices(t.Context()); err != nil || len(g) != 0 {
		t.Errorf("devices %v, %v", g, err)
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("took %s", d)
	}
	until(t, n, "looked for again", func([]structs.DeviceGroup) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.starts >= 3
	})
	mu.Lock()
	defer mu.Unlock()
	if strings.Count(out.String(), "no NVIDIA GPUs") != 1 || strings.Contains(out.String(), "WARN") {
		t.Errorf("the log says:\n%s", out.String())
	}
}

func TestNoGPUs(t *testing.T) {
	f, dir := fake(t, "")
	n := watch(t, quick(f, dir))
	if g, err := n.Devices(t.Context()); err != nil || len(g) != 0 {
		t.Errorf("devices %v, %v", g, err)
	}
	s, _ := fakegpu.New("1xT4", "x")
	_ = f.Edit(func(now *fakegpu.State) { now.GPUs = s.GPUs })
	until(t, n, "one was added", func(g []structs.DeviceGroup) bool { return count(g) == 1 })
}

func TestRelease(t *testing.T) {
	f, dir := fake(t, "1xH100")
	n := watch(t, quick(f, dir))
	until(t, n, "1 GPU", func(g []structs.DeviceGroup) bool { return count(g) == 1 })
	if err := n.Release(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	until(t, n, "no child", func([]structs.DeviceGroup) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.pid == 0 && n.children == 0
	})
	if err := n.Release(t.Context(), time.Millisecond); err != nil {
		t.Fatal(err)
	}
	until(t, n, "a child", func([]structs.DeviceGroup) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.pid != 0
	})
}

// TestWhyAChildEnded: the reason of a crash is its first line, which a trace of any length follows.
func TestWhyAChildEnded(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "",
		"GPU is lost\nlibrary not found\n": "library not found",
		"loaded\npanic: send on closed channel\n\ngoroutine 1 [running]:\n\tmain.go:7\n":                     "panic: send on closed channel",
		"fatal error: unexpected signal during runtime execution\n" + strings.Repeat("\tframe.go:1\n", 4000): "fatal error: unexpected signal during runtime execution",
	} {
		out := &tail{}
		for len(text) > 0 { // in pieces, as a runtime writes them
			n := min(len(text), 7)
			_, _ = out.Write([]byte(text[:n]))
			text = text[n:]
		}
		if got := out.why(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestListsThatGrow(t *testing.T) {
	t.Parallel()
	answers := []int{3, 2} // the driver's second answers, for room made by the first
	calls := 0
	list := func() ([]int, nvml.Return) {
		room := calls + 1
		n := answers[calls]
		calls++
		return make([]int, room)[:n], nvml.SUCCESS
	}
	if v, r := stable(list); r != nvml.SUCCESS || len(v) != 2 || calls != 2 {
		t.Errorf("%v, %v after %d calls; want 2 values of the second", v, r, calls)
	}
	calls = 0
	always := func() ([]int, nvml.Return) { calls++; return make([]int, 1)[:calls+1], nvml.SUCCESS }
	if v, r := stable(always); r != nvml.ERROR_INSUFFICIENT_SIZE || v != nil || calls != 3 {
		t.Errorf("%v, %v after %d calls; want to give up after 3", v, r, calls)
	}
}
