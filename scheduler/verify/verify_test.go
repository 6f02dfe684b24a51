package verify_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

const now = structs.LogTime(100 * time.Hour)

// node is ready, with 4000 MHz, 8192 MiB and 4 GPUs.
func node(n int) *structs.Node {
	id := structs.NodeID{byte(n)}
	id[15] = 1
	gpus := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
	for i := range 4 {
		gpus.Instances = append(gpus.Instances, structs.DeviceInstance{ID: fmt.Sprintf("GPU-%d-%d", n, i), Healthy: true, MemoryMiB: 80 << 10})
	}
	return &structs.Node{ID: id, Name: fmt.Sprint("n", n), Datacenter: "dc1", Pool: structs.NodePoolDefault, Status: structs.NodeReady,
		Eligibility: structs.NodeEligible, Epoch: 1, Attributes: map[string]string{"kernel.name": "linux"},
		Meta: map[string]string{"rack": fmt.Sprint("r", n%2)},
		Resources: structs.NodeResources{CPU: 4000, Cores: 4, MHzPerCore: 1000, MemoryMiB: 8192, DiskMiB: 100_000,
			Networks: []structs.NodeNetwork{{Device: "eth0", IP: "10.0.0.1", Alias: "default"}}, Devices: []structs.DeviceGroup{gpus}}}
}

func job(id string) *structs.Job {
	return &structs.Job{Namespace: "default", ID: id, Name: id, Type: structs.JobBatch, Priority: 50, Datacenters: []string{"*"},
		NodePool: structs.NodePoolDefault, CreateIndex: 5, Groups: []*structs.Group{{Name: "g", Count: 2,
			Tasks: []*structs.Task{{Name: "t", Driver: "exec", Resources: structs.Resources{CPU: 500, MemoryMiB: 256}}}}}}
}

// entry places one allocation of group "g" on each node that at names, each in a part.
func entry(j *structs.Job, at ...*structs.Node) *structs.PlanEntry {
	e := &structs.PlanEntry{Namespace: j.Namespace, JobID: j.ID, JobCreate: j.CreateIndex, EvalID: structs.EvalID{7, byte(len(j.ID))}, SnapshotIndex: 10,
		Groups: []structs.GroupName{"g"}, Asks: []structs.Vector{structs.GroupVector(j.Groups[0])}, Job: j, Decided: now}
	for i, n := range at {
		row := slices.IndexFunc(e.Nodes, func(x structs.PlanNode) bool { return x.ID == n.ID })
		if row < 0 {
			row, e.Nodes = len(e.Nodes), append(e.Nodes, structs.PlanNode{ID: n.ID, Epoch: n.Epoch})
		}
		e.Parts = append(e.Parts, structs.PlanPart{Places: []structs.PlanPlace{{Node: row, Index: i}}})
	}
	return e
}

// whole makes one part of all places of an entry.
func whole(e *structs.PlanEntry) *structs.PlanEntry {
	var one structs.PlanPart
	for _, p := range e.Parts {
		one.Places = append(one.Places, p.Places...)
	}
	e.Parts = []structs.PlanPart{one}
	return e
}

// world is what a case verifies against.
type world struct {
	nodes    []*structs.Node
	held     []*structs.Allocation
	flight   model.Overlay
	reserved []*structs.Reservation
	job      *structs.Job
	entry    *structs.PlanEntry
}

func (w *world) hold(n int, a structs.Allocation) {
	a.ID, a.NodeID, a.Client = structs.AllocID{9, byte(len(w.held))}, w.nodes[n].ID, structs.ClientRunning
	w.held = append(w.held, &a)
}

// Each reason for a refusal, one case each. An entry has two parts, on nodes 0 and 1; a case spoils the first only.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name  string
		why   string // "": all is accepted
		spoil func(w *world)
	}{
		{"as it was decided", "", func(*world) {}},
		{"node gone", "is gone", func(w *world) { w.nodes = w.nodes[1:] }},
		{"node changed", "changed at index 11, after the decision (epoch 1)", func(w *world) { w.nodes[0].Epoch = 11 }},
		{"node ineligible", "not ready", func(w *world) { w.nodes[0].Eligibility = structs.NodeIneligible }},
		{"node down", "not ready", func(w *world) { w.nodes[0].Status = structs.NodeDown }},
		{"memory", "memory short by 64", func(w *world) { w.hold(0, structs.Allocation{Resources: structs.Vector{MemoryMiB: 8000}}) }},
		{"memory that is just enough", "", func(w *world) { w.hold(0, structs.Allocation{Resources: structs.Vector{MemoryMiB: 8192 - 256}}) }},
		{"CPU", "cpu short by 100", func(w *world) { w.hold(0, structs.Allocation{Resources: structs.Vector{CPU: 3600}}) }},
		{"port", "ports short", func(w *world) {
			w.hold(0, structs.Allocation{Ports: []structs.PortGrant{{Value: 80}}})
			w.entry.Parts[0].Places[0].Ports = []structs.PortGrant{{Value: 80}}
		}},
		{"unknown device", "devices short", func(w *world) {
			w.entry.Parts[0].Places[0].Grants = []structs.Grant{{Device: "nvidia/gpu/H100", Instance: "x"}}
		}},
		{"GPU in use", "devices short", func(w *world) {
			grant := []structs.Grant{{Device: "nvidia/gpu/H100", Instance: "GPU-0-2"}}
			w.hold(0, structs.Allocation{Grants: grant})
			w.entry.Parts[0].Places[0].Grants = grant
		}},
		{"place of a node that is not listed", "refers to", func(w *world) { w.entry.Parts[0].Places[0].Node = 7 }},
		{"place of a group that is not listed", "refers to", func(w *world) { w.entry.Parts[0].Places[0].Group = -1 }},
		{"allocation that exists", "exists already", func(w *world) {
			w.hold(0, structs.Allocation{})
			w.held[0].ID = structs.DeriveAllocID(w.entry.EvalID, w.entry.SnapshotIndex, "g", 0)
		}},
		{"one GPU twice", "devices short", func(w *world) {
			grant := structs.Grant{Device: "nvidia/gpu/H100", Instance: "GPU-0-2"}
			w.entry.Parts[0].Places[0].Grants = []structs.Grant{grant, grant}
		}},
		{"waits for what stays", "does not stop", func(w *world) { w.entry.Parts[0].Places[0].WaitsOn = []structs.AllocID{{1}} }},
		{"power budget", "power budget of node pool default is short by 100 W", func(w *world) {
			w.nodes[0].Resources.Devices[0].Attributes = map[string]structs.Attribute{"power": {Kind: "int", Int: 700, Unit: "W"}}
			w.nodes[0].PowerBudgetW = 1300
			w.hold(0, structs.Allocation{Grants: []structs.Grant{{Device: "nvidia/gpu/H100", Instance: "GPU-0-0"}}})
			w.entry.Parts[0].Places[0].Grants = []structs.Grant{{Device: "nvidia/gpu/H100", Instance: "GPU-0-1"}}
		}},
		{"next to a job that it must keep away from", "noisy", func(w *world) {
			w.job.Away = []structs.Peer{{JobID: "noisy", Required: true, Level: structs.PeerLevelNode}}
			noisy := job("noisy")
			w.hold(0, structs.Allocation{Namespace: "default", JobID: "noisy", Group: "g", Job: noisy})
		}},
		{"a maintenance within its time", "closed by reservation w", func(w *world) {
			w.reserved = []*structs.Reservation{{ID: "w", Nodes: []structs.NodeID{w.nodes[0].ID}, Start: now.Add(-time.Hour), End: now.Add(time.Hour), Maintenance: true}}
		}},
		{"a window that is over", "", func(w *world) {
			w.reserved = []*structs.Reservation{{ID: "w", Nodes: []structs.NodeID{w.nodes[0].ID}, Start: now.Add(-2 * time.Hour), End: now.Add(-time.Hour), Maintenance: true}}
		}},
		{"room reserved for another job", "memory reserved for job train", func(w *world) { w.reserved = reservedFor(w, "train") }},
		{"room reserved for itself", "", func(w *world) { w.reserved = reservedFor(w, w.job.ID) }},
		{"a plan in flight", "memory short by", func(w *world) {
			other := job("other")
			other.Groups[0].Tasks[0].Resources.MemoryMiB = 8000
			w.flight = w.flight.Add(1, entry(other, w.nodes[0]), nil)
		}},
		{"a refused part in flight", "", func(w *world) {
			other := job("other")
			other.Groups[0].Tasks[0].Resources.MemoryMiB = 8000
			w.flight = w.flight.Add(1, entry(other, w.nodes[0]), []bool{false})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{nodes: []*structs.Node{node(0), node(1)}, job: job("web")}
			w.entry = entry(w.job, w.nodes...)
			c.spoil(w)
			v := model.NewView(20, w.nodes, w.held, nil)
			got := verify.VerifyReserved(v, w.flight, w.entry, w.reserved, now)
			if c.why == "" {
				if !got.All() || got.Refresh != 0 {
					t.Fatalf("got %+v, want everything accepted", got)
				}
				return
			}
			if got.Accepted[0] || !got.Accepted[1] || len(got.Refused) != 1 || got.Refused[0].Part != 0 || !strings.Contains(got.Refused[0].Why, c.why) || got.Refresh != 20 {
				t.Fatalf("got %+v, want the first part refused with %q, the second accepted and a refresh at 20", got, c.why)
			}
		})
	}
}

func reservedFor(w *world, id string) []*structs.Reservation {
	return []*structs.Reservation{{ID: "job/default/" + id, Namespace: "default", JobID: id, Start: now.Add(time.Minute),
		Places: []structs.ReservationPlace{{Node: w.nodes[0].ID, Group: "g", Need: structs.Vector{MemoryMiB: 8000}}}}}
}

// A part that is refused half way gives back what its first places took.
func TestRefusedPartTakesNothing(t *testing.T) {
	a, b := node(0), node(1)
	big := job("big")
	big.Groups[0].Tasks[0].Resources.MemoryMiB = 5000
	e := whole(entry(big, a, b, b)) // two of 5000 MiB do not fit on b
	e.Parts = append(e.Parts, structs.PlanPart{Places: []structs.PlanPlace{{Node: 0, Index: 3}}})
	got := verify.Verify(model.NewView(10, []*structs.Node{a, b}, nil, nil), model.Overlay{}, e)
	if want := []bool{false, true}; !slices.Equal(got.Accepted, want) {
		t.Fatalf("accepted %v (%+v), want %v: the refused part must not hold node a", got.Accepted, got.Refused, want)
	}
}

// Members of a gang are placed with the rest of its minimum, or not at all.
func TestGangIsPlacedWhole(t *testing.T) {
	for _, c := range []struct {
		name   string
		places int // in the part
		roster int // further members that the roster lists
		ok     bool
	}{
		{"all of its minimum", 3, 0, true},
		{"one too few", 2, 0, false},
		{"the missing one runs", 1, 2, true},
		{"one of two missing", 1, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			j, n := job("train"), node(0)
			j.Groups[0].Count, j.Groups[0].Gang = 3, &structs.Gang{Min: 3}
			e := whole(entry(j, slices.Repeat([]*structs.Node{n}, c.places)...))
			roster := &structs.Roster{Group: "g"}
			for i := range c.places + c.roster {
				id := structs.DeriveAllocID(e.EvalID, e.SnapshotIndex, "g", i)
				if i >= c.places {
					id = structs.AllocID{1, byte(i)}
				}
				roster.Members = append(roster.Members, structs.RosterMember{Alloc: id})
			}
			e.Rosters = []*structs.Roster{roster}
			got := verify.Verify(model.NewView(10, []*structs.Node{n}, nil, nil), model.Overlay{}, e)
			if got.All() != c.ok {
				t.Fatalf("got %+v, want accepted %v", got, c.ok)
			}
			if !c.ok && !strings.Contains(got.Refused[0].Why, "of at least 3 members") {
				t.Fatalf("got %q, want the gang's minimum", got.Refused[0].Why)
			}
		})
	}
}

// TestNeverOvercommits gives random entries to Verify and counts again, in the plainest way, what the accepted parts
// put on each node together with what it held. A valid entry is accepted.
func TestNeverOvercommits(t *testing.T) {
	accepted, refused := 0, 0
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		w := &world{job: job("rnd")}
		for i := range 1 + rnd.IntN(4) {
			w.nodes = append(w.nodes, node(i))
		}
		w.job.Groups[0].Tasks[0].Resources = structs.Resources{CPU: rnd.Int64N(2500), MemoryMiB: 1 + rnd.Int64N(4000)}
		for range rnd.IntN(5) {
			n := rnd.IntN(len(w.nodes))
			w.hold(n, structs.Allocation{Resources: structs.Vector{CPU: rnd.Int64N(1000), MemoryMiB: rnd.Int64N(2000)}})
		}
		var at []*structs.Node
		for range 1 + rnd.IntN(8) {
			at = append(at, w.nodes[rnd.IntN(len(w.nodes))])
		}
		w.entry = entry(w.job, at...)
		for i := range w.entry.Parts {
			for range rnd.IntN(3) {
				n := slices.Index(w.nodes, at[i])
				pl := &w.entry.Parts[i].Places[0]
				pl.Grants = append(pl.Grants, structs.Grant{Device: "nvidia/gpu/H100", Instance: fmt.Sprintf("GPU-%d-%d", n, rnd.IntN(4))})
			}
		}
		got := verify.Verify(model.NewView(20, w.nodes, w.held, nil), model.Overlay{}, w.entry)

		used := map[structs.NodeID]structs.Vector{}
		gpus := map[string]int{}
		for _, a := range w.held {
			used[a.NodeID] = used[a.NodeID].Add(a.Resources)
		}
		fits := func(id structs.NodeID, need structs.Vector, grants []structs.Grant) bool {
			sum := used[id].Add(need)
			ok := sum.CPU <= 4000 && sum.MemoryMiB <= 8192
			seen := map[string]int{}
			for _, g := range grants {
				seen[g.Instance]++
				ok = ok && gpus[g.Instance]+seen[g.Instance] == 1
			}
			return ok
		}
		for i := range w.entry.Parts {
			pl := &w.entry.Parts[i].Places[0]
			id := w.entry.Nodes[pl.Node].ID
			if want := fits(id, w.entry.Asks[0], pl.Grants); got.Accepted[i] != want {
				t.Fatalf("seed %d, part %d: accepted %v, want %v (%+v)", seed, i, got.Accepted[i], want, got.Refused)
			}
			if !got.Accepted[i] {
				refused++
				continue
			}
			accepted++
			used[id] = used[id].Add(w.entry.Asks[0])
			for _, g := range pl.Grants {
				gpus[g.Instance]++
			}
		}
	}
	if accepted < 300 || refused < 300 {
		t.Fatalf("%d parts accepted and %d refused: too few of one kind to prove anything", accepted, refused)
	}
}

func TestJob(t *testing.T) {
	j := job("web")
	e := &structs.PlanEntry{Namespace: "default", JobID: "web", JobVersion: 0, JobCreate: 5, Parts: []structs.PlanPart{{Places: make([]structs.PlanPlace, 1)}}}
	with := func(f func(j *structs.Job)) *structs.Job { x := *j; f(&x); return &x }
	speculative, stops := *e, *e
	speculative.JobCreate = 0
	stops.Parts = []structs.PlanPart{{Stops: make([]structs.PlanStop, 1)}}
	for _, c := range []struct {
		name  string
		job   *structs.Job
		entry *structs.PlanEntry
		why   string
	}{
		{"the decided version", j, e, ""},
		{"gone", nil, e, "is gone"},
		{"another version", with(func(j *structs.Job) { j.Version = 1 }), e, "is at version 1"},
		{"stopped", with(func(j *structs.Job) { j.Stop = true }), e, "was stopped"},
		{"registered again", with(func(j *structs.Job) { j.CreateIndex = 9 }), e, "registered again"},
		{"speculative, before its job is in the state", nil, &speculative, ""},
		{"only stops", nil, &stops, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := verify.Job(c.job, c.entry); c.why == "" && got != "" || !strings.Contains(got, c.why) {
				t.Errorf("got %q, want %q", got, c.why)
			}
		})
	}
}
