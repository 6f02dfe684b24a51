package contend

import (
	"slices"
	"strconv"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Limits by GPU model. What a placement counts is only known when its GPUs are chosen, and the choice must not lead into a
// limit that another model would avoid. So before each search the models are closed for which one more allocation could
// exceed a limit, and the search does without them (match.Ask.Without). A request that can be served by no other model
// waits for the limit instead.

// modelLimits is the limits by model of one row of usage.
type modelLimits struct {
	row    structs.UseRow
	limits []structs.ModelAmount
	of     structs.Holder
	held   []structs.ModelAmount // including what the pass has placed
}

// ByModel reports whether some limit is by GPU model.
func (l *Limits) ByModel() bool { return l != nil && l.byModel }

// limitsModels reports whether a table has limits by GPU model that are enforced (not soft ones).
func (t *QueueTable) limitsModels() bool {
	return slices.ContainsFunc(t.Queues, func(q *structs.Queue) bool { return len(q.LimitModels)+len(q.UserLimitModels) > 0 }) ||
		slices.ContainsFunc(t.Tenants, func(t Tenant) bool { return len(t.HardModels) > 0 })
}

// gpuModels returns the GPUs of a view by model.
func gpuModels(v *model.View) (m match.Models) {
	for _, c := range v.Chunks {
		for k := range c.Classes {
			m.Add(c.Classes[k].Node)
		}
	}
	return m
}

// modelLimitsOf returns the limits by model that a workload is under.
func (l *Limits) modelLimitsOf(load *Workload) (out []modelLimits) {
	if !l.ByModel() || load.Job == nil {
		return nil
	}
	for _, r := range structs.UseRowsOf(load.Key.Namespace, load.Job.QueueName(), load.User()) {
		if x := l.modelLimitsOfRow(r); len(x.limits) > 0 {
			out = append(out, x)
		}
	}
	return out
}

func (l *Limits) modelLimitsOfRow(r structs.UseRow) modelLimits {
	x := modelLimits{row: r}
	if ns, ok := r.Path.Namespace(); ok {
		t := l.tenants[ns]
		if t == nil || len(t.HardModels) == 0 {
			return x
		}
		x.limits, x.of = t.HardModels, structs.Holder{Kind: structs.HolderQuota, Name: t.Quota}
		for i := range l.queues.Tenants {
			if o := &l.queues.Tenants[i]; o.Quota == t.Quota {
				x.held = structs.AddModels(x.held, l.heldModels(structs.UseRow{Path: structs.UseNamespace(o.Namespace)}), 1)
			}
		}
		return x
	}
	q := l.queues.Queue(r.Path)
	if q == nil {
		return x
	}
	if x.limits, x.of = q.LimitModels, QueueHolder(q.Path); r.User != "" {
		x.limits = q.UserLimitModels
	}
	if len(x.limits) > 0 {
		x.held = l.heldModels(r)
	}
	return x
}

// heldModels is Held for the GPUs by model.
func (l *Limits) heldModels(r structs.UseRow) []structs.ModelAmount {
	held := l.extra[r].models
	if u := l.queues.Use(r.Path, r.User); u != nil {
		held = structs.AddModels(u.Models, held, 1)
	}
	return held
}

func modelObstacle(x *modelLimits, words string) structs.Obstacle {
	return structs.Obstacle{Dimension: structs.DimensionGPUModel, Holder: x.of, Subject: x.row.User, Detail: words}
}

// refusedBy returns the refusal by a limit of a model; nil if over is not positive.
func (x *modelLimits) refusedBy(words string, over int64) *structs.Refusal {
	r := limitRefusal(x.of, x.row.User, structs.DimensionGPU, over)
	if r != nil {
		r.Obstacle = modelObstacle(x, words)
	}
	return r
}

// OverModels is Over for GPUs by model.
func (l *Limits) OverModels(r structs.UseRow, took, add []structs.ModelAmount) *structs.Refusal {
	if !l.ByModel() {
		return nil
	}
	x := l.modelLimitsOfRow(r)
	words, over := structs.BreaksModels(structs.AddModels(x.held, took, 1), add, x.limits)
	return x.refusedBy(words, over)
}

// Closed returns the models that the requests of one more allocation have to do without, so that it exceeds no limit. If
// one of them can do without none, it returns the refusal by that limit. With prev, the allocation takes the place of
// prev. took is what the decision has placed, by row; others is what
// it has not placed of other groups: what they need of a model is not given to requests that can be served by another one.
func (l *Limits) Closed(load *Workload, took map[structs.UseRow][]structs.ModelAmount, ask *match.Ask, prev *structs.Allocation, others []Missing) (closed []match.Closed, over *structs.Refusal) {
	for _, x := range l.modelLimitsOf(load) {
		for _, lim := range x.limits {
			left := lim.Milli - structs.MilliOf(x.held, lim.Model) - structs.MilliOf(took[x.row], lim.Model)
			if prev != nil && slices.Contains(structs.UseRows(prev), x.row) {
				left += structs.MilliOf(structs.ModelsOf(prev), lim.Model)
			}
			need := make([]int64, len(ask.Devices))
			must := int64(0)
			for i := range ask.Devices {
				milli, other := l.models.NeedOf(&ask.Devices[i], lim.Model, l.Sizes.milliOn)
				if other {
					need[i] = milli
				} else {
					must += milli
				}
			}
			if must > 0 && must > left {
				return nil, x.refusedBy(lim.Model, must-left)
			}
			left -= must
			for _, o := range others {
				for i := range o.Ask.Devices {
					if milli, other := l.models.NeedOf(&o.Ask.Devices[i], lim.Model, l.Sizes.milliOn); !other {
						left -= milli * o.Count
					}
				}
			}
			for i, n := range need {
				if n > 0 && n <= left {
					left -= n
				} else if n > 0 {
					closed = append(closed, match.Closed{Device: i, Words: lim.Model, By: modelObstacle(&x, lim.Model), Short: n - left})
				}
			}
		}
	}
	return closed, nil
}

// Rooms is equal for workloads and moments with the same room under limits by model; "" without such limits.
func (l *Limits) Rooms(load *Workload, took map[structs.UseRow][]structs.ModelAmount) string {
	var b []byte
	for _, x := range l.modelLimitsOf(load) {
		b = append(strconv.AppendQuote(append(b, x.of.String()...), x.row.User), ' ')
		for _, lim := range x.limits {
			b = strconv.AppendQuote(b, lim.Model)
			b = strconv.AppendInt(b, lim.Milli-structs.MilliOf(x.held, lim.Model)-structs.MilliOf(took[x.row], lim.Model), 10)
		}
	}
	return string(b)
}

// milliOn returns the most that a share counts on a GPU of a group, in thousandths.
func (s GPUSizes) milliOn(g *structs.DeviceGroup, memory, share, compute int64) int64 {
	milli := 10 * max(share, compute)
	for i := range g.Instances {
		if size := g.Instances[i].MemoryMiB; memory > 0 && size >= memory {
			milli = max(milli, (1000*memory+size-1)/size)
		}
	}
	return milli
}

// SoftNeed returns what of a workload's GPUs can only be of models that match words, in thousandths.
func (t *QueueTable) SoftNeed(w *Workload, words string) (sum int64) {
	if w.Job == nil {
		return 0
	}
	for _, g := range w.Job.Groups {
		sum += structs.NeedOf(g, words, t.Models).Must * int64(max(g.Count, 1))
	}
	return sum
}

// OverSoftModels reports whether a workload would exceed a soft limit by model, added to what is held.
func (t *QueueTable) OverSoftModels(w *Workload, held, limits []structs.ModelAmount) bool {
	return slices.ContainsFunc(limits, func(l structs.ModelAmount) bool {
		need := t.SoftNeed(w, l.Model)
		return need > 0 && structs.MilliOf(held, l.Model)+need > l.Milli
	})
}
