//go:build e2e

package cluster

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// Sizes of the test of big lists: together the answers are twice what a session may hold unread.
const (
	listedJobs = 2500 // each with 1,000 bytes of meta, so that a list has 3 MB
	plainLists = 45
	waitLists  = 30 // blocking
)

// TestClusterBigLists asks a follower for many big lists at once, plain and blocking. All are answered, although their
// answers together exceed what one session buffers, and writes through the same follower succeed meanwhile. If the lists
// take so much processor time that leadership is lost, a write may also end with an unknown outcome.
func TestClusterBigLists(t *testing.T) {
	c := newCluster(t, "wal")
	meta := strings.Repeat("x", 1000)
	var wg sync.WaitGroup
	for w := range 10 {
		wg.Go(func() {
			for i := w; i < listedJobs; i += 10 {
				j := parked(fmt.Sprintf("j%d", i))
				j["Job"].(map[string]any)["Meta"] = map[string]string{"m": meta}
				c.eventually(60*time.Second, "registering jobs", func() (bool, string) {
					err := c.api.Call("PUT", "/v1/jobs", j, nil)
					return err == nil, fmt.Sprint(err)
				})
			}
		})
	}
	wg.Wait()
	lead := c.leader()
	follower := c.servers[0]
	if follower == lead {
		follower = c.servers[1]
	}
	addr := "https://" + c.net.Host(follower).IP + ":4646"
	patient := c.api.Within(2 * time.Minute)
	list := func(query string, index *string) error {
		a, err := patient.Send(addr, "GET", "/v1/jobs?meta=true"+query, nil)
		switch {
		case err != nil:
			return err
		case a.Status != 200 || len(a.Body) < listedJobs*1000:
			return fmt.Errorf("status %d, %d bytes: %.200s", a.Status, len(a.Body), a.Body)
		}
		if index != nil {
			*index = a.Header.Get("X-Nomad-Index")
		}
		return nil
	}
	var index string
	if err := list("", &index); err != nil {
		t.Fatal(err)
	}
	for _, round := range []struct {
		name, query string
		n           int
	}{
		{"plain", "", plainLists},
		{"blocking", "&wait=60s&index=" + index, waitLists},
	} {
		began := time.Now()
		errs := make(chan error, round.n)
		for range round.n {
			go func() { errs <- list(round.query, nil) }()
		}
		var slowest time.Duration
		failed, writes := 0, 0
		for done := 0; done < round.n; {
			select {
			case err := <-errs:
				done++
				if err != nil {
					failed++
					t.Errorf("a %s list: %v", round.name, err)
				}
			case <-time.After(100 * time.Millisecond):
				sent := time.Now()
				err := patient.At(addr).Call("PUT", "/v1/jobs", parked("written"), nil)
				var se *harness.StatusError
				if unknown := errors.As(err, &se) && se.Status == 504; err != nil && !unknown {
					t.Errorf("a write beside %s lists: %v", round.name, err)
				}
				writes++
				slowest = max(slowest, time.Since(sent))
			}
		}
		t.Logf("%d %s lists after %s, %d failed; %d writes beside them, the slowest took %s; %s led before, %s leads now",
			round.n, round.name, time.Since(began).Round(time.Millisecond), failed, writes, slowest.Round(time.Millisecond), lead, c.leader())
	}
}
