package planner

import "github.com/muster-sched/muster/structs"

// Size returns an upper bound of an entry's bytes in the log. Because it overestimates, entries grouped by it never
// exceed the limit that the log enforces.
func Size(e *structs.PlanEntry) int {
	n := 256 + len(e.Namespace) + len(e.JobID) + 28*len(e.Nodes)
	for _, g := range e.Groups {
		n += 6 + len(g)
	}
	for i := range e.Parts {
		n += partSize(&e.Parts[i])
	}
	for _, ev := range e.Evals {
		n += evalSize(ev)
	}
	if w := e.Workload; w != nil {
		n += 320 + len(w.Namespace) + len(w.JobID) + len(w.Domain) + len(w.Queue) + len(w.Reason)
	}
	return n
}

func partSize(p *structs.PlanPart) int {
	n := 12 + 17*len(p.Updates)
	for i := range p.Places {
		pl := &p.Places[i]
		n += 24 + 16*len(pl.WaitsOn) + 11*len(pl.Cores) + 96*len(pl.Resched)
		if pl.Version != nil {
			n += 10
		}
		if !pl.Previous.IsZero() {
			n += 16
		}
		for _, g := range pl.Grants {
			n += 48 + len(g.Task) + len(g.Device) + len(g.Instance) + len(g.Backend)
		}
		for _, g := range pl.Ports {
			n += 32 + len(g.Label) + len(g.HostIP)
		}
	}
	for i := range p.Stops {
		s := &p.Stops[i]
		n += 64 + len(s.Desc) + len(s.Client) + len(s.Desired)
	}
	return n
}

func evalSize(e *structs.Evaluation) int {
	n := 640 + len(e.Namespace) + len(e.JobID) + len(e.StatusDesc) + len(e.Trigger) + len(e.QuotaLimitName)
	for g := range e.Queued {
		n += 16 + len(g)
	}
	for _, g := range e.FailedGroups {
		n += reportSize(g)
	}
	for _, g := range e.PlacedGroups {
		n += reportSize(g)
	}
	return n
}

func reportSize(g *structs.GroupReport) int {
	n := 320 + len(g.Group)
	for k := range g.Available {
		n += 16 + len(k)
	}
	for k := range g.ClassFilt {
		n += 16 + len(k)
	}
	for k := range g.ClassExh {
		n += 16 + len(k)
	}
	for i := range g.Refusals {
		r := &g.Refusals[i]
		n += 152 + len(r.Code) + len(r.Subject) + len(r.Detail) + len(r.Holder.Name) + len(r.Unit) + len(r.CuredBy)
	}
	for i := range g.Scores {
		n += 64
		for _, t := range g.Scores[i].Terms {
			n += 36 + len(t.Name)
		}
	}
	return n
}
