package client

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/structs"
)

// TestServersClock: an agent whose wall clock is wrong knows the servers' time.
func TestServersClock(t *testing.T) {
	var k serversClock
	if d := time.Since(k.now()); d > time.Second {
		t.Errorf("before an answer the time is %s old", d)
	}
	servers := time.Now().Add(2 * 365 * 24 * time.Hour)
	k.heard(supervisor.Boottime(), structs.LogTimeOf(servers))
	k.heard(supervisor.Boottime(), 0) // an answer without a time
	if d := k.now().Sub(servers); d < -time.Second || d > time.Second {
		t.Errorf("the time is off by %s", d)
	}
}
