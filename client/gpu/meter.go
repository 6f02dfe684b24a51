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
	Since      time.Time
	Measured   time.Time
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

// Measure takes a look in. have are the grants of live allocations; what others used is forgotten.
func (m *Meter) Measure(now time.Time, samples []Sample, uses []TaskUse, have []Quota) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := map[watchKey]*metered{}
	for _, q := range have {
		k := watchKey{q.Alloc, q.Task, q.GPU}
		x := m.use[k]
		if x == nil {
			x = &metered{TaskUsage: TaskUsage{Since: now, Measured: now}}
		}
		x.Quota = q
		next[k] = x
	}
	m.use = next
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

// Booked takes in what the library says of a task's share.
func (m *Meter) Booked(q Quota, peak, denied int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x := m.use[watchKey{q.Alloc, q.Task, q.GPU}]; x != nil {
		x.PeakBytes, x.Denied = max(x.PeakBytes, peak), denied
	}
}

// Of is what the tasks of an allocation use, in no order.
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

// All is what all tasks use, in no order.
func (m *Meter) All() []TaskUsage {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]TaskUsage, 0, len(m.use))
	for _, x := range m.use {
		out = append(out, x.TaskUsage)
	}
	return out
}
