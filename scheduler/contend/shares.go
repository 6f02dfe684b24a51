package contend

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Reclaim by shares: under an order that measures shares, running work of a queue or submitter gives way to waiting work of
// another one that has less. Both are the entities that take turns at the lowest queue above both pieces of work, and
// their shares are those by which that queue's order lets them take turns. Work only moves where its old entity still has
// no less than the new one when it has moved. So at a fixed time and usage there is no loop: of the shares that take
// turns at a queue, each move replaces two by two that lie between them, which raises the sorted list of all shares.
//
// Naive: stop work of those above an equal part. Then work moves to and fro, because each move makes the one too
// rich that was too poor.

const (
	preemptShares  = "shares"         // a rule that PreemptOrder has, not one that can be configured
	sharesAgain    = 10 * time.Minute // shares move slowly: after that time, who was refused for his share is decided again
	sharesGainMost = 1000             // hundredths: the most by which the difference of two shares multiplies a gain
)

// Sharing rates those who take turns in a queue: its child queues, and the submitters of its jobs.
type Sharing interface {
	// Share rates an entity with a weight that holds an amount and has used what its row says (nil: nothing). Who has
	// least goes first.
	Share(weight int64, held structs.Amount, usage *structs.QueueUsage) int64
	// GoesAfter reports whether a goes after b even with a smaller share, by the orders before the shares.
	GoesAfter(a, b *Workload) bool
	// Text returns a share as users read it.
	Text(share int64) string
}

// SharingChooser is a Chooser that knows the orders under which shares are measured.
type SharingChooser interface {
	Chooser
	// Sharing returns the shares of a queue with all its settings; nil if its order measures none.
	Sharing(q *structs.Queue, t *QueueTable, now structs.LogTime) Sharing
}

// shares are what all entities hold during a pass.
type shares struct {
	pre     *Preemption
	chooser SharingChooser
	running []Workload
	flight  model.Overlay
	nodes   map[structs.QueuePath]*sharingNode
	moved   map[structs.UseRow]structs.Amount // by this pass
	apart   map[structs.UseRow]structs.Amount // what the usage in the state does not show; nil: not counted yet
	sizes   *GPUSizes
}

// sharingNode is a queue whose order measures shares; sharing is nil for any other.
type sharingNode struct {
	sharing Sharing
	queue   *structs.Queue
	most    int64 // the largest share of an entity with preemptible work, when the pass began
}

// entity is a child queue or a submitter that takes turns at a queue.
type entity struct {
	row    structs.UseRow
	weight int64
}

// String names the entity for users.
func (e entity) String() string {
	if e.row.User != "" {
		return "user " + e.row.User
	}
	return "queue " + string(e.row.Path)
}

// newShares returns nil where no order measures shares or nothing can be preempted.
func newShares(e *Env, p *Preemption) *shares {
	c, ok := e.Chooser.(SharingChooser)
	if !ok || e.Rules.Queues == nil || !slices.ContainsFunc(e.Running, func(w Workload) bool { return w.Job != nil && w.Job.MayPreempt() }) {
		return nil
	}
	s := &shares{pre: p, chooser: c, running: e.Running, flight: e.Flight, nodes: map[structs.QueuePath]*sharingNode{}, moved: map[structs.UseRow]structs.Amount{}}
	some := s.node(structs.QueueRoot).sharing != nil || s.node(structs.QueueDefault).sharing != nil
	for _, q := range e.Rules.Queues.Queues {
		some = some || s.node(q.Path).sharing != nil
	}
	if !some {
		return nil
	}
	return s
}

// node returns how entities take turns at a queue.
func (s *shares) node(path structs.QueuePath) *sharingNode {
	n := s.nodes[path]
	if n == nil {
		q := s.pre.rules.Of(path)
		n = &sharingNode{queue: q, sharing: s.chooser.Sharing(q, s.pre.rules.Queues, s.pre.now)}
		s.nodes[path] = n
		if n.sharing != nil {
			n.most = s.largest(n)
		}
	}
	return n
}

// largest returns the largest share of an entity of a queue with preemptible work.
func (s *shares) largest(n *sharingNode) (most int64) {
	seen := map[structs.UseRow]bool{}
	s.pre.Scanned += len(s.running)
	for i := range s.running {
		j := s.running[i].Job
		if j == nil || !j.MayPreempt() || !n.queue.Path.Contains(j.QueueName()) {
			continue
		}
		if e, ok := s.entity(n.queue.Path, j); ok && !seen[e.row] {
			seen[e.row] = true
			most = max(most, s.share(n, e, structs.Amount{}))
		}
	}
	return most
}

// entity returns who takes turns at a queue for a job in it or below it. ok is false where no usage is kept: of jobs
// without a submitter, and of jobs in the root itself.
func (s *shares) entity(at structs.QueuePath, j *structs.Job) (e entity, ok bool) {
	path, user := j.QueueName(), j.Submitter.Name
	if path == at {
		return entity{structs.UseRow{Path: at, User: user}, s.pre.rules.Of(at).UserWeight(user)}, user != "" && at != structs.QueueRoot
	}
	for path.Parent() != at {
		path = path.Parent()
	}
	return entity{structs.UseRow{Path: path}, s.pre.rules.Of(path).Weight}, true
}

// share returns the share of an entity that holds more by an amount.
func (s *shares) share(n *sharingNode, e entity, more structs.Amount) int64 {
	use := s.pre.rules.Queues.Use(e.row.Path, e.row.User)
	held := s.moved[e.row].Add(s.unseen()[e.row]).Add(more)
	if use != nil {
		held = held.Add(use.Held)
	}
	return n.sharing.Share(e.weight, held, use)
}

// unseen returns what rows hold without that being in the usage of the state: plans in flight, and less what ends
// already. What a placement takes over from work that ends is not charged yet.
func (s *shares) unseen() map[structs.UseRow]structs.Amount {
	if s.apart != nil {
		return s.apart
	}
	s.apart = map[structs.UseRow]structs.Amount{}
	add := func(h *model.Held, n int64) { s.count(s.apart, h, n) }
	v := s.pre.w.View
	s.pre.Scanned += v.Rows
	ending := map[structs.AllocID]*structs.Allocation{}
	var waiting []*model.Held
	for _, c := range v.Chunks {
		for i := range c.IDs {
			for h := range c.Hold[i].All() {
				switch {
				case h.Work.Job == nil:
				case h.Work.Ending || s.flight.Len() > 0 && s.flight.Stopping(h.ID):
					add(h, -1)
					ending[h.ID] = h.Alloc()
				case h.Rare != nil && len(h.Rare.Waits) > 0:
					waiting = append(waiting, h)
				}
			}
		}
	}
	get := func(id structs.AllocID) *structs.Allocation { return ending[id] }
	for _, h := range waiting {
		a, bill := h.Alloc(), s.bill(h.Work.Job)
		for _, r := range structs.UseRows(a) {
			whole := structs.AmountOf(a)
			whole.Billed = bill.Of(a)
			s.apart[r] = s.apart[r].Add(whole).Sub(structs.Charge(a, r, get, bill.Of))
		}
	}
	s.flight.Each(func(node structs.NodeID) {
		c, i, found := v.Locate(node)
		for _, f := range s.flight.On(node) {
			if f.Held.Work.Job != nil && !(found && v.Chunks[c].Hold[i].Has(f.Held.ID)) {
				add(f.Held, 1)
			}
		}
	})
	return s.apart
}

func (s *shares) bill(j *structs.Job) *structs.Billing {
	return s.pre.rules.Queues.Billing(j.QueueName())
}

// count adds what an allocation holds, times n, to all rows that it is charged to.
func (s *shares) count(to map[structs.UseRow]structs.Amount, h *model.Held, n int64) {
	amount := s.amount(h).Times(n)
	for _, r := range structs.UseRows(h.Alloc()) {
		to[r] = to[r].Add(amount)
	}
}

func (s *shares) amount(h *model.Held) structs.Amount {
	a := h.Amount()
	if b := s.bill(h.Work.Job); b != nil {
		a.Billed = b.Of(h.Alloc())
	}
	return a
}

// Settle counts what the pass has placed for a workload, so that later decisions of the pass see the shares that result.
func (p *Preemption) Settle(load *Workload, placed structs.Amount) {
	if p.shares == nil || load.Job == nil || placed == (structs.Amount{}) {
		return
	}
	for _, r := range structs.UseRowsOf(load.Key.Namespace, load.Job.QueueName(), load.User()) {
		p.shares.moved[r] = p.shares.moved[r].Add(placed)
	}
}

// loses counts that work is stopped, or with n = -1 that it is not.
func (p *Preemption) loses(h *model.Held, n int64) {
	if p.shares != nil && h.Work.Job != nil {
		p.shares.count(p.shares.moved, h, -n)
	}
}

// MayClaim reports whether a workload may take places from a user or queue with a larger share, if preemptible work of
// it can be stopped. Where it may not, but could once shares have moved, the next pass is scheduled.
func (p *Preemption) MayClaim(load *Workload) bool {
	if p.shares == nil || load.Job == nil || p.rules.Of(load.QueueName()).Preempt != structs.PreemptOrder {
		return false
	}
	path, some := load.QueueName(), false
	for at := range path.Lineage() {
		n := p.shares.node(at)
		if n.sharing == nil {
			continue
		}
		if e, ok := p.shares.entity(at, load.Job); ok && n.most > 0 {
			some = true
			if p.shares.share(n, e, structs.Amount{}) < n.most {
				p.Wake = earlier(p.Wake, p.now.Add(sharesAgain))
				return true
			}
		}
	}
	if some {
		p.Wake = earlier(p.Wake, p.now.Add(sharesAgain))
	}
	return false
}

// claims returns an upper bound of what n allocations of a group hold, in billing units, too.
func (p *Preemptor) claims(g *structs.Group, n int64) structs.Amount {
	s := p.shares
	if s == nil {
		return structs.Amount{}
	}
	if s.sizes == nil {
		x := GPUSizesOf(p.w.View)
		s.sizes = &x
	}
	a := s.sizes.Estimate(g)
	if b := s.bill(p.Load.Job); b != nil {
		a.Billed = b.OfGroup(g)
	}
	return a.Times(n)
}

// SetClaim says for what places of a group a preemption by shares is: the workload holds them in addition to what the
// decision has placed.
func (p *Preemptor) SetClaim(g *structs.Group, n int, placed structs.Amount) {
	p.claim = placed
	p.AddClaim(g, n)
}

// AddClaim adds more places to the claim.
func (p *Preemptor) AddClaim(g *structs.Group, n int) { p.claim = p.claim.Add(p.claims(g, int64(n))) }

// sides are those who take turns at the lowest queue above a workload and running work.
type sides struct {
	at         *sharingNode
	mine, them entity
}

// sides returns those who take turns for the workload and for running work. ok is false if they are one and the same, or if
// the queue's order measures no shares.
func (p *Preemptor) sides(h *model.Held) (r sides, ok bool) {
	if p.shares == nil {
		return r, false
	}
	top := commonQueue(p.Load.Job.QueueName(), h.Work.Job.QueueName())
	if r.at = p.shares.node(top); r.at.sharing == nil {
		return r, false
	}
	mine, known := p.shares.entity(top, p.Load.Job)
	them, other := p.shares.entity(top, h.Work.Job)
	r.mine, r.them = mine, them
	return r, known && other && mine.row != them.row
}

// mayClaim reports whether running work may give way by shares, and others with it.
func (p *Preemptor) mayClaim(h *model.Held, others []Victim) bool {
	r, ok := p.sides(h)
	if !ok || h.Work.Job.Priority > p.Load.Job.Priority || p.overSoft(r.at.queue.Path) {
		return false
	}
	s := p.shares
	after := s.share(r.at, r.mine, p.claim)
	if s.share(r.at, r.them, structs.Amount{}) <= after {
		return false
	}
	a := h.Alloc()
	if r.at.sharing.GoesAfter(p.Load, &Workload{Key: h.Work.Job.Key(), Job: h.Work.Job, Allocs: []*structs.Allocation{{ID: a.ID, Job: a.Job, Client: structs.ClientRunning, Desired: structs.DesiredRun}}}) {
		return false
	}
	t := total{p: p.Preemption}
	self := p.victim(h)
	t.add(&self)
	for i := range others {
		if v := &others[i]; !v.free && s.charged(v.h, r.them) {
			t.add(v)
		}
	}
	var loses structs.Amount
	for _, x := range t.sets {
		loses = loses.Add(x.charged)
	}
	for x := range t.whole() {
		loses = loses.Add(x.charged[x.from])
	}
	for x := range t.alone() {
		if !p.taken[x.ID] {
			loses = loses.Add(s.amount(x))
		}
	}
	return s.share(r.at, r.them, loses.Times(-1)) >= after
}

// charged reports whether work is charged to an entity.
func (s *shares) charged(h *model.Held, e entity) bool {
	return e.row.Path.Contains(h.Work.Job.QueueName()) && (e.row.User == "" || e.row.User == h.Work.Job.Submitter.Name)
}

// overSoft reports whether the workload takes a queue below top beyond its soft limit: it is then served after others.
func (p *Preemptor) overSoft(top structs.QueuePath) bool {
	for path := range p.Load.Job.QueueName().Lineage() {
		if path == top { // what changes hands below it adds nothing to it
			break
		}
		q := p.rules.Queues.Queue(path)
		if q != nil && q.SoftLimit != nil {
			held := p.shares.moved[structs.UseRow{Path: path}].Add(p.shares.unseen()[structs.UseRow{Path: path}])
			if u := p.rules.Queues.Use(path, ""); u != nil {
				held = held.Add(u.Held)
			}
			if _, over := structs.Breaks(held, p.claim, *q.SoftLimit); over > 0 {
				return true
			}
		}
	}
	return false
}

// excess returns by how much the largest shares that remain to those who give way exceed that of the workload once it has its
// places, in hundredths: at least 100, because it is not less.
func (e *Eviction) excess() int64 {
	least := int64(sharesGainMost)
	for _, r := range e.from {
		least = min(least, ratioOf(e.p.shares.share(r.at, r.them, structs.Amount{}), e.p.shares.share(r.at, r.mine, e.p.claim)))
	}
	return max(least, 100)
}

// ratioOf returns a / b in hundredths, at most sharesGainMost.
func ratioOf(a, b int64) int64 {
	if b <= 0 || a/b >= sharesGainMost/100 {
		return sharesGainMost
	}
	return a / max(b/100, 1)
}

// note records who gives way.
func (e *Eviction) note(v *Victim) {
	if r, ok := e.p.sides(v.h); ok && !slices.Contains(e.from, r) {
		e.from = append(e.from, r)
	}
}

// whyShares says whose work gives way to whose, with their shares.
func (e *Eviction) whyShares() string {
	if len(e.from) == 0 {
		return ""
	}
	r, s := e.from[0], e.p.shares
	return fmt.Sprintf(" of %s, with a smaller share in queue %s (%s with it; %s keeps %s)", r.mine, r.at.queue.Path,
		r.at.sharing.Text(s.share(r.at, r.mine, e.p.claim)), r.them, r.at.sharing.Text(s.share(r.at, r.them, structs.Amount{})))
}

// Claimant distinguishes workloads for which a preemption by shares has different victims.
func (p *Preemptor) Claimant() string {
	if p.Rule.Name != preemptShares {
		return ""
	}
	return p.Load.User()
}
