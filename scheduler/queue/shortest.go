package queue

import (
	"math"
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// SJF is shortest job first: by the expected total run time, so that work that was stopped on the way keeps its place.
// Work with an unknown run time comes last.
type SJF struct{}

// Name is "sjf".
func (SJF) Name() structs.Order { return structs.OrderSJF }

// Key is the expected run time.
func (SJF) Key(w *contend.Workload, at *Scene) Key {
	if e := at.Expect(w); e > 0 {
		return Key{int64(e)}
	}
	return Key{unknown}
}

// Terms are the expected run time in seconds, when it is known, and the wait.
func (SJF) Terms(w *contend.Workload, at *Scene) []structs.ScoreTerm {
	out := []structs.ScoreTerm{waitTerm(w, at)}
	if e := at.Expect(w); e > 0 {
		out = append([]structs.ScoreTerm{{Name: "expected_seconds", Micro: e.Microseconds()}}, out...)
	}
	return out
}

// SRTF is shortest remaining time first: by the expected remaining run time. Work with an unknown run time comes last.
type SRTF struct{}

// Name is "srtf".
func (SRTF) Name() structs.Order { return structs.OrderSRTF }

// Key is the remaining time.
func (SRTF) Key(w *contend.Workload, at *Scene) Key { return Key{int64(at.Left(w))} }

// Terms are the remaining time in seconds, and the wait.
func (SRTF) Terms(w *contend.Workload, at *Scene) []structs.ScoreTerm {
	return []structs.ScoreTerm{{Name: "remaining_seconds", Micro: at.Left(w).Microseconds()}, waitTerm(w, at)}
}

// SRSF is shortest remaining service first: remaining time times GPUs (Tiresias, NSDI'19, with known durations). It
// keeps the mean completion time low where widths differ: work that goes first delays the others by its area.
type SRSF struct{}

// Name is "srsf".
func (SRSF) Name() structs.Order { return structs.OrderSRSF }

// Key is the remaining area in GPU-microseconds; of work without GPUs, in microseconds.
func (SRSF) Key(w *contend.Workload, at *Scene) Key { return Key{at.area(w)} }

// Terms are the remaining area in GPU-seconds, and the wait.
func (SRSF) Terms(w *contend.Workload, at *Scene) []structs.ScoreTerm {
	return []structs.ScoreTerm{{Name: "remaining_gpu_seconds", Micro: at.area(w)}, waitTerm(w, at)}
}

// unknown is an unknown time or area.
const unknown = math.MaxInt64

// Left returns how much longer the workload is expected to run; unknown when there is no estimate, or when it has
// already run for longer than expected. Runs whose work was lost do not count.
func (at *Scene) Left(w *contend.Workload) time.Duration {
	e := at.Expect(w)
	if e <= 0 {
		return unknown
	}
	if e -= w.Progress(at.Now); e <= 0 {
		return unknown
	}
	return e
}

func (at *Scene) area(w *contend.Workload) int64 {
	left := at.Left(w)
	if left == unknown {
		return unknown
	}
	return saturating(left.Microseconds(), w.Units())
}

// saturating returns a * b, or the largest number.
func saturating(a, b int64) int64 {
	if a > 0 && b > unknown/a {
		return unknown
	}
	return a * b
}
