//go:build e2e

package gang

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// TestStandby: a gang of two nodes holds a third one as a standby, on which no task runs. When a member fails, the gang
// starts again on the other node and the standby, though a job of a higher priority waits for a node; that job gets the
// failed member's node.
func TestStandby(t *testing.T) {
	f := harness.StartFleet(t, harness.FleetNode{Name: "one", GPUs: "2xH100"}, harness.FleetNode{Name: "two", GPUs: "2xH100"}, harness.FleetNode{Name: "three", GPUs: "2xH100"})
	dir := t.TempDir()
	gang := harness.Work{ID: "gang", Settings: "priority = 20", GPUs: "count = 2",
		Group:  "count = 2\n    gang = { standby = 1 }\n    reschedule {\n      attempts       = 0\n      delay          = \"1h\"\n      delay_function = \"constant\"\n      unlimited      = true\n    }",
		Script: tells(dir, fmt.Sprintf(`if [ $NOMAD_ALLOC_INDEX = 1 ] && [ ! -f %s/failed ]; then while [ ! -f %s/fail ]; do sleep 0.1; done; touch %s/failed; exit 1; fi; while [ ! -f %s/end ]; do sleep 0.1; done`, dir, dir, dir, dir))}
	f.Run(gang)
	as := f.Running(gang, 2)
	if len(as) != 3 {
		t.Fatalf("the gang has %d allocations, want two members and a standby", len(as))
	}
	standby := harness.Alloc{}
	for _, a := range as {
		if a.ClientStatus == "pending" {
			standby = a
		}
	}
	if text := f.Must("job", "status", "gang"); !strings.Contains(text, "1 of 1 held on "+standby.NodeName) {
		t.Errorf("job status does not tell of the standby on %s:\n%s", standby.NodeName, text)
	}
	urgent := harness.Work{ID: "urgent", Settings: "priority = 90", GPUs: "count = 2"}
	f.Run(urgent)
	harness.Eventually(t, 30*time.Second, "urgent waits", func() (bool, string) {
		text, _ := f.Muster("job", "why", "urgent")
		return strings.Contains(text, "RESOURCES"), text
	})
	write(t, dir, "fail")
	harness.Eventually(t, 60*time.Second, "both members start with the next epoch", func() (bool, string) {
		text, n := "", 0
		for i := range 2 {
			got := starts(f, dir, i)
			text += strings.Join(got, "\n") + "\n"
			if len(got) == 2 && strings.HasSuffix(got[1], "of 2") {
				n++
			}
		}
		return n == 2, text
	})
	nodes := map[string]bool{}
	for _, a := range live(f, gang, 2) {
		nodes[a.NodeName] = true
	}
	if !nodes[standby.NodeName] {
		t.Errorf("the gang runs on %v, its standby was %s", nodes, standby.NodeName)
	}
	f.Running(urgent, 1)
	harness.Eventually(t, 30*time.Second, "the gang says that it is short of a standby", func() (bool, string) {
		text, _ := f.Muster("job", "status", "gang")
		why, _ := f.Muster("job", "why", "gang")
		return strings.Contains(text, "0 of 1 held") && strings.Contains(why, "short of 1 standby"), text + why
	})
	f.Stop(urgent) // its node is the next standby
	harness.Eventually(t, 30*time.Second, "the gang has a standby again", func() (bool, string) {
		text, _ := f.Muster("job", "status", "gang")
		return strings.Contains(text, "1 of 1 held"), text
	})
	write(t, dir, "end")
	harness.Eventually(t, 60*time.Second, "the job ends well, its standby with it", func() (bool, string) {
		text, _ := f.Muster("job", "status", "-json", "gang")
		acct, _ := f.Muster("acct")
		return strings.Contains(text, `"Status": "dead"`) && strings.Contains(acct, "success"), text + acct
	})
}

// write makes an empty file that scripts of tasks look for.
func write(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}
