package server

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestProblemOfAFollower: a follower whose disk takes no writes hears from its leader as ever. It says what is wrong, the
// leader's autopilot repeats it, and both forget it when the disk has room.
func TestProblemOfAFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var full [3]atomic.Bool
		c := newCluster(t, 3, func(i int, cfg *Config) {
			cfg.Testing.Replica.StoreLogs = func() error {
				if full[i].Load() {
					return errors.New("no space left on device")
				}
				return nil
			}
		})
		lead := c.leader()
		healthy := func() bool {
			h := c.servers[lead].members.Health()
			return h.Healthy && len(h.Servers) == 3
		}
		waitFor(t, time.Minute, "health", healthy)
		behind := c.servers[(lead+1)%3]
		full[(lead+1)%3].Store(true)
		for i := range 3 {
			if err := c.register(lead, fmt.Sprint("job-", i)); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, time.Minute, "the follower's own answer", func() bool {
			return strings.HasSuffix(behind.Problem(t.Context()), "takes no writes: no space left on device")
		})
		time.Sleep(time.Minute) // raft tries again only now and then
		if why := behind.Problem(t.Context()); why == "" {
			t.Error("the follower found itself healthy between two attempts")
		}
		told := false
		for _, x := range c.servers[lead].members.Health().Servers {
			told = told || x.ID == behind.ID() && !x.Healthy && strings.Contains(x.Problem, "no space left") && x.LastContact >= 0
		}
		if !told || healthy() {
			t.Errorf("the leader's autopilot: %+v", c.servers[lead].members.Health())
		}
		full[(lead+1)%3].Store(false)
		waitFor(t, time.Minute, "health again", func() bool { return behind.Problem(t.Context()) == "" && healthy() })
	})
}
