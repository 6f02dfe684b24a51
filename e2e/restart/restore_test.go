//go:build e2e

package restart

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

// restoredWithin is how long after a restore nodes and work may take to be as they were.
const restoredWithin = 60 * time.Second

// TestRestoreIntoNewCluster: a snapshot is restored into a server that starts with nothing but the keystore. Its nodes have seen more of the
// old history, two restores among it, and lower indexes follow; they obey the new server all the same, and work runs at once.
func TestRestoreIntoNewCluster(t *testing.T) {
	c := harness.NewCluster(t, 1, 1, "")
	muster := func(args ...string) {
		t.Helper()
		cmd := c.Net.Host("s1").Muster(t, args...)
		cmd.Env = append(os.Environ(), "MUSTER_ADDR=http://"+c.Net.Host("s1").IP+":4646")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	runs := func(id string) {
		t.Helper()
		muster("run", "-detach", "-name", id, "--", "true")
		harness.Eventually(t, 30*time.Second, id+" to run and end", func() (bool, string) {
			as, err := c.API.Allocs(id)
			return err == nil && harness.Count(as, "complete") == 1, "it does not run"
		})
	}
	// task starts one that runs on, and returns it.
	task := func(id string) harness.Task {
		t.Helper()
		muster("run", "-detach", "-name", id, "--", "sleep", "1000")
		var of harness.Task
		harness.Eventually(t, 30*time.Second, id+" to run", func() (bool, string) {
			as, err := c.API.Allocs(id)
			if err != nil || harness.Count(as, "running") != 1 {
				return false, "it does not run"
			}
			for _, tk := range harness.Tasks(c.Dir) {
				if tk.AllocID == as[0].ID {
					of = tk
				}
			}
			return of.Pid != 0, "it has no process"
		})
		return of
	}
	saved, data := filepath.Join(c.Dir, "a.snap"), filepath.Join(c.Dir, "data-s1")
	kept := task("kept")
	muster("operator", "snapshot", "save", saved)
	late := task("late")
	for _, id := range []string{"first", "second"} {
		muster("operator", "snapshot", "restore", "-yes", saved)
		runs(id)
	}
	for range 3 { // the new history begins below what the node waits for
		runs("later-" + time.Now().Format("150405.000"))
	}

	c.Procs["s1"].Kill9()
	if err := os.Rename(data, data+"-old"); err != nil {
		t.Fatal(err)
	}
	keys := filepath.Join("server", "keystore")
	if err := os.CopyFS(filepath.Join(data, keys), os.DirFS(filepath.Join(data+"-old", keys))); err != nil {
		t.Fatal(err)
	}
	c.Start("s1")
	harness.Eventually(t, 30*time.Second, "the new server to lead", func() (bool, string) {
		var leader string
		err := c.API.Call("GET", "/v1/status/leader", nil, &leader)
		return err == nil && leader != "", leader
	})
	begin := time.Now()
	muster("operator", "snapshot", "restore", "-yes", saved)
	harness.Eventually(t, restoredWithin, "the node to be ready, and the work that the snapshot knows to run", func() (bool, string) {
		var nodes []struct{ Status string }
		err := c.API.Call("GET", "/v1/nodes", nil, &nodes)
		as, aerr := c.API.Allocs("kept")
		return err == nil && aerr == nil && len(nodes) == 1 && nodes[0].Status == "ready" && harness.Count(as, "running") == 1, fmt.Sprint(nodes, as, err, aerr)
	})
	t.Logf("as it was %s after the restore", time.Since(begin).Round(time.Millisecond))
	harness.Eventually(t, 30*time.Second, "the node to have had an empty list of the new history", func() (bool, string) {
		log := c.Procs["n1"].Log
		return strings.Count(log.String(), "the servers were restored from a backup") == 3, log.Tail(5)
	})
	runs("after")
	tasks := harness.Tasks(c.Dir)
	for what, tk := range map[string]harness.Task{"the snapshot knows": kept, "the snapshot does not know, for five minutes": late} {
		if !slices.Contains(tasks, tk) {
			t.Errorf("work that %s does not run on: %+v is not in %+v", what, tk, tasks)
		}
	}
}
