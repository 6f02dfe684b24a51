package structs

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Limits of queue objects.
const (
	QueuePathMax  = 512 // bytes of a path
	QueueDepthMax = 8   // parts of a path
	QueuesMax     = 10_000
	capMax        = 1 << 40 // of settings that count
)

// QueueOrders are the valid names in Queue.Order, besides "".
var QueueOrders = []Order{OrderAdaptive, OrderEDF, OrderFair, OrderFCFS, OrderLottery, OrderMLFQ, OrderPriority, OrderSJF, OrderSRSF, OrderSRTF, OrderWeighted}

// Names returns the names in an order.
func (o Order) Names() []Order {
	if !o.List() {
		return []Order{o}
	}
	var out []Order
	for name := range strings.SplitSeq(string(o), ",") {
		out = append(out, Order(name))
	}
	return out
}

// List reports whether an order has several names.
func (o Order) List() bool { return strings.Contains(string(o), ",") }

// Then returns the order that decides by o, and by name between what o holds equal.
func (o Order) Then(name Order) Order {
	if o == "" {
		return name
	}
	return o + "," + name
}

// Has reports whether a name occurs in an order.
func (o Order) Has(name Order) bool { return o == name || o.List() && slices.Contains(o.Names(), name) }

// Width returns how many numbers an order of one name compares.
func (o Order) Width() int {
	switch o {
	case OrderEDF, OrderMLFQ:
		return 2
	}
	return 1
}

// orderWidthMax limits the numbers that one comparison uses.
const orderWidthMax = 4

// listOf returns names with commas between them.
func listOf[T ~string](names []T) string {
	var b strings.Builder
	for i, n := range names {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(n))
	}
	return b.String()
}

// Check returns what is wrong with an order, or "".
func (o Order) Check() string {
	names, width, turns := o.Names(), 0, Order("")
	for i, n := range names {
		width += n.Width()
		switch {
		case !slices.Contains(QueueOrders, n):
			return fmt.Sprintf("order %q is not known; use %s, or several of them in a list", n, listOf(QueueOrders))
		case slices.Contains(names[:i], n):
			return fmt.Sprintf("order %q is in the list twice", n)
		case n == OrderAdaptive && len(names) > 1:
			return "order adaptive decides by everything at once; it stands alone"
		case n == OrderLottery && i+1 < len(names):
			return "order lottery leaves nothing equal; it can only be the last of a list"
		}
		if n == OrderFair || n == OrderWeighted {
			if turns != "" {
				return fmt.Sprintf("orders %s and %s let queues take turns by different shares; give one of them", turns, n)
			}
			turns = n
		}
	}
	if width > orderWidthMax {
		return fmt.Sprintf("order %s is too long a list; three orders, two with edf and mlfq", o)
	}
	return ""
}

// CheckRoot returns an error for a root queue with limits on each submitter's jobs, which would do nothing: the root counts
// no submitters. Check accepts them, because older logs have them.
func (q *Queue) CheckRoot() *Error {
	if q.Path == QueueRoot && q.RunningUserMax+q.SubmittedUserMax+q.GPUMinutesUserMax > 0 {
		return Errorf(CodeInvalid, "queue %q: running_user_max, submitted_user_max and gpu_minutes_user_max hold for the submitters of one queue, and the root counts none; give them to the queues below it", q.Path)
	}
	return nil
}

// userPrioritiesMax limits the submitters in each of a queue's UserPriorityMax and UserPriorityDefault.
const userPrioritiesMax = 10_000

// PriorityMaxOf returns the highest priority that a queue allows a submitter's jobs: the submitter's own, else that of all.
// 0: the queue has neither, so the queue above it decides.
func (q *Queue) PriorityMaxOf(user string) int64 {
	return cmp.Or(q.UserPriorityMax[user], q.PriorityMax)
}

// PriorityDefaultOf is PriorityMaxOf for the priority of jobs that have none.
func (q *Queue) PriorityDefaultOf(user string) int64 {
	return cmp.Or(q.UserPriorityDefault[user], q.PriorityDefault)
}

// checkUserPriorities returns what is wrong with the priorities of submitters, or "".
func (q *Queue) checkUserPriorities() string {
	for _, m := range []struct {
		name string
		of   map[string]int64
	}{{"user_priority_max", q.UserPriorityMax}, {"user_priority_default", q.UserPriorityDefault}} {
		if len(m.of) > userPrioritiesMax {
			return fmt.Sprintf("%s has %d users; it may have %d", m.name, len(m.of), userPrioritiesMax)
		}
		for _, user := range slices.Sorted(maps.Keys(m.of)) {
			switch p := m.of[user]; {
			case user == "":
				return m.name + " has a user without a name"
			case user == "*":
				return fmt.Sprintf("%s of %q: give names; %s is for all others", m.name, user, strings.TrimPrefix(m.name, "user_"))
			case p < JobPriorityMin || p > JobPriorityMax:
				return fmt.Sprintf("%s %d of user %q; give %d to %d", m.name, p, user, JobPriorityMin, JobPriorityMax)
			}
		}
	}
	for _, user := range slices.Sorted(maps.Keys(q.UserPriorityDefault)) {
		if p, most := q.UserPriorityDefault[user], q.PriorityMaxOf(user); most > 0 && p > most {
			return fmt.Sprintf("user_priority_default %d of user %q is above %d, the highest priority that the queue allows the user", p, user, most)
		}
	}
	return ""
}

// Check returns an error if a queue is invalid by itself. Apply checks that its parent exists.
func (q *Queue) Check() *Error {
	bad := func(format string, args ...any) *Error {
		return Errorf(CodeInvalid, "queue %q: "+format, append([]any{q.Path}, args...)...)
	}
	if err := CheckQueuePath(q.Path); err != nil {
		return err
	}
	switch {
	case q.Order != "" && q.Order.Check() != "":
		return bad("%s", q.Order.Check())
	case q.Preempt != "" && !slices.Contains(Enums["Queue.Preempt"], q.Preempt):
		return bad("preempt %q is not known; use none, priority, reclaim, deadline or order", q.Preempt)
	case q.Backfill != "" && !slices.Contains(Enums["Queue.Backfill"], q.Backfill):
		return bad("backfill %q is not known; use none, greedy, easy, easy-sjf or conservative", q.Backfill)
	case q.Ends != "" && !slices.Contains(Enums["Queue.Ends"], q.Ends):
		return bad("ends %q is not known; use predicted or limit", q.Ends)
	case q.GPUHoursPeriod != "" && !slices.Contains(Enums["Queue.GPUHoursPeriod"], q.GPUHoursPeriod):
		return bad("gpu_hours_period %q is not known; use day, week or month", q.GPUHoursPeriod)
	case q.GPUHoursPeriod != "" && q.BudgetPeriod() == "":
		return bad("gpu_hours_period needs gpu_hours_max or gpu_hours_user_max")
	case q.Path == QueueRoot && (q.UserLimit != nil || len(q.UserLimitModels) > 0 || q.GPUHoursUserMax > 0):
		return bad("user_limit and gpu_hours_user_max hold for the submitters of one queue, and the root counts none; give them to the queues below it")
	case q.PriorityMax < 0 || q.PriorityMax > JobPriorityMax:
		return bad("priority_max %d; give %d to %d, or 0 for that of the queue above", q.PriorityMax, JobPriorityMin, JobPriorityMax)
	case q.PriorityDefault < 0 || q.PriorityDefault > JobPriorityMax:
		return bad("priority_default %d; give %d to %d, or 0 for that of the queue above", q.PriorityDefault, JobPriorityMin, JobPriorityMax)
	case q.PriorityMax > 0 && q.PriorityDefault > q.PriorityMax:
		return bad("priority_default %d is above priority_max %d", q.PriorityDefault, q.PriorityMax)
	case q.Weight < 0 || q.Weight > 1_000_000:
		return bad("weight %d; give 1 to 1000000", q.Weight)
	case q.PreemptDelta < 0 || q.PreemptDelta > 100:
		return bad("preempt_priority_delta %d; give 1 to 100", q.PreemptDelta)
	case q.AgingMax < 0 || q.AgingMax > 1000:
		return bad("aging_max %d; give 1 to 1000, or 0 for no ceiling", q.AgingMax)
	case q.ReserveDepth < 0 || q.ReserveDepth > 1000:
		return bad("reserve_depth %d; give 1 to 1000", q.ReserveDepth)
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"max_wait", q.MaxWait}, {"half_life", q.HalfLife}, {"aging", q.Aging}, {"preempt_grace", q.PreemptGrace}, {"preempt_min_runtime", q.PreemptMinRuntime},
		{"preempt_after", q.PreemptAfter}, {"backfill_window", q.BackfillWindow}} {
		if d.v < 0 || d.v > lifeMax && (d.name != "max_wait" || d.v != MaxWaitOff) {
			return bad("%s %v; give 0 to %v", d.name, d.v, lifeMax)
		}
	}
	for _, c := range []struct {
		name string
		v    int64
	}{{"running_max", q.RunningMax}, {"submitted_max", q.SubmittedMax}, {"running_user_max", q.RunningUserMax}, {"submitted_user_max", q.SubmittedUserMax},
		{"gpu_minutes_max", q.GPUMinutesMax}, {"gpu_minutes_user_max", q.GPUMinutesUserMax}, {"gpu_hours_max", q.GPUHoursMax}, {"gpu_hours_user_max", q.GPUHoursUserMax}, {"preempt_max", q.PreemptMax}, {"preempt_rate", q.PreemptRate},
		{"backfill_max_jobs", q.BackfillMaxJobs}} {
		if c.v < 0 || c.v > capMax {
			return bad("%s %d; give 1 to %d, or 0 for no cap", c.name, c.v, int64(capMax))
		}
	}
	if len(q.UserWeights) > userWeightsMax {
		return bad("%d user weights; a queue may have %d", len(q.UserWeights), userWeightsMax)
	}
	for _, user := range slices.Sorted(maps.Keys(q.UserWeights)) {
		if w := q.UserWeights[user]; user == "" || w < 1 || w > 1_000_000 {
			return bad("weight %d of user %q; give a name and 1 to 1000000", w, user)
		}
	}
	if why := q.checkUserPriorities(); why != "" {
		return bad("%s", why)
	}
	if q.Billing != nil {
		if why := q.Billing.check(); why != "" {
			return bad("billing: %s", why)
		}
	}
	if q.Guarantee != nil {
		for _, c := range q.Guarantee.Parts() {
			if c.Value < 0 {
				return bad("a guarantee of %s cannot be negative", c.Dimension)
			}
		}
	}
	for _, l := range []struct {
		name   string
		amount *Amount
	}{{"borrow", q.Borrow}, {"lend", q.Lend}, {"limit", q.Limit}, {"user_limit", q.UserLimit}, {"soft_limit", q.SoftLimit}} {
		if l.amount == nil {
			continue
		}
		for _, c := range l.amount.Parts() {
			if c.Value < AmountNoLimit {
				return bad("%s of %s is %d; give 0 or more", l.name, c.Dimension, c.Value)
			}
		}
		if q.Guarantee != nil && (l.amount == q.Limit || l.amount == q.SoftLimit) {
			if what, over := q.Guarantee.Exceeds(*l.amount); over > 0 {
				return bad("the guarantee exceeds the %s of %s by %d", l.name, what, over)
			}
		}
	}
	for _, l := range []struct {
		name   string
		models []ModelAmount
	}{{"limit", q.LimitModels}, {"user_limit", q.UserLimitModels}, {"soft_limit", q.SoftLimitModels}} {
		if why := checkModels(l.models); why != "" {
			return bad("%s: %s", l.name, why)
		}
	}
	if q.Lend != nil && q.Guarantee == nil {
		return bad("lend limits what others may hold of its guarantee, and it has no guarantee; give a guarantee, or no lend")
	}
	return nil
}

// Most returns the most that the queue may hold, by its limit and by what it may borrow beyond its guarantee; nil if
// neither bounds it. Components without a bound are AmountNoLimit.
func (q *Queue) Most() *Amount {
	if q.Borrow == nil {
		return q.Limit
	}
	out, own := Unlimited, Amount{}
	if q.Limit != nil {
		out = *q.Limit
	}
	if q.Guarantee != nil {
		own = *q.Guarantee
	}
	for _, c := range [...]struct {
		most        *int64
		own, borrow int64
	}{{&out.GPUMilli, own.GPUMilli, q.Borrow.GPUMilli}, {&out.GPUMemoryMiB, own.GPUMemoryMiB, q.Borrow.GPUMemoryMiB},
		{&out.CPU, own.CPU, q.Borrow.CPU}, {&out.MemoryMiB, own.MemoryMiB, q.Borrow.MemoryMiB}} {
		if c.borrow != AmountNoLimit && (*c.most == AmountNoLimit || c.own+c.borrow < *c.most) {
			*c.most = c.own + c.borrow
		}
	}
	return &out
}

// CheckQueuePath returns an error if the path of a queue is invalid.
func CheckQueuePath(path QueuePath) *Error {
	parts := strings.Split(string(path), "/")
	switch {
	case path == "":
		return Errorf(CodeInvalid, "a queue needs a name")
	case len(path) > QueuePathMax || len(parts) > QueueDepthMax:
		return Errorf(CodeInvalid, "queue %.40q: a path may have %d bytes and %d parts", path, QueuePathMax, QueueDepthMax)
	case len(parts) > 1 && parts[0] == string(QueueRoot):
		return Errorf(CodeInvalid, "queue %q: %q is the root itself; the queues at the top are named without it", path, QueueRoot)
	}
	for _, p := range parts {
		for _, c := range p {
			if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
				return Errorf(CodeInvalid, "queue %q: only letters, digits, - and _ may occur between slashes", path)
			}
		}
		if p == "" {
			return Errorf(CodeInvalid, "queue %q: a part of the path is empty", path)
		}
	}
	return nil
}

// AmountPart is one component of an Amount.
type AmountPart struct {
	Dimension Dimension // as in Exceeds
	Value     int64
}

// Parts returns the components of an amount in a fixed order.
func (a Amount) Parts() [4]AmountPart {
	return [4]AmountPart{{DimensionGPU, a.GPUMilli}, {DimensionGPUMemory, a.GPUMemoryMiB}, {DimensionCPU, a.CPU}, {DimensionMemory, a.MemoryMiB}}
}

// Check returns an error if an operator's reservation is invalid by itself.
func (r *Reservation) Check() *Error {
	bad := func(format string, args ...any) *Error {
		return Errorf(CodeInvalid, "reservation %q: "+format, append([]any{r.ID}, args...)...)
	}
	switch {
	case r.ID == "" || len(r.ID) > 128:
		return Errorf(CodeInvalid, "a reservation needs a name of at most 128 bytes")
	case strings.ContainsAny(r.ID, "/ "):
		return bad("a name has neither slashes nor spaces")
	case r.JobID != "" || len(r.Places) > 0 || r.Basis != "":
		return bad("an operator reserves nodes or an amount, not for a job")
	case len(r.Nodes) == 0 && r.Amount == nil:
		return bad("it needs nodes or an amount")
	case len(r.Nodes) > 0 && r.Amount != nil:
		return bad("it has nodes and an amount; give one of them")
	case len(r.Nodes) > 10_000:
		return bad("%d nodes; it may have 10000", len(r.Nodes))
	case r.Start <= 0 || r.End <= r.Start:
		return bad("it needs a window that begins before it ends")
	case r.Maintenance && (len(r.Users) > 0 || len(r.Queues) > 0 || len(r.Nodes) == 0):
		return bad("maintenance is of nodes and for nobody; it has no users, queues or amount")
	case r.Amount != nil && *r.Amount == (Amount{}):
		return bad("its amount is nothing")
	}
	if r.Amount != nil {
		for _, c := range r.Amount.Parts() {
			if c.Value < 0 {
				return bad("%s of its amount is negative", c.Dimension)
			}
		}
	}
	return nil
}

// Admits reports whether work of a queue and submitter may use an operator's reservation. Without users and queues all
// work may, unless it is for maintenance.
func (r *Reservation) Admits(queue QueuePath, user string) bool {
	if r.Maintenance {
		return false
	}
	if len(r.Users) == 0 && len(r.Queues) == 0 {
		return true
	}
	if slices.Contains(r.Users, user) {
		return true
	}
	return slices.ContainsFunc(r.Queues, func(q QueuePath) bool { return q.Contains(queue) })
}
