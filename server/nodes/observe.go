package nodes

import (
	"context"
	"sync"
	"time"

	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Limits of the batches of observations.
const (
	observeWindow   = 10 * time.Millisecond // time that the first observation waits for others
	observeBatchMax = 512                   // observations in one entry
	observeQueueMax = 100_000               // observations waiting; beyond it reports fail with CodeBusy and the agent tries again
)

// Observations batches the reports of all nodes into few log entries. Each report is answered when its entry is
// applied.
type Observations struct {
	propose func(lane replica.Lane, cmd structs.Command) *replica.Proposal

	mu      sync.Mutex
	waiting []observed
	count   int
	timer   bool
}

type observed struct {
	updates []structs.AllocObserved
	done    chan observeResult // buffered: 1
}

type observeResult struct {
	index structs.Index
	err   error
}

// NewObservations returns Observations that write through propose.
func NewObservations(propose func(lane replica.Lane, cmd structs.Command) *replica.Proposal) *Observations {
	return &Observations{propose: propose}
}

// Add queues a report and waits until its entry is applied.
func (o *Observations) Add(ctx context.Context, updates []structs.AllocObserved) (structs.Index, error) {
	if len(updates) == 0 {
		return 0, nil
	}
	x := observed{updates, make(chan observeResult, 1)}
	o.mu.Lock()
	if o.count+len(updates) > observeQueueMax {
		o.mu.Unlock()
		return 0, structs.Errorf(structs.CodeBusy, "%d observations are waiting; report again in a second", observeQueueMax)
	}
	o.waiting = append(o.waiting, x)
	o.count += len(updates)
	switch {
	case o.count >= observeBatchMax:
		batch := o.takeLocked()
		o.mu.Unlock()
		go o.flush(batch)
	case !o.timer:
		o.timer = true
		o.mu.Unlock()
		time.AfterFunc(observeWindow, func() {
			o.mu.Lock()
			batch := o.takeLocked()
			o.mu.Unlock()
			o.flush(batch)
		})
	default:
		o.mu.Unlock()
	}
	select {
	case r := <-x.done:
		return r.index, r.err
	case <-ctx.Done():
		return 0, structs.Errorf(structs.CodeUnknown, "the deadline passed before the report was confirmed; report again")
	}
}

func (o *Observations) takeLocked() []observed {
	batch := o.waiting
	o.waiting, o.count, o.timer = nil, 0, false
	return batch
}

// flush writes a batch, in entries of bounded size, and answers its reports.
func (o *Observations) flush(batch []observed) {
	for len(batch) > 0 {
		var all []structs.AllocObserved
		n := 0
		for n < len(batch) && (n == 0 || len(all)+len(batch[n].updates) <= observeBatchMax) {
			all = append(all, batch[n].updates...)
			n++
		}
		part := batch[:n]
		batch = batch[n:]
		p := o.propose(replica.LanePriority, structs.Command{Body: &structs.AllocObservedCommand{Updates: all}})
		go func() {
			<-p.Done()
			res, err := p.Result()
			if err == nil && res.Err != nil {
				err = res.Err
			}
			for _, x := range part {
				x.done <- observeResult{res.Index, err}
			}
		}()
	}
}
