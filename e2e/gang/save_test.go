//go:build e2e

package gang

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// TestSaveByHand: a user's request makes the processes of a running gang on two nodes save their state and continue;
// with a rank only that process does; a job without a checkpoint block is refused with what to add.
func TestSaveByHand(t *testing.T) {
	if os.Geteuid() != 0 {
		harness.NotRun(t, "the supervisor's cgroups need root")
	}
	c := start(t)
	c.run("train", "", `count = 2
    gang = {}
    checkpoint = { signal = "SIGUSR1", grace = "30s", path = "${NOMAD_ALLOC_DIR}/data/s*" }`,
		`n=0; trap 'n=$((n+1)); head -c $((n*100)) /dev/zero > $NOMAD_ALLOC_DIR/data/s$n' USR1; while true; do sleep 0.1; done`, 4)
	c.run("plain", "", "", "sleep 600", 0)
	c.running("train", 2)
	c.running("plain", 1)

	out, err := c.muster("job", "status", "train")
	for _, want := range []string{"State      = running", "Members    = 2 running of 2 asked", "Epoch      = 1 (placed)", "World Size = 8", "0          0-3 ", "1          4-7 "} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("job status: %v, want %q in\n%s", err, want, out)
		}
	}
	out, err = c.muster("job", "checkpoint", "train")
	if err != nil || strings.Count(out, "notified by signal SIGUSR1") != 2 || strings.Count(out, ", 100 B in ${NOMAD_ALLOC_DIR}/data/s1") != 2 {
		t.Fatalf("job checkpoint: %v\n%s", err, out)
	}
	c.saved("train", "written by 2 members\n")
	out, err = c.muster("job", "checkpoint", "-json", "-rank", "5", "train")
	var told struct {
		Allocations []struct {
			NodeRank           int
			NodeName           string
			Told               bool
			Before, Checkpoint *struct {
				Time, Bytes int64
				Path        string
			}
		}
	}
	if e := json.Unmarshal([]byte(out), &told); err != nil || e != nil || len(told.Allocations) != 1 {
		t.Fatalf("job checkpoint -rank: %v, %v\n%s", err, e, out)
	}
	if a := told.Allocations[0]; a.NodeRank != 1 || !a.Told || a.Before == nil || a.Before.Bytes != 100 || a.Checkpoint == nil || a.Checkpoint.Bytes != 200 || a.Checkpoint.Time <= a.Before.Time {
		t.Errorf("rank 5: %s", out)
	}
	c.saved("train", "written by 2 members; 1 of 2 members wrote a newer one\n") // which does not count until both have
	sizes := map[int64]bool{}
	for _, a := range c.running("train", 2) { // it went on, with two of one member and one of the other
		told := 0
		for _, e := range a.TaskStates["main"].Events {
			if e.Type == "Checkpoint" && strings.Contains(e.DisplayMessage, "a user asked for it") {
				told++
			}
		}
		sizes[int64(told)] = true
	}
	if !sizes[1] || !sizes[2] {
		t.Errorf("notices: %v", sizes)
	}
	for want, args := range map[string][]string{
		`has no checkpoint block, which says how to ask its tasks to save their state: add one to the group`: {"plain"},
		"there is no rank 8: the ranks are 0 to 7":                                                           {"-rank", "8", "train"},
	} {
		if out, err := c.muster(append([]string{"job", "checkpoint"}, args...)...); err == nil || !strings.Contains(out, want) {
			t.Errorf("checkpoint %v: %v, want %q in\n%s", args, err, want, out)
		}
	}
	for _, id := range []string{"train", "plain"} {
		if out, err := c.muster("job", "stop", "-purge", "-yes", id); err != nil {
			t.Errorf("stop: %v\n%s", err, out)
		}
	}
}

// saved waits until the status of a job has a gang's checkpoint that ends with a text.
func (c *cluster) saved(job, end string) {
	c.t.Helper()
	harness.Eventually(c.t, 30*time.Second, "the gang's checkpoint: "+end, func() (bool, string) {
		out, err := c.muster("job", "status", job)
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "Checkpoint ") {
				return strings.HasSuffix(line, end), line
			}
		}
		return false, fmt.Sprint(out, err)
	})
}
