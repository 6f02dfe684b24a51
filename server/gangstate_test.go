package server

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestGangStates: a gang waits for capacity and says what it lacks, assembles and names the late member, runs, and is
// complete, as its members report.
func TestGangStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		n := testNode(1)
		pool, to := nodeSide(c, 0, n)
		defer pool.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		self := c.servers[0].Caller(rpc.Peer{})
		submit := func(id string, count int, cpu int64) {
			t.Helper()
			j := apiJob(id, count)
			j.Groups[0].Gang, j.Groups[0].Tasks[0].Resources.CPU = &structs.Gang{}, cpu
			if _, err := rpc.Invoke(ctx, self, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: j}); err != nil {
				t.Fatal(err)
			}
		}
		want := func(id, state string, running, missing int) methods.GangState {
			t.Helper()
			last := ""
			for range 50 {
				resp, err := rpc.Invoke(ctx, self, methods.JobGangs, rpc.Header{}, &methods.JobGetRequest{JobID: id})
				if err != nil || len(resp.States) != 1 {
					t.Fatalf("%s: %+v, %v; want len(resp.States) = 1", id, resp, err)
				}
				g := resp.States[0]
				if g.State == state && g.Running == running && len(g.Missing) == missing && (missing == 0 || g.Missing[0].Why != "nothing was decided about them yet") {
					return g
				}
				last = fmt.Sprintf("%+v", g)
				time.Sleep(100 * time.Millisecond)
			}
			t.Fatalf("%s: want %s, %d running, %d missing; it is %s", id, state, running, missing, last)
			return methods.GangState{}
		}
		submit("a", 2, 100)
		g := want("a", methods.GangWaiting, 0, 1)
		if m := g.Missing[0]; m.Members != 2 || m.NodeRank != -1 || m.Report == nil {
			t.Errorf("without nodes: %+v", g)
		}
		if _, err := rpc.Invoke(ctx, to, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: n}); err != nil {
			t.Fatal(err)
		}
		want("a", methods.GangAssembling, 0, 2)
		submit("b", 2, 1<<30)
		g = want("b", methods.GangWaiting, 0, 1)
		if m := g.Missing[0]; m.Report == nil || len(m.Report.Refusals) == 0 || g.Asked != 2 || g.Min != 2 {
			t.Errorf("too large: %+v", g)
		}
		observe := func(id string, rank int, client structs.ClientStatus) {
			t.Helper()
			ro := c.servers[0].Published().Snapshot.RostersByJob(structs.JobKey{Namespace: "default", ID: id})[0]
			u := structs.AllocObserved{ID: ro.Members[rank].Alloc, Client: client, TaskStates: structs.CompactTaskStates(map[string]*structs.TaskState{"t": {State: "pending", Events: []structs.TaskEvent{{Type: "Driver", Message: "fetching it", Time: 1}}}})}
			if _, err := rpc.Invoke(ctx, to, methods.NodeObserve, rpc.Header{}, &methods.NodeObserveRequest{NodeAuth: methods.NodeAuth{NodeID: n.ID, Secret: n.SecretID}, Updates: []structs.AllocObserved{u}}); err != nil {
				t.Fatal(err)
			}
		}
		observe("a", 0, structs.ClientRunning)
		observe("a", 1, structs.ClientPending)
		g = want("a", methods.GangAssembling, 1, 1)
		if m := g.Missing[0]; m.NodeRank != 1 || m.Why != "pending: fetching it" {
			t.Errorf("one is late: %+v", g)
		}
		observe("a", 1, structs.ClientRunning)
		want("a", methods.GangRunning, 2, 0)
		observe("a", 0, structs.ClientComplete)
		want("a", methods.GangRunning, 1, 0)
		observe("a", 1, structs.ClientComplete)
		want("a", methods.GangComplete, 0, 0)
	})
}
