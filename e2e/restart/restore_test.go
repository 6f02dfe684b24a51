//go:build e2e

package restart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

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
	saved, data := filepath.Join(c.Dir, "a.snap"), filepath.Join(c.Dir, "data-s1")
	muster("operator", "snapshot", "save", saved)
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
	muster("operator", "snapshot", "restore", "-yes", saved)
	harness.Eventually(t, 30*time.Second, "the node to have had an empty list of the new history", func() (bool, string) {
		log := c.Procs["n1"].Log
		return strings.Count(log.String(), "the servers were restored from a backup") == 3, log.Tail(5)
	})
	runs("after")
}
