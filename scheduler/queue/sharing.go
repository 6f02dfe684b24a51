package queue

import (
	"fmt"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// sharing rates those who take turns in a queue, as its Line does. It implements contend.Sharing.
type sharing struct {
	share Sharer
	first firster // nil: no order comes before the shares
	scene Scene
}

// Sharing returns how a queue with all its settings rates those who take turns in it; nil if its order measures no shares.
// A lottery measures none: it draws.
func (c Choosers) Sharing(q *structs.Queue, t *contend.QueueTable, now structs.LogTime) contend.Sharing {
	order := Named(q.Order)
	x := &sharing{scene: Scene{Now: now, Queue: *q, Total: t.Total}}
	x.first, _ = order.(firster)
	if l, ok := order.(SeveralShares); ok {
		order = l.share
	}
	switch order.(type) {
	case Fair, Weighted:
		x.share = order.(Sharer)
	default:
		return nil
	}
	x.scene.Total.Billed = q.Billing.OfCluster(t.Total, t.Models)
	return x
}

// Share is the order's share.
func (x *sharing) Share(weight int64, held structs.Amount, usage *structs.QueueUsage) int64 {
	return x.share.Share(&Entity{Weight: weight, Held: held, Usage: usage}, &x.scene)
}

// GoesAfter reports whether the orders before the shares put b in front of a.
func (x *sharing) GoesAfter(a, b *contend.Workload) bool {
	return x.first != nil && x.first.First(b, &x.scene).Less(x.first.First(a, &x.scene))
}

// Text returns a share as the part of the cluster, or as service in seconds of the whole cluster, each divided by the weight.
func (x *sharing) Text(share int64) string {
	if x.share.Name() == structs.OrderWeighted {
		return fmt.Sprintf("%d s by weight", share/micro)
	}
	return fmt.Sprintf("%d.%d %% by weight", share/(nano/100), share/(nano/1000)%10)
}
