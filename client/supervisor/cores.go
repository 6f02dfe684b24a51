package supervisor

import (
	"fmt"
	"os"
	"sync"

	"github.com/muster-sched/muster/client/cgroup"
)

// corePool keeps the cores that tasks own (Limits.Cores) free of tasks that own none. Shares alone do not: the kernel
// balances over all cores, and a process that wakes on a busy one waits.
type corePool struct {
	groups *cgroup.Manager // nil without control groups

	mu     sync.Mutex
	owned  map[string][]int        // by task; guarded by mu
	shared map[string]cgroup.Group // of the tasks that own none; guarded by mu
}

func newCorePool(m *cgroup.Manager) *corePool {
	return &corePool{groups: m, owned: map[string][]int{}, shared: map[string]cgroup.Group{}}
}

// own reserves a task's cores before it starts, so that others leave them.
func (p *corePool) own(id string, cores []int) {
	if p.groups == nil || len(cores) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owned[id] = cores
	p.applyLocked()
}

// join applies the rule to the group of a task that owns no core, before the task starts.
func (p *corePool) join(id string, g cgroup.Group) {
	if p.groups == nil || !g.Shares() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shared[id] = g
	if len(p.owned) > 0 {
		p.applyLocked()
	}
}

// leave removes an ended task and frees its cores.
func (p *corePool) leave(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.shared, id)
	if _, ok := p.owned[id]; ok {
		delete(p.owned, id)
		p.applyLocked()
	}
}

// apply updates the kernel's core assignments.
func (p *corePool) apply() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.groups != nil {
		p.applyLocked()
	}
}

// applyLocked updates the kernel. A failure is no reason to refuse a task: it has its cores, if not exclusively.
func (p *corePool) applyLocked() {
	var taken []int
	for _, c := range p.owned {
		taken = append(taken, c...)
	}
	groups := make([]cgroup.Group, 0, len(p.shared))
	for _, g := range p.shared {
		groups = append(groups, g)
	}
	if err := p.groups.KeepOff(taken, groups); err != nil {
		fmt.Fprintf(os.Stderr, "supervisor: keep tasks off the cores of others: %v\n", err)
	}
}
