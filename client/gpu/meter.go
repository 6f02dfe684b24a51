package gpu

import (
	"sync"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TaskUsage is a task's use of one GPU since the agent first saw it there.
type TaskUsage struct {
	Quota
	UsedBytes  int64 // now; -1 if the driver does not report it
	PeakBytes  int64 // maximum of all measurements, and of what the library recorded in between
	MiBSeconds int64 // memory in use, over time
	SMMillis   int64 // milliseconds with all multiprocessors: half of them for 2 s is 1,000
	EnergyMJ   int64 // millijoules: its share of the GPU's energy, by its part of the work
	Denied     int64 // allocations that the library refused
	// Mean activity is ActiveMillis of KnownMillis: the time for which it is known, and in which all multiprocessors
	// had work. It is unknown for shares.
	ActiveMillis, KnownMillis int64
	Idle                      time.Time // since when it computes nothing; zero: it computes, or it is unknown
	Since                     time.Time
	Measured                  time.Time
}

// Meter adds up the use of GPUs by task. It is safe for concurrent use. The caller provides the clock.
type Meter struct {
	mu     sync.Mutex
	use    map[watchKey]*metered
	energy map[string]int64 // energy counter of each GPU at the last measurement
}

type metered struct {
	TaskUsage
	mibMillis int64
}

// Measure adds a measurement. have are the grants of live allocations; the use of others is dropped. A task that is
// seen for the first time counts from its start, with the values of this measurement; started returns 0 if it has not
// started.
func (m *Meter) Measure(now time.Time, samples []Sample, uses []TaskUse, have []Quota, started func(Quota) structs.LogTime) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := map[watchKey]*metered{}
	for _, q := range have {
		k := watchKey{q.Alloc, q.Task, q.GPU}
		x := m.use[k]
		if x == nil {
			x = &metered{TaskUsage: TaskUsage{Since: now, Measured: now}}
			if at := started(q); at != 0 && at.Time().Before(now) {
				x.Since, x.Measured = at.Time(), at.Time()
			}
		}
		x.Quota = q
		next[k] = x
	}
	m.use = next
	m.activity(now, samples, uses)
	last := m.energy
	m.energy = map[string]int64{}
	for i := range samples {
		s := &samples[i]
		if s.Lost {
			continue
		}
		m.energy[s.UUID] = s.EnergyMJ
		var spent int64
		if before, ok := last[s.UUID]; ok && s.EnergyMJ > before && before >= 0 {
			spent = s.EnergyMJ - before
		}
		var of []*metered
		var busy, known []int64 // percent of the multiprocessors, by task
		var sum int64
		for _, u := range uses {
			x := next[watchKey{u.Alloc, u.Task, u.GPU}]
			if u.GPU != s.UUID || x == nil {
				continue
			}
			x.UsedBytes = u.Bytes
			if u.Unknown {
				x.UsedBytes = -1
			}
			of, busy = append(of, x), append(busy, u.SM)
			known = append(known, max(u.SM, 0))
			sum += max(u.SM, 0)
		}
		for k, x := range of {
			x.PeakBytes = max(x.PeakBytes, x.UsedBytes)
			dt := now.Sub(x.Measured).Milliseconds()
			x.mibMillis += max(x.UsedBytes, 0) >> 20 * dt
			x.MiBSeconds = x.mibMillis / 1000
			sm := known[k]
			if busy[k] < 0 && s.UtilPercent > 0 { // the driver does not say which task computes: equal parts
				sm = s.UtilPercent / int64(len(of))
			}
			x.SMMillis += sm * dt / 100
			if sum > 0 {
				x.EnergyMJ += spent * known[k] / sum
			} else {
				x.EnergyMJ += spent / int64(len(of))
			}
			x.Measured = now
		}
	}
	for _, x := range next {
		if x.Measured.Before(now) { // it holds nothing
			x.UsedBytes, x.Measured = 0, now
		}
	}
}

// idleActivity is the activity of multiprocessors, in thousandths, below which a GPU counts as idle: a driver or a
// monitor may do a little now and then.
const idleActivity = 10

// activity adds up how busy the GPUs of tasks were since the last measurement, and records since when they are idle. On
// a shared GPU the activity cannot be attributed to a task, but the use of each process can. The caller holds mu and
// calls it before the times of the last measurement are updated.
func (m *Meter) activity(now time.Time, samples []Sample, uses []TaskUse) {
	known := activities(samples)
	for k, x := range m.use {
		idle, ok := false, false
		if a := known[k.gpu]; a != nil && x.MiB == 0 {
			dt := min(max(now.Sub(x.Measured), 0), heldMax).Milliseconds()
			x.ActiveMillis += a.SM * dt / 1000
			x.KnownMillis += dt
			idle, ok = a.SM < idleActivity, true
		} else {
			idle, ok = idleWithout(k, x.MiB == 0, samples, uses)
		}
		switch {
		case !ok || !idle:
			x.Idle = time.Time{}
		case x.Idle.IsZero():
			x.Idle = x.Measured
		}
	}
}

// idleWithout reports whether a task computes nothing, for a GPU that does not report its activity, or is shared; known
// is false if that cannot be determined.
func idleWithout(k watchKey, whole bool, samples []Sample, uses []TaskUse) (idle, known bool) {
	for i := range samples {
		s := &samples[i]
		if s.UUID != k.gpu || s.Lost || s.UtilPercent < 0 {
			continue
		}
		if whole || s.UtilPercent == 0 {
			return s.UtilPercent == 0, true
		}
		for _, u := range uses {
			if u.Alloc == k.alloc && u.Task == k.task && u.GPU == k.gpu {
				return u.SM == 0, u.SM >= 0
			}
		}
		return true, true // processes of other tasks compute there
	}
	return false, false
}

// Booked adds what the library recorded of a task's share. A task can write anything there: values beyond the share are
// ignored.
func (m *Meter) Booked(q Quota, peak, denied int64, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := watchKey{q.Alloc, q.Task, q.GPU}
	x := m.use[k]
	if x == nil { // it ended before the first measurement
		x = &metered{TaskUsage: TaskUsage{Quota: q, Since: now, Measured: now}}
		if m.use == nil {
			m.use = map[watchKey]*metered{}
		}
		m.use[k] = x
	}
	x.PeakBytes, x.Denied = max(x.PeakBytes, min(peak, q.MiB<<20)), max(x.Denied, denied)
}

// heldMax limits how long the memory of the last measurement counts as held when a task has ended since.
const heldMax = 10 * time.Second

// Totals returns the use of an allocation's tasks up to now, unordered. The memory of the last measurement counts as
// held since.
func (m *Meter) Totals(id structs.AllocID, now time.Time) []structs.GPUUse {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []structs.GPUUse
	for k, x := range m.use {
		if k.alloc == id {
			tail := min(max(now.Sub(x.Measured), 0), heldMax).Milliseconds()
			out = append(out, structs.GPUUse{
				Task: k.task, GPU: k.gpu, PeakMiB: max(x.PeakBytes, 0) >> 20, MiBSeconds: (x.mibMillis + max(x.UsedBytes, 0)>>20*tail) / 1000,
				SMMillis: x.SMMillis, EnergyMJ: x.EnergyMJ, Denied: x.Denied,
				SMActiveMillis: x.ActiveMillis, SMKnownMillis: x.KnownMillis,
			})
		}
	}
	return out
}

// Row is the state of one task on one GPU, to be stored while the agent does not run.
type Row struct {
	TaskUsage
	MiBMillis int64
	Counter   int64 // of the GPU's energy at the last measurement, millijoules; -1: unknown
}

// Rows returns all rows, unordered.
func (m *Meter) Rows() []Row {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Row, 0, len(m.use))
	for k, x := range m.use {
		r := Row{TaskUsage: x.TaskUsage, MiBMillis: x.mibMillis, Counter: -1}
		if e, ok := m.energy[k.gpu]; ok {
			r.Counter = e
		}
		out = append(out, r)
	}
	return out
}

// Restore adds the rows of an earlier agent, before the first measurement. With went, tasks may have run meanwhile: the
// time since counts with the next measurement. Without (after a reboot) it does not.
func (m *Meter) Restore(rows []Row, went bool, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.use, m.energy = map[watchKey]*metered{}, map[string]int64{}
	for _, r := range rows {
		x := &metered{TaskUsage: r.TaskUsage, mibMillis: r.MiBMillis}
		switch {
		case !went || x.Measured.After(now):
			x.Measured, x.UsedBytes = now, 0
		case r.Counter >= 0:
			m.energy[r.GPU] = max(m.energy[r.GPU], r.Counter)
		}
		m.use[watchKey{r.Alloc, r.Task, r.GPU}] = x
	}
}

// Of returns the use of an allocation's tasks, unordered.
func (m *Meter) Of(id structs.AllocID) []TaskUsage {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []TaskUsage
	for k, x := range m.use {
		if k.alloc == id {
			out = append(out, x.TaskUsage)
		}
	}
	return out
}

// All returns the use of all tasks, unordered.
func (m *Meter) All() []TaskUsage {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]TaskUsage, 0, len(m.use))
	for _, x := range m.use {
		out = append(out, x.TaskUsage)
	}
	return out
}
