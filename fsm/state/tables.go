package state

import (
	"cmp"

	"github.com/muster-sched/muster/structs"
)

// The tables: the name of each, the key and the order of its rows, and where a Delta lists its changes. To add a table,
// declare it here and add it to tables.
var (
	Meta       = single[structs.ClusterMeta]("cluster")
	Scheduler  = single[structs.SchedulerConfig]("scheduler-config")
	Autopilot  = single[structs.AutopilotConfig]("autopilot-config")
	Namespaces = declare("namespaces", lessString, func(n *structs.Namespace) string { return n.Name },
		func(d *structs.Delta) *[]structs.Changed[structs.Namespace] { return &d.Namespaces })
	Pools = declare("node-pools", cmp.Less[structs.PoolName], func(p *structs.NodePool) structs.PoolName { return p.Name },
		func(d *structs.Delta) *[]structs.Changed[structs.NodePool] { return &d.Pools })
	Nodes = declare("nodes", lessID, func(n *structs.Node) structs.NodeID { return n.ID },
		func(d *structs.Delta) *[]structs.Changed[structs.Node] { return &d.Nodes })
	Jobs = declare("jobs", structs.JobKey.Less, (*structs.Job).Key,
		func(d *structs.Delta) *[]structs.Changed[structs.Job] { return &d.Jobs })
	Versions = declare("job-versions", structs.JobKey.Less, func(v *structs.JobVersions) structs.JobKey {
		return structs.JobKey{Namespace: v.Namespace, ID: v.JobID}
	}, nil)
	Evals = declare("evals", lessID, func(e *structs.Evaluation) structs.EvalID { return e.ID },
		func(d *structs.Delta) *[]structs.Changed[structs.Evaluation] { return &d.Evals })
	Allocs = declare("allocs", lessID, func(a *structs.Allocation) structs.AllocID { return a.ID },
		func(d *structs.Delta) *[]structs.Changed[structs.Allocation] { return &d.Allocs })
	Workloads = declare("workloads", structs.JobKey.Less, func(w *structs.Workload) structs.JobKey {
		return structs.JobKey{Namespace: w.Namespace, ID: w.JobID}
	}, func(d *structs.Delta) *[]structs.Changed[structs.Workload] { return &d.Workloads })
	Launches = declare("periodic-launches", structs.JobKey.Less, func(l *structs.PeriodicLaunch) structs.JobKey {
		return structs.JobKey{Namespace: l.Namespace, ID: l.JobID}
	}, func(d *structs.Delta) *[]structs.Changed[structs.PeriodicLaunch] { return &d.Launches })
	Scaling = declare("scaling-events", structs.JobKey.Less, func(l *structs.ScalingEvents) structs.JobKey {
		return structs.JobKey{Namespace: l.Namespace, ID: l.JobID}
	}, func(d *structs.Delta) *[]structs.Changed[structs.ScalingEvents] { return &d.Scaling })
	Policies = declare("acl-policies", lessString, func(p *structs.ACLPolicy) string { return p.Name },
		func(d *structs.Delta) *[]structs.Changed[structs.ACLPolicy] { return &d.Policies })
	Roles = declare("acl-roles", lessID, func(r *structs.ACLRole) structs.RoleID { return r.ID },
		func(d *structs.Delta) *[]structs.Changed[structs.ACLRole] { return &d.Roles })
	Tokens = declare("acl-tokens", lessID, func(t *structs.ACLToken) structs.AccessorID { return t.Accessor },
		func(d *structs.Delta) *[]structs.Changed[structs.ACLToken] { return &d.Tokens })
	OneTime = declare("one-time-tokens", lessID, func(t *structs.OneTimeToken) structs.SecretID { return t.Secret }, nil)
	// Introductions permit new nodes to register.
	Introductions = declare("introductions", lessString, func(i *structs.Introduction) string { return i.Hash }, nil)
	SigningKeys   = declare("signing-keys", lessString, func(k *structs.SigningKey) string { return k.ID }, nil)
	Usages        = declare("usage", lessUsage, func(u *Usage) usageKey { return usageKey{u.Kind, u.Name} }, nil)
	Rosters       = declare("rosters", structs.RosterKey.Less, (*structs.Roster).Key,
		func(d *structs.Delta) *[]structs.Changed[structs.Roster] { return &d.Rosters })
	Preemptions = declare("preemptions", cmp.Less[structs.QueuePath], func(p *structs.Preemptions) structs.QueuePath { return p.Queue },
		func(d *structs.Delta) *[]structs.Changed[structs.Preemptions] { return &d.Preempted })
	// Acct has the ended jobs, in the order of their ends.
	Acct = declare("accounting", lessAcct, func(r *structs.AcctRecord) acctKey { return acctKey{r.CreateIndex, r.Key()} },
		func(d *structs.Delta) *[]structs.Changed[structs.AcctRecord] { return &d.Acct })
	// AcctOpen has the jobs that have not ended: the usage of their collected allocations.
	AcctOpen    = declare("accounting-open", structs.JobKey.Less, (*structs.AcctRecord).Key, nil)
	DecisionLog = declare("decisions", func(a, b uint64) bool { return a < b }, func(d *Decisions) uint64 { return d.Seq }, nil)
	Arrays      = declare("arrays", structs.JobKey.Less, (*structs.ArrayState).Key, nil)
	Queues      = declare("queues", cmp.Less[structs.QueuePath], func(q *structs.Queue) structs.QueuePath { return q.Path },
		func(d *structs.Delta) *[]structs.Changed[structs.Queue] { return &d.Queues })
	QueueUse = declare("queue-usage", lessUse, func(u *structs.QueueUsage) useKey { return useKey{Path: u.Path, User: u.User} },
		func(d *structs.Delta) *[]structs.Changed[structs.QueueUsage] { return &d.QueueUse })
	Quotas = declare("quotas", lessString, func(q *structs.QuotaSpec) string { return q.Name },
		func(d *structs.Delta) *[]structs.Changed[structs.QuotaSpec] { return &d.Quotas })
	Reservations = declare("reservations", lessString, func(r *structs.Reservation) string { return r.ID },
		func(d *structs.Delta) *[]structs.Changed[structs.Reservation] { return &d.Reserved })
	Variables = declare("variables", structs.VariableKey.Less, (*structs.Variable).Key,
		func(d *structs.Delta) *[]structs.Changed[structs.Variable] { return &d.Variables })
	SealKeys = declare("seal-keys", lessString, func(k *structs.SealKey) string { return k.ID }, nil)
	Services = declare("services", structs.ServiceKey.Less, (*structs.ServiceRegistration).Key,
		func(d *structs.Delta) *[]structs.Changed[structs.ServiceRegistration] { return &d.Services })
)

// tables lists all tables in the order of a snapshot file: a row comes before those that refer to it.
var tables = inOrder(
	Meta, Scheduler, Autopilot, Namespaces, Pools, Nodes, Jobs, Versions, Evals, Allocs, Workloads, Launches, Scaling,
	Policies, Roles, Tokens, OneTime, SigningKeys, Usages, Rosters, Preemptions, Acct, AcctOpen, DecisionLog, Arrays,
	Queues, QueueUse, Quotas, Reservations, Variables, SealKeys, Services, Introductions,
)

// Tables returns every table. The caller must not change the slice.
func Tables() []AnyTable { return tables }

// single declares a table of at most one row, whose key is "". A Delta only says that the configuration changed.
func single[T any](name string) *Table[string, T] {
	t := declare(name, lessString, func(*T) string { return "" }, nil)
	t.config = true
	return t
}

// declare makes a table. delta is nil for a table whose changes a Delta does not list.
func declare[K comparable, T any](name string, less func(a, b K) bool, key func(*T) K, delta func(*structs.Delta) *[]structs.Changed[T]) *Table[K, T] {
	return &Table[K, T]{name: name, less: less, key: key, delta: delta}
}

func inOrder(all ...AnyTable) []AnyTable {
	for i, t := range all {
		t.place(i)
	}
	return all
}
