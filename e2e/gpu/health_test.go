//go:build e2e

package gpu

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/internal/fakegpu"
)

// get reads a page of the agent.
func (m *machine) get(path string) (string, error) {
	resp, err := http.Get(m.addr + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// TestFingerprint checks the GPUs that are reported to the servers.
func TestFingerprint(t *testing.T) {
	m := newMachine(t, "8xH100")
	s := m.gpus()
	all := m.devices()
	if len(all) != 8 {
		t.Fatalf("%d GPUs", len(all))
	}
	d := all[s.GPUs[0].UUID]
	for attribute, want := range map[string]string{
		"memory": "81559 MiB", "enforce": "shim,watch", "driver_version": s.Driver, "cuda_compute": "9.0", "architecture": "hopper",
		"nvlinks": "18", "muster.island_size": "8", "mig_mode": "Disabled", "ecc_mode": "Enabled", "pcie_generation": "5", "pcie_width": "16", "power": "700 W",
		"compute_mode": "default",
	} {
		t.Run(attribute, func(t *testing.T) {
			if got := d.Attributes[attribute]; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
	t.Run("node attribute gpu.enforce", func(t *testing.T) {
		if got := d.Node["gpu.enforce"]; got != "shim,watch" {
			t.Errorf("%q", got)
		}
	})
	t.Run("a constraint on an attribute", func(t *testing.T) {
		m := m.at(t)
		block := func(value string) string {
			return "gpu {\nconstraint {\nattribute = \"${device.attr.cuda_compute}\"\noperator = \">=\"\nvalue = \"" + value + "\"\n}\n}"
		}
		m.run("newer", block("9.5"), "exec sleep 600")
		m.run("enough", block("8.0"), "exec sleep 600")
		m.waits("newer", "GPU")
		harness.Eventually(t, 20*time.Second, "the other runs", func() (bool, string) {
			as, err := m.api.Allocs("enough")
			return err == nil && harness.Count(as, "running") == 1, fmt.Sprint(as, err)
		})
	})
	t.Run("other UUIDs after a reboot", func(t *testing.T) {
		m := m.at(t)
		// The board of index 0 is replaced, and two others swap their places.
		m.edit(func(s *fakegpu.State) {
			s.GPUs[0].UUID = "GPU-00000000-1111-2222-3333-444444444444"
			s.GPUs[1].UUID, s.GPUs[2].UUID = s.GPUs[2].UUID, s.GPUs[1].UUID
		})
		m.until("the new one is there, the old one is gone", func(all map[string]device) bool {
			_, old := all[s.GPUs[0].UUID]
			_, is := all["GPU-00000000-1111-2222-3333-444444444444"]
			return len(all) == 8 && is && !old
		})
	})
	t.Run("MIG instances come and go", func(t *testing.T) {
		m := m.at(t)
		m.edit(func(s *fakegpu.State) { s.Split(7, 3) })
		uuids := []string{}
		for _, x := range m.gpus().MIGs {
			uuids = append(uuids, x.UUID)
		}
		m.until("three instances instead of the GPU", func(all map[string]device) bool {
			_, whole := all[s.GPUs[7].UUID]
			n := 0
			for _, u := range uuids {
				if strings.Contains(all[u].Group, "MIG 1g.10gb") {
					n++
				}
			}
			return n == 3 && !whole
		})
		m.run("slice", "gpu {\nmig = \"1g.10gb\"\n}", "echo $CUDA_VISIBLE_DEVICES; sleep 600")
		m.says("slice", "MIG-")
		if _, backend, _ := m.gpuOf("slice", "running"); backend != "mig" {
			t.Errorf("the instance is enforced by %q, want mig", backend)
		}
		m.run("slices", "gpu {\nmig = \"1g.10gb\"\ncount = 3\n}", "sleep 600")
		m.waits("slices", "GPU")
		m.stop("slice", "slices")
		// A task on the instance that goes is ended, not left on a GPU that others are given.
		m.run("loses", "gpu {\nmig = \"1g.10gb\"\ncount = 3\n}", "exec sleep 600")
		harness.Eventually(t, 20*time.Second, "loses runs", func() (bool, string) {
			as, err := m.api.Allocs("loses")
			return err == nil && harness.Count(as, "running") == 1, fmt.Sprint(as, err)
		})
		// An operator removed instances without the agent, and MIG mode with them.
		m.edit(func(s *fakegpu.State) { s.MIGs, s.GPUs[7].MIG, s.GPUs[7].MIGPending = s.MIGs[:1], 1, 1 })
		m.until("one instance is left", func(all map[string]device) bool {
			_, first := all[uuids[0]]
			_, last := all[uuids[2]]
			return first && !last
		})
		m.event("loses", "GPU Error", "the MIG instance is no longer on this node")
		m.stop("loses")
		m.edit(func(s *fakegpu.State) { s.MIGs, s.GPUs[7].MIG, s.GPUs[7].MIGPending = nil, 0, 0 })
		m.until("the GPU is whole again", func(all map[string]device) bool {
			_, whole := all[s.GPUs[7].UUID]
			return len(all) == 8 && whole
		})
	})
}

// TestHealth breaks GPUs, the driver and the process that asks it, under running tasks.
func TestHealth(t *testing.T) {
	all := newMachine(t, "8xH100")
	uuids := all.gpus().UUIDs()
	m := all
	m.run("lives", "gpu {\ncount = 8\n}", "exec sleep 600")
	harness.Eventually(t, 20*time.Second, "it runs", func() (bool, string) {
		as, err := m.api.Allocs("lives")
		return err == nil && harness.Count(as, "running") == 1, fmt.Sprint(as, err)
	})
	run := func(name string, f func(t *testing.T, m *machine)) {
		t.Run(name, func(t *testing.T) { f(t, all.at(t)) })
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ill := func(all map[string]device) (out []string) {
		for id, d := range all {
			if !d.Healthy {
				out = append(out, id)
			}
		}
		return out
	}
	m.edit(func(s *fakegpu.State) { s.GPUs[1].LinksDown = 1 << 4 }) // is seen at the next look at links, which is looked for below
	for _, xid := range []int{13, 31, 43, 45, 68, 109} {
		run(fmt.Sprintf("XID %d is a program's fault", xid), func(t *testing.T, m *machine) {
			must(t, m.file().XID(1, xid))
			m.event("lives", "GPU Fault", fmt.Sprintf("XID %d ", xid))
			if bad := ill(m.devices()); len(bad) > 0 {
				t.Errorf("%v are unhealthy", bad)
			}
			if out, err := m.muster("node", "status", "-self"); err != nil || strings.Contains(out, "GPU fault") {
				t.Errorf("the node is blamed: %v\n%s", err, out)
			}
		})
	}
	run("XID 94 degrades", func(t *testing.T, m *machine) {
		must(t, m.file().XID(2, 94))
		m.until("the GPU says so, and takes work", func(all map[string]device) bool {
			return all[uuids[2]].Healthy && strings.Contains(all[uuids[2]].HealthDesc, "degraded: XID 94")
		})
		m.event("lives", "GPU Health", "XID 94")
	})
	for gpu, xid := range map[int]int{3: 79, 4: 48} {
		run(fmt.Sprintf("XID %d quarantines one GPU", xid), func(t *testing.T, m *machine) {
			must(t, m.file().XID(gpu, xid))
			m.until("the GPU is unhealthy", func(all map[string]device) bool {
				return !all[uuids[gpu]].Healthy && strings.Contains(all[uuids[gpu]].HealthDesc, fmt.Sprintf("XID %d", xid))
			})
			m.event("lives", "GPU Error", fmt.Sprintf("XID %d", xid))
			if d := m.devices()[uuids[0]]; !d.Healthy {
				t.Errorf("another GPU is unhealthy: %s", d.HealthDesc)
			}
		})
	}
	run("GPUs that fail together are one fault of the node", func(t *testing.T, m *machine) {
		harness.Eventually(t, 10*time.Second, "the node has a fault", func() (bool, string) {
			out, err := m.muster("node", "status", "-self")
			return err == nil && strings.Contains(out, "not lost, 1 GPU fault; one loss is expected every 15d"), out
		})
	})
	run("a lost GPU", func(t *testing.T, m *machine) {
		must(t, m.file().Lose(5))
		m.until("it is lost", func(all map[string]device) bool {
			return !all[uuids[5]].Healthy && strings.Contains(all[uuids[5]].HealthDesc, "lost")
		})
		m.event("lives", "GPU Health", "lost")
		must(t, m.file().Find(5))
		m.until("it is back", func(all map[string]device) bool { return all[uuids[5]].Healthy })
		m.event("lives", "GPU Health", "healthy again")
	})
	run("the driver asks for a reset", func(t *testing.T, m *machine) {
		m.edit(func(s *fakegpu.State) { s.GPUs[6].Recovery = 1 })
		m.until("it is quarantined", func(all map[string]device) bool {
			return !all[uuids[6]].Healthy && strings.Contains(all[uuids[6]].HealthDesc, "a GPU reset")
		})
		m.edit(func(s *fakegpu.State) { s.GPUs[6].Recovery = 0 })
		time.Sleep(6 * time.Second)
		if d := m.devices()[uuids[6]]; d.Healthy {
			t.Error("it came back at once: it must be quiet for a while first")
		}
	})
	run("a row waits to be remapped", func(t *testing.T, m *machine) {
		m.edit(func(s *fakegpu.State) { s.GPUs[7].RowsPending = 1 })
		m.until("it is degraded", func(all map[string]device) bool {
			return all[uuids[7]].Healthy && strings.Contains(all[uuids[7]].HealthDesc, "remapped")
		})
		m.edit(func(s *fakegpu.State) { s.GPUs[7].RowsPending = 0 })
		m.until("it is well again", func(all map[string]device) bool { return all[uuids[7]].HealthDesc == "" })
	})
	run("uncorrected memory errors", func(t *testing.T, m *machine) {
		m.edit(func(s *fakegpu.State) { s.GPUs[7].ECCVolatile += 2 })
		m.until("it is quarantined", func(all map[string]device) bool {
			return !all[uuids[7]].Healthy && strings.Contains(all[uuids[7]].HealthDesc, "2 new uncorrected memory errors")
		})
	})
	run("an NVLink is down", func(t *testing.T, m *machine) {
		m.until("its GPU says so, and takes work", func(all map[string]device) bool {
			return all[uuids[1]].Healthy && strings.Contains(all[uuids[1]].HealthDesc, "degraded: NVLink 4 is down: 17 of 18 are up")
		})
		m.event("lives", "GPU Health", "NVLink 4 is down")
		if out, err := m.muster("node", "status", "-self", "-stats", "-verbose"); err != nil || !strings.Contains(out, "degraded: NVLink 4 is down") || !strings.Contains(out, "NVLinks up") {
			t.Error(err, out)
		}
		page, err := m.get("/v1/metrics?format=prometheus")
		if err != nil || !strings.Contains(page, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER{") || !strings.Contains(page, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{") {
			t.Errorf("the metrics: %v", err)
		}
	})
	run("new work avoids the bad ones", func(t *testing.T, m *machine) {
		m.stop("lives")
		all.run("four", "gpu {\ncount = 4\n}", "exec sleep 600")
		harness.Eventually(t, 20*time.Second, "it runs", func() (bool, string) {
			as, err := m.api.Allocs("four")
			return err == nil && harness.Count(as, "running") == 1, fmt.Sprint(as, err)
		})
		m.run("fifth", "gpu {\ncount = 1\n}", "exec sleep 600")
		m.waits("fifth", "GPU") // 3, 4, 6 and 7 are quarantined
	})
	run("the driver is let go", func(t *testing.T, m *machine) {
		out, err := m.muster("gpu", "release", "-for", "6s", "-self")
		if err != nil || !strings.Contains(out, "for 6s") {
			t.Fatal(err, out)
		}
		harness.Eventually(t, 3*time.Second, "nothing asks the driver", func() (bool, string) {
			pids, _ := exec.Command("pgrep", "-P", fmt.Sprint(m.agent.Pid()), "-f", "gpu-probe").Output()
			return len(pids) == 0, string(pids)
		})
		if out, err := m.muster("gpu", "release", "-for", "-1s", "-self"); err == nil {
			t.Error("a negative time was taken", out)
		}
		harness.Eventually(t, 20*time.Second, "it is asked again", func() (bool, string) {
			pids, _ := exec.Command("pgrep", "-P", fmt.Sprint(m.agent.Pid()), "-f", "gpu-probe").Output()
			return len(pids) > 0, ""
		})
	})
	run("top tells the use", func(t *testing.T, m *machine) {
		out, err := m.muster("top", "-once")
		if err != nil || !strings.Contains(out, "four") || !strings.Contains(out, "GPU MEMORY") {
			t.Error(err, out)
		}
	})
	run("a crash of the driver's library", func(t *testing.T, m *machine) {
		m.relook()
		all.deaths = m.deaths
		m.until("the GPUs are there", func(all map[string]device) bool { return len(all) == 8 && all[uuids[0]].Healthy })
	})
	run("a hang in the driver", func(t *testing.T, m *machine) {
		must(t, m.file().Hang("nvmlDeviceGetUtilizationRates"))
		begin := time.Now()
		if _, err := m.get("/v1/agent/health"); err != nil || time.Since(begin) > 15*time.Second {
			t.Errorf("the agent answers after %s: %v", time.Since(begin), err)
		}
		m.within(60*time.Second, "the GPUs are unhealthy", func(all map[string]device) bool {
			return !all[uuids[0]].Healthy && strings.Contains(all[uuids[0]].HealthDesc, "nvmlDeviceGetUtilizationRates")
		})
		if as, err := m.api.Allocs("four"); err != nil || harness.Count(as, "running") != 1 {
			t.Errorf("the task does not run any more: %v %v", as, err)
		}
		must(t, m.file().Heal("nvmlDeviceGetUtilizationRates"))
		m.within(60*time.Second, "the GPUs are well again", func(all map[string]device) bool { return all[uuids[0]].Healthy })
	})
}

// TestOldDriver has a driver that lacks what is optional: everything else is found, and shares hold.
func TestOldDriver(t *testing.T) {
	m := newMachine(t, "1xT4", "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetNumaNodeId",
		"nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetFieldValues", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons", "cuMemPoolGetAttribute")
	all := m.devices()
	if len(all) != 1 {
		t.Fatalf("%d GPUs", len(all))
	}
	for _, d := range all {
		if d.Attributes["muster.dmem"] != "false" || d.Attributes["enforce"] != "shim,watch" || d.Attributes["cuda_compute"] != "7.5" {
			t.Errorf("attributes %v", d.Attributes)
		}
	}
	m.edit(func(s *fakegpu.State) { s.Context = 0 })
	m.run("old", share("2GiB"), "(echo init; echo ctx 0; echo async $((2<<30)); echo async 1; sleep 600) | @/gpu-user proc")
	m.says("old", "0\n2\n")
}
