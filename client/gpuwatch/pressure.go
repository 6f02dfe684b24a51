package gpuwatch

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/muster-sched/muster/client/egress"
	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/client/notify"
	"github.com/muster-sched/muster/structs"
)

// Pressure says when GPU memory counts as nearly full, and whom to notify. Thresholds are percentages, ascending.
type Pressure struct {
	Share   []int // of a task's share; nil is 90 and 98
	Device  []int // of a whole GPU; nil is none
	Clear   int   // percentage points below a threshold at which the threshold is cleared; 0 is 5
	Targets []notify.Target
	Egress  *egress.Filter // addresses that URLs of jobs may have; see egress.Filter.Local
}

// pressure notifies of GPU memory that runs full: the task or the node, and the operator's targets. Nothing here blocks:
// notices are queued.
type pressure struct {
	w             *Watch
	sender        *notify.Sender
	share, device []int
	clear         int
	shareStep     map[gpu.Quota]int // the threshold that each share has passed
	deviceStep    map[string]int    // and each GPU

	mu   sync.Mutex
	busy map[gpu.Quota]bool // the task is being notified; guarded by mu
}

// shareDefault are the thresholds of a share in percent, clearDefault is how far below one the use must fall.
var shareDefault = []int{90, 98}

const clearDefault = 5

func newPressure(w *Watch) *pressure {
	c := w.cfg.Pressure
	p := &pressure{w: w, share: c.Share, device: c.Device, clear: c.Clear, shareStep: map[gpu.Quota]int{}, deviceStep: map[string]int{}, busy: map[gpu.Quota]bool{}}
	if p.share == nil {
		p.share = shareDefault
	}
	if p.clear == 0 {
		p.clear = clearDefault
	}
	p.sender = notify.New(w.log.Named("notify"), append([]notify.Target{nodeEvents{w.node}}, c.Targets...)...)
	return p
}

// threshold returns the threshold in force at a use in percent; 0 is none. was is the previous one. A threshold stays
// in force until the use is clear points below it, so that a use that varies around it causes one notice.
func threshold(steps []int, clear, was, percent int) int {
	now := 0
	for _, s := range steps {
		if percent >= s || s <= was && percent > s-clear {
			now = s
		}
	}
	return now
}

// notice makes a notice about a GPU. The caller adds the task.
func (p *pressure) notice(scope string, step, percent int, usedMiB, totalMiB int64, uuid string) notify.Notice {
	node := p.w.node.Node()
	n := notify.Notice{
		Time: time.Now().UTC(), Kind: "gpu-pressure", State: "above", Scope: scope, Threshold: step, Percent: percent, UsedMiB: usedMiB, TotalMiB: totalMiB,
		GPU: uuid, NodeID: node.ID.String(), NodeName: node.Name,
	}
	if step == 0 {
		n.State = "below"
	}
	n.ID = n.NodeID + "-" + strconv.FormatInt(n.Time.UnixNano(), 36)
	return n
}

// shares notifies of tasks whose shares pass a threshold.
func (p *pressure) shares(ctx context.Context, have []gpu.Quota) {
	next := map[gpu.Quota]int{}
	for _, q := range have {
		a := p.w.node.Alloc(q.Alloc)
		if a == nil || q.MiB == 0 {
			continue
		}
		for _, u := range p.w.meter.Of(q.Alloc) {
			if u.Quota == q && u.UsedBytes >= 0 {
				if step := p.use(ctx, a, q, u.UsedBytes>>20); step > 0 {
					next[q] = step
				}
			}
		}
	}
	p.shareStep = next
}

// use notifies of one share if usedMiB passes a threshold, and returns the threshold in force.
func (p *pressure) use(ctx context.Context, a Alloc, q gpu.Quota, usedMiB int64) int {
	steps, own := p.share, (*structs.GPUPressure)(nil)
	if req, _ := a.GPURequest(q.Task); req != nil && req.Pressure != nil {
		if own = req.Pressure; len(own.At) > 0 {
			steps = make([]int, len(own.At))
			for i, at := range own.At {
				steps[i] = int(at)
			}
		}
	}
	percent, was := int(usedMiB*100/q.MiB), p.shareStep[q]
	step := threshold(steps, p.clear, was, percent)
	if step > was {
		text := strconv.FormatInt(usedMiB, 10)
		a.NoteGPU(ctx, q.Task, eventPressure, fmt.Sprintf("%s of %d MiB of GPU %s are in use (%d %%)", text, q.MiB, q.GPU, percent),
			"gpu", q.GPU, "quota_mib", strconv.FormatInt(q.MiB, 10), "used_mib", text, "threshold_percent", strconv.Itoa(step))
	}
	if step > was || step == 0 && was > 0 {
		n, al := p.notice("share", step, percent, usedMiB, q.MiB, q.GPU), a.Alloc()
		n.AllocID, n.Namespace, n.JobID, n.Group, n.Task = q.Alloc.String(), al.Namespace, al.JobID, string(al.Group), q.Task
		p.sender.Send(n)
		if own != nil && step > was {
			p.notifyTask(ctx, a, q, own, n)
		}
	}
	return step
}

// notifyPatience bounds the notification of a task.
const notifyPatience = time.Minute

// notifyTask notifies a task in the way that its job asks for. It does not wait. While a task is still being notified of one
// threshold, the next one is only an event.
func (p *pressure) notifyTask(ctx context.Context, a Alloc, q gpu.Quota, how *structs.GPUPressure, n notify.Notice) {
	if how.Signal == "" && len(how.Command) == 0 && how.URL == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy[q] {
		return
	}
	p.busy[q] = true
	p.w.node.Go(func() {
		within, cancel := context.WithTimeout(ctx, notifyPatience)
		defer cancel()
		if err := p.deliver(within, a, how, n); err != nil {
			a.NoteGPU(ctx, q.Task, eventPressure, fmt.Sprintf("Could not be notified: %v", err), "error", err.Error())
		}
		p.mu.Lock()
		delete(p.busy, q)
		p.mu.Unlock()
	})
}

func (p *pressure) deliver(ctx context.Context, a Alloc, how *structs.GPUPressure, n notify.Notice) error {
	switch {
	case how.Signal != "":
		return a.Signal(ctx, n.Task, how.Signal)
	case how.URL != "":
		return (&notify.Webhook{Label: "of the job", URL: how.URL, OfJob: true, Egress: p.w.cfg.Pressure.Egress}).Deliver(ctx, n)
	}
	return a.NotifyBy(ctx, n.Task, how.Command)
}

// devices notifies of GPUs that pass a threshold, including memory outside of tasks.
func (p *pressure) devices(samples []gpu.Sample) {
	next := map[string]int{}
	for i := range samples {
		s := &samples[i]
		was := p.deviceStep[s.UUID]
		if s.Lost || s.TotalBytes <= 0 { // not known: no change
			next[s.UUID] = was
			continue
		}
		percent := int(s.UsedBytes / (1 << 20) * 100 / max(s.TotalBytes>>20, 1))
		step := threshold(p.device, p.clear, was, percent)
		next[s.UUID] = step
		if step > was || step == 0 && was > 0 {
			p.sender.Send(p.notice("device", step, percent, s.UsedBytes>>20, s.TotalBytes>>20, s.UUID))
		}
	}
	p.deviceStep = next
}

// nodeEvents is the target that reports full GPUs to the servers as events of the node.
type nodeEvents struct{ node Node }

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
	e.node.SendEvents(ctx, []structs.NodeEvent{{
		Subsystem: "GPU", Message: msg, Time: structs.LogTimeOf(n.Time),
		Details: map[string]string{"gpu": n.GPU, "used_mib": strconv.FormatInt(n.UsedMiB, 10), "total_mib": strconv.FormatInt(n.TotalMiB, 10), "threshold_percent": strconv.Itoa(n.Threshold)},
	}})
	return nil
}
