package client

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/client/notify"
	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/structs"
)

// pressureSteps are the thresholds of shares unless the operator says others.
var pressureSteps = []int{90, 98}

// pressureClear is how far below a threshold the use must have been for it to be told again, unless the operator says
// otherwise.
const pressureClear = 5

// pressure tells when memory of GPUs runs full: the task, or the node, and whom the operator named. Telling never waits:
// notices are queued.
type pressure struct {
	c             *Client
	sender        *notify.Sender
	share, device []int
	clear         int
	told          map[gpu.Quota]int // the threshold in force, of each share
	full          map[string]int    // and of each GPU

	mu   sync.Mutex
	busy map[gpu.Quota]bool // whom a task has said is being told; guarded by mu
}

func newPressure(c *Client) *pressure {
	p := &pressure{c: c, share: c.cfg.Pressure.Share, device: c.cfg.Pressure.Device, clear: c.cfg.Pressure.Clear, told: map[gpu.Quota]int{}, full: map[string]int{}, busy: map[gpu.Quota]bool{}}
	if p.share == nil {
		p.share = pressureSteps
	}
	if p.clear == 0 {
		p.clear = pressureClear
	}
	p.sender = notify.New(c.log.Named("notify"), append([]notify.Target{nodeEvents{c}}, c.cfg.Pressure.Targets...)...)
	return p
}

// threshold is which threshold is in force at so many percent, when it was another one before; 0 is none. One that has
// been passed stays in force until the use is well below it, so that a wave around it is told once.
func threshold(steps []int, clear, was, percent int) int {
	now := 0
	for _, s := range steps {
		if percent >= s || s <= was && percent > s-clear {
			now = s
		}
	}
	return now
}

// notice begins one; what it is about is the caller's to add.
func (p *pressure) notice(scope string, step, percent int, usedMiB, totalMiB int64, uuid string) notify.Notice {
	n := notify.Notice{
		Time: time.Now().UTC(), Kind: "gpu-pressure", State: "above", Scope: scope, Threshold: step, Percent: percent, UsedMiB: usedMiB, TotalMiB: totalMiB,
		GPU: uuid, NodeID: p.c.id.id.String(), NodeName: p.c.Node().Name,
	}
	if step == 0 {
		n.State = "below"
	}
	n.ID = n.NodeID + "-" + strconv.FormatInt(n.Time.UnixNano(), 36)
	return n
}

// shares tells of tasks whose shares run full.
func (p *pressure) shares(ctx context.Context, have []gpu.Quota) {
	next := map[gpu.Quota]int{}
	for _, q := range have {
		r := p.c.Alloc(q.Alloc)
		if r == nil || q.MiB == 0 {
			continue
		}
		for _, u := range p.c.meter.Of(q.Alloc) {
			if u.Quota != q || u.UsedBytes < 0 {
				continue
			}
			used := u.UsedBytes >> 20
			percent, was := int(used*100/q.MiB), p.told[q]
			steps, own := p.share, (*structs.GPUPressure)(nil)
			if req, _ := r.GPURequest(q.Task); req != nil && req.Pressure != nil {
				if own = req.Pressure; len(own.At) > 0 {
					steps = steps[:0:0]
					for _, at := range own.At {
						steps = append(steps, int(at))
					}
				}
			}
			step := threshold(steps, p.clear, was, percent)
			if step > 0 {
				next[q] = step
			}
			if step > was {
				text := strconv.FormatInt(used, 10)
				r.TellGPU(ctx, q.Task, runner.EventGPUPressure, fmt.Sprintf("%s of %d MiB of GPU %s are in use (%d %%)", text, q.MiB, q.GPU, percent),
					"gpu", q.GPU, "quota_mib", strconv.FormatInt(q.MiB, 10), "used_mib", text, "threshold_percent", strconv.Itoa(step))
			}
			if step > was || step == 0 && was > 0 {
				n, a := p.notice("share", step, percent, used, q.MiB, q.GPU), r.Alloc()
				n.AllocID, n.Namespace, n.JobID, n.Group, n.Task = q.Alloc.String(), a.Namespace, a.JobID, a.Group, q.Task
				p.sender.Send(n)
				if own != nil && step > was {
					p.tell(ctx, r, q, own, n)
				}
			}
		}
	}
	p.told = next
}

// tellWithin bounds how long telling a task may take.
const tellWithin = time.Minute

// tell tells a task as it has asked for: by a signal, by a command in it, or by a POST of the notice. It waits for nothing; while a
// task is still being told of one threshold the next one is an event alone.
func (p *pressure) tell(ctx context.Context, r *runner.Runner, q gpu.Quota, how *structs.GPUPressure, n notify.Notice) {
	if how.Signal == "" && len(how.Command) == 0 && how.URL == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy[q] {
		return
	}
	p.busy[q] = true
	p.c.threads.start(func() {
		within, cancel := context.WithTimeout(ctx, tellWithin)
		defer cancel()
		if err := told(within, r, how, n); err != nil {
			r.TellGPU(ctx, q.Task, runner.EventGPUPressure, fmt.Sprintf("Could not be told: %v", err), "error", err.Error())
		}
		p.mu.Lock()
		delete(p.busy, q)
		p.mu.Unlock()
	})
}

func told(ctx context.Context, r *runner.Runner, how *structs.GPUPressure, n notify.Notice) error {
	switch {
	case how.Signal != "":
		return r.Signal(ctx, n.Task, how.Signal)
	case how.URL != "":
		return (&notify.Webhook{Label: "of the job", URL: how.URL}).Deliver(ctx, n)
	}
	return r.TellBy(ctx, n.Task, how.Command)
}

// devices tells of GPUs whose memory runs full, whoever holds it.
func (p *pressure) devices(samples []gpu.Sample) {
	next := map[string]int{}
	for i := range samples {
		s := &samples[i]
		was := p.full[s.UUID]
		if s.Lost || s.TotalBytes <= 0 {
			next[s.UUID] = was // not known: as before
			continue
		}
		percent := int(s.UsedBytes / (1 << 20) * 100 / max(s.TotalBytes>>20, 1))
		step := threshold(p.device, p.clear, was, percent)
		next[s.UUID] = step
		if step > was || step == 0 && was > 0 {
			p.sender.Send(p.notice("device", step, percent, s.UsedBytes>>20, s.TotalBytes>>20, s.UUID))
		}
	}
	p.full = next
}

// nodeEvents is the target that tells the servers about GPUs that run full, as events of the node.
type nodeEvents struct{ c *Client }

// Name implements notify.Target.
func (nodeEvents) Name() string { return "the servers" }

// Deliver implements notify.Target.
func (e nodeEvents) Deliver(ctx context.Context, n notify.Notice) error {
	if n.Scope != "device" {
		return nil
	}
	msg := fmt.Sprintf("%d of %d MiB of GPU %s are in use (%d %%)", n.UsedMiB, n.TotalMiB, n.GPU, n.Percent)
	if n.Threshold == 0 {
		msg += ", which is below all thresholds again"
	}
	e.c.sendEvents(ctx, []structs.NodeEvent{{
		Subsystem: "GPU", Message: msg, Time: structs.LogTimeOf(n.Time),
		Details: map[string]string{"gpu": n.GPU, "used_mib": strconv.FormatInt(n.UsedMiB, 10), "total_mib": strconv.FormatInt(n.TotalMiB, 10), "threshold_percent": strconv.Itoa(n.Threshold)},
	}})
	return nil
}
