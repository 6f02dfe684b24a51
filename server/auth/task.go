package auth

import (
	"errors"
	"slices"
	"strconv"

	"github.com/muster-sched/muster/internal/identity"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/tasktoken"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/structs"
)

// resolveTask returns the identity behind a token that an agent issued to one of its tasks. The token is valid while
// the allocation is on that agent's node and has not ended.
func (g *Guard) resolveTask(token string) (*Identity, error) {
	t, ok := tasktoken.Parse(token)
	if !ok {
		return nil, errTokenInvalid
	}
	snap := g.env.Published().Snapshot
	a := snap.AllocByID(t.Alloc)
	if a == nil {
		return nil, ErrTokenUnknown
	}
	n := snap.NodeByID(a.NodeID)
	if n == nil {
		return nil, ErrTokenUnknown
	}
	if !t.Valid(n.SecretID, g.env.Now().Time()) {
		return nil, errTokenInvalid
	}
	return identityOfTask(a, t.Task)
}

// resolveIdentity returns the identity behind a token that the servers signed for a task. It gives the rights of
// resolveTask, and only if it is meant for the servers: a token for another audience may be in that audience's hands.
func (g *Guard) resolveIdentity(token string) (*Identity, error) {
	snap := g.env.Published().Snapshot
	c, err := identity.Verify(token, func(id string) []byte {
		if k := snap.SigningKey(id); k != nil {
			return k.Public
		}
		return nil
	}, g.env.Now())
	switch {
	case errors.Is(err, identity.ErrUnknownKey):
		return nil, ErrTokenUnknown
	case errors.Is(err, identity.ErrExpired):
		return nil, errTokenExpired
	case err != nil:
		return nil, errTokenInvalid
	}
	id, err := structs.ParseID[structs.AllocID](c.Allocation)
	if err != nil {
		return nil, errTokenInvalid
	}
	a := snap.AllocByID(id)
	if a == nil {
		return nil, ErrTokenUnknown
	}
	if c.Subject != identity.Subject(g.env.Region, a, c.Task, structs.IdentityDefault) {
		return nil, errTokenInvalid
	}
	return identityOfTask(a, c.Task)
}

// identityOfTask returns the identity of a task of an allocation that has not ended.
func identityOfTask(a *structs.Allocation, task string) (*Identity, error) {
	if a.ClientTerminal() {
		return nil, errTokenExpired
	}
	rules := "namespace " + strconv.Quote(a.Namespace) + " {\n  capabilities = [\"" + acl.CapReadJob + "\", \"" + acl.CapAllocExec + "\", \"" + acl.CapAllocNodeExec + "\"]\n}\n"
	p, err := acl.Parse("task", rules)
	if err != nil {
		return nil, structs.Errorf(structs.CodeInternal, "rules of a task: %v", err)
	}
	return &Identity{
		ACL: acl.Compile([]*acl.Policy{p}), Task: a, TaskName: task,
		By: structs.Submitter{Name: "task of " + a.JobID, UID: -1, GID: -1},
	}, nil
}

// authoriseTask reports whether a task may make the call. A task may read its own job and gangs, run commands in
// allocations of its own group (launchers need that), read the variables meant for it, look up services of its
// namespace, and fetch the bundles that its job names. Everything else is denied.
func (g *Guard) authoriseTask(c *rpc.Call, id *Identity) bool {
	own := id.Task
	req, err := c.Request()
	if err != nil {
		return false
	}
	ofJob := func(id string) bool { return NamespaceOf(c) == own.Namespace && id == own.JobID }
	ofGroup := func(id structs.AllocID) bool {
		a := g.env.Published().Snapshot.AllocByID(id)
		return a != nil && a.Namespace == own.Namespace && a.JobID == own.JobID && a.Group == own.Group
	}
	switch r := req.(type) {
	case *methods.JobGetRequest:
		return (c.Method == methods.JobGet.Name || c.Method == methods.JobGangs.Name) && ofJob(r.JobID)
	case *methods.JobAllocsRequest:
		return c.Method == methods.JobAllocs.Name && ofJob(r.JobID)
	case *methods.AllocGetRequest:
		return c.Method == methods.AllocGet.Name && ofGroup(r.AllocID)
	case *methods.VariableGetRequest:
		return c.Method == methods.VariableGet.Name && NamespaceOf(c) == own.Namespace && structs.TaskMayRead(own, id.TaskName, r.Path)
	case *methods.ServiceGetRequest:
		return c.Method == methods.ServiceGet.Name && NamespaceOf(c) == own.Namespace
	case *methods.ListRequest:
		// a list shows only what the task may read
		return (c.Method == methods.VariableList.Name || c.Method == methods.ServiceList.Name) && NamespaceOf(c) == own.Namespace
	case *methods.BundleRequest:
		return c.Method == methods.BundleGet.Name && NamespaceOf(c) == own.Namespace && own.Job != nil && slices.Contains(own.Job.Bundles(), r.Sum)
	case *methods.ExecRequest:
		return c.Method == methods.ClientExec.Name && ofGroup(r.AllocID)
	}
	return false
}
