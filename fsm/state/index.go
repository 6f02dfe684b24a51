package state

import (
	"crypto/sha256"

	"github.com/tidwall/btree"

	"github.com/muster-sched/muster/structs"
)

// indexes are the secondary indexes: three trees per allocation in total, two per evaluation (D24).
type indexes struct {
	allocNode    *btree.BTreeG[nodeAlloc]
	allocJob     *btree.BTreeG[jobAlloc]
	evalJob      *btree.BTreeG[jobEval]
	secret       *btree.BTreeG[item[structs.SecretID]]
	allocService *btree.BTreeG[allocService]
}

func newIndexes() indexes {
	return indexes{
		allocNode: newTree(lessNodeAlloc),
		allocJob:  newTree(lessJobAlloc),
		evalJob:   newTree(lessJobEval),
		secret: newTree(func(a, b item[structs.SecretID]) bool {
			return lessID(a.key, b.key)
		}),
		allocService: newTree(lessAllocService),
	}
}

func (x indexes) clone() indexes {
	return indexes{x.allocNode.Copy(), x.allocJob.Copy(), x.evalJob.Copy(), x.secret.Copy(), x.allocService.Copy()}
}

// keepIndexes connects tables to their indexes, and the indexes to the snapshots.
func (s *Store) keepIndexes() {
	allocs, evals, tokens, services := Allocs.in(s), Evals.in(s), Tokens.in(s), Services.in(s)
	allocs.hook, evals.hook, tokens.hook, services.hook = s.allocChanged, s.evalChanged, s.tokenChanged, s.serviceChanged
	allocs.share = func(x *indexes) { x.allocNode, x.allocJob = s.index.allocNode.Copy(), s.index.allocJob.Copy() }
	evals.share = func(x *indexes) { x.evalJob = s.index.evalJob.Copy() }
	tokens.share = func(x *indexes) { x.secret = s.index.secret.Copy() }
	services.share = func(x *indexes) { x.allocService = s.index.allocService.Copy() }
}

type nodeAlloc struct {
	node structs.NodeID
	id   structs.AllocID
	val  *structs.Allocation
}

// jobAlloc sorts the allocations of one job and version together. The job is identified by the first half of a digest
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

// jobHash returns the short form of a job's key in secondary indexes.
func jobHash(k structs.JobKey) (h [16]byte) {
	var buf [128]byte
	b := append(buf[:0], k.Namespace...)
	b = append(b, 0)
	b = append(b, k.ID...)
	d := sha256.Sum256(b)
	copy(h[:], d[:16])
	return h
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
		s.index.allocNode.Set(nodeAlloc{after.NodeID, after.ID, after})
		s.index.allocJob.Set(jobAlloc{h, after.JobVersion, after.ID, after})
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
		s.index.evalJob.Set(jobEval{jobHash(e.JobKey()), e.ID, e})
	}
	s.countEval(before, -1)
	s.countEval(after, 1)
}

func (s *Store) tokenChanged(before, after *structs.ACLToken) {
	if before != nil {
		s.index.secret.Delete(item[structs.SecretID]{key: before.Secret})
	}
	if after != nil {
		s.index.secret.Set(item[structs.SecretID]{after.Secret, after})
	}
}
