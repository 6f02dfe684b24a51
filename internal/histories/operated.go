package histories

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Operations are what operators and users do while the jobs of a history run: nodes are drained, services get new versions, and
// work saves its state to a storage that limits how many may do so at a time. A history has the first value of each, which is that
// nothing is done, unless New is given another one: who replays it has to carry them out.
var Operations = []Option{
	{"drains", []string{"no", "deadline", "at once"}, 25},
	{"updates", []string{"no", "stop", "revert"}, 26},
	{"storage", []string{"no", "one at a time", "two at a time"}, 27},
}

// Operated returns values of Operations. Nine rows in turn have every pair of values of two of them.
func Operated(row uint64) map[string]string {
	a, b := row%3, row/3%3
	out := map[string]string{}
	for i, v := range []uint64{a, b, (a + b) % 3} {
		out[Operations[i].Name] = Operations[i].Values[v]
	}
	return out
}

// Drain takes the work off a node.
type Drain struct {
	At       time.Duration // since the beginning
	Node     int
	Deadline time.Duration // negative: at once
	Away     time.Duration // from its end until the node takes work again
}

// Service is a job that runs until the end, in ServiceQueue and without GPUs. Nodes need ServiceRoom beyond what the other
// jobs ask for, so that a service never takes the room of one.
type Service struct {
	*structs.Job
	Updates []Update
}

// Update is a new version of a service.
type Update struct {
	At  time.Duration
	Bad bool // its tasks fail
}

// ServiceQueue is the queue of services.
const ServiceQueue structs.QueuePath = "web"

// ServiceRoom is more than what all services of a history need, in MHz and MiB.
const ServiceRoom = 4000

// Storage is the name of the storage to which work saves its state.
const Storage = "lustre1"

// StorageLimit is how many allocations may save to Storage at a time; 0: work names none.
func (h *History) StorageLimit() int64 {
	return int64(max(0, slices.Index(Operations[2].Values, h.Is["storage"])))
}

// minutes returns a random duration.
func minutes(rng *rand.Rand, least, most int) time.Duration {
	return time.Duration(least+rng.IntN(most-least)) * time.Minute
}

// operations draws what is done.
func (h *History) operations() {
	for _, o := range Operations {
		rng := rand.New(rand.NewPCG(h.Seed, o.apart))
		switch is := h.Is[o.Name]; {
		case is == "no":
		case o.Name == "drains":
			h.drains(rng)
		case o.Name == "updates":
			h.services(rng)
		default:
			h.storage(rng)
		}
	}
	h.Exact = h.Exact && h.Is["drains"] == "no"
}

func (h *History) drains(rng *rand.Rand) {
	for range 3 {
		d := Drain{At: minutes(rng, 20, 6*60), Node: rng.IntN(len(h.Nodes)), Deadline: minutes(rng, 5, 30), Away: minutes(rng, 5, 20)}
		if h.Is["arrivals"] == "dense" {
			d.At /= 4
		}
		if h.Is["drains"] == "at once" {
			d.Deadline = -1
		}
		h.Drains = append(h.Drains, d)
	}
	slices.SortStableFunc(h.Drains, func(a, b Drain) int { return int(a.At - b.At) })
}

func (h *History) services(rng *rand.Rand) {
	h.Queues = append(h.Queues, &structs.Queue{Path: ServiceQueue})
	slices.SortFunc(h.Queues, func(a, b *structs.Queue) int { return strings.Compare(string(a.Path), string(b.Path)) })
	for i := range 2 {
		s := &Service{Job: &structs.Job{ID: fmt.Sprint("web", i), Type: structs.JobService, Priority: 50, Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault,
			Queue: ServiceQueue, Submitter: structs.Submitter{Name: "ann"}, Groups: []*structs.Group{{Name: "g", Count: 2 + rng.IntN(3),
				Tasks: []*structs.Task{{Name: "t", Resources: structs.Resources{CPU: 100, MemoryMiB: 64}}}}}}}
		s.Groups[0].Update = &structs.Update{MaxParallel: 1 + rng.IntN(2), HealthCheck: "task_states", Stagger: minutes(rng, 1, 3), MinHealthyTime: minutes(rng, 1, 3),
			HealthyDeadline: 10 * time.Minute, ProgressDeadline: 20 * time.Minute, AutoRevert: h.Is["updates"] == "revert"}
		for range 3 {
			u := Update{At: minutes(rng, 10, 6*60), Bad: rng.IntN(2) == 0}
			if h.Is["arrivals"] == "dense" {
				u.At /= 4
			}
			s.Updates = append(s.Updates, u)
		}
		slices.SortStableFunc(s.Updates, func(a, b Update) int { return int(a.At - b.At) })
		h.Services = append(h.Services, s)
	}
}

// storage lets work that saves its state, and half of the other work, save it at an interval.
func (h *History) storage(rng *rand.Rand) {
	for _, j := range h.Jobs {
		g := j.Groups[0]
		if g.Checkpoint == nil && rng.IntN(2) == 0 {
			continue
		}
		if g.Checkpoint == nil {
			g.Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Cost: 1}
		}
		g.Checkpoint.Storage, g.Checkpoint.Interval, g.Checkpoint.Grace = Storage, minutes(rng, 8, 15), 5*time.Minute
	}
}
