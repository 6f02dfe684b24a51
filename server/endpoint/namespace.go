package endpoint

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/structs"
)

// namespaceListMax bounds the patterns of one list of a namespace.
const namespaceListMax = 100

// checkNamespace returns what is wrong with the limits of a namespace.
func checkNamespace(n *structs.Namespace) error {
	for what, c := range map[string]*structs.NamespaceChoice{"node_pool_config": n.NodePools, "queue_config": n.Queues, "toleration_config": n.Tolerations} {
		switch {
		case c == nil:
		case c.Allowed != nil && len(c.Denied) > 0:
			return structs.Errorf(structs.CodeInvalid, "namespace %q: %s has allowed and denied; want one of them", n.Name, what)
		case len(c.Allowed) > namespaceListMax || len(c.Denied) > namespaceListMax:
			return structs.Errorf(structs.CodeInvalid, "namespace %q: %s has more than %d patterns", n.Name, what, namespaceListMax)
		case slices.ContainsFunc(append(slices.Clone(c.Allowed), c.Denied...), func(p string) bool { return p == "" || len(p) > 512 }) || len(c.Default) > 512:
			return structs.Errorf(structs.CodeInvalid, "namespace %q: %s: names and patterns have 1 to 512 bytes", n.Name, what)
		case c == n.Tolerations && c.Default != "":
			return structs.Errorf(structs.CodeInvalid, "namespace %q: toleration_config has a default; jobs tolerate only what they say", n.Name)
		}
	}
	if n.Queues != nil && n.Queues.Default != "" {
		if err := structs.CheckQueuePath(structs.QueuePath(n.Queues.Default)); err != nil {
			return structs.Errorf(structs.CodeInvalid, "namespace %q: queue_config: %v", n.Name, err)
		}
	}
	if n.MaxPriority < 0 || n.MaxPriority > structs.JobPriorityMax {
		return structs.Errorf(structs.CodeInvalid, "namespace %q: max_priority is %d; want 1 to %d, or 0 for no limit", n.Name, n.MaxPriority, structs.JobPriorityMax)
	}
	if n.DefaultPriority < 0 || n.DefaultPriority > structs.JobPriorityMax || n.MaxPriority > 0 && n.DefaultPriority > n.MaxPriority {
		return structs.Errorf(structs.CodeInvalid, "namespace %q: default_priority is %d; want 1 to %d, or 0 for the cluster's", n.Name, n.DefaultPriority, cmp.Or(n.MaxPriority, structs.JobPriorityMax))
	}
	return nil
}

// applyNamespace gives a job without node pool or queue the namespace's default.
func applyNamespace(j *structs.Job, n *structs.Namespace) {
	if n == nil {
		return
	}
	if j.NodePool == "" && n.NodePools != nil {
		j.NodePool = structs.PoolName(n.NodePools.Default)
	}
	if j.Queue == "" && n.Queues != nil {
		j.Queue = structs.QueuePath(n.Queues.Default)
	}
}

// NamespaceRefuses returns why a job's namespace or queue does not let it run now as its submitter's, or nil. They may have
// been limited since the job was registered.
func (s *Set) NamespaceRefuses(snap *state.Snapshot, j *structs.Job) error {
	if errs := s.namespaceProblems(snap, j, snap.Namespace(j.Namespace)); len(errs) > 0 {
		return oneError(fmt.Sprintf("job %q is no longer allowed in namespace %q", j.ID, j.Namespace), errs)
	}
	return nil
}

// namespaceProblems returns what a job's namespace and queue do not let it choose.
func (s *Set) namespaceProblems(snap *state.Snapshot, j *structs.Job, n *structs.Namespace) (out []string) {
	for _, err := range s.refusePriority(snap, j, n, j.Priority) {
		out = append(out, err.Msg)
	}
	if n == nil {
		return out
	}
	refuse := func(c *structs.NamespaceChoice, what, name string, all bool) {
		if !permits(c, name, all) {
			out = append(out, structs.Errorf(structs.CodeInvalid, "Job %s %q is not allowed in namespace %q: %s", what, name, n.Name, choiceText(c)).Msg)
		}
	}
	refuse(n.NodePools, "node pool", string(j.NodePool), j.NodePool == structs.NodePoolAll)
	refuse(n.Queues, "queue", string(j.QueueName()), false)
	for _, t := range j.Tolerations {
		refuse(n.Tolerations, "toleration of taints with key", t.Key, t.Key == "")
	}
	return out
}

// permits reports whether a choice allows a name. all says that the name stands for all names, so every denial is one of
// a part of it.
func permits(c *structs.NamespaceChoice, name string, all bool) bool {
	matches := func(p string) bool { return acl.Match(p, name) }
	switch {
	case c == nil || c.Default != "" && name == c.Default:
		return true
	case c.Allowed != nil:
		return slices.ContainsFunc(c.Allowed, matches)
	case all:
		return len(c.Denied) == 0
	}
	return !slices.ContainsFunc(c.Denied, matches)
}

func choiceText(c *structs.NamespaceChoice) string {
	if c.Allowed == nil {
		return "denied are " + strings.Join(c.Denied, ", ")
	}
	list := slices.Clone(c.Allowed)
	if c.Default != "" {
		list = append(list, c.Default)
	}
	if len(list) == 0 {
		return "none is"
	}
	return "allowed are " + strings.Join(list, ", ")
}
