package fsm

import (
	"testing"

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
