//go:build e2e

package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// answer is the outcome of one call.
type answer struct {
	id        string // of a write, or "" for a read
	sent, got time.Time
	err       error
}

// TestClusterSilentLeader freezes the leader, then cuts another one off the network, while clients write and read through
// the followers. Neither breaks a connection. Every call is answered within seconds, reads with success and writes with
// success or 504, and no write is done twice.
func TestClusterSilentLeader(t *testing.T) {
	c := newCluster(t, "wal")
	if err := c.api.Call("PUT", "/v1/jobs", parked("p"), nil); err != nil {
		t.Fatal(err)
	}
	for _, fault := range []struct {
		name       string
		begin, end func(lead string)
	}{
		{"frozen", func(l string) { c.procs[l].Signal(syscall.SIGSTOP) }, func(l string) { c.procs[l].Signal(syscall.SIGCONT) }},
		{"cut off", func(l string) { c.net.Host(l).Cut() }, func(l string) { c.net.Host(l).Join() }},
	} {
		lead := c.leader()
		var mu sync.Mutex
		var all []answer
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for _, name := range c.servers {
			for w := range 4 {
				if name == lead {
					continue
				}
				wg.Go(func() {
					api := c.api.At("https://" + c.net.Host(name).IP + ":4646")
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						case <-time.After(50 * time.Millisecond):
						}
						a := answer{sent: time.Now()}
						if i%2 == 0 {
							a.id = fmt.Sprintf("%c%s%dx%dx", fault.name[0], name, w, i)
							a.err = api.Call("PUT", "/v1/job/p/dispatch", map[string]any{"IdPrefixTemplate": a.id}, nil)
						} else {
							a.err = api.Call("GET", "/v1/job/p", nil, nil)
						}
						a.got = time.Now()
						mu.Lock()
						all = append(all, a)
						mu.Unlock()
					}
				})
			}
		}
		answers := func(since time.Time, n int) func() (bool, string) {
			return func() (bool, string) {
				mu.Lock()
				defer mu.Unlock()
				have := 0
				for _, a := range all {
					if a.sent.After(since) {
						have++
					}
				}
				return have >= n, fmt.Sprintf("%d answers", have)
			}
		}
		c.eventually(20*time.Second, "answers before the fault", answers(time.Time{}, 100))
		began := time.Now()
		fault.begin(lead)
		next := ""
		elected := c.eventually(20*time.Second, "another leader", func() (bool, string) {
			for _, name := range c.servers {
				var l string
				if name != lead && c.api.At("https://"+c.net.Host(name).IP+":4646").Call("GET", "/v1/status/leader", nil, &l) == nil && l != "" && l != c.net.Host(lead).IP+":4647" {
					next = l
				}
			}
			return next != "", next
		})
		c.eventually(60*time.Second, "answers after the fault", answers(began.Add(8*time.Second), 100))
		close(stop)
		wg.Wait()
		fault.end(lead)
		c.eventually(60*time.Second, "three servers with one state hash at one index", c.caughtUp)
		c.report(fault.name, elected, began, all)
	}
}

// report prints how calls were answered, and compares writes with the children of the job.
func (c *cluster) report(fault string, elected time.Duration, began time.Time, all []answer) {
	c.t.Helper()
	var jobs []struct{ ID string }
	c.eventually(20*time.Second, "the list of children", func() (bool, string) {
		err := c.api.Call("GET", "/v1/jobs?prefix=p/dispatch-"+fault[:1], nil, &jobs)
		return err == nil, fmt.Sprint(err)
	})
	count := map[string]int{}
	for _, j := range jobs {
		rest := strings.TrimPrefix(j.ID, "p/dispatch-")
		id, _, _ := strings.Cut(rest, "-")
		count[id]++
	}
	var acks []time.Time
	var took []time.Duration
	unknown := 0
	for _, a := range all {
		var se *harness.StatusError
		status := 0
		if errors.As(a.err, &se) {
			status = se.Status
		}
		switch n := count[a.id]; {
		case a.id == "" && a.err != nil:
			c.t.Errorf("%s: a read failed after %s: %v", fault, a.got.Sub(a.sent), a.err)
		case a.id == "":
		case a.err == nil && n != 1 || n > 1:
			c.t.Errorf("%s: the write %s was done %d times; its answer was %v", fault, a.id, n, a.err)
		case a.err == nil:
			acks = append(acks, a.got)
		case status == 504:
			unknown++
		default:
			c.t.Errorf("%s: a write failed after %s: %v", fault, a.got.Sub(a.sent), a.err)
		}
		if a.got.After(began) {
			took = append(took, a.got.Sub(a.sent))
		}
	}
	slices.SortFunc(acks, time.Time.Compare)
	gap := time.Duration(0)
	for i := 1; i < len(acks); i++ {
		gap = max(gap, acks[i].Sub(acks[i-1]))
	}
	slices.Sort(took)
	ms := func(d time.Duration) int64 { return d.Milliseconds() }
	c.t.Logf("leader %s: another after %d ms; %d calls, %d writes acknowledged, %d unknown; longest gap between acknowledgements %d ms; answers p99 %d ms, slowest %d ms (goal p99 <= 1500)",
		fault, ms(elected), len(all), len(acks), unknown, ms(gap), ms(took[len(took)*99/100]), ms(took[len(took)-1]))
	if slowest := took[len(took)-1]; slowest > 4*time.Second || gap > 4*time.Second {
		c.t.Errorf("%s: an answer took %s, and no write was acknowledged for %s", fault, slowest, gap)
	}
}
