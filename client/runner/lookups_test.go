package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// shelf is a cluster's variables in memory, with blocking reads.
type shelf struct {
	mu      sync.Mutex
	items   map[string]string // path to the value of "k"
	index   structs.Index
	err     error
	asked   int
	behind  bool // the next read that waits is answered by a server that is behind
	changed chan struct{}
}

func (s *shelf) set(path, value string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if path != "" {
		s.items[path] = value
	}
	s.err = err
	s.index++
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *shelf) Variable(ctx context.Context, _ structs.AllocID, task, ns, path string, after structs.Index) (*methods.Variable, structs.Index, error) {
	for {
		s.mu.Lock()
		s.asked++
		value, index, err, changed := s.items[path], s.index, s.err, s.changed
		behind := s.behind && after > 0
		s.behind = s.behind && !behind
		s.mu.Unlock()
		switch {
		case behind:
			return &methods.Variable{Items: map[string]string{"k": "old"}}, 1, nil
		case err != nil:
			return nil, 0, err
		case index > after && value == "":
			return nil, index, nil
		case index > after:
			return &methods.Variable{VariableMeta: methods.VariableMeta{Namespace: ns, Path: path}, Items: map[string]string{"k": value, "task": task}}, index, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}

func (s *shelf) Variables(context.Context, structs.AllocID, string, string, string, structs.Index) ([]methods.VariableMeta, structs.Index, error) {
	return nil, 1, nil
}

func (s *shelf) Service(ctx context.Context, a structs.AllocID, task, ns, name string, _ int, _ string, after structs.Index) ([]*structs.ServiceRegistration, structs.Index, error) {
	v, index, err := s.Variable(ctx, a, task, ns, "service/"+name, after)
	if v == nil || err != nil {
		return nil, index, err
	}
	return []*structs.ServiceRegistration{{Service: name, Namespace: ns, Address: v.Items["k"], Port: 80}}, index, nil
}

func (s *shelf) Services(ctx context.Context, a structs.AllocID, task, ns string, after structs.Index) ([]methods.ServiceName, structs.Index, error) {
	return []methods.ServiceName{{Namespace: ns, Service: "api"}}, 1, nil
}

// TestServiceLookups: a service that comes later wakes the templates that look for it.
func TestServiceLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{items: map[string]string{}, index: 5, changed: make(chan struct{})}
		var wg sync.WaitGroup
		r := &Runner{cfg: &Config{Log: hclog.NewNullLogger(), Servers: Servers{Variables: s, Region: "global"}, Agent: Agent{Go: func(fn func()) bool { wg.Go(fn); return true }}}, alloc: &structs.Allocation{Namespace: "team"}}
		tk := &task{r: r, name: "client"}
		ctx, cancel := context.WithCancel(t.Context())
		looks := tk.lookupsIn(ctx)
		v := servicesIn(looks.during(ctx))
		if list, err := v.Service("api", 0, ""); err != nil || len(list) != 0 {
			t.Errorf("before there is one: %v %v", list, err)
		}
		if list, err := v.Services(); err != nil || len(list) != 1 || list[0].Name != "api" {
			t.Errorf("services %v %v", list, err)
		}
		s.set("service/api", "10.0.0.1", nil)
		began := time.Now()
		if !looks.wait(ctx, time.Hour) || time.Since(began) > time.Minute {
			t.Errorf("woken after %s", time.Since(began))
		}
		if list, err := v.Service("api", 0, ""); err != nil || len(list) != 1 || list[0].Address != "10.0.0.1" || list[0].Namespace != "team" {
			t.Errorf("once it is there: %v %v", list, err)
		}
		s.set("", "", structs.ErrPermissionDenied)
		if _, err := v.Service("api", 2, "k"); !errors.Is(err, driver.ErrPermanent) {
			t.Errorf("denied: %v", err)
		}
		cancel()
		tk.looks.stop()
		wg.Wait()
	})
}

// TestLookups: the first lookup makes a request, later ones use its answer, changes wake waiters, and a failed request
// is distinct from a denied one.
func TestLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{items: map[string]string{}, index: 5, changed: make(chan struct{}), err: structs.Errorf(structs.CodeNoLeader, "No cluster leader")}
		var wg sync.WaitGroup
		r := &Runner{cfg: &Config{Log: hclog.NewNullLogger(), Servers: Servers{Variables: s, Region: "global"}, Agent: Agent{Go: func(fn func()) bool { wg.Go(fn); return true }}}, alloc: &structs.Allocation{Namespace: "team"}}
		tk := &task{r: r, name: "server"}
		ctx, cancel := context.WithCancel(t.Context())
		looks := tk.lookupsIn(ctx)
		v := looks.during(ctx)
		if _, err := v.Variable("a"); !errors.Is(err, errUnread) || errors.Is(err, driver.ErrPermanent) {
			t.Errorf("without a leader: %v", err)
		}
		s.set("", "", structs.ErrPermissionDenied)
		if _, err := v.Variable("a"); !errors.Is(err, driver.ErrPermanent) {
			t.Errorf("denied: %v", err)
		}
		s.set("", "", nil)
		if items, err := v.Variable("a"); items != nil || err != nil {
			t.Errorf("missing: %v %v", items, err)
		}
		if v.Name("a") != "a@team.global" || v.Name("a@x") != "a@x.global" {
			t.Errorf("names %q, %q", v.Name("a"), v.Name("a@x"))
		}
		if _, err := v.Variable("a@x.elsewhere"); !errors.Is(err, driver.ErrPermanent) {
			t.Errorf("of another region: %v", err)
		}
		s.set("a", "one", nil)
		if !looks.wait(ctx, time.Hour) {
			t.Fatal("ended")
		}
		items, err := v.Variable("a")
		if err != nil || items["k"].Value != "one" || items["task"].Value != "server" || items["k"].Metadata().Namespace != "team" {
			t.Errorf("written: %v %v", items, err)
		}
		// While no server answers, what is known stays; afterwards changes come again.
		s.set("", "", structs.Errorf(structs.CodeUnavailable, "gone"))
		synctest.Wait()
		time.Sleep(time.Hour)
		s.mu.Lock()
		asked := s.asked
		s.mu.Unlock()
		if items, err := v.Variable("a"); err != nil || items["k"].Value != "one" || asked > 400 {
			t.Errorf("while no server answers: %v %v, asked %d times in an hour", items, err, asked)
		}
		s.set("a", "two", nil)
		began := time.Now()
		looks.wait(ctx, time.Hour)
		if items, _ := v.Variable("a"); items["k"].Value != "two" || time.Since(began) > lookupRestMax {
			t.Errorf("after the servers came back: %v within %s", items, time.Since(began))
		}
		s.mu.Lock()
		s.behind = true
		s.index++
		close(s.changed)
		s.changed = make(chan struct{})
		s.mu.Unlock()
		synctest.Wait()
		if items, _ := v.Variable("a"); items["k"].Value != "two" {
			t.Errorf("a server that is behind was believed: %v", items)
		}
		for i := range lookupsMax {
			_, err = v.Variable(fmt.Sprint("n", i))
		}
		if !errors.Is(err, driver.ErrPermanent) {
			t.Errorf("look number %d: %v", lookupsMax+1, err)
		}
		looks.stop()
		wg.Wait()
		cancel()
	})
}
