//go:build e2e

package gpu

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/internal/fakegpu"
)

// used is what the books say of GPUs.
type used struct {
	Task, GPU               string
	PeakMiB, MiBSeconds     int64
	SMSeconds, EnergyJoules float64
	Refused                 int64
	SMActivity              *float64
}

// TestAccounting is about what is left of GPU use when tasks have ended.
func TestAccounting(t *testing.T) {
	m := newMachineWith(t, "2xH100", "client {\n  gpu_idle = \"5s\"\n}\n")
	m.edit(func(s *fakegpu.State) {
		s.Context = 0
		for i := range s.GPUs {
			s.GPUs[i].Util, s.GPUs[i].Active = 50, 300
		}
	})
	m.run("metered", share("20GiB"), command("@/gpu-user hold 10240 & sleep 8; kill $!"))
	g, _, a := m.gpuOf("metered", "running")
	time.Sleep(3 * time.Second)
	m.edit(func(s *fakegpu.State) {
		for i := range s.GPUs {
			s.GPUs[i].Energy += 5_000_000
		}
	})
	// Next to it a whole GPU, in use for less than the sampling period of whole GPUs.
	m.run("whole", "gpu {\n count = 1\n}", "@/gpu-user hold 30720 & sleep 3; kill $!")
	// And a share whose task ends before the first sample.
	m.run("short", share("5GiB"), "(echo init; echo ctx 0; echo alloc $((3<<30)); echo alloc $((9<<30))) | @/gpu-user proc")

	alloc := func(id string) []used {
		var full struct{ GPUUse []used }
		if err := m.api.Call("GET", "/v1/allocation/"+id, nil, &full); err != nil {
			t.Fatal(err)
		}
		return full.GPUUse
	}
	m.gpuOf("metered", "complete")
	got := alloc(a.ID)
	if len(got) != 1 {
		t.Fatalf("the allocation's use is %+v", got)
	}
	u := got[0]
	t.Logf("10 GiB for 8 s at half of the multiprocessors: %+v", u)
	if u.Task != "t" || u.GPU != g || u.PeakMiB != 10240 || u.MiBSeconds < 10240*6 || u.MiBSeconds > 10240*10 || u.SMSeconds < 2.5 || u.SMSeconds > 5 || u.EnergyJoules != 5000 || u.Refused != 0 {
		t.Errorf("10 GiB for 8 s on GPU %s are booked as %+v", g, u)
	}
	var records []struct {
		JobID  string
		GPUUse *used
	}
	find := func(job string) (out *used, ok bool) {
		for _, r := range records {
			if r.JobID == job {
				return r.GPUUse, true
			}
		}
		return nil, false
	}
	var text string
	harness.Eventually(t, 30*time.Second, "three jobs in the books", func() (bool, string) {
		var err error
		if text, err = m.muster("acct", "-json"); err != nil {
			return false, text
		}
		records = nil
		if err := json.Unmarshal([]byte(text), &records); err != nil {
			return false, err.Error()
		}
		return len(records) == 3, text
	})
	sum := u
	sum.Task, sum.GPU = "", ""
	if r, _ := find("metered"); r == nil || *r != sum {
		t.Errorf("the job is booked as %+v, its allocation as %+v", r, u)
	}
	if r, _ := find("whole"); r == nil || r.PeakMiB != 30720 || r.MiBSeconds < 30720 || r.MiBSeconds > 30720*5 {
		t.Errorf("30 GiB of a whole GPU for 3 s are booked as %+v", r)
	}
	if r, _ := find("whole"); r != nil && (r.SMActivity == nil || *r.SMActivity < 29 || *r.SMActivity > 31) {
		t.Errorf("the activity of a whole GPU, 30 %%, is booked as %+v", r.SMActivity)
	}
	if r, _ := find("short"); r == nil || r.PeakMiB != 3072 || r.Refused != 1 {
		t.Errorf("a moment's 3 GiB, with a refusal, are booked as %+v", r)
	}
	if out, err := m.muster("acct"); err != nil || !strings.Contains(out, "GIB-HOURS") || !strings.Contains(out, "10 GiB") || !strings.Contains(out, "SM ACTIVE") || !strings.Contains(out, " %") {
		t.Errorf("acct: %v\n%s", err, out)
	}
	if out, err := m.muster("acct", "-by", "queue"); err != nil || !strings.Contains(out, "30 GiB") {
		t.Errorf("acct -by queue: %v\n%s", err, out)
	}
	if out, err := m.muster("alloc", "status", a.ID); err != nil || !strings.Contains(out, "GPU Use") || !strings.Contains(out, "5000.0 J") {
		t.Errorf("alloc status of what has ended: %v\n%s", err, out)
	}
	// A GPU on which its task computes nothing is reported and shown.
	m.edit(func(s *fakegpu.State) { s.GPUs[0].Active, s.GPUs[1].Active = 0, 0 })
	m.run("idle", "gpu {\n count = 1\n}", "exec sleep 600")
	m.event("idle", "GPU Idle", "nothing has been computed for 5s")
	as, err := m.api.Allocs("idle")
	if err != nil || len(as) != 1 {
		t.Fatal(as, err)
	}
	if out, err := m.muster("alloc", "status", as[0].ID); err != nil || !strings.Contains(out, "SM Active") || !strings.Contains(out, "0 %") {
		t.Errorf("alloc status of an idle job: %v\n%s", err, out)
	}
	// The records can be replayed.
	trace := filepath.Join(m.dir, "acct.json")
	if err := os.WriteFile(trace, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := m.muster("sim", "-format", "acct", "-trace", trace, "-nodes", "1x2", "-json"); err != nil || !strings.Contains(out, "makespan") {
		t.Errorf("replay: %v\n%s", err, fmt.Sprint(out))
	}
}
