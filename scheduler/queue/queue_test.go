package queue

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/muster-sched/muster/structs"
)

func TestFCFS(t *testing.T) {
	ws := []*structs.Workload{
		{JobID: "late", Priority: 50, SubmitIndex: 9},
		{JobID: "b", Priority: 50, SubmitIndex: 5},
		{JobID: "a", Priority: 50, SubmitIndex: 5},
		{JobID: "urgent", Priority: 80, SubmitIndex: 10},
		{JobID: "a", Namespace: "x", Priority: 50, SubmitIndex: 5},
		{JobID: "low", Priority: 1, SubmitIndex: 1},
	}
	want := []string{"/urgent", "/a", "/b", "x/a", "/late", "/low"}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		rng.Shuffle(len(ws), func(i, j int) { ws[i], ws[j] = ws[j], ws[i] })
		Sort(Builtin[Default], ws, 0)
		var got []string
		for _, w := range ws {
			got = append(got, w.Namespace+"/"+w.JobID)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
	for name, o := range Builtin {
		if o.Name() != name {
			t.Errorf("policy %q calls itself %q", name, o.Name())
		}
	}
}

func TestSkip(t *testing.T) {
	short := []*structs.GroupReport{{Wanted: 2, Placed: 1, Refusals: []structs.Refusal{{Code: structs.ReasonResources, Dimension: "cpu", CuredBy: structs.EventAllocStopped}}}}
	driver := []*structs.GroupReport{{Wanted: 1, Refusals: []structs.Refusal{{Code: structs.ReasonDriver, CuredBy: structs.EventDriverHealthy}}}}
	device := []*structs.GroupReport{{Wanted: 1, Refusals: []structs.Refusal{{Code: structs.ReasonDeviceUnhealthy, Unit: "devices", CuredBy: structs.EventDeviceHealthy}}}}
	for _, c := range []struct {
		name     string
		groups   []*structs.GroupReport
		happened []structs.EventKind
		skip     bool
	}{
		{"nothing happened", short, nil, true},
		{"room appeared", short, []structs.EventKind{structs.EventAllocStopped}, false},
		{"another driver came back", short, []structs.EventKind{structs.EventDriverHealthy}, true},
		{"a node joined", short, []structs.EventKind{structs.EventNodeJoined}, false},
		{"its driver came back", driver, []structs.EventKind{structs.EventDriverHealthy}, false},
		{"room does not bring a driver", driver, []structs.EventKind{structs.EventAllocStopped}, true},
		{"a device was given back", device, []structs.EventKind{structs.EventAllocStopped}, false},
		{"an event of unknown kind", short, []structs.EventKind{structs.EventNone}, false},
		{"no reasons known", []*structs.GroupReport{{Wanted: 1}}, nil, false},
	} {
		if got := Skip(c.groups, c.happened); got != c.skip {
			t.Errorf("%s: skip %v, want %v", c.name, got, c.skip)
		}
	}
}
