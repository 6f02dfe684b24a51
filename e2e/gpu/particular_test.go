//go:build e2e

package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// TestParticularGPUs runs the example of docs/gpu.md that checks one GPU, for the last of four, and a share of the one
// before it. A job that wants the last one meanwhile waits: `job why` names the job that has it.
func TestParticularGPUs(t *testing.T) {
	m := newMachine(t, "4xH100").at(t)
	var ids []string
	for id := range m.devices() {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	last, other := ids[3], ids[2]
	page, err := os.ReadFile("../../docs/gpu.md")
	if err != nil {
		t.Fatal(err)
	}
	_, job, ok := strings.Cut(string(page), "```hcl\njob \"check\"")
	job, _, _ = strings.Cut(job, "```")
	for old, now := range map[string]string{"GPU-5b1a2c3d-0000-4000-8000-000000000001": last, `"nvidia-smi"`: `"/bin/sleep"`, `["-L"]`: `["600"]`} {
		ok = ok && strings.Contains(job, old)
		job = strings.ReplaceAll(job, old, now)
	}
	if !ok {
		t.Fatalf("the example of docs/gpu.md is not the one that this test knows:\n%s", job)
	}
	path := filepath.Join(m.dir, "check.hcl")
	if err := os.WriteFile(path, []byte(`job "check"`+job), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := m.muster("job", "run", "-detach", path); err != nil {
		t.Fatalf("job run: %v\n%s", err, out)
	}
	t.Cleanup(func() { m.stop("check") })
	if got := m.idOf("check"); got != last {
		t.Errorf("check asked for %s and has %s", last, got)
	}
	only := func(id string) string {
		return fmt.Sprintf("constraint {\nattribute = \"${device.ids}\"\noperator = \"set_contains\"\nvalue = %q\n}", id)
	}
	m.run("part", share("1GiB", only(other)), holds(100))
	if got := m.idOf("part"); got != other {
		t.Errorf("part asked for %s and has %s", other, got)
	}
	m.run("next", "gpu {\n"+only(last)+"\n}", "sleep 600")
	m.waits("next", "job check has "+last)
	m.run("none", "gpu {\n"+only("GPU-0")+"\n}", "sleep 600")
	m.waits("none", "excluded by constraint ${device.ids} set_contains GPU-0")
	m.stop("next", "none", "part")
}

// idOf waits until a job runs, and returns the GPU that it has.
func (m *machine) idOf(job string) (id string) {
	m.t.Helper()
	harness.Eventually(m.t, 30*time.Second, job+" runs", func() (bool, string) {
		as, err := m.api.Allocs(job)
		if err != nil || len(as) != 1 || as[0].ClientStatus != "running" {
			return false, fmt.Sprintf("%+v %v", as, err)
		}
		var full struct {
			AllocatedResources struct {
				Tasks map[string]struct {
					Devices []struct{ DeviceIDs []string }
				}
			}
		}
		err = m.api.Call("GET", "/v1/allocation/"+as[0].ID, nil, &full)
		for _, x := range full.AllocatedResources.Tasks {
			if len(x.Devices) == 1 && len(x.Devices[0].DeviceIDs) == 1 {
				id = x.Devices[0].DeviceIDs[0]
			}
		}
		return err == nil && id != "", fmt.Sprintf("%+v %v", full, err)
	})
	return id
}
