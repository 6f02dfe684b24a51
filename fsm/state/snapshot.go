package state

import (
	"iter"
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"github.com/muster-sched/muster/structs"
)

// Snapshot is the state after one log entry. It never changes, may be read from any goroutine, and costs only the
// memory of rows that have changed since. Everything it returns is immutable.
type Snapshot struct {
	trees   []anyTree       // by position in tables, like the next two
	changed []structs.Index // index of the last change
	watch   []chan struct{}
	indexes

	index     structs.Index
	time      structs.LogTime
	sum       sum
	owed      []owed // rows that sum lacks, of those that the snapshot has
	bootstrap structs.Index
}

func (s *Snapshot) tree(id int) anyTree { return s.trees[id] }

// Index returns the log index of the last entry that the snapshot contains.
func (s *Snapshot) Index() structs.Index { return s.index }

// Time returns the log time of that entry (D11).
func (s *Snapshot) Time() structs.LogTime { return s.time }

// TableIndex returns the index of the last change of a table, for blocking lists; 0 if it never changed.
func (s *Snapshot) TableIndex(t AnyTable) structs.Index { return s.changed[t.at()] }

// Watch returns a channel that is closed when a table changes, or the whole state is replaced. It is meant for lists
// with few waiters; polls of one object wait on a hub (D13).
func (s *Snapshot) Watch(t AnyTable) <-chan struct{} { return s.watch[t.at()] }

// NodeByID returns a node, or nil.
func (s *Snapshot) NodeByID(id structs.NodeID) *structs.Node { return Nodes.Get(s, id) }

// Nodes returns every node by id.
func (s *Snapshot) Nodes() iter.Seq[*structs.Node] { return Nodes.All(s) }

// NodeCount returns the number of nodes.
func (s *Snapshot) NodeCount() int { return Nodes.Len(s) }

// NodesByPrefix returns the nodes whose id text begins with prefix, by id.
func (s *Snapshot) NodesByPrefix(prefix string) (iter.Seq[*structs.Node], error) {
	return byPrefix(Nodes, s, prefix)
}

// JobByKey returns the current version of a job, or nil.
func (s *Snapshot) JobByKey(k structs.JobKey) *structs.Job { return Jobs.Get(s, k) }

// Jobs returns the jobs of a namespace ("" or "*": of all) whose ID begins with prefix, by namespace, then ID.
func (s *Snapshot) Jobs(namespace, prefix string) iter.Seq[*structs.Job] {
	if namespace == "" || namespace == "*" {
		return filter(Jobs.All(s), func(j *structs.Job) bool { return strings.HasPrefix(j.ID, prefix) })
	}
	return while(Jobs.from(s, structs.JobKey{Namespace: namespace, ID: prefix}), func(j *structs.Job) bool {
		return j.Namespace == namespace && strings.HasPrefix(j.ID, prefix)
	})
}

// JobCount returns the number of jobs.
func (s *Snapshot) JobCount() int { return Jobs.Len(s) }

// ChildrenOf returns the jobs that a periodic or parameterized job launched, by ID.
func (s *Snapshot) ChildrenOf(parent structs.JobKey) iter.Seq[*structs.Job] {
	return childrenOf(s, parent)
}

func childrenOf(r Reader, parent structs.JobKey) iter.Seq[*structs.Job] {
	prefix := parent.ID + "/"
	named := while(Jobs.from(r, structs.JobKey{Namespace: parent.Namespace, ID: prefix}), func(j *structs.Job) bool {
		return j.Namespace == parent.Namespace && strings.HasPrefix(j.ID, prefix)
	})
	return filter(named, func(j *structs.Job) bool { return j.ParentID == parent.ID })
}

// JobVersion returns one version of a job, current or kept, or nil. A purged job's versions are kept while allocations
// refer to them (D17).
func (s *Snapshot) JobVersion(k structs.JobKey, version uint64) *structs.Job {
	return versionOf(Jobs.Get(s, k), Versions.Get(s, k), version)
}

// JobVersions returns the kept versions of a job, newest first, the current one included.
func (s *Snapshot) JobVersions(k structs.JobKey) []*structs.Job {
	var out []*structs.Job
	if j := Jobs.Get(s, k); j != nil {
		out = append(out, j)
	}
	if h := Versions.Get(s, k); h != nil {
		out = append(out, h.Versions...)
	}
	return out
}

// JobSubmission returns the source that a version was registered from, or nil.
func (s *Snapshot) JobSubmission(k structs.JobKey, version uint64) *structs.JobSubmission {
	if h := Versions.Get(s, k); h != nil {
		return h.Submissions[version]
	}
	return nil
}

// AllocByID returns an allocation, or nil.
func (s *Snapshot) AllocByID(id structs.AllocID) *structs.Allocation { return Allocs.Get(s, id) }

// Allocs returns every allocation by id.
func (s *Snapshot) Allocs() iter.Seq[*structs.Allocation] { return Allocs.All(s) }

// AllocCount returns the number of allocations.
func (s *Snapshot) AllocCount() int { return Allocs.Len(s) }

// AllocsByPrefix returns the allocations whose id text begins with prefix, by id.
func (s *Snapshot) AllocsByPrefix(prefix string) (iter.Seq[*structs.Allocation], error) {
	return byPrefix(Allocs, s, prefix)
}

// AllocsByNode lists the allocations on a node by id.
func (s *Snapshot) AllocsByNode(id structs.NodeID) []*structs.Allocation {
	return slices.Collect(s.AllocsOf(id))
}

// AllocsOf is AllocsByNode without a list. Polls of nodes read it.
func (s *Snapshot) AllocsOf(id structs.NodeID) iter.Seq[*structs.Allocation] {
	return allocsOfNode(s.allocNode, id)
}

// AllocsByJob lists the allocations of a job by version, then id.
func (s *Snapshot) AllocsByJob(k structs.JobKey) []*structs.Allocation {
	return slices.Collect(allocsOfJob(s.allocJob, k, 0))
}

// AllocsByEval lists the allocations that an evaluation placed, by id.
func (s *Snapshot) AllocsByEval(id structs.EvalID) []*structs.Allocation {
	e := Evals.Get(s, id)
	if e == nil {
		return nil
	}
	var out []*structs.Allocation
	for a := range allocsOfJob(s.allocJob, e.JobKey(), 0) {
		if a.EvalID == id {
			out = append(out, a)
		}
	}
	return out
}

// EvalByID returns an evaluation, or nil.
func (s *Snapshot) EvalByID(id structs.EvalID) *structs.Evaluation { return Evals.Get(s, id) }

// Evals returns every evaluation by id.
func (s *Snapshot) Evals() iter.Seq[*structs.Evaluation] { return Evals.All(s) }

// EvalCount returns the number of evaluations.
func (s *Snapshot) EvalCount() int { return Evals.Len(s) }

// EvalsByPrefix returns the evaluations whose id text begins with prefix, by id.
func (s *Snapshot) EvalsByPrefix(prefix string) (iter.Seq[*structs.Evaluation], error) {
	return byPrefix(Evals, s, prefix)
}

// EvalsByJob lists the evaluations of a job by id.
func (s *Snapshot) EvalsByJob(k structs.JobKey) []*structs.Evaluation {
	return collectEvals(s.evalJob, k)
}

func collectEvals(t *btree.BTreeG[jobEval], k structs.JobKey) (out []*structs.Evaluation) {
	h := jobHash(k)
	t.Ascend(jobEval{job: h}, func(it jobEval) bool {
		if it.job != h {
			return false
		}
		out = append(out, it.val)
		return true
	})
	return out
}

// Workload returns a job's queue entry, or nil if the job cannot wait.
func (s *Snapshot) Workload(k structs.JobKey) *structs.Workload { return Workloads.Get(s, k) }

// Workloads returns every queue entry by job.
func (s *Snapshot) Workloads() iter.Seq[*structs.Workload] { return Workloads.All(s) }

// Pool returns a node pool, or nil.
func (s *Snapshot) Pool(name structs.PoolName) *structs.NodePool { return Pools.Get(s, name) }

// Pools returns every node pool by name.
func (s *Snapshot) Pools() iter.Seq[*structs.NodePool] { return Pools.All(s) }

// Namespace returns a namespace, or nil.
func (s *Snapshot) Namespace(name string) *structs.Namespace { return Namespaces.Get(s, name) }

// Namespaces returns every namespace by name.
func (s *Snapshot) Namespaces() iter.Seq[*structs.Namespace] { return Namespaces.All(s) }

// Policy returns an ACL policy, or nil.
func (s *Snapshot) Policy(name string) *structs.ACLPolicy { return Policies.Get(s, name) }

// Policies returns every ACL policy by name.
func (s *Snapshot) Policies() iter.Seq[*structs.ACLPolicy] { return Policies.All(s) }

// TokenByAccessor returns a token, or nil.
func (s *Snapshot) TokenByAccessor(id structs.AccessorID) *structs.ACLToken {
	return Tokens.Get(s, id)
}

// TokenBySecret returns a token, or nil. It does not look at the expiry.
func (s *Snapshot) TokenBySecret(id structs.SecretID) *structs.ACLToken { return tokenOf(s.secret, id) }

// Tokens returns every token by accessor.
func (s *Snapshot) Tokens() iter.Seq[*structs.ACLToken] { return Tokens.All(s) }

// TokensByPrefix returns the tokens whose accessor's text begins with prefix, by accessor.
func (s *Snapshot) TokensByPrefix(prefix string) (iter.Seq[*structs.ACLToken], error) {
	return byPrefix(Tokens, s, prefix)
}

// RoleByID returns a role, or nil.
func (s *Snapshot) RoleByID(id structs.RoleID) *structs.ACLRole { return Roles.Get(s, id) }

// RoleByName returns a role, or nil.
func (s *Snapshot) RoleByName(name string) *structs.ACLRole {
	for r := range Roles.All(s) {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// Roles returns every role by id.
func (s *Snapshot) Roles() iter.Seq[*structs.ACLRole] { return Roles.All(s) }

// OneTimeToken returns a one-time token, or nil. It does not look at the expiry.
func (s *Snapshot) OneTimeToken(id structs.SecretID) *structs.OneTimeToken {
	return OneTime.Get(s, id)
}

// OneTimeTokens returns every one-time token.
func (s *Snapshot) OneTimeTokens() iter.Seq[*structs.OneTimeToken] { return OneTime.All(s) }

// SchedulerConfig returns the configuration of decisions; never nil.
func (s *Snapshot) SchedulerConfig() *structs.SchedulerConfig {
	if c := Scheduler.Get(s, ""); c != nil {
		return c
	}
	return structs.DefaultSchedulerConfig()
}

// AutopilotConfig returns the configuration of autopilot; never nil.
func (s *Snapshot) AutopilotConfig() *structs.AutopilotConfig {
	if c := Autopilot.Get(s, ""); c != nil {
		return c
	}
	return &structs.AutopilotConfig{
		CleanupDeadServers: true, LastContactThreshold: 200e6, MaxTrailingLogs: 250, ServerStabilizationTime: 10e9,
	}
}

// ClusterMeta returns the cluster's identity, or nil before it has one.
func (s *Snapshot) ClusterMeta() *structs.ClusterMeta { return Meta.Get(s, "") }

// BootstrapIndex returns the index of the last ACL bootstrap; 0 when ACLs were never bootstrapped.
func (s *Snapshot) BootstrapIndex() structs.Index { return s.bootstrap }

// PeriodicLaunch returns the last launch of a periodic job, or nil.
func (s *Snapshot) PeriodicLaunch(k structs.JobKey) *structs.PeriodicLaunch {
	return Launches.Get(s, k)
}

// ScalingEvents returns the scaling events of a job, or nil.
func (s *Snapshot) ScalingEvents(k structs.JobKey) *structs.ScalingEvents { return Scaling.Get(s, k) }

// SigningKeys returns every signing key by id.
func (s *Snapshot) SigningKeys() iter.Seq[*structs.SigningKey] { return SigningKeys.All(s) }

// SigningKey returns a signing key, or nil.
func (s *Snapshot) SigningKey(id string) *structs.SigningKey { return SigningKeys.Get(s, id) }

// ActiveSigningKey returns the key that signs now, or nil.
func (s *Snapshot) ActiveSigningKey() *structs.SigningKey {
	for k := range SigningKeys.All(s) {
		if k.Active {
			return k
		}
	}
	return nil
}

// UsageOf returns what the allocations of a namespace or queue hold; zero for nothing.
func (s *Snapshot) UsageOf(kind, name string) Usage {
	if u := Usages.Get(s, usageKey{kind, name}); u != nil {
		return *u
	}
	return Usage{Kind: kind, Name: name}
}

// Usages returns every counter that is not zero, by kind, then name.
func (s *Snapshot) Usages() iter.Seq[*Usage] { return Usages.All(s) }

// ArrayByKey returns the kept results of an array's ended indices, or nil.
func (s *Snapshot) ArrayByKey(k structs.JobKey) *structs.ArrayState { return Arrays.Get(s, k) }

// RosterByKey returns the roster of a gang, or nil.
func (s *Snapshot) RosterByKey(k structs.RosterKey) *structs.Roster { return Rosters.Get(s, k) }

// Rosters returns the roster of every gang, by job, then group.
func (s *Snapshot) Rosters() iter.Seq[*structs.Roster] { return Rosters.All(s) }

// RosterCount returns how many gangs have a roster.
func (s *Snapshot) RosterCount() int { return Rosters.Len(s) }

// RostersByJob lists the rosters of a job by group; nil when it has no gang.
func (s *Snapshot) RostersByJob(k structs.JobKey) []*structs.Roster { return rostersOf(s, k) }

// RostersByJob lists the rosters of a job by group; nil when it has no gang.
func (s *Store) RostersByJob(k structs.JobKey) []*structs.Roster { return rostersOf(s, k) }

func rostersOf(r Reader, k structs.JobKey) []*structs.Roster {
	if Rosters.Len(r) == 0 {
		return nil
	}
	return slices.Collect(while(Rosters.from(r, structs.RosterKey{Job: k}), func(r *structs.Roster) bool { return r.Key().Job == k }))
}

// Preempted returns the preemptions on behalf of each queue, by queue.
func (s *Snapshot) Preempted() iter.Seq[*structs.Preemptions] { return Preemptions.All(s) }

func filter[T any](in iter.Seq[*T], keep func(*T) bool) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for v := range in {
			if keep(v) && !yield(v) {
				return
			}
		}
	}
}

// while returns the rows before the first one for which keep is false.
func while[T any](in iter.Seq[*T], keep func(*T) bool) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for v := range in {
			if !keep(v) || !yield(v) {
				return
			}
		}
	}
}
