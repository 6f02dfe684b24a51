package server

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/tasktoken"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// serving is a server with a node on which the job's allocations run and register a service.
type serving struct {
	t     *testing.T
	s     *Server
	node  *structs.Node
	alloc []*structs.Allocation
}

func newServing(t *testing.T, s *Server, count int) *serving {
	t.Helper()
	x := &serving{t: t, s: s, node: testNode(1)}
	x.apply(&structs.NodeRegisterCommand{Node: x.node})
	x.apply(&structs.NodeStatusCommand{ID: x.node.ID, Status: structs.NodeReady})
	job := preparedJob("web")
	job.Groups[0].Count = count
	x.apply(&structs.JobRegisterCommand{Job: job, Eval: true})
	k := structs.JobKey{Namespace: "default", ID: "web"}
	waitFor(t, 10*time.Second, "placement", func() bool { return len(s.Published().Snapshot.AllocsByJob(k)) == count })
	x.alloc = s.Published().Snapshot.AllocsByJob(k)
	return x
}

func (x *serving) apply(body structs.CommandBody) {
	x.t.Helper()
	if _, err := x.s.apply(x.t.Context(), replica.LaneUser, structs.Command{Body: body}); err != nil {
		x.t.Fatal(err)
	}
}

// report reports an allocation as the node's agent does.
func (x *serving) report(a *structs.Allocation, status structs.ClientStatus, services ...structs.ServiceRegistration) error {
	req := &methods.NodeObserveRequest{NodeAuth: methods.NodeAuth{NodeID: x.node.ID, Secret: x.node.SecretID},
		Updates: []structs.AllocObserved{{ID: a.ID, Client: status, Services: services}}}
	_, err := rpc.Invoke(x.t.Context(), x.s.Caller(rpc.Peer{}), methods.NodeObserve, rpc.Header{}, req)
	return err
}

func (x *serving) offer(tags ...string) {
	x.t.Helper()
	for _, a := range x.alloc {
		api := structs.ServiceRegistration{ID: "api-" + a.ID.String(), Service: "api", Address: "10.0.0.7", Port: 8000, Tags: tags}
		if err := x.report(a, structs.ClientRunning, api); err != nil {
			x.t.Fatal(err)
		}
	}
}

func (x *serving) get(req *methods.ServiceGetRequest) *methods.ServiceGetResponse {
	x.t.Helper()
	req.Service = "api"
	return call(x.t, x.s, methods.ServiceGet, rpc.Header{}, req)
}

func TestServices(t *testing.T) {
	s := testServer(t, nil)
	x := newServing(t, s, 3)
	if r := x.get(&methods.ServiceGetRequest{}); len(r.Services) != 0 || r.Index == 0 {
		t.Errorf("before anything was reported: %+v", r)
	}
	x.offer("b", "a")
	r := x.get(&methods.ServiceGetRequest{})
	if len(r.Services) != 3 || r.Services[0].JobID != "web" || r.Services[0].NodeID != x.node.ID || r.Services[0].Address != "10.0.0.7" {
		t.Fatalf(`%+v; want len(r.Services) = 3, r.Services[0].JobID = "web", r.Services[0].NodeID = %v, r.Services[0].Address = "10.0.0.7"`, r.Services, x.node.ID)
	}
	list := call(t, s, methods.ServiceList, rpc.Header{Namespace: "*"}, &methods.ListRequest{})
	if len(list.Services) != 1 || list.Services[0].Service != "api" || !slices.Equal(list.Services[0].Tags, []string{"a", "b"}) {
		t.Errorf("listed %+v", list.Services)
	}
	if r := call(t, s, methods.ServiceJob, rpc.Header{}, &methods.JobGetRequest{JobID: "web"}); len(r.Services) != 3 {
		t.Errorf("of the job: %+v", r.Services)
	}
	if r := call(t, s, methods.ServiceAlloc, rpc.Header{}, &methods.AllocGetRequest{AllocID: x.alloc[1].ID}); len(r.Services) != 1 || r.Services[0].AllocID != x.alloc[1].ID {
		t.Errorf("of the allocation: %+v", r.Services)
	}
	for _, m := range []func() error{
		func() error {
			_, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.ServiceJob, rpc.Header{}, &methods.JobGetRequest{JobID: "no"})
			return err
		},
		func() error {
			_, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.ServiceDelete, rpc.Header{}, &methods.ServiceDeleteRequest{Service: "api", ID: "no"})
			return err
		},
	} {
		if err := m(); structs.CodeOf(err) != structs.CodeNotFound {
			t.Errorf("%v, want not found", err)
		}
	}
	if err := x.report(x.alloc[0], structs.ClientRunning, structs.ServiceRegistration{ID: "x", Service: "a_b"}); structs.CodeOf(err) != structs.CodeInvalid || !strings.Contains(err.Error(), "a_b") {
		t.Errorf("a bad name was taken: %v", err)
	}
	call(t, s, methods.ServiceDelete, rpc.Header{}, &methods.ServiceDeleteRequest{Service: "api", ID: r.Services[0].ID})
	if r := x.get(&methods.ServiceGetRequest{}); len(r.Services) != 2 {
		t.Errorf("after one was deleted: %+v", r.Services)
	}
	call(t, s, methods.JobDeregister, rpc.Header{}, &methods.JobDeregisterRequest{JobID: "web", Purge: true})
	waitFor(t, 10*time.Second, "no registration", func() bool { return len(x.get(&methods.ServiceGetRequest{}).Services) == 0 })
}

// Every key keeps its registrations when others are added or removed.
func TestChoose(t *testing.T) {
	var all []*structs.ServiceRegistration
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		all = append(all, &structs.ServiceRegistration{Namespace: "default", Service: "api", ID: id})
	}
	hit, moved := map[string]int{}, 0
	for i := range 400 {
		key := strings.Repeat("k", i)
		one := endpoint.Choose(all, 1, key)
		if len(one) != 1 || one[0] != endpoint.Choose(all, 3, key)[0] {
			t.Fatal("the best of three is not the best of one")
		}
		hit[one[0].ID]++
		if endpoint.Choose(all[1:], 1, key)[0] != one[0] {
			moved++
			if one[0].ID != "a" {
				t.Errorf("key %d moved off %s, which is still there", i, one[0].ID)
			}
		}
	}
	if len(hit) != len(all) || moved != hit["a"] {
		t.Errorf("chosen %v; %d moved with the end of one", hit, moved)
	}
	if n := len(endpoint.Choose(all, 99, "k")); n != len(all) {
		t.Errorf("%d of %d", n, len(all))
	}
}

// A query that waits for a service is woken by its changes, including its end.
func TestServicesBlock(t *testing.T) {
	s := testServer(t, nil)
	x := newServing(t, s, 1)
	wait := func(min structs.Index) <-chan *methods.ServiceGetResponse {
		ch := make(chan *methods.ServiceGetResponse, 1)
		go func() {
			r, err := rpc.Invoke(context.Background(), s.Caller(rpc.Peer{}), methods.ServiceGet, rpc.Header{}, &methods.ServiceGetRequest{Service: "api", Query: methods.Query{MinIndex: min, MaxWait: time.Minute}})
			if err != nil {
				t.Error(err)
			}
			ch <- r
		}()
		return ch
	}
	ch := wait(x.get(&methods.ServiceGetRequest{}).Index)
	x.offer("one")
	r := <-ch
	if len(r.Services) != 1 {
		t.Fatalf("woken with %+v", r.Services)
	}
	ch = wait(r.Index)
	if err := x.report(x.alloc[0], structs.ClientComplete); err != nil {
		t.Fatal(err)
	}
	if r = <-ch; len(r.Services) != 0 {
		t.Errorf("woken with %+v", r.Services)
	}
}

// A task may look up services of its own namespace only.
func TestTasksFindServices(t *testing.T) {
	s := testServer(t, func(c *Config) { c.ACL = true })
	x := newServing(t, s, 1)
	if err := x.report(x.alloc[0], structs.ClientRunning, structs.ServiceRegistration{ID: "api-1", Service: "api", Port: 8000}); err != nil {
		t.Fatal(err)
	}
	token := tasktoken.New(x.node.SecretID, x.alloc[0].ID, "main", time.Now())
	r, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.ServiceGet, rpc.Header{Token: token}, &methods.ServiceGetRequest{Service: "api"})
	if err != nil || len(r.Services) != 1 {
		t.Errorf("%+v, %v; want len(r.Services) = 1", r, err)
	}
	l, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.ServiceList, rpc.Header{Token: token}, &methods.ListRequest{})
	if err != nil || len(l.Services) != 1 {
		t.Errorf("%+v, %v; want len(l.Services) = 1", l, err)
	}
	for _, ns := range []string{"*", "other"} {
		if _, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.ServiceGet, rpc.Header{Token: token, Namespace: ns}, &methods.ServiceGetRequest{Service: "api"}); structs.CodeOf(err) != structs.CodeDenied {
			t.Errorf("namespace %s: %v", ns, err)
		}
	}
	if _, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.ServiceDelete, rpc.Header{Token: token}, &methods.ServiceDeleteRequest{Service: "api", ID: "api-1"}); structs.CodeOf(err) != structs.CodeDenied {
		t.Errorf("a task deleted a registration: %v", err)
	}
}
