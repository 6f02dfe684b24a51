package fsm

import (
	"testing"

	"github.com/muster-sched/muster/structs"
)

// report observes the allocations of the job as running, each with the given services under separate IDs.
func (c *cluster) report(services ...structs.ServiceRegistration) {
	c.tb.Helper()
	cmd := &structs.AllocObservedCommand{}
	for _, a := range c.f.Snapshot().AllocsByJob(key) {
		u := structs.AllocObserved{ID: a.ID, Client: structs.ClientRunning}
		for _, s := range services {
			s.ID += "-" + a.ID.String()
			u.Services = append(u.Services, s)
		}
		cmd.Updates = append(cmd.Updates, u)
	}
	c.apply(cmd)
}

func (c *cluster) registered(want int) []*structs.ServiceRegistration {
	c.tb.Helper()
	var out []*structs.ServiceRegistration
	for r := range c.f.Snapshot().ServicesOf("default", "api") {
		out = append(out, r)
	}
	if len(out) != want {
		c.tb.Fatalf("%d registrations, want %d: %+v", len(out), want, out)
	}
	return out
}

func TestServicesFollowReports(t *testing.T) {
	c := newCluster(t, 3)
	res := c.register(service("1", 2))
	c.placeAll(res.EvalID, 0, 2)
	api := structs.ServiceRegistration{ID: "x", Service: "api", Address: "10.0.0.1", Port: 8000, Tags: []string{"v1"}, Health: structs.HealthPending}
	c.report(api)
	first := c.registered(2)
	for _, r := range first {
		if r.JobID != "web" || r.Namespace != "default" || r.NodeID.IsZero() || r.AllocID.IsZero() || r.Datacenter == "" || r.CreateIndex == 0 {
			t.Errorf("the state does not say whose it is: %+v", r)
		}
	}
	c.report(api)
	if again := c.registered(2); again[0] != first[0] || again[1] != first[1] {
		t.Error("a report without news wrote the registrations")
	}
	api.Health = structs.HealthPassing
	c.report(api)
	api.Health = structs.HealthPending // an agent that was started again
	c.report(api)
	for i, r := range c.registered(2) {
		if r.Health != structs.HealthPassing || r.CreateIndex != first[i].CreateIndex || r.ModifyIndex == r.CreateIndex {
			t.Errorf("after the agent's restart: %+v", r)
		}
	}
	gone := c.registered(2)[0]
	c.apply(&structs.ServiceDeleteCommand{Namespace: "default", Service: "api", ID: gone.ID})
	c.registered(1)
	c.refused(&structs.ServiceDeleteCommand{Namespace: "default", Service: "api", ID: gone.ID}, "not found")
	c.report(api)
	c.registered(2)
	c.report() // it offers nothing any more
	c.registered(0)
}

// TestServicesEndWithWhatServes ends allocations in every way, and wants no registration to stay.
func TestServicesEndWithWhatServes(t *testing.T) {
	api := structs.ServiceRegistration{ID: "x", Service: "api", Port: 8000}
	for name, end := range map[string]func(c *cluster){
		"complete": func(c *cluster) { c.observe(structs.ClientComplete) },
		"failed":   func(c *cluster) { c.observe(structs.ClientFailed) },
		"unknown":  func(c *cluster) { c.observe(structs.ClientUnknown) },
		"nodes purged": func(c *cluster) {
			cmd := &structs.NodePurgeCommand{}
			for n := range c.f.Snapshot().Nodes() {
				cmd.IDs = append(cmd.IDs, n.ID)
			}
			c.apply(cmd)
		},
		"stopped by a plan": func(c *cluster) {
			p := &structs.PlanEntry{Namespace: "default", JobID: "web"}
			for _, a := range c.f.Snapshot().AllocsByJob(key) {
				p.Parts = append(p.Parts, structs.PlanPart{Stops: []structs.PlanStop{{ID: a.ID, Desc: "told to", Desired: structs.DesiredStop}}})
			}
			c.apply(p)
			c.report(api) // the agent still sees them run
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3)
			res := c.register(service("1", 2))
			c.placeAll(res.EvalID, 0, 2)
			c.report(api)
			c.registered(2)
			end(c)
			c.registered(0)
		})
	}
}

func TestServicesThatMakeNoSense(t *testing.T) {
	c := newCluster(t, 3)
	res := c.register(service("1", 2))
	c.placeAll(res.EvalID, 0, 2)
	ok := structs.ServiceRegistration{ID: "x", Service: "api", Port: 8000}
	c.report(ok)
	for name, bad := range map[string]structs.ServiceRegistration{
		"name": {ID: "y", Service: "no_name"}, "port": {ID: "z", Service: "api", Port: 70000},
		"health": {ID: "z", Service: "api", Health: "fine"}, "the same twice": ok,
	} {
		c.report(ok, bad)
		if got := c.registered(2); got[0].Port != 8000 {
			t.Errorf("%s: %+v; want got[0].Port = 8000", name, got[0])
		}
	}
	// An ID of another allocation's is not taken over.
	as := c.f.Snapshot().AllocsByJob(key)
	theft := ok
	theft.ID = "x-" + as[0].ID.String()
	c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: as[1].ID, Client: structs.ClientRunning, Services: []structs.ServiceRegistration{theft}}}})
	if got := c.registered(1); got[0].AllocID != as[0].ID {
		t.Errorf("an allocation took over the registration of another: got %v, want %v", got[0].AllocID, as[0].ID)
	}
}
