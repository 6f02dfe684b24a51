//go:build linux && cgo

package gpu

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/fakegpu"
	"github.com/muster-sched/muster/internal/fakegpu/lib"
	"github.com/muster-sched/muster/internal/telemetry"
	"github.com/muster-sched/muster/structs"
)

// samples returns all metrics of the GPUs of a node.
func samples(n *NVIDIA) (out telemetry.Samples) {
	n.Metrics(&out, "here")
	return out
}

// figure returns what the metrics say of a GPU; the bool is whether they say anything.
func figure(n *NVIDIA, uuid, name string) (float64, bool) {
	for _, x := range samples(n) {
		if x.Name == name && slices.Contains(x.Values, uuid) {
			return x.Value, true
		}
	}
	return 0, false
}

// TestWays reads PCIe and NVLink of GPUs whose drivers report them in different ways: H100s per link, A100s as sums; a
// T4 has no NVLink.
func TestWays(t *testing.T) {
	f, dir := fake(t, "2xH100,2xA100,1xT4")
	if err := f.Edit(func(s *fakegpu.State) {
		for i := range s.GPUs {
			g := &s.GPUs[i]
			g.PCIeTx, g.PCIeRx, g.PCIeReplay, g.NVTx, g.NVRx, g.NVReplay, g.NVRecovery, g.NVCRC, g.NVCRCData = 11, 22, 3, 1<<20, 1<<20, 5, 6, 7, 8
			g.RowsUncorrected, g.RowsCorrected, g.ECCAggregate, g.ECCCorrectedAggregate = 1, 2, 4, 9
		}
	}); err != nil {
		t.Fatal(err)
	}
	n := watch(t, quick(f, dir))
	until(t, n, "5 GPUs", func(g []structs.DeviceGroup) bool { return count(g) == 5 })
	s, _ := f.Read()
	for _, c := range []struct {
		gpu  int
		name string
		want float64 // -1: not reported
	}{
		{0, "DCGM_FI_DEV_PCIE_TX_THROUGHPUT", 11}, {0, "DCGM_FI_DEV_PCIE_RX_THROUGHPUT", 22}, {0, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 3},
		{0, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 5}, {0, "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 6},
		{0, "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 7}, {0, "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 8}, {0, "muster_gpu_nvlinks_up", 18},
		{0, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 1}, {0, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", 2}, {0, "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 4},
		{0, "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", 9}, {0, "DCGM_FI_DEV_PCIE_LINK_GEN", 5}, {0, "DCGM_FI_DEV_PCIE_LINK_WIDTH", 16},
		{2, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 5}, {2, "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 8}, {2, "muster_gpu_nvlinks_up", 12},
		{4, "DCGM_FI_DEV_PCIE_TX_THROUGHPUT", 11}, {4, "muster_gpu_nvlinks_up", -1}, {4, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", -1},
		{4, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", -1}, {4, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", -1},
	} {
		t.Run(fmt.Sprintf("gpu=%v name=%q", c.gpu, c.name), func(t *testing.T) {
			if v, ok := figure(n, s.GPUs[c.gpu].UUID, c.name); ok != (c.want >= 0) || ok && v != c.want {
				t.Errorf("GPU %d: %s is %v, %v; want %v", c.gpu, c.name, v, ok, c.want)
			}
		})
	}
	for _, d := range n.Stats() {
		for _, m := range d.More {
			if d.ID == s.GPUs[0].UUID && m.Name == "NVLink errors" && m.Value != 26 {
				t.Errorf("statistics: %+v", m)
			}
		}
	}
	saw := func(what string, ok func() bool) {
		t.Helper()
		for over := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
			if time.Now().After(over) {
				t.Fatalf("%s: never; %+v", what, n.Verdicts())
			}
		}
	}
	is := func(gpu int, state State, reason string) func() bool {
		return func() bool {
			v := n.Verdicts()[s.GPUs[gpu].UUID]
			return v.State == state && strings.Contains(v.Reason, reason)
		}
	}
	_ = f.Edit(func(s *fakegpu.State) { s.GPUs[1].NVTx += 64 << 20 })
	saw("data goes over NVLink", func() bool { v, _ := figure(n, s.GPUs[1].UUID, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"); return v > 0 })
	_ = f.Edit(func(s *fakegpu.State) { s.GPUs[0].LinksDown = 1<<3 | 1<<17 })
	saw("two links are down", is(0, Degraded, "NVLink 3, 17 is down: 16 of 18 are up"))
	g, _ := n.Devices(t.Context())
	if bad := unhealthy(g); len(bad) > 0 {
		t.Errorf("a link that is down takes GPUs away: %v", bad)
	}
	if v, _ := figure(n, s.GPUs[0].UUID, "muster_gpu_nvlinks_up"); v != 16 {
		t.Errorf("%v links are up", v)
	}
	_ = f.Edit(func(s *fakegpu.State) { s.GPUs[0].LinksDown = 0 })
	saw("the links are up again", is(0, Healthy, ""))
	_ = f.Edit(func(s *fakegpu.State) { s.GPUs[2].NVRecovery += 2 })
	saw("links of the A100 are trained again", is(2, Degraded, "NVLink had to be trained again, 2 times"))
	// What cannot be asked any more is not known any more, and is no fault.
	_ = f.Edit(func(s *fakegpu.State) {
		s.Faults = []fakegpu.Fault{{Kind: "fail", Symbol: "nvmlDeviceGetFieldValues", Arg: 3}, {Kind: "fail", Symbol: "nvmlDeviceGetPcieThroughput", Arg: 3}}
	})
	saw("the functions of old drivers are asked instead", func() bool {
		_, tx := figure(n, s.GPUs[0].UUID, "DCGM_FI_DEV_PCIE_TX_THROUGHPUT")
		_, band := figure(n, s.GPUs[0].UUID, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL")
		v, ok := figure(n, s.GPUs[0].UUID, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL")
		r, known := figure(n, s.GPUs[0].UUID, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER")
		return !tx && !band && ok && v == 5 && known && r == 3
	})
	if v := n.Verdicts()[s.GPUs[0].UUID]; v.State != Healthy {
		t.Errorf("%+v; want v.State = %v", v, Healthy)
	}
	// A hang in one of them is reported with its name.
	_ = f.Edit(func(s *fakegpu.State) {
		s.Faults = []fakegpu.Fault{{Kind: "hang", Symbol: "nvmlDeviceGetPcieThroughput"}}
	})
	saw("the driver hangs", is(3, Quarantined, "nvmlDeviceGetPcieThroughput"))
	_ = f.Heal("nvmlDeviceGetPcieThroughput")
	saw("it is over", is(3, Healthy, ""))
}

// TestWaysOfAnOldDriver has a library without any of the functions.
func TestWaysOfAnOldDriver(t *testing.T) {
	f, _ := fake(t, "2xH100")
	dir := t.TempDir()
	needCompiler(t, lib.Build(dir, wired...))
	n := watch(t, quick(f, dir))
	until(t, n, "2 GPUs", func(g []structs.DeviceGroup) bool { return count(g) == 2 })
	s, _ := f.Read()
	for _, name := range []string{"DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "muster_gpu_nvlinks_up"} {
		if v, ok := figure(n, s.GPUs[0].UUID, name); ok {
			t.Errorf("%s is %v", name, v)
		}
	}
	if v := n.Verdicts()[s.GPUs[0].UUID]; v.State != Healthy {
		t.Errorf("%+v; want v.State = %v", v, Healthy)
	}
	for _, sym := range wired {
		if !slices.Contains(n.Snapshot().Absent, sym) {
			t.Errorf("%s is not told as absent: %v", sym, n.Snapshot().Absent)
		}
	}
}

// TestErrorsOfWays tests the rules with a simulated clock.
func TestErrorsOfWays(t *testing.T) {
	var h health
	now := time.Unix(1_000_000, 0)
	look := func(w Wires) Verdict {
		now = now.Add(10 * time.Second)
		h.wires(&w, now)
		return h.verdict(now, time.Minute, -1)
	}
	up := []int{0, 1}
	if v := look(Wires{Up: up, CRCFlit: 1000, Replays: 50, Recoveries: 9, PCIeReplays: 700}); v.State != Healthy {
		t.Errorf("errors from before the agent's time: %+v", v)
	}
	for _, n := range []int64{1001, 1001, 1002, 1003, 1003} { // two in a row at most
		if v := look(Wires{Up: up, CRCFlit: n, Replays: 50, Recoveries: 9, PCIeReplays: 700}); v.State != Healthy {
			t.Errorf("errors now and then: %+v", v)
		}
	}
	var v Verdict
	for n := range int64(wireLooks) {
		v = look(Wires{Up: up, CRCFlit: 1003, Replays: 51 + n, Recoveries: 9, PCIeReplays: 700})
	}
	if v.State != Degraded || !strings.Contains(v.Reason, "again and again") {
		t.Errorf("errors in each look: %+v", v)
	}
	for range 7 {
		v = look(Wires{Up: up, CRCFlit: 0, PCIeReplays: 700}) // the driver was loaded again
	}
	if v.State != Healthy {
		t.Errorf("a minute later: %+v", v)
	}
	for n := range int64(13) { // 6 each minute
		v = look(Wires{Up: up, PCIeReplays: 700 + n})
	}
	if v.State != Healthy {
		t.Errorf("PCIe sends a packet again now and then: %+v", v)
	}
	for n := range int64(13) {
		v = look(Wires{Up: up, PCIeReplays: 720 + 2*n})
	}
	if v.State != Degraded || !strings.Contains(v.Reason, "PCIe sends packets again") {
		t.Errorf("PCIe sends packets again and again: %+v", v)
	}
	h.wiring.peers = 3
	if v = look(Wires{Up: up, Down: []int{2}, PCIeReplays: 744}); v.Reason != "2 of its NVLinks are up, GPUs like it here have 3" {
		t.Errorf("fewer than others: %+v", v)
	}
	h.current.MIGMode = "Enabled"
	if v = h.verdict(now.Add(time.Hour), time.Minute, -1); v.State != Healthy {
		t.Errorf("in MIG mode there are no NVLinks: %+v", v)
	}
}

// TestThroughputOfLinksThatCome: a link that comes up brings the count of its whole life; that is no throughput.
func TestThroughputOfLinksThatCome(t *testing.T) {
	at := time.Unix(1e9, 0)
	w := joined(&Wires{Up: []int{0}, NVLinkKiB: 1000}, nil, at)
	w = joined(&Wires{Up: []int{0, 1}, NVLinkKiB: 1 << 40}, w, at.Add(10*time.Second))
	if w.NVLinkMBs != 0 {
		t.Errorf("%d MB/s", w.NVLinkMBs)
	}
	if w = joined(&Wires{Up: []int{0, 1}, NVLinkKiB: 1<<40 + 20000}, w, at.Add(20*time.Second)); w.NVLinkMBs != 2 {
		t.Errorf("%d MB/s, want 2", w.NVLinkMBs)
	}
}
