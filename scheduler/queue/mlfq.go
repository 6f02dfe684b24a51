package queue

import (
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// levels are the GPU-seconds after which work sinks to the next level of two-dimensional attained service. They are
// those of the published evaluations of 2D-LAS (Tiresias, NSDI'19; Muri, SIGCOMM'22): about an hour of one GPU, and
// two.
var levels = [...]int64{3250, 7200}

// MLFQ is two-dimensional least attained service in discrete levels: work with fewer GPU-seconds is in a higher level,
// and within a level work that came first goes first, running work before waiting work. It needs no run times, and with
// few levels, equal work does not take turns for long.
type MLFQ struct{}

// Name is "mlfq".
func (MLFQ) Name() structs.Order { return structs.OrderMLFQ }

// Key is the level, and within it running work before waiting work.
func (MLFQ) Key(w *contend.Workload, at *Scene) Key {
	waits := int64(0)
	if at.Waited(w) > 0 || !w.Runs() {
		waits = 1
	}
	return Key{int64(levelOf(w.Served(at.Now), w.Units())), waits}
}

// Terms are the level, the service attained in GPU-seconds, and the wait.
func (m MLFQ) Terms(w *contend.Workload, at *Scene) []structs.ScoreTerm {
	return []structs.ScoreTerm{{Name: "level", Micro: micro * m.Key(w, at)[0]},
		{Name: "attained_gpu_seconds", Micro: saturating(w.Served(at.Now).Microseconds(), w.Units())}, waitTerm(w, at)}
}

// Wake returns when a running contender sinks to the next level; 0 for never.
func (MLFQ) Wake(v *contend.Contender, now structs.LogTime) structs.LogTime {
	return sinks(levelOf(v.Ran, v.Units()), v, now)
}

func levelOf(ran time.Duration, units int64) int {
	for l, limit := range levels {
		if ran < passes(limit, units) {
			return l
		}
	}
	return len(levels)
}

// passes returns the run time after which work of so many units has attained so many GPU-seconds.
func passes(limit, units int64) time.Duration {
	return time.Duration((limit*int64(time.Second) + max(units, 1) - 1) / max(units, 1))
}

// sinks returns when a contender leaves a level, on a whole second of its run time; 0 for never.
func sinks(level int, v *contend.Contender, now structs.LogTime) structs.LogTime {
	if level >= len(levels) {
		return 0
	}
	at := passes(levels[level], v.Units())
	if r := at % time.Second; r > 0 {
		at += time.Second - r
	}
	return now.Add(max(at-v.Ran, 0))
}

// LAS2D is discretised 2D-LAS as in the evaluations that published figures for it: each level is a list. Work that
// arrives, or sinks from the level above, goes to the end of a list. At every event each list is taken in order as far
// as there are GPUs, counted over all nodes, and then work that got some is moved before work that did not. The order
// thus depends on its history, unlike MLFQ; it is for comparisons with published figures.
type LAS2D struct {
	lists [len(levels) + 1][]structs.JobKey
	level map[structs.JobKey]int
}

// Always makes Choose run in every pass, because the lists must contain all work from the beginning.
func (l *LAS2D) Always() {}

// Choose updates the lists and takes from them.
func (l *LAS2D) Choose(r *contend.Competition) ([]int, structs.LogTime) {
	if l.level == nil {
		l.level = map[structs.JobKey]int{}
	}
	at := make(map[structs.JobKey]int, len(r.Contenders))
	for i := range r.Contenders {
		v := &r.Contenders[i]
		k := v.Load.Key
		at[k] = i
		if _, known := l.level[k]; !known {
			l.level[k] = 0
			l.lists[0] = append(l.lists[0], k)
		}
	}
	for n := range l.lists {
		kept := l.lists[n][:0]
		for _, k := range l.lists[n] {
			if _, here := at[k]; here {
				kept = append(kept, k)
				continue
			}
			delete(l.level, k)
		}
		l.lists[n] = kept
	}
	for i := range r.Contenders {
		v := &r.Contenders[i]
		k := v.Load.Key
		n := l.level[k]
		if !v.Holds || n >= len(levels) || v.Ran < passes(levels[n], v.Units()) {
			continue
		}
		kept := l.lists[n][:0]
		for _, o := range l.lists[n] {
			if o != k {
				kept = append(kept, o)
			}
		}
		l.lists[n] = kept
		l.level[k] = n + 1
		l.lists[n+1] = append(l.lists[n+1], k)
	}
	free := int64(0)
	for _, n := range r.Room {
		free += n
	}
	var out []int
	var wake structs.LogTime
	for n := range l.lists {
		var in, rest []structs.JobKey
		for _, k := range l.lists[n] {
			v := &r.Contenders[at[k]]
			if v.Units() > free {
				rest = append(rest, k)
				continue
			}
			free -= v.Units()
			in = append(in, k)
			out = append(out, at[k])
			if t := sinks(n, v, r.Now); t > 0 && (wake == 0 || t < wake) {
				wake = t
			}
		}
		l.lists[n] = append(in, rest...)
	}
	return out, wake
}
