package state

import (
	"crypto/sha256"

	"github.com/google/btree"
	"github.com/muster-sched/muster/structs"
)

// Version is the format of the state. State hashes compare only between equal versions (D8).
const Version = 2

type tableID int

// The tables, in the order in which snapshots carry them: what is referred to comes before what refers to it.
const (
	tabMeta tableID = iota
	tabScheduler
	tabAutopilot
	tabNamespaces
	tabPools
	tabNodes
	tabJobs
	tabVersions
	tabEvals
	tabAllocs
	tabWorkloads
	tabLaunches
	tabScaling
	tabPolicies
	tabRoles
	tabTokens
	tabOneTime
	tabKeys
	tabUsage
	tabRosters
	tabPreempted
	tabAcct
	tabAcctOpen
	tabDecisions
	tabArrays
	tabQueues
	tabQueueUse
	tabQuotas
	tabReserved
	tabVariables
	tabSealKeys
	tabServices
	tabCount
)

// Names of the tables, for TableIndex and Watch.
const (
	TableMeta       = "cluster"
	TableScheduler  = "scheduler-config"
	TableAutopilot  = "autopilot-config"
	TableNamespaces = "namespaces"
	TablePools      = "node-pools"
	TableNodes      = "nodes"
	TableJobs       = "jobs"
	TableVersions   = "job-versions"
	TableEvals      = "evals"
	TableAllocs     = "allocs"
	TableWorkloads  = "workloads"
	TableLaunches   = "periodic-launches"
	TableScaling    = "scaling-events"
	TablePolicies   = "acl-policies"
	TableRoles      = "acl-roles"
	TableTokens     = "acl-tokens"
	TableOneTime    = "one-time-tokens"
	TableKeys       = "signing-keys"
	TableUsage      = "usage"
	TableRosters    = "rosters"
	TablePreempted  = "preemptions"
	TableAcct       = "accounting"
	TableAcctOpen   = "accounting-open"
	TableDecisions  = "decisions"
	TableArrays     = "arrays"
	TableQueues     = "queues"
	TableQueueUse   = "queue-usage"
	TableQuotas     = "quotas"
	TableReserved   = "reservations"
	TableVariables  = "variables"
	TableSealKeys   = "seal-keys"
	TableServices   = "services"
)

// Options of a Store.
type Options struct {
	// CheckWrites remembers a digest of every object and panics, naming it, when it finds one changed in place: as the
	// object leaves the store, or in VerifyImmutable. For tests; a build with the tag mustercheck always does it.
	CheckWrites bool
}

// Store holds the newest state. It has one owner, who calls its methods from one goroutine at a time; everybody else
// holds Snapshots.
type Store struct {
	Meta       *Table[string, structs.ClusterMeta]
	Scheduler  *Table[string, structs.SchedulerConfig]
	Autopilot  *Table[string, structs.AutopilotConfig]
	Namespaces *Table[string, structs.Namespace]
	Pools      *Table[string, structs.NodePool]
	Nodes      *Table[structs.NodeID, structs.Node]
	Jobs       *Table[structs.JobKey, structs.Job]
	Versions   *Table[structs.JobKey, structs.JobVersions]
	Evals      *Table[structs.EvalID, structs.Evaluation]
	Allocs     *Table[structs.AllocID, structs.Allocation]
	Workloads  *Table[structs.JobKey, structs.Workload]
	Launches   *Table[structs.JobKey, structs.PeriodicLaunch]
	Scaling    *Table[structs.JobKey, structs.ScalingEvents]
	Policies   *Table[string, structs.ACLPolicy]
	Roles      *Table[structs.RoleID, structs.ACLRole]
	Tokens     *Table[structs.AccessorID, structs.ACLToken]
	OneTime    *Table[structs.SecretID, structs.OneTimeToken]
	Keys       *Table[string, structs.SigningKey]
	Arrays     *Table[structs.JobKey, structs.ArrayState]
	usage      *Table[usageKey, Usage]
	Rosters    *Table[structs.RosterKey, structs.Roster]
	Preempted  *Table[string, structs.Preemptions]
	Acct       *Table[acctKey, structs.AcctRecord]        // of jobs that ended, by the index of their end
	AcctOpen   *Table[structs.JobKey, structs.AcctRecord] // of jobs that have not ended: what their allocations that were collected had used
	decisions  *Table[uint64, Decisions]
	Queues     *Table[string, structs.Queue]
	QueueUse   *Table[useKey, structs.QueueUsage]
	Quotas     *Table[string, structs.QuotaSpec]
	Reserved   *Table[string, structs.Reservation]
	Variables  *Table[structs.VariableKey, structs.Variable]
	SealKeys   *Table[string, structs.SealKey]
	Services   *Table[structs.ServiceKey, structs.ServiceRegistration]

	all   []anyTable
	index indexes // secondary, the writer's

	counts map[structs.JobKey]*JobCounts
	held   map[usageKey]*Usage           // derived: what allocations hold, by namespace and by queue
	moved  map[usageKey]bool             // counters of held that changed in this batch
	idem   map[idemKey]string            // dispatch tokens of children, to the child's ID
	system *btree.BTreeG[structs.JobKey] // system and sysbatch jobs that are not stopped

	useMoves  map[useKey]*useMove                   // rows of queue usage that the entry at hand moves
	useJobs   map[useJob]int64                      // derived: allocations that hold, by job and row
	submitted map[useKey]int64                      // derived: jobs that are not dead
	waiters   map[structs.AllocID][]structs.AllocID // derived: allocations by what they wait on

	variableBytes int64 // derived: of all variables, sealed

	sum     sum
	check   *checker
	snap    *Snapshot
	delta   structs.Delta
	changed [tabCount]structs.Index
	time    structs.LogTime
	buf     []byte

	bootstrap, bootstrapWas structs.Index // last ACL bootstrap; and before this entry
	opts                    Options
}

// trees are the trees of every table. Those of a Snapshot never change.
type trees struct {
	meta       *tree[string, structs.ClusterMeta]
	scheduler  *tree[string, structs.SchedulerConfig]
	autopilot  *tree[string, structs.AutopilotConfig]
	namespaces *tree[string, structs.Namespace]
	pools      *tree[string, structs.NodePool]
	nodes      *tree[structs.NodeID, structs.Node]
	jobs       *tree[structs.JobKey, structs.Job]
	versions   *tree[structs.JobKey, structs.JobVersions]
	evals      *tree[structs.EvalID, structs.Evaluation]
	allocs     *tree[structs.AllocID, structs.Allocation]
	workloads  *tree[structs.JobKey, structs.Workload]
	launches   *tree[structs.JobKey, structs.PeriodicLaunch]
	scaling    *tree[structs.JobKey, structs.ScalingEvents]
	policies   *tree[string, structs.ACLPolicy]
	roles      *tree[structs.RoleID, structs.ACLRole]
	tokens     *tree[structs.AccessorID, structs.ACLToken]
	oneTime    *tree[structs.SecretID, structs.OneTimeToken]
	keys       *tree[string, structs.SigningKey]
	usage      *tree[usageKey, Usage]
	rosters    *tree[structs.RosterKey, structs.Roster]
	arrays     *tree[structs.JobKey, structs.ArrayState]
	preempted  *tree[string, structs.Preemptions]
	acct       *tree[acctKey, structs.AcctRecord]
	acctOpen   *tree[structs.JobKey, structs.AcctRecord]
	decisions  *tree[uint64, Decisions]
	queues     *tree[string, structs.Queue]
	queueUse   *tree[useKey, structs.QueueUsage]
	quotas     *tree[string, structs.QuotaSpec]
	reserved   *tree[string, structs.Reservation]
	variables  *tree[structs.VariableKey, structs.Variable]
	sealKeys   *tree[string, structs.SealKey]
	services   *tree[structs.ServiceKey, structs.ServiceRegistration]
	indexes
}

// indexes are the secondary indexes: three trees per allocation in all, two per evaluation (D24).
type indexes struct {
	allocNode    *btree.BTreeG[nodeAlloc]
	allocJob     *btree.BTreeG[jobAlloc]
	evalJob      *btree.BTreeG[jobEval]
	secret       *btree.BTreeG[item[structs.SecretID, structs.ACLToken]]
	allocService *btree.BTreeG[allocService]
}

type nodeAlloc struct {
	node structs.NodeID
	id   structs.AllocID
	val  *structs.Allocation
}

// jobAlloc keeps the allocations of one job and version side by side. The job is named by the first half of a digest
// of its key, because a fixed width keeps the tree flat.
type jobAlloc struct {
	job     [16]byte
	version uint64
	id      structs.AllocID
	val     *structs.Allocation
}

type jobEval struct {
	job [16]byte
	id  structs.EvalID
	val *structs.Evaluation
}

func lessNodeAlloc(a, b nodeAlloc) bool {
	if a.node != b.node {
		return lessID(a.node, b.node)
	}
	return lessID(a.id, b.id)
}

func lessJobAlloc(a, b jobAlloc) bool {
	if a.job != b.job {
		return less16(&a.job, &b.job)
	}
	if a.version != b.version {
		return a.version < b.version
	}
	return lessID(a.id, b.id)
}

func lessJobEval(a, b jobEval) bool {
	if a.job != b.job {
		return less16(&a.job, &b.job)
	}
	return lessID(a.id, b.id)
}

// jobHash is the short name of a job in secondary indexes.
func jobHash(k structs.JobKey) (h [16]byte) {
	var buf [128]byte
	b := append(buf[:0], k.Namespace...)
	b = append(b, 0)
	b = append(b, k.ID...)
	d := sha256.Sum256(b)
	copy(h[:], d[:16])
	return h
}

type idemKey struct {
	parent structs.JobKey
	token  string
}

// New makes an empty store: the default namespace and the built-in node pools exist, nothing else.
func New(opts Options) *Store {
	s := &Store{
		counts: map[structs.JobKey]*JobCounts{}, held: map[usageKey]*Usage{}, moved: map[usageKey]bool{},
		useMoves: map[useKey]*useMove{}, useJobs: map[useJob]int64{}, submitted: map[useKey]int64{}, waiters: map[structs.AllocID][]structs.AllocID{},
		idem: map[idemKey]string{}, system: btree.NewG(degree, lessJob), opts: opts, check: newChecker(opts.CheckWrites || checkAlways),
	}
	s.snap = &Snapshot{tables: &s.all}
	s.index = indexes{
		allocNode: btree.NewG(degree, lessNodeAlloc),
		allocJob:  btree.NewG(degree, lessJobAlloc),
		evalJob:   btree.NewG(degree, lessJobEval),
		secret: btree.NewG(degree, func(a, b item[structs.SecretID, structs.ACLToken]) bool {
			return lessID(a.key, b.key)
		}),
		allocService: btree.NewG(degree, lessAllocService),
	}
	s.Meta = table(s, tabMeta, TableMeta, lessString, func(*structs.ClusterMeta) string { return "" },
		func(t *trees) **tree[string, structs.ClusterMeta] { return &t.meta }, nil)
	s.Scheduler = table(s, tabScheduler, TableScheduler, lessString, func(*structs.SchedulerConfig) string { return "" },
		func(t *trees) **tree[string, structs.SchedulerConfig] { return &t.scheduler }, nil)
	s.Autopilot = table(s, tabAutopilot, TableAutopilot, lessString, func(*structs.AutopilotConfig) string { return "" },
		func(t *trees) **tree[string, structs.AutopilotConfig] { return &t.autopilot }, nil)
	s.Namespaces = table(s, tabNamespaces, TableNamespaces, lessString, func(n *structs.Namespace) string { return n.Name },
		func(t *trees) **tree[string, structs.Namespace] { return &t.namespaces },
		func(d *structs.Delta) *[]structs.Changed[structs.Namespace] { return &d.Namespaces })
	s.Pools = table(s, tabPools, TablePools, lessString, func(n *structs.NodePool) string { return n.Name },
		func(t *trees) **tree[string, structs.NodePool] { return &t.pools },
		func(d *structs.Delta) *[]structs.Changed[structs.NodePool] { return &d.Pools })
	s.Nodes = table(s, tabNodes, TableNodes, lessID[structs.NodeID], func(n *structs.Node) structs.NodeID { return n.ID },
		func(t *trees) **tree[structs.NodeID, structs.Node] { return &t.nodes },
		func(d *structs.Delta) *[]structs.Changed[structs.Node] { return &d.Nodes })
	s.Jobs = table(s, tabJobs, TableJobs, lessJob, (*structs.Job).Key,
		func(t *trees) **tree[structs.JobKey, structs.Job] { return &t.jobs },
		func(d *structs.Delta) *[]structs.Changed[structs.Job] { return &d.Jobs })
	s.Versions = table(s, tabVersions, TableVersions, lessJob,
		func(v *structs.JobVersions) structs.JobKey {
			return structs.JobKey{Namespace: v.Namespace, ID: v.JobID}
		},
		func(t *trees) **tree[structs.JobKey, structs.JobVersions] { return &t.versions }, nil)
	s.Evals = table(s, tabEvals, TableEvals, lessID[structs.EvalID], func(e *structs.Evaluation) structs.EvalID { return e.ID },
		func(t *trees) **tree[structs.EvalID, structs.Evaluation] { return &t.evals },
		func(d *structs.Delta) *[]structs.Changed[structs.Evaluation] { return &d.Evals })
	s.Allocs = table(s, tabAllocs, TableAllocs, lessID[structs.AllocID], func(a *structs.Allocation) structs.AllocID { return a.ID },
		func(t *trees) **tree[structs.AllocID, structs.Allocation] { return &t.allocs },
		func(d *structs.Delta) *[]structs.Changed[structs.Allocation] { return &d.Allocs })
	s.Workloads = table(s, tabWorkloads, TableWorkloads, lessJob,
		func(w *structs.Workload) structs.JobKey { return structs.JobKey{Namespace: w.Namespace, ID: w.JobID} },
		func(t *trees) **tree[structs.JobKey, structs.Workload] { return &t.workloads },
		func(d *structs.Delta) *[]structs.Changed[structs.Workload] { return &d.Workloads })
	s.Launches = table(s, tabLaunches, TableLaunches, lessJob,
		func(l *structs.PeriodicLaunch) structs.JobKey {
			return structs.JobKey{Namespace: l.Namespace, ID: l.JobID}
		},
		func(t *trees) **tree[structs.JobKey, structs.PeriodicLaunch] { return &t.launches },
		func(d *structs.Delta) *[]structs.Changed[structs.PeriodicLaunch] { return &d.Launches })
	s.Scaling = table(s, tabScaling, TableScaling, lessJob,
		func(l *structs.ScalingEvents) structs.JobKey {
			return structs.JobKey{Namespace: l.Namespace, ID: l.JobID}
		},
		func(t *trees) **tree[structs.JobKey, structs.ScalingEvents] { return &t.scaling },
		func(d *structs.Delta) *[]structs.Changed[structs.ScalingEvents] { return &d.Scaling })
	s.Policies = table(s, tabPolicies, TablePolicies, lessString, func(p *structs.ACLPolicy) string { return p.Name },
		func(t *trees) **tree[string, structs.ACLPolicy] { return &t.policies },
		func(d *structs.Delta) *[]structs.Changed[structs.ACLPolicy] { return &d.Policies })
	s.Roles = table(s, tabRoles, TableRoles, lessID[structs.RoleID], func(r *structs.ACLRole) structs.RoleID { return r.ID },
		func(t *trees) **tree[structs.RoleID, structs.ACLRole] { return &t.roles },
		func(d *structs.Delta) *[]structs.Changed[structs.ACLRole] { return &d.Roles })
	s.Tokens = table(s, tabTokens, TableTokens, lessID[structs.AccessorID], func(t *structs.ACLToken) structs.AccessorID { return t.Accessor },
		func(t *trees) **tree[structs.AccessorID, structs.ACLToken] { return &t.tokens },
		func(d *structs.Delta) *[]structs.Changed[structs.ACLToken] { return &d.Tokens })
	s.OneTime = table(s, tabOneTime, TableOneTime, lessID[structs.SecretID], func(t *structs.OneTimeToken) structs.SecretID { return t.Secret },
		func(t *trees) **tree[structs.SecretID, structs.OneTimeToken] { return &t.oneTime }, nil)
	s.Keys = table(s, tabKeys, TableKeys, lessString, func(k *structs.SigningKey) string { return k.ID },
		func(t *trees) **tree[string, structs.SigningKey] { return &t.keys }, nil)
	s.usage = table(s, tabUsage, TableUsage, lessUsage, func(u *Usage) usageKey { return usageKey{u.Kind, u.Name} },
		func(t *trees) **tree[usageKey, Usage] { return &t.usage }, nil)
	s.Rosters = table(s, tabRosters, TableRosters, structs.RosterKey.Less, (*structs.Roster).Key,
		func(t *trees) **tree[structs.RosterKey, structs.Roster] { return &t.rosters },
		func(d *structs.Delta) *[]structs.Changed[structs.Roster] { return &d.Rosters })
	s.Preempted = table(s, tabPreempted, TablePreempted, lessString, func(p *structs.Preemptions) string { return p.Queue },
		func(t *trees) **tree[string, structs.Preemptions] { return &t.preempted },
		func(d *structs.Delta) *[]structs.Changed[structs.Preemptions] { return &d.Preempted })
	s.Acct = table(s, tabAcct, TableAcct, lessAcct, func(r *structs.AcctRecord) acctKey { return acctKey{r.CreateIndex, r.Key()} },
		func(t *trees) **tree[acctKey, structs.AcctRecord] { return &t.acct },
		func(d *structs.Delta) *[]structs.Changed[structs.AcctRecord] { return &d.Acct })
	s.AcctOpen = table(s, tabAcctOpen, TableAcctOpen, lessJob, (*structs.AcctRecord).Key,
		func(t *trees) **tree[structs.JobKey, structs.AcctRecord] { return &t.acctOpen }, nil)
	s.decisions = table(s, tabDecisions, TableDecisions, func(a, b uint64) bool { return a < b }, func(d *Decisions) uint64 { return d.Seq },
		func(t *trees) **tree[uint64, Decisions] { return &t.decisions }, nil)
	s.Arrays = table(s, tabArrays, TableArrays, lessJob, (*structs.ArrayState).Key,
		func(t *trees) **tree[structs.JobKey, structs.ArrayState] { return &t.arrays }, nil)
	s.Queues = table(s, tabQueues, TableQueues, lessString, func(q *structs.Queue) string { return q.Path },
		func(t *trees) **tree[string, structs.Queue] { return &t.queues },
		func(d *structs.Delta) *[]structs.Changed[structs.Queue] { return &d.Queues })
	s.QueueUse = table(s, tabQueueUse, TableQueueUse, lessUse, func(u *structs.QueueUsage) useKey { return useKey{Path: u.Path, User: u.User} },
		func(t *trees) **tree[useKey, structs.QueueUsage] { return &t.queueUse },
		func(d *structs.Delta) *[]structs.Changed[structs.QueueUsage] { return &d.QueueUse })
	s.Quotas = table(s, tabQuotas, TableQuotas, lessString, func(q *structs.QuotaSpec) string { return q.Name },
		func(t *trees) **tree[string, structs.QuotaSpec] { return &t.quotas },
		func(d *structs.Delta) *[]structs.Changed[structs.QuotaSpec] { return &d.Quotas })
	s.Reserved = table(s, tabReserved, TableReserved, lessString, func(r *structs.Reservation) string { return r.ID },
		func(t *trees) **tree[string, structs.Reservation] { return &t.reserved },
		func(d *structs.Delta) *[]structs.Changed[structs.Reservation] { return &d.Reserved })
	s.Variables = table(s, tabVariables, TableVariables, structs.VariableKey.Less, (*structs.Variable).Key,
		func(t *trees) **tree[structs.VariableKey, structs.Variable] { return &t.variables },
		func(d *structs.Delta) *[]structs.Changed[structs.Variable] { return &d.Variables })
	s.SealKeys = table(s, tabSealKeys, TableSealKeys, lessString, func(k *structs.SealKey) string { return k.ID },
		func(t *trees) **tree[string, structs.SealKey] { return &t.sealKeys }, nil)
	s.Services = table(s, tabServices, TableServices, structs.ServiceKey.Less, (*structs.ServiceRegistration).Key,
		func(t *trees) **tree[structs.ServiceKey, structs.ServiceRegistration] { return &t.services },
		func(d *structs.Delta) *[]structs.Changed[structs.ServiceRegistration] { return &d.Services })

	s.Allocs.hook = s.allocChanged
	s.Allocs.share = func(t *trees) {
		t.allocNode, t.allocJob = s.index.allocNode.Clone(), s.index.allocJob.Clone()
	}
	s.Evals.hook = s.evalChanged
	s.Evals.share = func(t *trees) { t.evalJob = s.index.evalJob.Clone() }
	s.Tokens.hook = s.tokenChanged
	s.Tokens.share = func(t *trees) { t.secret = s.index.secret.Clone() }
	s.Jobs.hook = s.jobChanged
	s.Variables.hook = s.variableChanged
	s.Services.hook = s.serviceChanged
	s.Services.share = func(t *trees) { t.allocService = s.index.allocService.Clone() }

	s.snap.trees.indexes = indexes{
		allocNode: s.index.allocNode.Clone(), allocJob: s.index.allocJob.Clone(),
		evalJob: s.index.evalJob.Clone(), secret: s.index.secret.Clone(), allocService: s.index.allocService.Clone(),
	}
	for i := range s.snap.watch {
		s.snap.watch[i] = make(chan struct{})
	}
	return s
}

// Builtin writes the objects that every cluster has from its first entry on. They cannot be deleted.
func (s *Store) Builtin() {
	s.Namespaces.Put(&structs.Namespace{Name: structs.NamespaceDefault, Description: "Default shared namespace", CreateIndex: 1, ModifyIndex: 1})
	s.Pools.Put(&structs.NodePool{Name: structs.NodePoolAll, Description: "Every node of the cluster", CreateIndex: 1, ModifyIndex: 1})
	s.Pools.Put(&structs.NodePool{Name: structs.NodePoolDefault, Description: "Nodes that name no pool", CreateIndex: 1, ModifyIndex: 1})
	s.CommitEntry(1)
	s.Publish(1)
}

func table[K comparable, T any](s *Store, id tableID, name string, less func(a, b K) bool, key func(*T) K,
	slot func(*trees) **tree[K, T], delta func(*structs.Delta) *[]structs.Changed[T]) *Table[K, T] {
	t := &Table[K, T]{
		name: name, id: id, s: s, keyf: key, slot: slot, delta: delta,
		tree: newTree[K, T](less), first: map[K]*T{}, entry: map[K]int{},
	}
	*slot(&s.snap.trees) = t.tree.Clone()
	if len(s.all) != int(id) {
		panic("state: tables out of order at " + name)
	}
	s.all = append(s.all, t)
	return t
}

// CommitEntry makes the changes since the last call part of the batch, as those of the log entry at index.
func (s *Store) CommitEntry(index structs.Index) {
	s.flushUse(index)
	s.bootstrapWas = s.bootstrap
	for i, t := range s.all {
		if t.commitEntry(&s.delta) {
			s.changed[i] = index
			if tableID(i) == tabMeta || tableID(i) == tabScheduler || tableID(i) == tabAutopilot {
				s.delta.Config = true
			}
		}
	}
}

// BootstrapIndex is the index of the last ACL bootstrap; 0 for never.
func (s *Store) BootstrapIndex() structs.Index { return s.bootstrap }

// SetBootstrapIndex records an ACL bootstrap.
func (s *Store) SetBootstrapIndex(i structs.Index) { s.bootstrap = i }

// RollbackEntry undoes the changes since the last CommitEntry.
func (s *Store) RollbackEntry() {
	s.bootstrap = s.bootstrapWas
	for i := len(s.all) - 1; i >= 0; i-- {
		s.all[i].rollbackEntry()
	}
	clear(s.useMoves)
}

// Advance moves the log time forward, never back, and gives the time that counts.
func (s *Store) Advance(t structs.LogTime) structs.LogTime {
	s.time = max(s.time, t)
	return s.time
}

// Publish ends a batch whose last entry is at index: it makes the Snapshot that readers get from now on, wakes the
// watchers of changed tables, and gives what changed since the last call.
func (s *Store) Publish(index structs.Index) (*Snapshot, structs.Delta) {
	s.flushUsage()
	next := &Snapshot{trees: s.snap.trees, tables: &s.all, watch: s.snap.watch}
	var wake []chan struct{}
	for i, t := range s.all {
		if t.publish(&next.trees) {
			wake = append(wake, s.snap.watch[i])
			next.watch[i] = make(chan struct{})
		}
	}
	next.index = max(index, s.snap.index)
	next.time = s.time
	next.changed = s.changed
	next.sum = s.sum
	next.bootstrap = s.bootstrap
	s.snap = next
	for _, c := range wake {
		close(c)
	}
	d := s.delta
	d.Index, d.Time = next.index, s.time
	s.delta = structs.Delta{}
	return next, d
}

// Snapshot gives the newest published state.
func (s *Store) Snapshot() *Snapshot { return s.snap }

// WakeAll closes every watch channel of the newest snapshot: a store that takes this one's place calls it.
func (s *Store) WakeAll() {
	for _, c := range s.snap.watch {
		close(c)
	}
}

// VerifyImmutable reports the first object in the newest snapshot that was changed in place, when the store was
// opened with CheckWrites.
func (s *Store) VerifyImmutable() error { return s.check.verify(s) }

// JobVersion gives version v of a job, current or kept, or nil.
func (s *Store) JobVersion(k structs.JobKey, v uint64) *structs.Job {
	return versionOf(s.Jobs.Get(k), s.Versions.Get(k), v)
}

func versionOf(j *structs.Job, h *structs.JobVersions, v uint64) *structs.Job {
	if j != nil && j.Version == v {
		return j
	}
	if h != nil {
		for _, old := range h.Versions {
			if old.Version == v {
				return old
			}
		}
	}
	return nil
}

// PutAlloc writes an allocation after linking it to its job's version and sharing the strings it repeats. What does not
// run, or shall not, loses its registrations.
func (s *Store) PutAlloc(a *structs.Allocation) {
	if j := s.JobVersion(a.JobKey(), a.JobVersion); j != nil {
		a.Job, a.Namespace, a.JobID = j, j.Namespace, j.ID
		if g := j.Group(a.Group); g != nil {
			a.Group = g.Name
		}
	}
	s.Allocs.Put(a)
	if !a.Serves() {
		s.dropServices(a.ID)
	}
}

// AllocsByNode lists the allocations on a node by id.
func (s *Store) AllocsByNode(id structs.NodeID) []*structs.Allocation {
	return collectNode(s.index.allocNode, id)
}

// AllocsByJob lists the allocations of a job by version, then id.
func (s *Store) AllocsByJob(k structs.JobKey) []*structs.Allocation {
	return collectJob(s.index.allocJob, k)
}

// HasAllocsOfVersion reports whether an allocation, ended or not, belongs to version v of a job.
func (s *Store) HasAllocsOfVersion(k structs.JobKey, v uint64) bool {
	found := false
	from := jobAlloc{job: jobHash(k), version: v}
	s.index.allocJob.AscendGreaterOrEqual(from, func(it jobAlloc) bool {
		found = it.job == from.job && it.version == v
		return false
	})
	return found
}

// EvalsByJob lists the evaluations of a job by id.
func (s *Store) EvalsByJob(k structs.JobKey) []*structs.Evaluation {
	return collectEvals(s.index.evalJob, k)
}

// TokenBySecret finds a token, or nil.
func (s *Store) TokenBySecret(id structs.SecretID) *structs.ACLToken {
	it, _ := s.index.secret.Get(item[structs.SecretID, structs.ACLToken]{key: id})
	return it.val
}

// DispatchedAs gives the ID of the child that was dispatched with an idempotency token, or "".
func (s *Store) DispatchedAs(parent structs.JobKey, token string) string {
	return s.idem[idemKey{parent, token}]
}

// Children calls f with the jobs whose ID begins with the parent's ID and a slash, in order, until it returns false.
func (s *Store) Children(parent structs.JobKey, f func(*structs.Job) bool) {
	eachChild(s.Jobs.tree, parent, f)
}

func (s *Store) allocChanged(before, after *structs.Allocation) {
	if before != nil && (after == nil || after.NodeID != before.NodeID) {
		s.index.allocNode.Delete(nodeAlloc{node: before.NodeID, id: before.ID})
	}
	a := after
	if a == nil {
		a = before
	}
	h := jobHash(a.JobKey())
	if before != nil && (after == nil || after.JobVersion != before.JobVersion) {
		s.index.allocJob.Delete(jobAlloc{job: h, version: before.JobVersion, id: before.ID})
	}
	if after != nil {
		s.index.allocNode.ReplaceOrInsert(nodeAlloc{after.NodeID, after.ID, after})
		s.index.allocJob.ReplaceOrInsert(jobAlloc{h, after.JobVersion, after.ID, after})
	}
	s.countAlloc(before, -1)
	s.countAlloc(after, 1)
	s.useChanged(before, after)
}

func (s *Store) evalChanged(before, after *structs.Evaluation) {
	e := after
	if e == nil {
		e = before
		s.index.evalJob.Delete(jobEval{job: jobHash(e.JobKey()), id: e.ID})
	} else {
		s.index.evalJob.ReplaceOrInsert(jobEval{jobHash(e.JobKey()), e.ID, e})
	}
	s.countEval(before, -1)
	s.countEval(after, 1)
}

func (s *Store) tokenChanged(before, after *structs.ACLToken) {
	if before != nil {
		s.index.secret.Delete(item[structs.SecretID, structs.ACLToken]{key: before.Secret})
	}
	if after != nil {
		s.index.secret.ReplaceOrInsert(item[structs.SecretID, structs.ACLToken]{after.Secret, after})
	}
}

// SystemJobs lists the system and sysbatch jobs that are not stopped, by key.
func (s *Store) SystemJobs() []*structs.Job {
	var out []*structs.Job
	s.system.Ascend(func(k structs.JobKey) bool {
		out = append(out, s.Jobs.Get(k))
		return true
	})
	return out
}

func (s *Store) jobChanged(before, after *structs.Job) {
	s.countSubmitted(before, -1)
	s.countSubmitted(after, 1)
	switch {
	case after != nil && (after.Type == structs.JobSystem || after.Type == structs.JobSysBatch) && after.Placeable():
		s.system.ReplaceOrInsert(after.Key())
	case before != nil:
		s.system.Delete(before.Key())
	}
	key := func(j *structs.Job) (idemKey, bool) {
		if j == nil || j.DispatchIdempotencyToken == "" || !j.Dispatched {
			return idemKey{}, false
		}
		return idemKey{structs.JobKey{Namespace: j.Namespace, ID: j.ParentID}, j.DispatchIdempotencyToken}, true
	}
	if k, ok := key(before); ok {
		delete(s.idem, k)
	}
	if k, ok := key(after); ok {
		s.idem[k] = after.ID
	}
}
