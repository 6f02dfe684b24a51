package client

import (
	"sync"
	"time"

	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/structs"
)

// serversClock is the time that the servers agree on, as an agent knows it. Tokens of tasks are made by it: servers
// would refuse those of a node whose wall clock is minutes off.
type serversClock struct {
	mu   sync.Mutex
	at   time.Duration // boottime halfway between the request and the answer with the time
	then structs.LogTime
}

// heard records the servers' time in the answer to a request that was sent at boottime sent.
func (k *serversClock) heard(sent time.Duration, now structs.LogTime) {
	if now == 0 {
		return
	}
	got := supervisor.Boottime()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.at, k.then = sent+(got-sent)/2, now
}

// now returns the servers' time, or this machine's until they have reported theirs.
func (k *serversClock) now() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.then == 0 {
		return time.Now()
	}
	return k.then.Add(supervisor.Boottime() - k.at).Time()
}
