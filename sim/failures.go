package sim

import (
	"math"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Failures configures nodes that fail and come back. The times between are drawn from exponential distributions with a
// seed.
type Failures struct {
	MTBF time.Duration // of one node; 0: nodes never fail
	MTTR time.Duration // 0: an hour
	Seed uint64
}

// draws is a small generator of random numbers (SplitMix64), so that a seed gives the same numbers in every build.
type draws struct{ state uint64 }

func (d *draws) next() uint64 {
	d.state += 0x9e3779b97f4a7c15
	z := d.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// float returns a number uniform in (0,1).
func (d *draws) float() float64 { return (float64(d.next()>>11) + 0.5) / (1 << 53) }

func (d *draws) exponential(mean time.Duration) time.Duration {
	return time.Duration(-math.Log(d.float()) * float64(mean))
}

// normal returns a normally distributed number with mean 0 and deviation 1.
func (d *draws) normal() float64 {
	return math.Sqrt(-2*math.Log(d.float())) * math.Cos(2*math.Pi*d.float())
}

func (e *Engine) startFailures() {
	if e.cfg.Failures.MTBF <= 0 {
		return
	}
	e.draws.state = e.cfg.Failures.Seed*0x9e3779b97f4a7c15 + 1
	for i := range e.nodes {
		e.agenda.add(event{at: e.now.Add(e.draws.exponential(e.cfg.Failures.MTBF)), kind: NodeDown, node: i})
	}
}

// fail takes a node down; the work on it is lost and its jobs wait again.
func (e *Engine) fail(i int) {
	mttr := e.cfg.Failures.MTTR
	if mttr <= 0 {
		mttr = time.Hour
	}
	e.agenda.add(event{at: e.now.Add(e.draws.exponential(mttr)), kind: NodeUp, node: i})
	e.nodes[i].failed = true
	e.takeDown(i)
}

// takeDown takes a node down now.
func (e *Engine) takeDown(i int) {
	e.stats.NodeFailures++
	e.setStatus(i, structs.NodeDown)
	var lost []*run
	for l := e.holders; l != nil; l = l.nextHolder {
		for k := range l.units {
			for _, r := range l.units[k].runs {
				if r.node == i {
					lost = append(lost, r)
				}
			}
		}
	}
	for _, r := range lost {
		if e.runs[r.alloc.ID] != r {
			continue // it stopped with another member of its gang
		}
		e.lose(r, structs.ClientLost)
		e.stats.Lost++
		if u := r.unit; u != nil && u.index < 0 && !r.ending { // a gang starts again as a whole
			for len(u.runs) > 0 {
				e.lose(u.runs[0], structs.ClientComplete)
			}
			e.endOthers(u) // and so do the other groups of an all_at_once job
		}
		e.returned(r.live, structs.TriggerNodeUpdate)
	}
}

// lose ends a run because of a failure.
func (e *Engine) lose(r *run, as structs.ClientStatus) {
	e.changes = e.changes[:0]
	e.drop(r, as)
	e.commit()
}

func (e *Engine) repair(i int) {
	e.nodes[i].failed = false
	e.setStatus(i, structs.NodeReady)
	e.agenda.add(event{at: e.now.Add(e.draws.exponential(e.cfg.Failures.MTBF)), kind: NodeDown, node: i})
	e.freeOn(i)
}

func (e *Engine) setStatus(i int, status structs.NodeStatus) {
	e.setNode(i, func(n *structs.Node) {
		was := n.Status
		n.Status = status
		if n.StatusAt = max(n.StatusAt, Epoch); was != status { // as Apply does
			n.Turned(was, e.now, status == structs.NodeDown && n.Drain == nil)
			n.StatusAt = e.now
		}
	})
}

// setNode changes a node.
func (e *Engine) setNode(i int, change func(*structs.Node)) {
	old := e.nodes[i].node
	n := *old
	e.index++
	n.Epoch = e.index
	change(&n)
	e.nodes[i].node = &n
	e.view = e.view.Advance(structs.Delta{Index: e.index, Time: e.now, Nodes: []structs.Changed[structs.Node]{{Before: old, After: &n}}})
}

// spread multiplies a run time by e^(x N(0,1)).
func (d *draws) spread(run time.Duration, x float64) time.Duration {
	return seconds(min(run.Seconds()*math.Exp(x*d.normal()), 9e9))
}
