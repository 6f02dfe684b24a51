package gpu

import (
	"sync"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TaskUsage is what a task has used of one GPU since the agent first saw it there.
type TaskUsage struct {
	Quota
	UsedBytes  int64 // now; -1 when the driver does not tell
	PeakBytes  int64 // most of all looks, and of what the library booked in between
	MiBSeconds int64 // used memory over time
	SMMillis   int64 // time in which it had all multiprocessors: half of them for 2 s is 1,000
	EnergyMJ   int64 // millijoules: of the GPU's, by its part of the work
	Denied     int64 // allocations that the library refused
	// Mean activity is ActiveMillis of KnownMillis: the time for which it is known, and in which all multiprocessors had work. It
	// is not known of shares.
	ActiveMillis, KnownMillis int64
	Idle                      time.Time // since when it computes nothing; zero: it does, or it is not known
	Since                     time.Time
	Measured                  time.Time
}

// Meter adds up what tasks use of GPUs. It is safe for concurrent use; the clock is the caller's.
type Meter struct {
	mu     sync.Mutex
	use    map[watchKey]*metered
	energy map[string]int64 // of each GPU at the last look
}

type metered struct {
	TaskUsage
	mibMillis int64
}

// Measure takes a look in. have are the grants of live allocations; what others used is forgotten. A task that is seen for
// the first time counts since it started, with what this look finds; started gives 0 for one that has not.
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
			if busy[k] < 0 && s.UtilPercent > 0 { // the driver does not say whose work it is: equal parts
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

// idleActivity is the activity of multiprocessors, in thousandths, below which nothing is computed: a driver or a monitor may
// do a little now and then.
const idleActivity = 10

// activity adds up how busy the GPUs of tasks were since the last look, and notes since when they are not. Of a GPU that tasks
// share it is not known whose the activity is, but what the processes of each did is. Called with mu held, before the times of
// the last look are moved.
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

// idleWithout reports whether a task computes nothing, of a GPU that does not tell its activity, or not whose it is; the second
// bool is whether that is known.
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
		return true, true // others' processes compute there
	}
	return false, false
}

// Booked takes in what the library says of a task's share. A task can write there what it likes: more than the share is
// not believed.
func (m *Meter) Booked(q Quota, peak, denied int64, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := watchKey{q.Alloc, q.Task, q.GPU}
	x := m.use[k]
	if x == nil { // it ended before anybody looked
		x = &metered{TaskUsage: TaskUsage{Quota: q, Since: now, Measured: now}}
		if m.use == nil {
			m.use = map[watchKey]*metered{}
		}
		m.use[k] = x
	}
	x.PeakBytes, x.Denied = max(x.PeakBytes, min(peak, q.MiB<<20)), max(x.Denied, denied)
}

// heldMax bounds how long the memory of the last look counts as held when a task has ended since.
const heldMax = 10 * time.Second

// Totals returns what the tasks of an allocation have used up to now, in no order. What they held at the last look counts as
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

// Row is what a Meter knows of one task on one GPU, to be kept while the agent does not run.
type Row struct {
	TaskUsage
	MiBMillis int64
	Counter   int64 // of the GPU's energy at the last look, millijoules; -1: not known
}

// Rows returns all of them, in no order.
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

// Restore takes in rows of an earlier life of the agent, before the first look. With went, tasks may have gone on
// meanwhile: the time since counts with what the next look finds. Without (the machine has been started anew) it does not.
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

// Of returns what the tasks of an allocation use, in no order.
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

// All returns what all tasks use, in no order.
func (m *Meter) All() []TaskUsage {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]TaskUsage, 0, len(m.use))
	for _, x := range m.use {
		out = append(out, x.TaskUsage)
	}
	return out
}
