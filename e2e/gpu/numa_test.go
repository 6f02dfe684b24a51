//go:build e2e

package gpu

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// TestNUMA: on a machine shown as two NUMA nodes with one GPU each, tasks that require it run on cores near their GPU;
// one that would need both GPUs near its core gets a reason why it waits, and starts when it only prefers it.
func TestNUMA(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("does not apply here: one core is no two NUMA nodes")
	}
	f := harness.StartFleet(t, harness.FleetNode{Name: "one", GPUs: "2xH100"})
	run := func(id string, gpus int, affinity string) harness.Work {
		t.Helper()
		f.Must("job", "run", "-detach", f.File(id+".hcl", fmt.Sprintf(`
job %q {
  type = "batch"
  group "g" {
    task "main" {
      driver = "exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo cores $NOMAD_CPU_CORES, allowed $(grep Cpus_allowed_list /proc/self/status), gpu $CUDA_VISIBLE_DEVICES; sleep 1000"]
      }
      resources {
        cores  = 1
        memory = 16
        gpu    = { count = %d }
        numa {
          affinity = %q
          devices  = ["gpu"]
        }
      }
    }
  }
}
`, id, gpus, affinity)))
		return harness.Work{ID: id}
	}
	wide := run("wide", 2, "require")
	harness.Eventually(t, 30*time.Second, "wide waits", func() (bool, string) {
		out, err := f.Muster("job", "why", "wide")
		return err == nil && strings.Contains(out, "TOPOLOGY") && strings.Contains(out, "nvidia/gpu and 1 cores in one NUMA node"), out
	})
	f.Stop(wide)
	var nodes []struct{ ID string }
	if err := f.API.Call("GET", "/v1/nodes", nil, &nodes); err != nil || len(nodes) != 1 {
		t.Fatal(nodes, err)
	}
	var node struct {
		Attributes    map[string]string
		NodeResources struct {
			Devices []struct {
				Instances []struct {
					ID       string
					NUMANode *int64
				}
			}
		}
	}
	if err := f.API.Call("GET", "/v1/node/"+nodes[0].ID, nil, &node); err != nil {
		t.Fatal(err)
	}
	left, right := run("left", 1, "require"), run("right", 1, "require")
	seen := map[string]bool{}
	for _, w := range []harness.Work{left, right} {
		f.Running(w, 1)
		harness.Eventually(t, 30*time.Second, w.ID+" tells where it runs", func() (bool, string) {
			out, err := f.Muster("alloc", "logs", "-job", w.ID, "main")
			_, rest, ok := strings.Cut(strings.TrimSpace(out), "cores ")
			words := strings.FieldsFunc(rest, func(r rune) bool { return strings.ContainsRune(" \t", r) })
			if err != nil || !ok || len(words) != 6 { // CORES, allowed Cpus_allowed_list: CORES, gpu UUID
				return false, fmt.Sprint(out, err)
			}
			cores, allowed, gpu := strings.TrimSuffix(words[0], ","), strings.TrimSuffix(words[3], ","), words[5]
			at := int64(-1)
			for _, g := range node.NodeResources.Devices {
				for _, in := range g.Instances {
					if in.ID == gpu && in.NUMANode != nil {
						at = *in.NUMANode
					}
				}
			}
			if allowed != cores || !strings.Contains(set(node.Attributes[fmt.Sprintf("numa.node%d.cores", at)]), set(cores)) {
				t.Errorf("%s has cores %q, may run on %q, and its GPU is on NUMA node %d of %v", w.ID, cores, allowed, at, node.Attributes)
			}
			seen[gpu] = true
			return true, ""
		})
	}
	if len(seen) != 2 {
		t.Errorf("GPUs given: %v", seen)
	}
	f.Stop(left, right)
	wide = run("wide", 2, "prefer")
	f.Running(wide, 1)
	f.Stop(wide)
}

// set writes a list such as "0-2,5" out: " 0  1  2  5 ".
func set(list string) string {
	out := ""
	for part := range strings.SplitSeq(list, ",") {
		lo, hi := 0, 0
		if n, _ := fmt.Sscanf(part, "%d-%d", &lo, &hi); n == 1 {
			hi = lo
		}
		for ; lo <= hi; lo++ {
			out += fmt.Sprintf(" %d ", lo)
		}
	}
	return out
}
