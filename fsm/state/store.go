package state

import (
	"slices"

	"github.com/tidwall/btree"

	"github.com/muster-sched/muster/structs"
)

// Options of a Store.
type Options struct {
	// CheckWrites keeps a digest of every object and panics, naming the object, if it was changed in place: when the
	// object leaves the store, or in VerifyImmutable. For tests; a build with the tag mustercheck always does it.
	CheckWrites bool
}

// Store holds the newest state. It has one owner, which calls its methods from one goroutine at a time. All others use
// Snapshots.
type Store struct {
	rows  []anyRows // by position in tables, like the fields of this type below
	trees []anyTree
	index indexes
	derived

	opts    Options
	snap    *Snapshot // the newest
	changed []structs.Index
	sum     sum
	owing   owing
	delta   structs.Delta // since snap
	time    structs.LogTime
	buf     []byte // for digest
	loading bool   // by Read: writes are not recorded

	bootstrap, bootstrapWas structs.Index // last ACL bootstrap; and its value before this entry
}

// derived values are computed from the rows. Hooks keep them up to date, and a restore computes them again.
type derived struct {
	counts map[structs.JobKey]*JobCounts
	held   map[usageKey]*Usage           // what allocations hold, by namespace and by queue
	moved  map[usageKey]bool             // counters of held that this batch changed
	idem   map[idemKey]string            // by dispatch token: the ID of the child
	system *btree.BTreeG[structs.JobKey] // system and sysbatch jobs that are not stopped

	useMoves  map[useKey]*useMove                   // by how much this entry changes rows of queue usage
	useJobs   map[useJob]int64                      // number of allocations that hold, by job and row
	submitted map[useKey]int64                      // number of jobs that are not dead
	waiters   map[structs.AllocID][]structs.AllocID // allocations by what they wait on

	variableBytes int64 // sealed size of all variables
}

type idemKey struct {
	parent structs.JobKey
	token  string
}

// New makes a store whose tables are empty.
func New(opts Options) *Store {
	s := &Store{
		opts: opts, index: newIndexes(), changed: make([]structs.Index, len(tables)), owing: owing{last: map[any]uint64{}},
		derived: derived{
			counts: map[structs.JobKey]*JobCounts{}, held: map[usageKey]*Usage{}, moved: map[usageKey]bool{},
			idem: map[idemKey]string{}, system: newTree(structs.JobKey.Less),
			useMoves: map[useKey]*useMove{}, useJobs: map[useJob]int64{}, submitted: map[useKey]int64{}, waiters: map[structs.AllocID][]structs.AllocID{},
		},
	}
	s.snap = &Snapshot{indexes: s.index.clone(), changed: slices.Clone(s.changed)}
	for _, t := range tables {
		t.open(s)
		s.snap.watch = append(s.snap.watch, make(chan struct{}))
	}
	s.keepIndexes()
	Jobs.in(s).hook = s.jobChanged
	Variables.in(s).hook = s.variableChanged
	Allocs.in(s).put = s.loadAlloc
	return s
}

func (s *Store) tree(id int) anyTree { return s.trees[id] }
func (s *Store) store() *Store       { return s }

// Builtin writes the objects that every cluster has from its first entry. They cannot be deleted.
func (s *Store) Builtin() {
	Namespaces.Put(s, &structs.Namespace{Name: structs.NamespaceDefault, Description: "Default shared namespace", CreateIndex: 1, ModifyIndex: 1})
	Pools.Put(s, &structs.NodePool{Name: structs.NodePoolAll, Description: "Every node of the cluster", CreateIndex: 1, ModifyIndex: 1})
	Pools.Put(s, &structs.NodePool{Name: structs.NodePoolDefault, Description: "Nodes that name no pool", CreateIndex: 1, ModifyIndex: 1})
	s.CommitEntry(1)
	s.Publish(1)
}

// CommitEntry adds the changes since the last call to the batch, as those of the log entry at index.
func (s *Store) CommitEntry(index structs.Index) {
	s.flushUse(index)
	s.bootstrapWas = s.bootstrap
	for i, r := range s.rows {
		if r.commitEntry(&s.delta) {
			s.changed[i] = index
		}
	}
}

// BootstrapIndex returns the index of the last ACL bootstrap; 0 for never.
func (s *Store) BootstrapIndex() structs.Index { return s.bootstrap }

// SetBootstrapIndex records an ACL bootstrap.
func (s *Store) SetBootstrapIndex(i structs.Index) { s.bootstrap = i }

// RollbackEntry undoes the changes since the last CommitEntry.
func (s *Store) RollbackEntry() {
	s.bootstrap = s.bootstrapWas
	for _, r := range slices.Backward(s.rows) {
		r.rollbackEntry()
	}
	clear(s.useMoves)
}

// Advance moves the log time forward, never back, and returns the new time.
func (s *Store) Advance(t structs.LogTime) structs.LogTime {
	s.time = max(s.time, t)
	return s.time
}

// Publish ends a batch whose last entry is at index: it creates the Snapshot that readers get from now on, wakes the
// watchers of changed tables, and returns what changed since the last call.
func (s *Store) Publish(index structs.Index) (*Snapshot, structs.Delta) {
	s.flushUsage()
	next := &Snapshot{
		trees: slices.Clone(s.snap.trees), indexes: s.snap.indexes, watch: slices.Clone(s.snap.watch), changed: slices.Clone(s.changed),
		index: max(index, s.snap.index), time: s.time, bootstrap: s.bootstrap,
	}
	var wake []chan struct{}
	for i, r := range s.rows {
		if r.publish(next) {
			wake = append(wake, next.watch[i])
			next.watch[i] = make(chan struct{})
		}
	}
	s.settle(owedMax)
	next.sum, next.owed = s.sum, s.owing.list
	s.snap = next
	for _, c := range wake {
		close(c)
	}
	d := s.delta
	d.Index, d.Time = next.index, s.time
	s.delta = structs.Delta{}
	return next, d
}

// Snapshot returns the newest published state.
func (s *Store) Snapshot() *Snapshot { return s.snap }

// WakeAll closes every watch channel of the newest snapshot. It is called when another store replaces this one.
func (s *Store) WakeAll() {
	for _, c := range s.snap.watch {
		close(c)
	}
}

// VerifyImmutable reports the first object in the newest snapshot that was changed in place, if the store was created
// with CheckWrites.
func (s *Store) VerifyImmutable() error {
	for _, r := range s.rows {
		if err := r.verify(); err != nil {
			return err
		}
	}
	return nil
}

// JobVersion returns version v of a job, current or kept, or nil.
func (s *Store) JobVersion(k structs.JobKey, v uint64) *structs.Job {
	return versionOf(Jobs.Get(s, k), Versions.Get(s, k), v)
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

// PutAlloc writes an allocation after linking it to its job's version. An allocation that does not run, or must stop, loses its
// service registrations.
func (s *Store) PutAlloc(a *structs.Allocation) {
	if a.Line != nil && a.Line.IsZero() {
		a.Line = nil
	}
	if j := s.JobVersion(a.JobKey(), a.JobVersion); j != nil {
		a.Job, a.Namespace, a.JobID = j, j.Namespace, j.ID
		if g := j.Group(a.Group); g != nil {
			a.Group = g.Name
		}
	}
	Allocs.Put(s, a)
	if !a.Serves() {
		s.dropServices(a.ID)
	}
}

// ShareStrings replaces strings that were decoded for this allocation alone by equal ones that others use, too.
func (s *Store) ShareStrings(a *structs.Allocation) {
	a.Desired, a.Client = structs.Share(a.Desired), structs.Share(a.Client)
	a.ClientDesc = structs.Share(a.ClientDesc)
	n := Nodes.Get(s, a.NodeID)
	if n == nil {
		return
	}
	if a.NodeName == n.Name {
		a.NodeName = n.Name
	}
	for i := range n.Resources.Networks {
		if ip := n.Resources.Networks[i].IP; ip == a.NetworkIP {
			a.NetworkIP = ip
		}
	}
}

// AllocsByNode lists the allocations on a node by id.
func (s *Store) AllocsByNode(id structs.NodeID) []*structs.Allocation {
	return slices.Collect(allocsOfNode(s.index.allocNode, id))
}

// AllocsByJob lists the allocations of a job by version, then id.
func (s *Store) AllocsByJob(k structs.JobKey) []*structs.Allocation {
	return slices.Collect(allocsOfJob(s.index.allocJob, k, 0))
}

// HasAllocsOfVersion reports whether an allocation, ended or not, belongs to version v of a job.
func (s *Store) HasAllocsOfVersion(k structs.JobKey, v uint64) bool {
	found := false
	for a := range allocsOfJob(s.index.allocJob, k, v) {
		found = a.JobVersion == v
		break
	}
	return found
}

// EvalsByJob lists the evaluations of a job by id.
func (s *Store) EvalsByJob(k structs.JobKey) []*structs.Evaluation {
	return collectEvals(s.index.evalJob, k)
}

// TokenBySecret finds a token, or nil.
func (s *Store) TokenBySecret(id structs.SecretID) *structs.ACLToken {
	return tokenOf(s.index.secret, id)
}

func tokenOf(t *tree[structs.SecretID], id structs.SecretID) *structs.ACLToken {
	it, _ := t.Get(item[structs.SecretID]{key: id})
	return rowOf[structs.ACLToken](it)
}

// DispatchedAs returns the ID of the child that was dispatched with an idempotency token, or "".
func (s *Store) DispatchedAs(parent structs.JobKey, token string) string {
	return s.idem[idemKey{parent, token}]
}

// Children calls f with the jobs whose ID begins with the parent's ID and a slash, in order, until it returns false.
func (s *Store) Children(parent structs.JobKey, f func(*structs.Job) bool) {
	for j := range childrenOf(s, parent) {
		if !f(j) {
			return
		}
	}
}

// SystemJobs lists the system and sysbatch jobs that are not stopped, by key.
func (s *Store) SystemJobs() []*structs.Job {
	var out []*structs.Job
	s.system.Scan(func(k structs.JobKey) bool {
		out = append(out, Jobs.Get(s, k))
		return true
	})
	return out
}

func (s *Store) jobChanged(before, after *structs.Job) {
	s.countSubmitted(before, -1)
	s.countSubmitted(after, 1)
	switch {
	case after != nil && (after.Type == structs.JobSystem || after.Type == structs.JobSysBatch) && after.Placeable():
		s.system.Set(after.Key())
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
