package decide

import (
	"cmp"
	"sync"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

const (
	// forecastJobs bounds the waiting jobs whose starts are predicted: the first ones of the line.
	forecastJobs = 200
	// forecastWork bounds what the passes of a forecast look at (scheduler.Forecast.Work).
	forecastWork = 200_000
	// forecastAge is how long a forecast holds while nothing changes.
	forecastAge = time.Second
	// forecastRest is for how many times as long as a forecast took no other is made.
	forecastRest = 4
)

// Shown returns the indices of workloads in the order that users see. Under orders by shares those whose starts are predicted come
// first, in the order of their starts; the others follow in the order of the line. turn, unless it is nil, is called with each
// workload when its turn in the line has come.
func (s *Service) Shown(pub *replica.Published, ws []*structs.Workload, now structs.LogTime, turn func(line *ShownLine, i int)) (order []int) {
	line := s.Line(pub, ws, now)
	for i := line.Next(); i >= 0; i = line.Next() {
		order = append(order, i)
		if turn != nil {
			turn(line, i)
		}
		line.Taken(i)
	}
	if !line.byShares(pub.Snapshot.SchedulerConfig()) {
		return order
	}
	at := make(map[structs.JobKey]int, len(order))
	for _, i := range order {
		at[line.pending[i].Key] = i
	}
	out := make([]int, 0, len(order))
	started := make([]bool, len(ws))
	for _, k := range s.predicted(pub, line, order[:min(len(order), forecastJobs)], now) {
		if i, ok := at[k]; ok && !started[i] {
			out = append(out, i)
			started[i] = true
		}
	}
	for _, i := range order {
		if !started[i] {
			out = append(out, i)
		}
	}
	return out
}

// forecasts is the newest forecast. Each question about the queue takes one, and who watches the queue asks again at each change, so
// questions share it, and forecasts take a fifth of a processor at most.
type forecasts struct {
	mu    sync.Mutex // held while one is made
	index structs.Index
	at    structs.LogTime
	order []structs.JobKey
	after time.Time // before then no other is made
}

// predicted returns the jobs whose starts are predicted, in the order of the starts: those of a line in a state, or of a later state
// if they are known.
func (s *Service) predicted(pub *replica.Published, line *ShownLine, of []int, now structs.LogTime) []structs.JobKey {
	f := &s.forecasts
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at != 0 && f.index >= pub.Snapshot.Index() && now.Sub(f.at) <= forecastAge {
		return f.order
	}
	time.Sleep(time.Until(f.after))
	began := time.Now()
	order := make([]structs.JobKey, 0, len(of))
	for _, x := range s.forecast(pub, line, of, now).Starts() {
		order = append(order, line.pending[of[x.Load]].Key)
	}
	f.index, f.at, f.order = pub.Snapshot.Index(), now, order
	f.after = time.Now().Add(forecastRest * time.Since(began))
	return order
}

// byShares reports whether submitters or queues take turns by shares somewhere above the waiting work.
func (l *ShownLine) byShares(cfg *structs.SchedulerConfig) bool {
	seen := map[structs.QueuePath]bool{}
	for i := range l.pending {
		for p := range l.pending[i].QueueName().Lineage() {
			if seen[p] {
				break
			}
			seen[p] = true
			if o := l.table.Settings(p, cfg).Order; o.Has(structs.OrderFair) || o.Has(structs.OrderWeighted) {
				return true
			}
		}
	}
	return false
}

// forecast predicts the starts of some workloads of a line.
func (s *Service) forecast(pub *replica.Published, line *ShownLine, of []int, now structs.LogTime) scheduler.Forecast {
	snap := pub.Snapshot
	c := passContext{pub: pub, reservations: reservationsOf(snap, structs.NodePoolAll, now)}
	if preempts(snap) {
		loadContenders(snap).fill(&c.contenders, structs.NodePoolAll)
	}
	pending := make([]contend.Workload, len(of))
	var wakes []structs.LogTime
	for n, i := range of {
		w := line.pending[i]
		w.Rosters = snap.RostersByJob(w.Key)
		fillGate(&w, snap, now)
		w.Blocked = cmp.Or(snap.EvalByID(w.Queue.BlockedEval), &structs.Evaluation{})
		pending[n] = w
		for _, e := range snap.EvalsByJob(w.Key) {
			if e.Status == structs.EvalPending && e.WaitUntil > now {
				wakes = append(wakes, e.WaitUntil)
			}
		}
	}
	return scheduler.Forecast{
		Input: s.input(&c, pending, now, line.seed),
		Work:  forecastWork,
		Policy: func(pool structs.PoolName) search.Policy {
			return policy.For(c.pub.View.Pool(pool), *snap.SchedulerConfig())
		},
		Line: func(in *scheduler.Input) contend.Line {
			return queue.NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
		},
		Alloc: snap.AllocByID,
		Load: func(k structs.JobKey) contend.Workload {
			w := contend.Workload{Key: k, Job: snap.JobByKey(k), Queue: snap.Workload(k), Allocs: snap.AllocsByJob(k), Rosters: snap.RostersByJob(k)}
			s.predict(snap, &w)
			fillGate(&w, snap, now)
			return w
		},
	}
}
