//go:build e2e

package gpu

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/internal/fakegpu"
)

// TestJobLimits tests the settings of a job for its GPUs: their power limit, and the notices when its share runs full.
func TestJobLimits(t *testing.T) {
	all := newMachine(t, "2xH100")
	all.edit(func(s *fakegpu.State) { s.Context = 0; s.GPUs[0].Limit, s.GPUs[1].Limit = 650_000, 600_000 })
	run := func(name string, f func(t *testing.T, m *machine)) {
		t.Run(name, func(t *testing.T) { f(t, all.at(t)) })
	}
	limits := func(m *machine, want ...int64) {
		m.t.Helper()
		harness.Eventually(m.t, 30*time.Second, fmt.Sprint("limits of ", want, " W"), func() (bool, string) {
			s := m.gpus()
			got := []int64{s.GPUs[0].Limit / 1000, s.GPUs[1].Limit / 1000}
			return fmt.Sprint(got) == fmt.Sprint(want), fmt.Sprint(got)
		})
	}
	running := func(m *machine, job string) {
		m.t.Helper()
		harness.Eventually(m.t, 30*time.Second, job+" runs", func() (bool, string) {
			as, err := m.api.Allocs(job)
			return err == nil && harness.Count(as, "running") == 1, fmt.Sprint(as, err)
		})
	}
	run("a power limit holds while the job has its GPUs", func(t *testing.T, m *machine) {
		m.run("cool", "gpu {\ncount = 2\npower_limit = 400\n}", "exec sleep 600")
		running(m, "cool")
		limits(m, 400, 400)
		m.stop("cool")
		limits(m, 650, 600) // each as it was
	})
	run("a limit that no GPU takes is waited for", func(t *testing.T, m *machine) {
		m.run("cold", "gpu {\npower_limit = 100\n}", "exec sleep 600")
		m.waits("cold", "GPU")
		limits(m, 650, 600)
		m.stop("cold")
	})
	run("a limit that somebody else sets stays", func(t *testing.T, m *machine) {
		m.run("other", "gpu {\ncount = 2\npower_limit = 300\n}", "exec sleep 600")
		running(m, "other")
		limits(m, 300, 300)
		m.edit(func(s *fakegpu.State) { s.GPUs[0].Limit = 500_000 })
		m.stop("other")
		limits(m, 500, 600)
	})
	run("a driver that refuses ends the job with the reason", func(t *testing.T, m *machine) {
		m.edit(func(s *fakegpu.State) { // 4 is that there is no permission
			s.Faults = append(s.Faults, fakegpu.Fault{Kind: "fail", Symbol: "nvmlDeviceSetPowerManagementLimit", Arg: 4})
		})
		m.run("refused", "gpu {\npower_limit = 300\n}", "exec sleep 600")
		harness.Eventually(t, 30*time.Second, "it fails", func() (bool, string) {
			as, err := m.api.Allocs("refused")
			if err != nil || len(as) == 0 {
				return false, fmt.Sprint(err)
			}
			out, _ := m.muster("alloc", "status", as[0].ID)
			return as[0].ClientStatus == "failed" && strings.Contains(out, "no permission"), out
		})
		if err := m.file().Heal("nvmlDeviceSetPowerManagementLimit"); err != nil {
			t.Fatal(err)
		}
		m.stop("refused")
	})

	pressed := func(how string) string {
		return share("10GiB", "pressure {\nat = [50, 80]\n"+how+"\n}")
	}
	run("a signal at 50 percent", func(t *testing.T, m *machine) {
		m.run("told", pressed(`signal = "SIGUSR1"`), "trap 'echo got it' USR1; @/gpu-user hold 6144 & while :; do sleep 0.1; done")
		m.says("told", "got it")
		m.event("told", "GPU Memory Pressure", "6144 of 10240 MiB")
		m.stop("told")
	})
	run("a command in the task at 80 percent, and one that fails", func(t *testing.T, m *machine) {
		m.run("asked", pressed(`command = ["/bin/sh", "-c", "echo told $$ > $NOMAD_TASK_DIR/told; echo sorry >&2; exit 3"]`),
			"@/gpu-user hold 9000 & while [ ! -s $NOMAD_TASK_DIR/told ]; do sleep 0.1; done; cat $NOMAD_TASK_DIR/told; sleep 600")
		m.says("asked", "told ")
		m.event("asked", "GPU Memory Pressure", "exit code 3: sorry")
		m.stop("asked")
	})
	run("a request to an address", func(t *testing.T, m *machine) {
		got := make(chan string, 16)
		s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			got <- string(b)
		}))
		defer s.Close()
		m.run("posted", pressed(fmt.Sprintf("url = %q", s.URL)), holds(5200))
		select {
		case b := <-got:
			if !strings.Contains(b, `"Threshold":50`) || !strings.Contains(b, `"JobID":"posted"`) || !strings.Contains(b, `"UsedMiB":5200`) {
				t.Errorf("it was told %s", b)
			}
		case <-time.After(30 * time.Second):
			t.Error("nothing was told")
		}
		m.stop("posted")
	})
}
