package sim

import (
	"fmt"
	"sort"
	"strings"

	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/predict"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// Rules are how a cluster decides: the settings of an operator, and the source of run times for the scheduler.
type Rules struct {
	Order     structs.Order // of queues; "": the default of a cluster
	Backfill  string
	Preempt   string
	Placement string
	Estimate  string // source of run times for the scheduler; "": the predictor of a server, under every order
}

// Other sources of run times for the scheduler.
const (
	EstimateTrue    = "true"    // the true run time
	EstimateNone    = "unknown" // none
	EstimateLimit   = "limit"   // what the submitter says: Runtime.Expected, else Limit
	EstimateTsafrir = "tsafrir" // the mean of the user's last two runs
)

// published are the policies of published studies, as settings of the production.
var published = map[string]Rules{
	"easy":            {Order: structs.OrderFCFS, Backfill: structs.BackfillEASY, Estimate: EstimateLimit},
	"easy-sjbf":       {Order: structs.OrderFCFS, Backfill: structs.BackfillSJF, Estimate: EstimateLimit},
	"easy-clair":      {Order: structs.OrderFCFS, Backfill: structs.BackfillEASY, Estimate: EstimateTrue},
	"easy-sjbf-clair": {Order: structs.OrderFCFS, Backfill: structs.BackfillSJF, Estimate: EstimateTrue},
	"easy-tsafrir":    {Order: structs.OrderFCFS, Backfill: structs.BackfillSJF, Estimate: EstimateTsafrir},
	"conservative":    {Order: structs.OrderFCFS, Backfill: structs.BackfillConservative, Estimate: EstimateLimit},
	"srtf":            {Order: structs.OrderSRTF, Backfill: structs.BackfillGreedy, Preempt: structs.PreemptOrder, Estimate: EstimateTrue},
}

var backfills = []string{structs.BackfillNone, structs.BackfillGreedy, structs.BackfillEASY, structs.BackfillSJF, structs.BackfillConservative}

var preempts = map[string]string{"preempt-priority": structs.PreemptPriority, "preempt-reclaim": structs.PreemptReclaim,
	"preempt-deadline": structs.PreemptDeadline, "preempt-order": structs.PreemptOrder}

// RulesFor parses the name of a policy: default, a published one, or the names of an order, a backfilling, a placement,
// a preemption rule and an estimate joined by +, such as "fair+easy+fgd". Parts that are left out have a cluster's
// defaults, the predictor of run times among them.
func RulesFor(name string) (Rules, error) {
	if name == "default" || name == "" {
		return Rules{}, nil
	}
	if r, ok := published[name]; ok {
		return r, nil
	}
	var r Rules
	for _, part := range strings.Split(name, "+") {
		switch {
		case queue.Builtin[structs.Order(part)] != nil:
			r.Order = r.Order.Then(structs.Order(part)) // later orders break the ties of earlier ones
		case policy.Builtin[part] != nil:
			r.Placement = part
		case preempts[part] != "":
			r.Preempt = preempts[part]
		case part == "true-times":
			r.Estimate = EstimateTrue
		case part == "no-times":
			r.Estimate = EstimateNone
		case published[part].Backfill != "":
			o := published[part]
			r.Backfill = o.Backfill
			if o.Estimate != EstimateLimit { // as a part of a name it is a backfilling only
				r.Estimate = o.Estimate
			}
			if r.Order == "" {
				r.Order = o.Order
			}
		default:
			found := false
			for _, b := range backfills {
				if b == part {
					r.Backfill, found = b, true
				}
			}
			if !found {
				return r, fmt.Errorf("no policy is called %q; there are default, %s, and any of these joined by +: %s", part, strings.Join(publishedNames(), ", "), strings.Join(partNames(), ", "))
			}
		}
	}
	if r.Order != "" {
		if why := r.Order.Check(); why != "" {
			return r, fmt.Errorf("policy %q: %s", name, why)
		}
	}
	return r, nil
}

func publishedNames() (out []string) {
	for n := range published {
		out = append(out, n)
	}
	sort.Strings(out)
	return out
}

func partNames() (out []string) {
	for n := range queue.Builtin {
		out = append(out, string(n))
	}
	for n := range policy.Builtin {
		out = append(out, n)
	}
	for n := range preempts {
		out = append(out, n)
	}
	out = append(out, backfills...)
	out = append(out, "true-times", "no-times")
	sort.Strings(out)
	return out
}

// Apply sets a run's configuration. Limits on saves stay as they are.
func (r Rules) Apply(cfg *Config) error {
	storages, most := cfg.Scheduler.CheckpointStorage, cfg.Scheduler.MaxCheckpoints
	cfg.Scheduler = *structs.DefaultSchedulerConfig()
	cfg.Scheduler.CheckpointStorage, cfg.Scheduler.MaxCheckpoints = storages, most
	cfg.Scheduler.Order, cfg.Scheduler.Backfill, cfg.Scheduler.Algorithm = r.Order, r.Backfill, r.Placement
	if err := policy.Check(r.Placement); err != nil {
		return err
	}
	cfg.Policy = policy.For(nil, cfg.Scheduler)
	if len(cfg.Queues) == 0 {
		cfg.Queues = []*structs.Queue{{Path: structs.QueueDefault}}
	}
	for i, q := range cfg.Queues {
		if r.Preempt != "" && !strings.Contains(string(q.Path), "/") {
			c := *q
			c.Preempt = r.Preempt
			cfg.Queues[i] = &c
		}
	}
	return nil
}

// learner sets up the run-time predictions of a cluster with these rules. It returns nil when no predictor learns.
func (r Rules) learner(cfg *Config) *Learner {
	var by predict.Predictor
	switch {
	case r.Estimate == EstimateTrue:
		cfg.Predict = truth{}
		return nil
	case r.Estimate == EstimateNone:
		return nil
	case r.Estimate == EstimateTsafrir:
		by = predict.NewTsafrir()
	case r.Estimate == EstimateLimit:
		by = predict.Limits{}
	default:
		by = predict.NewSimilar()
	}
	l := NewLearner(by)
	cfg.Predict = l
	return l
}
