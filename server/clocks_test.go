package server

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// clockRounds is how many random jumps of clocks TestRandomClocks makes; MUSTER_ROUNDS replaces it.
const clockRounds = 50

// jumpsOfWorld is how many of them are made in one cluster.
const jumpsOfWorld = 10

// TestRandomClocks (I8): the wall clock of one of three servers, the leader or not, jumps to a random time, an hour or two years
// away, or steps back by a second, and later returns. No node goes down, a valid token works at each server, one that has
// expired does not, and a periodic job is launched exactly once a minute.
func TestRandomClocks(t *testing.T) {
	t.Parallel() // it takes long, and shares nothing with other tests
	rounds, first := roundsOf(t, clockRounds)
	if testing.Short() {
		rounds = min(rounds, jumpsOfWorld)
	}
	const hour, years = time.Hour, 2 * 365 * 24 * time.Hour
	leaders := 0
	for done := 0; done < rounds && !t.Failed(); done += jumpsOfWorld {
		seed := first + uint64(done)
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 16))
			var off [3]atomic.Int64
			c := newCluster(t, len(off), func(i int, cfg *Config) {
				cfg.ACL = true
				cfg.Now = func() time.Time { return time.Now().Add(time.Duration(off[i].Load())) }
			})
			none := -1
			lead := c.servers[c.leader()]
			newFleet(t, c.lead(&none), 3)
			register(t, lead, passJob("web", 3, nil))
			token := func(ttl time.Duration) *structs.ACLToken {
				tok := &structs.ACLToken{Accessor: endpoint.NewID[structs.AccessorID](), Secret: endpoint.NewID[structs.SecretID](),
					Type: structs.TokenManagement, ExpiresAt: structs.LogTimeOf(time.Now().Add(ttl))}
				if _, err := lead.apply(t.Context(), replica.LaneUser, structs.Command{Body: &structs.TokenUpsertCommand{Tokens: []*structs.ACLToken{tok}}}); err != nil {
					t.Fatal(err)
				}
				return tok
			}
			valid, expired := token(72*time.Hour), token(time.Second)
			time.Sleep(30 * time.Second)
			mustApply(t, lead, &structs.JobRegisterCommand{Job: passJob("cron", 1, func(j *structs.Job) {
				j.Type, j.Groups[0].Tasks[0].Resources.CPU = structs.JobBatch, 10
				j.Periodic = &structs.Periodic{Enabled: true, Specs: []string{"* * * * *"}, TimeZone: "UTC"}
			})})
			began := time.Now()
			try := func(i int, tok *structs.ACLToken) error {
				return c.call(i, func(ctx context.Context, to rpc.Caller) error {
					_, err := rpc.Invoke(ctx, to, methods.JobList, rpc.Header{Token: tok.Secret.String()}, &methods.ListRequest{Query: methods.Query{Stale: true}})
					return err
				})
			}
			check := func(i int, by time.Duration) {
				t.Helper()
				for n := range c.servers[c.leader()].Published().Snapshot.Nodes() {
					if n.Status != structs.NodeReady {
						t.Fatalf("MUSTER_SEED=%d: node %s is %s after the clock of server %d jumped by %s", seed, n.Name, n.Status, i, by)
					}
				}
				for at := range c.servers {
					if err := try(at, valid); err != nil {
						t.Errorf("MUSTER_SEED=%d: after a jump by %s of server %d, server %d refuses a valid token: %v", seed, by, i, at, err)
					}
					if err := try(at, expired); structs.CodeOf(err) != structs.CodeDenied {
						t.Errorf("MUSTER_SEED=%d: after a jump by %s of server %d, server %d answers an expired token with %v", seed, by, i, at, err)
					}
				}
			}
			// A jump of cfg.Now moves its monotonic reading, too, which no real one does. At odd instants no timer fires at the same time.
			const odd = 37 * time.Microsecond
			time.Sleep(odd)
			for range jumpsOfWorld {
				i, by := r.IntN(len(off)), []time.Duration{hour, -hour, years, -years, -time.Second}[r.IntN(5)]
				if i == c.leader() {
					leaders++
				}
				off[i].Store(int64(by))
				check(i, by)
				time.Sleep(time.Duration(1000+r.IntN(60_000)) * time.Millisecond)
				check(i, by)
				off[i].Store(0)
				time.Sleep(time.Duration(1000+r.IntN(40_000)) * time.Millisecond)
				check(i, -by)
			}
			time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(90 * time.Second))) // half past a minute
			var launched []string
			for j := range c.servers[c.leader()].Published().Snapshot.ChildrenOf(structs.JobKey{Namespace: structs.NamespaceDefault, ID: "cron"}) {
				launched = append(launched, j.ID)
			}
			want := int(time.Now().Truncate(time.Minute).Sub(began.Truncate(time.Minute)) / time.Minute)
			if len(launched) != want {
				slices.Sort(launched)
				t.Errorf("MUSTER_SEED=%d: %d launches in %d minutes: %v", seed, len(launched), want, launched)
			}
			if lead := c.servers[c.leader()]; running(lead, "web") != 3 || len(lead.Published().Snapshot.AllocsByJob(structs.JobKey{Namespace: structs.NamespaceDefault, ID: "web"})) != 3 {
				t.Errorf("MUSTER_SEED=%d: work was replaced although nothing happened to it", seed)
			}
		})
	}
	t.Logf("%d jumps, %d of them of the leader's clock", rounds, leaders)
}
