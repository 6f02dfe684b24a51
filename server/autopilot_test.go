package server

import (
	"testing"
	"testing/synctest"
	"time"
)

// votersOf returns the number of raft's servers that the leader knows.
func (c *cluster) votersOf(lead int) int {
	c.t.Helper()
	servers, err := c.servers[lead].members.RaftServers()
	if err != nil {
		c.t.Fatal(err)
	}
	return len(servers)
}

// TestAutopilotIsPatient cuts a server off for 20 s and for longer than 3 minutes. The first time nothing happens to it.
// The second time it is given up: of five servers it is removed, of three it stays, because a majority of two tolerates
// no failure. In each case the cluster is healthy as soon as the server is back.
func TestAutopilotIsPatient(t *testing.T) {
	for _, n := range []int{3, 5} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, n, nil)
			lead := c.leader()
			healthy := func() bool {
				h := c.servers[lead].members.Health()
				return h.Healthy && len(h.Servers) == n
			}
			waitFor(t, time.Minute, "health", healthy)
			away := (lead + 1) % n
			c.net.Isolate(hostName(away))
			waitFor(t, 20*time.Second, "autopilot's notice", func() bool { return !healthy() })
			time.Sleep(20 * time.Second)
			if got := c.votersOf(lead); got != n || !c.servers[lead].IsLeader() {
				t.Fatalf("%d of %d servers are left after a pause of 20 s", got, n)
			}
			c.net.Heal()
			back := time.Now()
			waitFor(t, 10*time.Second, "health after the pause", healthy)
			t.Logf("%d servers: healthy %s after the end of the pause", n, time.Since(back))

			c.net.Isolate(hostName(away))
			gone := time.Now()
			time.Sleep(3 * time.Minute)
			if got := c.votersOf(lead); got != n {
				t.Fatalf("%d of %d servers are left after 3 minutes", got, n)
			}
			want := n
			if n == 5 {
				want = 4
				waitFor(t, time.Minute, "removal of the dead server", func() bool { return c.votersOf(lead) == 4 })
				t.Logf("removed after %s", time.Since(gone))
			}
			time.Sleep(time.Minute)
			if got := c.votersOf(lead); got != want {
				t.Errorf("%d of %d servers are left", got, n)
			}
			c.net.Heal()
			back = time.Now()
			waitFor(t, time.Minute, "return and health of the server that was given up", healthy)
			t.Logf("%d servers: healthy %s after the return", n, time.Since(back))
		})
	}
}
