package nomadapi

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// services registers a service with Nomad's own types and finds it through every path that the client has.
func services(t *testing.T, a *agent, node *api.NodeListStub) {
	job := shell("serves", "service", "sleep 300")
	g := job.TaskGroups[0]
	g.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}}}}
	g.Count = ptr(2)
	check1 := api.ServiceCheck{Name: "open", Type: "tcp", PortLabel: "http", Interval: time.Second, Timeout: time.Second} // no listener
	g.Services = []*api.Service{{Name: "contract", PortLabel: "http", Provider: "nomad", Tags: []string{"one", "two"}, Checks: []api.ServiceCheck{check1}}}
	g.Tasks[0].Services = []*api.Service{{Name: "contract-task", PortLabel: "http", Provider: "nomad"}}
	alloc := a.run(t, job, "running")

	var regs []*api.ServiceRegistration
	eventually(t, "two registrations", func() (err error) {
		regs, _, err = a.Services().Get("contract", nil)
		if err == nil && len(regs) != 2 {
			err = fmt.Errorf("%d registrations", len(regs))
		}
		return err
	})
	r := regs[0]
	check(t, r.ServiceName == "contract" && r.JobID == "serves" && r.NodeID == node.ID && r.Namespace == "default" && r.Datacenter == "dc1" && r.Port > 0 && r.Address != "" &&
		strings.Join(r.Tags, " ") == "one two" && r.CreateIndex > 0 && r.ModifyIndex >= r.CreateIndex && r.AllocID != regs[1].AllocID, "registration %+v", r)
	list, qm, err := a.Services().List(&api.QueryOptions{Namespace: "*"})
	ok(t, err)
	check(t, len(list) == 1 && list[0].Namespace == "default" && len(list[0].Services) == 2 && list[0].Services[0].ServiceName == "contract" &&
		strings.Join(list[0].Services[0].Tags, " ") == "one two" && list[0].Services[1].ServiceName == "contract-task", "services %+v", list)
	check(t, qm.LastIndex > 0, "the index of the list is 0")

	one, _, err := a.Services().Get("contract", &api.QueryOptions{Filter: fmt.Sprintf("AllocID == %q", r.AllocID)})
	ok(t, err)
	check(t, len(one) == 1 && one[0].ID == r.ID, "filtered %+v", one)
	_, _, err = a.Services().Get("contract", &api.QueryOptions{Filter: "Nope == 1"})
	check(t, err != nil, "a filter over no field was taken")
	chosen := map[string]bool{}
	for range 3 {
		c, _, err := a.Services().Get("contract", &api.QueryOptions{Params: map[string]string{"choose": "1|me"}})
		ok(t, err)
		check(t, len(c) == 1, "chosen %+v", c)
		chosen[c[0].ID] = true
	}
	equal(t, "registrations chosen for one key", len(chosen), 1)
	none, _, err := a.Services().Get("nobody", nil)
	ok(t, err)
	equal(t, "registrations of nobody", len(none), 0)

	of, _, err := a.Allocations().Services(alloc.ID, nil)
	ok(t, err)
	equal(t, "registrations of the allocation", len(of), 2)
	ofJob, _, err := a.Jobs().Services("serves", nil)
	ok(t, err)
	equal(t, "registrations of the job", len(ofJob), 4)

	for _, of := range regs {
		eventually(t, "the check to fail", func() error {
			checks, err := a.Allocations().Checks(of.AllocID, nil)
			if err != nil {
				return err
			}
			for id, c := range checks {
				if c.ID == id && c.Check == "open" && c.Service == "contract" && c.Group == "g" && c.Mode == "healthiness" && c.Status == "failure" && c.Output != "" && c.Timestamp > 0 {
					return nil
				}
			}
			return fmt.Errorf("checks %+v", checks)
		})
	}

	// A blocking query sees the deletion. An agent registers again what it offers with its next report, and the first
	// result of a check is such a report, which may arrive after the check was seen to fail.
	_, qm, err = a.Services().Get("contract", nil)
	ok(t, err)
	_, err = a.Services().Delete("contract", regs[1].ID, nil)
	ok(t, err)
	left, _, err := a.Services().Get("contract", &api.QueryOptions{WaitIndex: qm.LastIndex, WaitTime: 20 * time.Second})
	ok(t, err)
	check(t, len(left) < 2 || left[1].ModifyIndex > qm.LastIndex, "after the deletion %+v", left)
	eventually(t, "a deletion that finds nothing", func() error {
		if _, err := a.Services().Delete("contract", regs[1].ID, nil); err == nil || !strings.Contains(err.Error(), "404") {
			return fmt.Errorf("deleted twice: %v", err)
		}
		return nil
	})
	left, _, err = a.Services().Get("contract", nil)
	ok(t, err)
	check(t, len(left) == 1 && left[0].ID == r.ID, "after the deletions %+v", left)

	ch, err := a.EventStream().Stream(t.Context(), map[api.Topic][]string{api.TopicService: {"*"}}, r.CreateIndex-1, nil)
	ok(t, err)
	_, _, err = a.Jobs().Deregister("serves", true, nil)
	ok(t, err)
	seen := map[string]bool{}
	for deadline := time.After(30 * time.Second); !seen["ServiceRegistration"] || !seen["ServiceDeregistration"]; {
		select {
		case e := <-ch:
			ok(t, e.Err)
			for _, ev := range e.Events {
				s, err := ev.Service()
				ok(t, err)
				if s.ID == r.ID {
					seen[ev.Type] = true
				}
			}
		case <-deadline:
			t.Fatalf("events %v", seen)
		}
	}
	eventually(t, "no registration", func() error {
		l, _, err := a.Services().List(nil)
		if err == nil && len(l) != 0 {
			err = fmt.Errorf("%+v", l)
		}
		return err
	})

	// A service that Nomad's command line sent without a provider is reported.
	resp, _, err := a.Jobs().Validate(func() *api.Job {
		j := shell("for-consul", "service", "true")
		j.TaskGroups[0].Services = []*api.Service{{Name: "x"}}
		j.Canonicalize()
		return j
	}(), nil)
	ok(t, err)
	check(t, resp.Error == "" && strings.Contains(resp.Warnings, `write provider = "nomad"`), "%q, warnings %q", resp.Error, resp.Warnings)
}
