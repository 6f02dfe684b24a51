//go:build e2e

package gpu

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// TestPower: the power limits that the driver reports bound how many GPUs of a pool with a budget are in use, `job why`
// shows how many watts are missing, and a higher budget lets the next one start.
func TestPower(t *testing.T) {
	f := harness.StartFleet(t, harness.FleetNode{Name: "one", GPUs: "4xH100", Pool: "rack7"})
	f.Must("node", "pool", "apply", "-power-budget-w", "1600", "rack7")
	f.Must("job", "run", "-detach", f.File("hot.hcl", `
job "hot" {
  type      = "batch"
  node_pool = "rack7"
  group "g" {
    count = 4
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
      resources {
        cpu    = 50
        memory = 16
        gpu    = { count = 1 }
      }
    }
  }
}
`))
	running := func(want int) func() (bool, string) {
		return func() (bool, string) {
			var sum struct {
				Summary map[string]struct{ Running, Starting int }
			}
			err := f.API.Call("GET", "/v1/job/hot/summary", nil, &sum)
			g := sum.Summary["g"]
			return err == nil && g.Running == want && g.Starting == 0, fmt.Sprintf("%+v, %v", g, err)
		}
	}
	harness.Eventually(t, 60*time.Second, "two GPUs of 700 W under 1600 W", running(2))
	harness.Eventually(t, 30*time.Second, "the rest says why it waits", func() (bool, string) {
		out, err := f.Muster("job", "why", "hot")
		return err == nil && strings.Contains(out, "POWER") && strings.Contains(out, "power in node pool rack7") && strings.Contains(out, "500 W"), out
	})
	f.Must("node", "pool", "apply", "-power-budget-w", "2100", "rack7")
	harness.Eventually(t, 30*time.Second, "a third under 2100 W", running(3))
	f.Must("job", "stop", "-yes", "hot")
}
