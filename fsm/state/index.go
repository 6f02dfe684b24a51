package state

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"math"

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

// nodeAlloc is an allocation in the order of nodes, then IDs. A server has one of these, and one jobAlloc, for every
// allocation, so they have only the beginning of each key. What decides between equal beginnings is read from the row.
// Two nodes whose IDs begin alike are mixed; allocsOfNode separates them.
type nodeAlloc struct {
	node uint64 // beginning of the node's ID
	id   uint64 // beginning of the allocation's ID
	val  *structs.Allocation
}

func nodeAllocOf(a *structs.Allocation) nodeAlloc {
	return nodeAlloc{binary.BigEndian.Uint64(a.NodeID[:8]), binary.BigEndian.Uint64(a.ID[:8]), a}
}

// jobAlloc is an allocation in the order of jobs (by the hash of the key), then versions, then IDs. Two jobs with the
// same hash are mixed; allocsOfJob separates them.
type jobAlloc struct {
	job     uint64 // beginning of jobHash
	version uint32 // at most: later versions are in the row
	id      uint32 // beginning of the allocation's ID
	val     *structs.Allocation
}

func jobAllocOf(a *structs.Allocation) jobAlloc {
	h := jobHash(a.JobKey())
	return jobAlloc{binary.BigEndian.Uint64(h[:8]), shortVersion(a.JobVersion), binary.BigEndian.Uint32(a.ID[:4]), a}
}

func shortVersion(v uint64) uint32 { return uint32(min(v, math.MaxUint32)) }

type jobEval struct {
	job [16]byte
	id  structs.EvalID
	val *structs.Evaluation
}

func lessNodeAlloc(a, b nodeAlloc) bool {
	if a.node != b.node {
		return a.node < b.node
	}
	if a.id != b.id {
		return a.id < b.id
	}
	return lessID(a.val.ID, b.val.ID)
}

func lessJobAlloc(a, b jobAlloc) bool {
	if a.job != b.job {
		return a.job < b.job
	}
	if a.version != b.version {
		return a.version < b.version
	}
	if a.version == math.MaxUint32 && a.val.JobVersion != b.val.JobVersion {
		return a.val.JobVersion < b.val.JobVersion
	}
	if a.id != b.id {
		return a.id < b.id
	}
	return lessID(a.val.ID, b.val.ID)
}

// allocsOfNode returns the allocations on a node by ID.
func allocsOfNode(t *btree.BTreeG[nodeAlloc], id structs.NodeID) iter.Seq[*structs.Allocation] {
	return func(yield func(*structs.Allocation) bool) {
		first := nodeAllocOf(&structs.Allocation{NodeID: id})
		t.Ascend(first, func(it nodeAlloc) bool {
			if it.node != first.node {
				return false
			}
			return it.val.NodeID != id || yield(it.val)
		})
	}
}

// allocsOfJob returns the allocations of a job from a version on, by version, then ID.
func allocsOfJob(t *btree.BTreeG[jobAlloc], k structs.JobKey, from uint64) iter.Seq[*structs.Allocation] {
	return func(yield func(*structs.Allocation) bool) {
		first := jobAllocOf(&structs.Allocation{Namespace: k.Namespace, JobID: k.ID, JobVersion: from})
		t.Ascend(first, func(it jobAlloc) bool {
			if it.job != first.job {
				return false
			}
			return it.val.JobID != k.ID || it.val.Namespace != k.Namespace || yield(it.val)
		})
	}
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
		s.index.allocNode.Delete(nodeAllocOf(before))
	}
	if before != nil && (after == nil || after.JobVersion != before.JobVersion) {
		s.index.allocJob.Delete(jobAllocOf(before))
	}
	if after != nil {
		s.index.allocNode.Set(nodeAllocOf(after))
		s.index.allocJob.Set(jobAllocOf(after))
	}
	s.recount(before, after)
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
