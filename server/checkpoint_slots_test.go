package server

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/server/checkpoint"
	"github.com/muster-sched/muster/structs"
)

func saver(id string, n int, storage string) *structs.Job {
	return passJob(id, n, func(j *structs.Job) {
		j.Type = structs.JobBatch
		j.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Grace: 10 * time.Second, Storage: storage}
	})
}

func limitSaving(t *testing.T, s *Server, all int64, storage map[string]int64) {
	t.Helper()
	cfg := *s.Published().Snapshot.SchedulerConfig()
	cfg.MaxCheckpoints, cfg.CheckpointStorage = all, storage
	mustApply(t, s, &structs.SchedulerConfigCommand{Config: &cfg})
}

// saving counts the work that saves its state now: it has had its turn and has not ended.
func (f *fleet) saving(s *Server, storage string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.stops {
		if a := s.Published().Snapshot.AllocByID(id); a != nil && !a.ClientTerminal() && a.Job.Groups[0].Checkpoint.Storage == storage {
			n++
		}
	}
	return n
}

// TestDrainSavesInTurns drains two full nodes at once. Never does more work than the limit save its state at a time,
// none is asked to leave earlier than necessary, and all has left by the deadline.
func TestDrainSavesInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 2)
		f.kill, f.asks = 9*time.Second, true
		limitSaving(t, s, 0, map[string]int64{"lustre1": 3})
		register(t, s, saver("train", 20, "lustre1"))
		register(t, s, saver("other", 6, ""))
		waitFor(t, 10*time.Second, "work", func() bool { return running(s, "train") == 20 && running(s, "other") == 6 })
		deadline := 5 * time.Minute
		for _, n := range f.nodes {
			startDrain(t, s, n.ID, &structs.DrainStrategy{Deadline: deadline})
		}
		begun := time.Now()
		most, first, waited := 0, time.Duration(0), false
		waitFor(t, deadline+time.Minute, "the work of train to end", func() bool {
			n := f.saving(s, "lustre1")
			most = max(most, n)
			if n > 0 && first == 0 {
				first = time.Since(begun)
			}
			if why := s.endpoints.CheckpointsFor(s.Published().Snapshot, structs.JobKey{Namespace: structs.NamespaceDefault, ID: "train"}); why != nil {
				waited = waited || why.Waiting == 17 && why.Now == 3 && why.Where == "storage lustre1" && why.Limit == 3
			}
			left := 0
			for _, n := range f.nodes {
				for _, a := range holdsOn(s, n.ID) {
					if a.JobID == "train" {
						left++
					}
				}
			}
			return left == 0
		})
		if most != 3 {
			t.Errorf("%d saved their state at a time, want 3", most)
		}
		if d := time.Since(begun); d > deadline {
			t.Errorf("all were off after %s, want before the deadline of %s", d, deadline)
		}
		if want := deadline - 7*20*time.Second - 15*time.Second; first < want {
			t.Errorf("work was told to leave after %s, and had until %s", first, want)
		}
		if !waited {
			t.Error("nobody was told that 17 wait for their turn")
		}
		if running(s, "other") != 6 && time.Since(begun) < deadline {
			t.Error("work under no limit was told to leave before the deadline")
		}
	})
}

// TestForcedDrainWaitsForNobody: work that is forced off a node does not wait for a turn.
func TestForcedDrainWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 1)
		f.kill, f.asks = 9*time.Second, true
		limitSaving(t, s, 1, nil)
		register(t, s, saver("train", 8, ""))
		waitFor(t, 10*time.Second, "work", func() bool { return running(s, "train") == 8 })
		startDrain(t, s, f.nodes[0].ID, &structs.DrainStrategy{Deadline: -1})
		waitFor(t, 15*time.Second, "end of the drain", func() bool { return s.Published().Snapshot.NodeByID(f.nodes[0].ID).Drain == nil })
	})
}

// TestSaveLine gives random work its turns. Only a single unit may exceed a limit, members of a gang and the groups of a joint
// job go together, a turn is never taken back, and every unit gets one.
func TestSaveLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 3)
		limitSaving(t, s, 5, map[string]int64{"a": 2, "b": 3})
		mustApply(t, s, &structs.PoolUpsertCommand{Pools: []*structs.NodePool{{Name: "gpu", MaxCheckpoints: 4}}})
		for _, n := range f.nodes {
			n := *n
			n.Pool = "gpu"
			mustApply(t, s, &structs.NodeRegisterCommand{Node: &n})
		}
		rng := rand.New(rand.NewPCG(7, 7))
		storages := []string{"a", "b", ""}
		total := 0
		for i := range 12 {
			n := 1 + rng.IntN(6)
			total += n
			j := saver("job"+string(rune('a'+i)), n, storages[rng.IntN(3)])
			j.NodePool = "gpu"
			if rng.IntN(2) == 0 {
				j.Groups[0].Gang = &structs.Gang{Min: n}
			}
			if i%4 == 3 { // two groups that run as one, and write to different storages
				g := *j.Groups[0]
				g.Name, g.Count, g.Gang, g.Checkpoint = "other", 2, nil, &structs.Checkpoint{Signal: "SIGUSR1", Storage: storages[i%3]}
				j.Groups, j.AllAtOnce = append(j.Groups, &g), true
				j.Join()
				total += 2
			}
			register(t, s, j)
		}
		jobs := func() (all []*structs.Allocation) {
			for a := range s.Published().Snapshot.Allocs() {
				all = append(all, a)
			}
			return all
		}
		waitFor(t, time.Minute, "work", func() bool {
			n := 0
			for _, a := range jobs() {
				if a.Client == structs.ClientRunning {
					n++
				}
			}
			return n == total
		})
		f.set(func() { f.kill = 24 * time.Hour }) // the test ends the work itself
		var ids []structs.AllocID
		for _, a := range jobs() {
			ids = append(ids, a.ID)
		}
		mustApply(t, s, &structs.AllocTransitionCommand{IDs: ids, Transition: structs.Transition{Migrate: true, Leave: true}, Trigger: structs.TriggerNodeDrain})
		waitFor(t, time.Minute, "all to be told to end", func() bool { return len(checkpoint.NewLine(s.Published().Snapshot).Of) == total })
		had, joints := map[structs.AllocID]bool{}, 0
		for round := 0; ; round++ {
			if round > 1000 {
				t.Fatal("the line does not move")
			}
			snap := s.Published().Snapshot
			line := checkpoint.NewLine(snap)
			per, units := map[string]int64{}, map[string]map[*checkpoint.Unit]bool{}
			var now []structs.AllocID
			gangs := map[*checkpoint.Unit][2]int64{}
			joint := map[string]*checkpoint.Unit{}
			for id, u := range line.Of {
				if had[id] && !u.Now {
					t.Fatalf("round %d: a turn was taken back", round)
				}
				g := gangs[u]
				g[0]++
				if !u.Now {
					gangs[u] = g
					continue
				}
				g[1]++
				gangs[u] = g
				had[id] = true
				now = append(now, id)
				for _, l := range u.Limits {
					if units[l.Where] == nil {
						units[l.Where] = map[*checkpoint.Unit]bool{}
					}
					if !units[l.Where][u] {
						per[l.Where] += l.Allocs
					}
					units[l.Where][u] = true
					if per[l.Where] > l.Most && len(units[l.Where]) > 1 {
						t.Fatalf("round %d: %s lets %d save at a time, %d do", round, l.Where, l.Most, per[l.Where])
					}
				}
				if a := snap.AllocByID(id); a.Job.IsJoint() {
					if was := joint[a.JobID]; was != nil && was != u {
						t.Fatalf("round %d: the groups of %s do not save as one", round, a.JobID)
					}
					joint[a.JobID], joints = u, joints+1
				}
			}
			for u, g := range gangs {
				if g[1] != 0 && g[1] != g[0] || g[0] != u.Allocs {
					t.Fatalf("round %d: %d of %d members of a gang have their turn", round, g[1], g[0])
				}
			}
			if len(line.Of) == 0 {
				break
			}
			slices.SortFunc(now, func(a, b structs.AllocID) int { return slices.Compare(a[:], b[:]) })
			id := now[rng.IntN(len(now))]
			a := snap.AllocByID(id)
			mustApply(t, s, &structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: id, Client: structs.ClientComplete, StartedAt: a.StartedAt, FinishedAt: a.StartedAt + 1}}})
		}
		if joints == 0 {
			t.Error("no groups ran as one, so that was not tested")
		}
		if len(had) != total {
			t.Errorf("%d of %d had a turn", len(had), total)
		}
	})
}

// TestSaveLimitsAreChecked: invalid numbers and names are refused.
func TestSaveLimitsAreChecked(t *testing.T) {
	for text, c := range map[string]structs.SchedulerConfig{
		"MaxCheckpoints is -1": {MaxCheckpoints: -1},
		`"lustre1" = 0`:        {CheckpointStorage: map[string]int64{"lustre1": 0}},
		`"" = 3`:               {CheckpointStorage: map[string]int64{"": 3}},
	} {
		if err := checkpoint.CheckLimits(&c); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want it to say %s", c, err, text)
		}
	}
	if err := checkpoint.CheckLimits(&structs.SchedulerConfig{MaxCheckpoints: 4, CheckpointStorage: map[string]int64{"a": 1}}); err != nil {
		t.Error(err)
	}
}

// TestTurnsAreOfTheirNode: a node learns nothing about work on other nodes.
func TestTurnsAreOfTheirNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 1)
		register(t, s, saver("train", 1, ""))
		waitFor(t, 10*time.Second, "work", func() bool { return running(s, "train") == 1 })
		a := live(s, "train")[0]
		_, err := s.endpoints.NodeSaveTurn(t.Context(), nil, &methods.NodeSaveTurnRequest{NodeAuth: methods.NodeAuth{NodeID: structs.NodeID{9}}, AllocID: a.ID})
		if structs.CodeOf(err) != structs.CodeDenied {
			t.Errorf("another node's allocation: %v", err)
		}
		if turn, err := s.endpoints.NodeSaveTurn(t.Context(), nil, &methods.NodeSaveTurnRequest{NodeAuth: methods.NodeAuth{NodeID: a.NodeID}, AllocID: a.ID}); err != nil || turn.Now || turn.Again <= 0 {
			t.Errorf("work that is to run: %+v, %v, want an answer later", turn, err)
		}
	})
}
