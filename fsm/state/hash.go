package state

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/muster-sched/muster/internal/pack"
)

// sum is a multiset hash: the sum, lane by lane, of the digests of all rows. Adding and removing a row is an addition
// and a subtraction, in any order (D8).
type sum [4]uint64

func (s *sum) add(d digest) {
	for i := range s {
		s[i] += binary.LittleEndian.Uint64(d[8*i:])
	}
}

func (s *sum) sub(d digest) {
	for i := range s {
		s[i] -= binary.LittleEndian.Uint64(d[8*i:])
	}
}

// join adds the rows of another sum.
func (s *sum) join(o sum) {
	for i := range s {
		s[i] += o[i]
	}
}

type digest [32]byte

// digest covers the table and the row's canonical bytes, which contain its key.
func (s *Store) digest(table string, row any) digest {
	s.buf = pack.Append(begin(s.buf, table), row)
	return sha256.Sum256(s.buf)
}

// digestOf is the digest of a row that is packed already.
func (s *Store) digestOf(table string, packed []byte) digest {
	s.buf = append(begin(s.buf, table), packed...)
	return sha256.Sum256(s.buf)
}

// begin writes what comes before the row over buf.
func begin(buf []byte, table string) []byte { return append(append(buf[:0], table...), 0) }

// digests caches the digests of recent rows. New rows often change soon (an allocation when it runs, an evaluation when
// it is answered), and computing a digest costs as much as the rest of writing a row. Rows are kept in two generations
// of at most digestsMax; the older generation is dropped as a whole.
type digests[T any] struct{ young, old map[*T]digest }

const digestsMax = 4096

func (k *digests[T]) put(row *T, d digest) {
	if len(k.young) >= digestsMax {
		k.young, k.old = k.old, k.young
		clear(k.young)
	}
	if k.young == nil {
		k.young = map[*T]digest{}
	}
	k.young[row] = d
}

// take returns the digest of a row and removes it.
func (k *digests[T]) take(row *T) (d digest, ok bool) {
	if d, ok = k.young[row]; ok {
		delete(k.young, row)
		return d, true
	}
	if d, ok = k.old[row]; ok {
		delete(k.old, row)
	}
	return d, ok
}

// Hash identifies the whole state: equal logs give equal hashes on every server, and a restored snapshot has the hash
// of the original state. It covers the tables of the format in force only, so that servers of different releases compute
// the same hash. Compare only hashes of the same format.
func (s *Snapshot) Hash() [32]byte {
	b := []byte("muster state")
	format := s.Format()
	b = binary.BigEndian.AppendUint64(b, uint64(format))
	b = binary.BigEndian.AppendUint64(b, uint64(s.time))
	b = binary.BigEndian.AppendUint64(b, uint64(s.bootstrap))
	for i, c := range s.changed {
		if tables[i].format() > format {
			continue
		}
		b = append(b, tables[i].Name()...)
		b = binary.BigEndian.AppendUint64(b, uint64(c))
	}
	for _, lane := range s.sum {
		b = binary.BigEndian.AppendUint64(b, lane)
	}
	return sha256.Sum256(b)
}

// Rehash computes Hash from the rows themselves: the check of the incremental sum.
func (s *Snapshot) Rehash() [32]byte {
	fresh := *s
	fresh.sum = sum{}
	for _, t := range tables {
		fresh.sum.join(t.sum(s))
	}
	return fresh.Hash()
}
