package fsm

import (
	"strconv"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// TestCheckpointIsHandedOn: the newest checkpoint stays with the allocation through later reports, and is passed to its
// replacement; in a gang to every member.
func TestCheckpointIsHandedOn(t *testing.T) {
	for name, gang := range map[string]*structs.Gang{"each alone": nil, "gang": {}} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3)
			j := benchJob("web", 2)
			j.Groups[0].Checkpoint, j.Groups[0].Gang = &structs.Checkpoint{Dir: "/ckpt"}, gang
			p := c.planFor("web", c.register(j).EvalID, 0, 2)
			p.Parts = []structs.PlanPart{{Places: append(p.Parts[0].Places, p.Parts[1].Places...)}}
			if r := c.apply(p).Plan; !r.Accepted[0] {
				t.Fatal(r.Refused)
			}
			by := func() (out [2]*structs.Allocation) {
				for _, a := range c.f.Snapshot().AllocsByJob(key) {
					if a.Lineage().Next.IsZero() && !a.ClientTerminal() {
						out[a.NameIndex] = a
					}
				}
				return out
			}
			was := by()
			see := func(i int, st structs.ClientStatus, s *structs.Saved) {
				c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: was[i].ID, Client: st, Saved: s}}})
			}
			want := structs.Saved{Time: 2_000, Bytes: 7, Path: "/ckpt/b"}
			see(0, structs.ClientRunning, nil)
			see(1, structs.ClientRunning, &want)
			see(1, structs.ClientRunning, &structs.Saved{Time: 1_000, Path: "/ckpt/a"})
			see(1, structs.ClientRunning, nil)
			if a := by()[1]; a.Saved == nil || *a.Saved != want || !a.Checkpointed() || by()[0].Checkpointed() {
				t.Fatalf("the record is %+v, that of the other one %+v", a.Saved, by()[0].Saved)
			}
			for round := range 2 { // the second time nothing new is saved
				see(0, structs.ClientFailed, nil)
				see(1, structs.ClientFailed, nil)
				e := &structs.Evaluation{ID: structs.EvalID{9, byte(round)}, Namespace: "default", JobID: "web", Status: structs.EvalPending, Trigger: structs.TriggerRetryFailed}
				c.apply(&structs.EvalUpsertCommand{Evals: []*structs.Evaluation{e}})
				p := c.planFor("web", e.ID, 0, 2)
				p.LinkNext, p.JobCreate = true, c.f.Snapshot().JobByKey(key).CreateIndex
				p.Parts = []structs.PlanPart{{Places: append(p.Parts[0].Places, p.Parts[1].Places...)}}
				for i := range p.Parts[0].Places {
					p.Parts[0].Places[i].Previous = was[p.Parts[0].Places[i].Index].ID
				}
				if r := c.apply(p).Plan; !r.Accepted[0] {
					t.Fatal(r.Refused)
				}
				was = by()
				for i, a := range was {
					if has := i == 1 || gang != nil; has != (a.Lineage().Resume != nil) || has && *a.Lineage().Resume != want || a.Saved != nil {
						t.Errorf("round %d: index %d goes on from %+v, and has saved %+v", round, i, a.Lineage().Resume, a.Saved)
					}
				}
			}
		})
	}
}

// TestGangResumesFromWhatAllSaved: what a member of a gang has saved counts once all have, for what a preemption loses and
// for the next start; also what they save when they are asked to end.
func TestGangResumesFromWhatAllSaved(t *testing.T) {
	for name, test := range map[string]struct {
		format  structs.Format
		members int
		reports [][2]int // member, second of its checkpoint
		ends    [][2]int // reported after the gang was preempted
		lost    int64    // GPU-seconds that the preemption after 100 s loses
		want    int      // second of the checkpoint that it resumes from; 0: none
		atEnd   int64    // GPU-seconds that its queue lost, with what the members saved as they ended
	}{
		"all saved once, one twice":   {feature.Newest, 0, [][2]int{{0, 10}, {1, 11}, {0, 60}}, nil, 2 * 90, 10, 2 * 90},
		"as it ended":                 {feature.Newest, 0, [][2]int{{0, 10}, {1, 11}, {0, 60}}, [][2]int{{1, 101}}, 2 * 90, 60, 40},
		"only when it was to end":     {feature.Newest, 0, nil, [][2]int{{0, 101}, {1, 102}}, 2 * 100, 101, 0},
		"one saves for all":           {feature.Newest, 0, [][2]int{{0, 10}, {0, 60}}, nil, 2 * 40, 60, 2 * 40},
		"one is enough":               {feature.Newest, 1, [][2]int{{0, 10}, {1, 11}, {0, 60}}, nil, 2 * 40, 60, 2 * 40},
		"never all":                   {feature.Newest, 2, [][2]int{{0, 10}, {0, 60}}, nil, 2 * 100, 0, 2 * 100},
		"while there are old servers": {feature.Oldest, 0, [][2]int{{0, 10}, {1, 11}, {0, 60}}, nil, 0, 60, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3)
			c.apply(&structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: test.format, By: "test"})
			start := structs.LogTime(0)
			at := func(second int) structs.LogTime { return start.Add(time.Duration(second) * time.Second) }
			until := func(second int) { c.index = max(c.index, structs.Index(at(second)/1e6)-1) } // the cluster's time follows from the index
			observe := func(ids []structs.AllocID, saved [][2]int, st structs.ClientStatus) {
				for _, r := range saved {
					c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: ids[r[0]], Client: st, StartedAt: start, Saved: &structs.Saved{Time: at(r[1])}}}})
				}
			}
			j := benchJob("web", 2)
			j.Preemptible = true
			j.Groups[0].Checkpoint, j.Groups[0].Gang = &structs.Checkpoint{Signal: "SIGUSR1"}, &structs.Gang{}
			if test.format > feature.Oldest {
				j.Groups[0].Checkpoint.Members = test.members
			}
			place := func(eval structs.EvalID, previous []structs.AllocID) (ids []structs.AllocID) {
				p := c.planFor("web", eval, 0, 2)
				p.Parts = []structs.PlanPart{{Places: append(p.Parts[0].Places, p.Parts[1].Places...)}}
				ro := &structs.Roster{Group: j.Groups[0].Name, Reason: structs.RosterPlaced}
				for i := range p.Parts[0].Places {
					at := &p.Parts[0].Places[i]
					at.Grants = []structs.Grant{{Task: "task", Device: "nvidia/gpu/H100", Instance: strconv.Itoa(i)}}
					if previous != nil {
						at.Previous = previous[i]
					}
					ids = append(ids, structs.DeriveAllocID(p.EvalID, p.SnapshotIndex, ro.Group, at.Index))
					ro.Members = append(ro.Members, structs.RosterMember{Alloc: ids[i], Index: at.Index, Node: p.Nodes[at.Node].ID})
				}
				p.JobCreate, p.Rosters = c.f.Snapshot().JobByKey(key).CreateIndex, []*structs.Roster{ro}
				if r := c.apply(p).Plan; !r.Accepted[0] {
					t.Fatal(r.Refused)
				}
				return ids
			}
			ids := place(c.register(j).EvalID, nil)
			start = structs.LogTime(c.index) * 1e6
			for _, id := range ids {
				c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: id, Client: structs.ClientRunning, StartedAt: start}}})
			}
			observe(ids, test.reports, structs.ClientRunning)

			until(100)
			high := benchJob("high", 1)
			p := c.planFor("high", c.register(high).EvalID, 0, 1)
			for _, id := range ids {
				p.Parts[0].Stops = append(p.Parts[0].Stops, structs.PlanStop{ID: id, Desired: structs.DesiredEvict, Preempt: structs.AllocID{9}, Desc: "for high"})
			}
			if r := c.apply(p).Plan; !r.Accepted[0] {
				t.Fatal(r.Refused)
			}
			lost, saving := int64(0), int64(0)
			for d := range c.f.Snapshot().Decisions(0) {
				for _, v := range d.Victims {
					lost, saving = lost+v.Lost, saving+v.Saving
				}
			}
			if lost != test.lost {
				t.Errorf("the preemption lost %d GPU-seconds, want %d", lost, test.lost)
			}
			if want := int64(2); test.format > feature.Oldest && saving != want {
				t.Errorf("%d victims may save their state first, want %d", saving, want)
			}
			observe(ids, test.ends, structs.ClientRunning)
			for _, id := range ids {
				c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: id, Client: structs.ClientComplete, StartedAt: start}}})
			}
			if got := lostBy(c, structs.QueueDefault); got != (structs.QueueLoss{Preempt: test.atEnd}) {
				t.Errorf("the queue lost %+v, want %d GPU-seconds by the preemption", got, test.atEnd)
			}
			e := &structs.Evaluation{ID: structs.EvalID{9}, Namespace: "default", JobID: "web", Status: structs.EvalPending, Trigger: structs.TriggerPreemption}
			c.apply(&structs.EvalUpsertCommand{Evals: []*structs.Evaluation{e}})
			for i, id := range place(e.ID, ids) {
				got := c.f.Snapshot().AllocByID(id).Lineage().Resume
				if got == nil != (test.want == 0) || got != nil && got.Time != at(test.want) {
					t.Errorf("member %d resumes from %+v, want the checkpoint of second %d", i, got, test.want)
				}
			}
		})
	}
}
