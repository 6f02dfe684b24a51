package state

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// Usage of queues (D11): what allocations hold in each queue, of each submitter in it, and in each namespace. A row is
// written at most once per entry, when an allocation began or ceased to hold, and not periodically.
//
// A cluster that never had a queue object, a quota or an order by shares keeps no usage. StartUse counts everything
// once, at one place in the log, so that every server has the same rows from there on.

type useKey = structs.UseRow

func lessUse(a, b useKey) bool {
	return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.User, b.User)) < 0
}

// useMove is by how much a row changes in the current entry.
type useMove struct {
	held         structs.Amount
	allocs, jobs int64
	ending, ends int64
	models       []structs.ModelAmount
	draws        bool // of the root: lotteries draw again
}

func (m *useMove) empty() bool {
	return !m.draws && m.held == structs.Amount{} && m.allocs == 0 && m.jobs == 0 && m.ending == 0 && m.ends == 0 && len(m.models) == 0
}

// useJob counts the holding allocations of a job that are charged to one row.
type useJob struct {
	job structs.JobKey
	row useKey
}

var useRoot = useKey{Path: structs.QueueRoot}

// Counting reports whether usage of queues is kept.
func (s *Store) Counting() bool { return QueueUse.Get(s, useRoot) != nil }

// StartUse begins to keep usage, unless it is kept already.
func (s *Store) StartUse() {
	if s.Counting() {
		return
	}
	s.useMoves, s.useJobs = map[useKey]*useMove{}, map[useJob]int64{}
	QueueUse.Put(s, &structs.QueueUsage{Path: structs.QueueRoot, At: s.time})
	for a := range Allocs.All(s) {
		s.chargeOne(a, 1)
	}
	s.drawAgain()
}

// StartDraws begins to keep the draws of lotteries, from the format on that has them.
func (s *Store) StartDraws() {
	if c := Scheduler.Get(s, ""); c != nil && c.Order.Has(structs.OrderLottery) {
		s.StartUse()
	}
	s.drawAgain()
}

// drawAgain lets lotteries draw again after the current entry.
func (s *Store) drawAgain() {
	if s.Counting() && s.Has(feature.LotteryDraws) {
		s.useMove(useRoot).draws = true
	}
}

// CountsModels reports whether usage is kept by GPU model, too.
func (s *Store) CountsModels() bool {
	root := QueueUse.Get(s, useRoot)
	return root != nil && root.ByModel
}

// StartModels begins to keep usage by GPU model, unless it is kept already. A cluster without limits by model does not
// need it. Usage must be kept (StartUse).
func (s *Store) StartModels() {
	if s.CountsModels() {
		return
	}
	root := *QueueUse.Get(s, useRoot)
	root.ByModel = true
	QueueUse.Put(s, &root)
	for a := range Allocs.All(s) {
		s.chargeModels(a, 1)
	}
}

// chargeModels counts the GPUs of an allocation by model.
func (s *Store) chargeModels(a *structs.Allocation, n int64) {
	if a == nil || !structs.Holds(a) || len(a.Grants) == 0 {
		return
	}
	for _, r := range structs.UseRows(a) {
		m := s.useMove(r)
		m.models = structs.AddModels(m.models, structs.ChargeModels(a, r, s.allocOf), n)
	}
}

func (s *Store) allocOf(id structs.AllocID) *structs.Allocation { return Allocs.Get(s, id) }

// useChanged updates the rows that one allocation and those waiting on it are charged to. The tables must already have
// the new version.
func (s *Store) useChanged(before, after *structs.Allocation) {
	switch {
	case before == nil && after != nil:
		for _, id := range after.WaitsOn {
			s.waiters[id] = append(s.waiters[id], after.ID)
		}
	case before != nil && after == nil:
		for _, id := range before.WaitsOn {
			if s.waiters[id] = slices.DeleteFunc(s.waiters[id], func(w structs.AllocID) bool { return w == before.ID }); len(s.waiters[id]) == 0 {
				delete(s.waiters, id)
			}
		}
	}
	if before != nil && after != nil && structs.Holds(before) == structs.Holds(after) && before.Job == after.Job &&
		before.Resources == after.Resources && len(before.WaitsOn) == len(after.WaitsOn) && len(before.Grants) == len(after.Grants) {
		return // Grants and WaitsOn of an allocation are set when it is placed
	}
	if !s.Counting() {
		return
	}
	s.chargeOne(before, -1)
	s.chargeOne(after, 1)
	if after != nil && structs.Holds(after) && (before == nil || !structs.Holds(before)) {
		s.drawAgain()
	}
	byModel := s.CountsModels()
	if byModel {
		s.chargeModels(before, -1)
		s.chargeModels(after, 1)
	}
	at := before
	if at == nil {
		at = after
	}
	for _, waiter := range s.waiters[at.ID] {
		w := s.allocOf(waiter)
		if w == nil || !structs.Holds(w) {
			continue
		}
		for _, r := range structs.UseRows(w) {
			earlier := func(id structs.AllocID) *structs.Allocation {
				if id == at.ID {
					return before
				}
				return s.allocOf(id)
			}
			if byModel {
				m := s.useMove(r)
				m.models = structs.AddModels(m.models, structs.ChargeModels(w, r, s.allocOf), 1)
				m.models = structs.AddModels(m.models, structs.ChargeModels(w, r, earlier), -1)
			}
			was := structs.Charge(w, r, earlier, s.billed)
			if now := structs.Charge(w, r, s.allocOf, s.billed); now != was {
				m := s.useMove(r)
				m.held = m.held.Add(now).Sub(was)
			}
		}
	}
}

func (s *Store) chargeOne(a *structs.Allocation, n int64) {
	if a == nil || !structs.Holds(a) {
		return
	}
	ending, ends := structs.EndingOf(a)
	for _, r := range structs.UseRows(a) {
		m := s.useMove(r)
		m.held = m.held.Add(structs.Charge(a, r, s.allocOf, s.billed).Times(n))
		m.allocs += n
		m.ending += n * ending
		m.ends += n * ends
		k := useJob{a.JobKey(), r}
		was := s.useJobs[k]
		switch now := was + n; {
		case now == 0:
			delete(s.useJobs, k)
			m.jobs--
		default:
			s.useJobs[k] = now
			if was == 0 {
				m.jobs++
			}
		}
	}
}

func (s *Store) useMove(k useKey) *useMove {
	m := s.useMoves[k]
	if m == nil {
		m = &useMove{}
		s.useMoves[k] = m
	}
	return m
}

// HeldNow returns what is charged to a row, including the current entry, and the number of jobs that hold something.
func (s *Store) HeldNow(k structs.UseRow) (held structs.Amount, jobs int64) {
	if u := QueueUse.Get(s, k); u != nil {
		held, jobs = u.Held, u.Jobs
	}
	if m := s.useMoves[k]; m != nil {
		held, jobs = held.Add(m.held), jobs+m.jobs
	}
	return held, jobs
}

// Claimed returns why an allocation cannot be waited on, or "": another one waits on it, or it waits itself. Otherwise
// its end could add more to the usage than it removes. The check applies only while usage is kept, so that the logs of
// clusters without queues keep their meaning.
func (s *Store) Claimed(id structs.AllocID) string {
	if !s.Counting() {
		return ""
	}
	for _, w := range s.waiters[id] {
		if a := s.allocOf(w); a != nil && structs.Holds(a) {
			return "is claimed by another"
		}
	}
	if a := s.allocOf(id); a != nil {
		for _, on := range a.WaitsOn {
			if v := s.allocOf(on); v != nil && structs.Holds(v) {
				return "waits itself"
			}
		}
	}
	return ""
}

// ModelsNow is HeldNow for the GPUs by model.
func (s *Store) ModelsNow(k structs.UseRow) (held []structs.ModelAmount) {
	if u := QueueUse.Get(s, k); u != nil {
		held = u.Models
	}
	if m := s.useMoves[k]; m != nil {
		held = structs.AddModels(held, m.models, 1)
	}
	return held
}

// JobHolds reports whether a job has an allocation that holds and is charged to a row.
func (s *Store) JobHolds(job structs.JobKey, row structs.UseRow) bool {
	return s.useJobs[useJob{job, row}] > 0
}

// flushUse writes the rows that changed in the entry at index.
func (s *Store) flushUse(index structs.Index) {
	if len(s.useMoves) == 0 {
		return
	}
	keys := make([]useKey, 0, len(s.useMoves))
	for k, m := range s.useMoves {
		if !m.empty() {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b useKey) int { return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.User, b.User)) })
	var woke []useKey
	for _, k := range keys {
		m := s.useMoves[k]
		u := structs.QueueUsage{Path: k.Path, User: k.User, At: s.time}
		if old := QueueUse.Get(s, k); old != nil {
			u = *old
		}
		if u.Allocs == 0 && m.allocs > 0 {
			woke = append(woke, k)
		}
		u.Settle(s.time, s.HalfLife(k.Path), s.period(k.Path))
		u.Held, u.Allocs, u.Jobs = u.Held.Add(m.held), u.Allocs+m.allocs, u.Jobs+m.jobs
		u.Ending, u.Ends, u.ModifyIndex = u.Ending+m.ending, u.Ends+m.ends, index
		u.Models = structs.AddModels(u.Models, m.models, 1)
		if m.draws {
			u.Draw = index
		}
		QueueUse.Put(s, &u)
	}
	for _, u := range structs.LiftCredit(woke, QueueUse.All(s), s.time, s.Order, s.weight) {
		QueueUse.Put(s, u)
	}
	clear(s.useMoves)
}

func (s *Store) weight(u *structs.QueueUsage) int64 {
	if u.User != "" {
		var weights map[string]int64
		s.up(u.Path, func(q *structs.Queue) bool { weights = q.UserWeights; return weights == nil })
		return max(weights[u.User], 1)
	}
	if q := Queues.Get(s, u.Path); q != nil {
		return max(q.Weight, 1)
	}
	return 1
}

// Policy returns the settings by which a job in a queue is decided on: order, backfilling, preemption, placement.
func (s *Store) Policy(path structs.QueuePath, job *structs.Job) string {
	var q structs.Queue
	s.up(path, func(o *structs.Queue) bool {
		q.Order, q.Backfill, q.Preempt = cmp.Or(q.Order, o.Order), cmp.Or(q.Backfill, o.Backfill), cmp.Or(q.Preempt, o.Preempt)
		return true
	})
	cfg := Scheduler.Get(s, "")
	if cfg == nil {
		cfg = structs.DefaultSchedulerConfig()
	}
	placement := cmp.Or(cfg.Algorithm, structs.AlgorithmDefault)
	if job != nil {
		if p := Pools.Get(s, job.NodePool); p != nil {
			placement = cmp.Or(p.Algorithm, placement)
		}
		placement = cmp.Or(job.Placement, placement)
	}
	return string(cmp.Or(q.Order, cfg.Order, structs.OrderDefault)) + "/" + cmp.Or(q.Backfill, cfg.Backfill, structs.BackfillDefault) + "/" +
		cmp.Or(q.Preempt, structs.PreemptDefault) + "/" + placement
}

// Order returns the ordering policy of a queue: its own, or the nearest ancestor's, or the cluster's.
func (s *Store) Order(path structs.QueuePath) structs.Order {
	var out structs.Order
	s.up(path, func(q *structs.Queue) bool { out = q.Order; return out == "" })
	if c := Scheduler.Get(s, ""); out == "" && c != nil {
		out = c.Order
	}
	return out
}

// HalfLife returns the half-life of a queue's usage, its own, the nearest ancestor's or the default.
func (s *Store) HalfLife(path structs.QueuePath) (out time.Duration) {
	s.up(path, func(q *structs.Queue) bool { out = q.HalfLife; return out == 0 })
	return cmp.Or(out, halfLifeIn(s.Format()))
}

// HalfLifeDefault returns the half-life of queues for which none is set, in the format in force.
func (s *Snapshot) HalfLifeDefault() time.Duration { return halfLifeIn(s.Format()) }

func halfLifeIn(f structs.Format) time.Duration {
	if f < feature.FairWeek.Format {
		return structs.HalfLifeDay
	}
	return structs.HalfLifeDefault
}

// period returns the period of a queue's budget; "" for none.
func (s *Store) period(path structs.QueuePath) string { return Queues.Get(s, path).BudgetPeriod() }

// CountBudget makes the usage of a queue and of the submitters in it count from the current time for its budget, whose
// period is new or has changed, or not at all when it has none.
func (s *Store) CountBudget(path structs.QueuePath) {
	s.settleEach(func(u *structs.QueueUsage) bool { return path == u.Path }, func(u *structs.QueueUsage) { u.PeriodAt = 0 })
}

// up calls f with a queue and its ancestors that exist, until f returns false.
func (s *Store) up(path structs.QueuePath, f func(*structs.Queue) bool) {
	climb(Queues.Lookup(s), path, f)
}

func climb(get func(structs.QueuePath) *structs.Queue, path structs.QueuePath, f func(*structs.Queue) bool) {
	if path.IsNamespace() {
		path = structs.QueueRoot
	}
	for p := range path.Lineage() {
		if q := get(p); q != nil && !f(q) {
			return
		}
	}
}

// billed returns what an allocation counts by the billing weights of its job's queue.
func (s *Store) billed(a *structs.Allocation) int64 { return billed(Queues.Lookup(s), a) }

func (s *Snapshot) billed(a *structs.Allocation) int64 { return billed(s.QueueByPath, a) }

func billed(get func(structs.QueuePath) *structs.Queue, a *structs.Allocation) int64 {
	path := structs.QueueDefault
	if a.Job != nil {
		path = a.Job.QueueName()
	}
	var b *structs.Billing
	climb(get, path, func(q *structs.Queue) bool { b = q.Billing; return b == nil })
	return b.Of(a)
}

// Rebill calls change, which changes queues. If changed says that billing weights are affected, it counts held amounts
// again with the new weights.
func (s *Store) Rebill(changed bool, change func()) {
	changed = changed && s.Counting()
	for _, n := range []int64{-1, 1} {
		if changed {
			for a := range Allocs.All(s) {
				s.chargeOne(a, n)
			}
		}
		if n < 0 {
			change()
		}
	}
}

// SettleUse advances the rows of a subtree to the current time, before the half-life of its usage changes.
func (s *Store) SettleUse(path structs.QueuePath) {
	s.settleEach(func(u *structs.QueueUsage) bool { return path.Contains(u.Path) }, func(*structs.QueueUsage) {})
}

// settleEach advances the rows of some queues to the current time, after an edit of each.
func (s *Store) settleEach(of func(*structs.QueueUsage) bool, edit func(*structs.QueueUsage)) {
	var rows []*structs.QueueUsage
	for u := range QueueUse.All(s) {
		if of(u) {
			rows = append(rows, u)
		}
	}
	for _, u := range rows {
		n := *u
		edit(&n)
		if n.Settle(s.time, s.HalfLife(n.Path), s.period(n.Path)); n.At != u.At || n.PeriodAt != u.PeriodAt || n.PeriodBase != u.PeriodBase {
			QueueUse.Put(s, &n)
		}
	}
}

// DeleteUse deletes the usage of a queue and of the submitters in it.
func (s *Store) DeleteUse(path structs.QueuePath) {
	var keys []useKey
	for u := range QueueUse.All(s) {
		if u.Path == path {
			keys = append(keys, useKey{Path: u.Path, User: u.User})
		}
	}
	for _, k := range keys {
		QueueUse.Delete(s, k)
	}
}

// countSubmitted counts jobs that are not dead by queue and submitter, ancestors included.
func (s *Store) countSubmitted(j *structs.Job, n int64) {
	if j == nil || j.Status == structs.JobDead || j.IsPeriodic() || j.IsParameterized() {
		return
	}
	for _, r := range structs.UseRowsOf(j.Namespace, j.QueueName(), j.Submitter.Name) {
		if s.submitted[r] += n; s.submitted[r] == 0 {
			delete(s.submitted, r)
		}
	}
}

// Submitted returns how many jobs of a queue (and submitter) are not dead.
func (s *Store) Submitted(k structs.UseRow) int64 { return s.submitted[k] }

// QueueByPath returns a queue, or nil.
func (s *Snapshot) QueueByPath(path structs.QueuePath) *structs.Queue { return Queues.Get(s, path) }

// Queues returns every queue by path, so that parents come before children.
func (s *Snapshot) Queues() iter.Seq[*structs.Queue] { return Queues.All(s) }

// QueueUse returns the usage of a queue (user "") or of a submitter in it; a zero row for none.
func (s *Snapshot) QueueUse(path structs.QueuePath, user string) structs.QueueUsage {
	if u := QueueUse.Get(s, useKey{Path: path, User: user}); u != nil {
		return *u
	}
	return structs.QueueUsage{Path: path, User: user, At: s.time}
}

// QueueUses returns every row of usage by path, then user.
func (s *Snapshot) QueueUses() iter.Seq[*structs.QueueUsage] { return QueueUse.All(s) }

// Quota returns a quota, or nil.
func (s *Snapshot) Quota(name string) *structs.QuotaSpec { return Quotas.Get(s, name) }

// Quotas returns every quota by name.
func (s *Snapshot) Quotas() iter.Seq[*structs.QuotaSpec] { return Quotas.All(s) }

// QuotaHeld returns what the namespaces with a quota hold together.
func (s *Snapshot) QuotaHeld(name string) (held structs.Amount) {
	for n := range s.Namespaces() {
		if n.Quota == name {
			held = held.Add(s.QueueUse(structs.UseNamespace(n.Name), "").Held)
		}
	}
	return held
}

// QuotaModels is QuotaHeld for the GPUs by model; nil where nothing is limited by model.
func (s *Snapshot) QuotaModels(name string) (held []structs.ModelAmount) {
	for n := range s.Namespaces() {
		if n.Quota == name {
			held = structs.AddModels(held, s.QueueUse(structs.UseNamespace(n.Name), "").Models, 1)
		}
	}
	return held
}

// Reservation returns a reservation, or nil.
func (s *Snapshot) Reservation(id string) *structs.Reservation { return Reservations.Get(s, id) }

// Reservations returns every reservation by id.
func (s *Snapshot) Reservations() iter.Seq[*structs.Reservation] { return Reservations.All(s) }

// CountedUse returns the values of the usage rows, counted from the allocations: Held, Models, Jobs, Allocs, Ending and Ends.
func (s *Snapshot) CountedUse() map[structs.UseRow]structs.QueueUsage {
	out := map[structs.UseRow]structs.QueueUsage{}
	jobs := map[useJob]bool{}
	for a := range s.Allocs() {
		if !structs.Holds(a) {
			continue
		}
		ending, ends := structs.EndingOf(a)
		for _, r := range structs.UseRows(a) {
			u := out[r]
			u.Path, u.User = r.Path, r.User
			u.Held = u.Held.Add(structs.Charge(a, r, s.AllocByID, s.billed))
			u.Models = structs.AddModels(u.Models, structs.ChargeModels(a, r, s.AllocByID), 1)
			u.Allocs++
			u.Ending, u.Ends = u.Ending+ending, u.Ends+ends
			if k := (useJob{a.JobKey(), r}); !jobs[k] {
				jobs[k] = true
				u.Jobs++
			}
			out[r] = u
		}
	}
	return out
}

// CheckUse compares the usage rows with CountedUse, and returns the first difference or "".
func (s *Snapshot) CheckUse() (why string) {
	if QueueUse.Len(s) == 0 {
		return ""
	}
	want := s.CountedUse()
	root := QueueUse.Get(s, useRoot)
	byModel := root != nil && root.ByModel
	for u := range s.QueueUses() {
		k := useKey{Path: u.Path, User: u.User}
		c := want[k]
		if u.Held != c.Held || u.Allocs != c.Allocs || u.Jobs != c.Jobs || u.Ending != c.Ending || u.Ends != c.Ends {
			return "usage of queue " + string(u.Path) + " (user " + u.User + ") does not follow from the allocations"
		}
		if byModel && !slices.Equal(u.Models, c.Models) || !byModel && len(u.Models) > 0 {
			return "GPUs by model of queue " + string(u.Path) + " (user " + u.User + ") do not follow from the allocations"
		}
		delete(want, k)
	}
	if len(want) > 0 {
		return "a queue holds something and has no row of usage"
	}
	return ""
}
