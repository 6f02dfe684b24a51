package state

import (
	"iter"
	"strings"

	"github.com/google/btree"
	"github.com/muster-sched/muster/structs"
)

// Snapshot is the state after one log entry. It never changes, may be read from any goroutine, and costs nothing to
// keep but the memory of rows that have changed since. Everything it returns is immutable.
type Snapshot struct {
	trees
	tables  *[]anyTable
	index   structs.Index
	time    structs.LogTime
	changed [tabCount]structs.Index
	watch   [tabCount]chan struct{}
	sum     sum

	bootstrap structs.Index
}

// Index is the log index of the last entry that the snapshot contains.
func (s *Snapshot) Index() structs.Index { return s.index }

// Time is the log time of that entry (D11).
func (s *Snapshot) Time() structs.LogTime { return s.time }

// TableIndex is the index of the last change of a table, for blocking lists; 0 if it never changed. An unknown name gives Index.
func (s *Snapshot) TableIndex(table string) structs.Index {
	if i, ok := s.position(table); ok {
		return s.changed[i]
	}
	return s.index
}

// Watch gives a channel that is closed when a table changes, or the whole state is replaced. It is meant for lists that
// few wait on; polls of one object wait on a hub (D13). An unknown name gives nil, which blocks for ever.
func (s *Snapshot) Watch(table string) <-chan struct{} {
	if i, ok := s.position(table); ok {
		return s.watch[i]
	}
	return nil
}

func (s *Snapshot) position(table string) (int, bool) {
	for i, t := range *s.tables {
		if t.tableName() == table {
			return i, true
		}
	}
	return 0, false
}

func find[K any, T any](t *tree[K, T], k K) *T {
	it, _ := t.Get(item[K, T]{key: k})
	return it.val
}

// NodeByID gives a node, or nil.
func (s *Snapshot) NodeByID(id structs.NodeID) *structs.Node { return find(s.nodes, id) }

// Nodes gives every node by id.
func (s *Snapshot) Nodes() iter.Seq[*structs.Node] { return ascend(s.nodes) }

// NodeCount is the number of nodes.
func (s *Snapshot) NodeCount() int { return s.nodes.Len() }

// NodesByPool gives the nodes of a pool by id; the pool "all" has every node.
func (s *Snapshot) NodesByPool(pool string) iter.Seq[*structs.Node] {
	if pool == structs.NodePoolAll {
		return s.Nodes()
	}
	return filter(s.Nodes(), func(n *structs.Node) bool { return n.Pool == pool })
}

// NodesByPrefix gives the nodes whose id text begins with prefix, by id.
func (s *Snapshot) NodesByPrefix(prefix string) (iter.Seq[*structs.Node], error) {
	return byPrefix(s.nodes, prefix)
}

// JobByKey gives the current version of a job, or nil.
func (s *Snapshot) JobByKey(k structs.JobKey) *structs.Job { return find(s.jobs, k) }

// Jobs gives the jobs of a namespace ("" or "*": of all) whose ID begins with prefix, by namespace, then ID.
func (s *Snapshot) Jobs(namespace, prefix string) iter.Seq[*structs.Job] {
	return func(yield func(*structs.Job) bool) {
		if namespace == "" || namespace == "*" {
			for j := range ascend(s.jobs) {
				if strings.HasPrefix(j.ID, prefix) && !yield(j) {
					return
				}
			}
			return
		}
		from := item[structs.JobKey, structs.Job]{key: structs.JobKey{Namespace: namespace, ID: prefix}}
		s.jobs.AscendGreaterOrEqual(from, func(it item[structs.JobKey, structs.Job]) bool {
			return it.key.Namespace == namespace && strings.HasPrefix(it.key.ID, prefix) && yield(it.val)
		})
	}
}

// JobCount is the number of jobs.
func (s *Snapshot) JobCount() int { return s.jobs.Len() }

// ChildrenOf gives the jobs that a periodic or parameterized job launched, by ID.
func (s *Snapshot) ChildrenOf(parent structs.JobKey) iter.Seq[*structs.Job] {
	return func(yield func(*structs.Job) bool) { eachChild(s.jobs, parent, yield) }
}

func eachChild(t *tree[structs.JobKey, structs.Job], parent structs.JobKey, f func(*structs.Job) bool) {
	pre := parent.ID + "/"
	from := item[structs.JobKey, structs.Job]{key: structs.JobKey{Namespace: parent.Namespace, ID: pre}}
	t.AscendGreaterOrEqual(from, func(it item[structs.JobKey, structs.Job]) bool {
		if it.key.Namespace != parent.Namespace || !strings.HasPrefix(it.key.ID, pre) {
			return false
		}
		return it.val.ParentID != parent.ID || f(it.val)
	})
}

// JobVersion gives one version of a job, current or kept, or nil. A purged job's versions are kept while allocations
// refer to them (D17).
func (s *Snapshot) JobVersion(k structs.JobKey, version uint64) *structs.Job {
	return versionOf(find(s.jobs, k), find(s.versions, k), version)
}

// JobVersions gives the kept versions of a job, newest first, the current one included.
func (s *Snapshot) JobVersions(k structs.JobKey) []*structs.Job {
	var out []*structs.Job
	if j := find(s.jobs, k); j != nil {
		out = append(out, j)
	}
	if h := find(s.versions, k); h != nil {
		out = append(out, h.Versions...)
	}
	return out
}

// JobSubmission gives the source that a version was registered from, or nil.
func (s *Snapshot) JobSubmission(k structs.JobKey, version uint64) *structs.JobSubmission {
	if h := find(s.versions, k); h != nil {
		return h.Submissions[version]
	}
	return nil
}

// AllocByID gives an allocation, or nil.
func (s *Snapshot) AllocByID(id structs.AllocID) *structs.Allocation { return find(s.allocs, id) }

// Allocs gives every allocation by id.
func (s *Snapshot) Allocs() iter.Seq[*structs.Allocation] { return ascend(s.allocs) }

// AllocCount is the number of allocations.
func (s *Snapshot) AllocCount() int { return s.allocs.Len() }

// AllocsByPrefix gives the allocations whose id text begins with prefix, by id.
func (s *Snapshot) AllocsByPrefix(prefix string) (iter.Seq[*structs.Allocation], error) {
	return byPrefix(s.allocs, prefix)
}

// AllocsByNode lists the allocations on a node by id.
func (s *Snapshot) AllocsByNode(id structs.NodeID) []*structs.Allocation {
	return collectNode(s.allocNode, id)
}

// AllocsByJob lists the allocations of a job by version, then id.
func (s *Snapshot) AllocsByJob(k structs.JobKey) []*structs.Allocation {
	return collectJob(s.allocJob, k)
}

// AllocsByEval lists the allocations that an evaluation placed, by id.
func (s *Snapshot) AllocsByEval(id structs.EvalID) []*structs.Allocation {
	e := find(s.evals, id)
	if e == nil {
		return nil
	}
	var out []*structs.Allocation
	for _, a := range collectJob(s.allocJob, e.JobKey()) {
		if a.EvalID == id {
			out = append(out, a)
		}
	}
	return out
}

func collectNode(t *btree.BTreeG[nodeAlloc], id structs.NodeID) (out []*structs.Allocation) {
	t.AscendGreaterOrEqual(nodeAlloc{node: id}, func(it nodeAlloc) bool {
		if it.node != id {
			return false
		}
		out = append(out, it.val)
		return true
	})
	return out
}

func collectJob(t *btree.BTreeG[jobAlloc], k structs.JobKey) (out []*structs.Allocation) {
	h := jobHash(k)
	t.AscendGreaterOrEqual(jobAlloc{job: h}, func(it jobAlloc) bool {
		if it.job != h {
			return false
		}
		out = append(out, it.val)
		return true
	})
	return out
}

// EvalByID gives an evaluation, or nil.
func (s *Snapshot) EvalByID(id structs.EvalID) *structs.Evaluation { return find(s.evals, id) }

// Evals gives every evaluation by id.
func (s *Snapshot) Evals() iter.Seq[*structs.Evaluation] { return ascend(s.evals) }

// EvalCount is the number of evaluations.
func (s *Snapshot) EvalCount() int { return s.evals.Len() }

// EvalsByPrefix gives the evaluations whose id text begins with prefix, by id.
func (s *Snapshot) EvalsByPrefix(prefix string) (iter.Seq[*structs.Evaluation], error) {
	return byPrefix(s.evals, prefix)
}

// EvalsByJob lists the evaluations of a job by id.
func (s *Snapshot) EvalsByJob(k structs.JobKey) []*structs.Evaluation {
	return collectEvals(s.evalJob, k)
}

func collectEvals(t *btree.BTreeG[jobEval], k structs.JobKey) (out []*structs.Evaluation) {
	h := jobHash(k)
	t.AscendGreaterOrEqual(jobEval{job: h}, func(it jobEval) bool {
		if it.job != h {
			return false
		}
		out = append(out, it.val)
		return true
	})
	return out
}

// Workload gives a job's queue entry, or nil when nothing of it can wait.
func (s *Snapshot) Workload(k structs.JobKey) *structs.Workload { return find(s.workloads, k) }

// Workloads gives every queue entry by job.
func (s *Snapshot) Workloads() iter.Seq[*structs.Workload] { return ascend(s.workloads) }

// Pool gives a node pool, or nil.
func (s *Snapshot) Pool(name string) *structs.NodePool { return find(s.pools, name) }

// Pools gives every node pool by name.
func (s *Snapshot) Pools() iter.Seq[*structs.NodePool] { return ascend(s.pools) }

// Namespace gives a namespace, or nil.
func (s *Snapshot) Namespace(name string) *structs.Namespace { return find(s.namespaces, name) }

// Namespaces gives every namespace by name.
func (s *Snapshot) Namespaces() iter.Seq[*structs.Namespace] { return ascend(s.namespaces) }

// Policy gives an ACL policy, or nil.
func (s *Snapshot) Policy(name string) *structs.ACLPolicy { return find(s.policies, name) }

// Policies gives every ACL policy by name.
func (s *Snapshot) Policies() iter.Seq[*structs.ACLPolicy] { return ascend(s.policies) }

// TokenByAccessor gives a token, or nil.
func (s *Snapshot) TokenByAccessor(id structs.AccessorID) *structs.ACLToken {
	return find(s.tokens, id)
}

// TokenBySecret gives a token, or nil. It does not look at the expiry.
func (s *Snapshot) TokenBySecret(id structs.SecretID) *structs.ACLToken { return find(s.secret, id) }

// Tokens gives every token by accessor.
func (s *Snapshot) Tokens() iter.Seq[*structs.ACLToken] { return ascend(s.tokens) }

// TokensByPrefix gives the tokens whose accessor's text begins with prefix, by accessor.
func (s *Snapshot) TokensByPrefix(prefix string) (iter.Seq[*structs.ACLToken], error) {
	return byPrefix(s.tokens, prefix)
}

// RoleByID gives a role, or nil.
func (s *Snapshot) RoleByID(id structs.RoleID) *structs.ACLRole { return find(s.roles, id) }

// RoleByName gives a role, or nil.
func (s *Snapshot) RoleByName(name string) *structs.ACLRole {
	for r := range ascend(s.roles) {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// Roles gives every role by id.
func (s *Snapshot) Roles() iter.Seq[*structs.ACLRole] { return ascend(s.roles) }

// OneTimeToken gives a one-time token, or nil. It does not look at the expiry.
func (s *Snapshot) OneTimeToken(id structs.SecretID) *structs.OneTimeToken {
	return find(s.oneTime, id)
}

// OneTimeTokens gives every one-time token.
func (s *Snapshot) OneTimeTokens() iter.Seq[*structs.OneTimeToken] { return ascend(s.oneTime) }

// SchedulerConfig gives the configuration of decisions; never nil.
func (s *Snapshot) SchedulerConfig() *structs.SchedulerConfig {
	if c := find(s.scheduler, ""); c != nil {
		return c
	}
	return &structs.SchedulerConfig{Algorithm: "binpack", PreemptSystem: true}
}

// AutopilotConfig gives the configuration of autopilot; never nil.
func (s *Snapshot) AutopilotConfig() *structs.AutopilotConfig {
	if c := find(s.autopilot, ""); c != nil {
		return c
	}
	return &structs.AutopilotConfig{
		CleanupDeadServers: true, LastContactThreshold: 200e6, MaxTrailingLogs: 250, ServerStabilizationTime: 10e9,
	}
}

// ClusterMeta gives the cluster's identity, or nil before it has one.
func (s *Snapshot) ClusterMeta() *structs.ClusterMeta { return find(s.meta, "") }

// BootstrapIndex is the index of the last ACL bootstrap; 0 when ACLs were never bootstrapped.
func (s *Snapshot) BootstrapIndex() structs.Index { return s.bootstrap }

// PeriodicLaunch gives the last launch of a periodic job, or nil.
func (s *Snapshot) PeriodicLaunch(k structs.JobKey) *structs.PeriodicLaunch {
	return find(s.launches, k)
}

// PeriodicLaunches gives the last launches of all periodic jobs, by job.
func (s *Snapshot) PeriodicLaunches() iter.Seq[*structs.PeriodicLaunch] { return ascend(s.launches) }

// ScalingEvents gives the scaling events of a job, or nil.
func (s *Snapshot) ScalingEvents(k structs.JobKey) *structs.ScalingEvents { return find(s.scaling, k) }

// SigningKeys gives every signing key by id.
func (s *Snapshot) SigningKeys() iter.Seq[*structs.SigningKey] { return ascend(s.keys) }

// ActiveSigningKey gives the key that signs now, or nil.
func (s *Snapshot) ActiveSigningKey() *structs.SigningKey {
	for k := range ascend(s.keys) {
		if k.Active {
			return k
		}
	}
	return nil
}

// UsageOf gives what the allocations of a namespace or queue hold; zero for nothing.
func (s *Snapshot) UsageOf(kind, name string) Usage {
	if u := find(s.usage, usageKey{kind, name}); u != nil {
		return *u
	}
	return Usage{Kind: kind, Name: name}
}

// Usages gives every counter that is not zero, by kind, then name.
func (s *Snapshot) Usages() iter.Seq[*Usage] { return ascend(s.usage) }

// ArrayByKey gives what is kept of the ended indices of an array; nil when nothing is.
func (s *Snapshot) ArrayByKey(k structs.JobKey) *structs.ArrayState { return find(s.arrays, k) }

// RosterByKey gives the roster of a gang, or nil.
func (s *Snapshot) RosterByKey(k structs.RosterKey) *structs.Roster { return find(s.rosters, k) }

// Rosters gives the roster of every gang, by job, then group.
func (s *Snapshot) Rosters() iter.Seq[*structs.Roster] { return ascend(s.rosters) }

// RosterCount gives how many gangs have a roster.
func (s *Snapshot) RosterCount() int { return s.rosters.Len() }

// RostersByJob lists the rosters of a job by group; nil when it has no gang.
func (s *Snapshot) RostersByJob(k structs.JobKey) []*structs.Roster { return rostersOf(s.rosters, k) }

// RostersByJob lists the rosters of a job by group; nil when it has no gang.
func (s *Store) RostersByJob(k structs.JobKey) []*structs.Roster { return rostersOf(s.Rosters.tree, k) }

func rostersOf(t *tree[structs.RosterKey, structs.Roster], k structs.JobKey) (out []*structs.Roster) {
	if t.Len() == 0 {
		return nil
	}
	t.AscendGreaterOrEqual(item[structs.RosterKey, structs.Roster]{key: structs.RosterKey{Job: k}}, func(it item[structs.RosterKey, structs.Roster]) bool {
		if it.key.Job != k {
			return false
		}
		out = append(out, it.val)
		return true
	})
	return out
}

// Preempted gives what was preempted on behalf of each queue, by queue.
func (s *Snapshot) Preempted() iter.Seq[*structs.Preemptions] { return ascend(s.preempted) }

func filter[T any](in iter.Seq[*T], keep func(*T) bool) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for v := range in {
			if keep(v) && !yield(v) {
				return
			}
		}
	}
}

func byPrefix[K ~[16]byte, T any](t *tree[K, T], text string) (iter.Seq[*T], error) {
	p, err := parsePrefix(text)
	if err != nil {
		return nil, err
	}
	return func(yield func(*T) bool) {
		t.AscendGreaterOrEqual(item[K, T]{key: K(p.lo)}, func(it item[K, T]) bool {
			return p.matches(it.key) && yield(it.val)
		})
	}, nil
}
