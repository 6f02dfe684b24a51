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

// owing is the rows that the sum lacks. Most rows change soon (an allocation when it runs, an evaluation when it is
// answered), and computing a digest costs as much as the rest of writing a row, so it is computed only of rows that have
// stayed as they are until owedMax others were written, and of the rest when a hash is wanted.
type owing struct {
	list  []owed         // oldest first; snapshots share it, so that it only grows at the end and shrinks at the beginning
	last  map[any]uint64 // position of rows that the sum lacks, counted over all time: a row that comes back is in list twice
	first uint64         // position of list[0]
}

// owed is a row that the sum of a snapshot lacks, if the snapshot has it.
type owed struct {
	table AnyTable
	row   any
}

// owedMax bounds the rows that the sum lacks. A placement writes about four.
const owedMax = 8192

func (o *owing) add(t AnyTable, row any) {
	o.last[row] = o.first + uint64(len(o.list))
	o.list = append(o.list, owed{t, row})
}

// drop reports whether the sum lacks a row, which has left its table.
func (o *owing) drop(row any) bool {
	_, lacks := o.last[row]
	delete(o.last, row)
	return lacks
}

// settle adds rows to the sum until it lacks most of them, at most.
func (s *Store) settle(most int) {
	o := &s.owing
	for ; len(o.list) > most; o.list, o.first = o.list[1:], o.first+1 {
		e := o.list[0]
		if at, lacks := o.last[e.row]; lacks && at == o.first {
			s.sum.add(s.digest(e.table.Name(), e.row))
			delete(o.last, e.row)
		}
	}
}

// Hash is the newest snapshot's.
func (s *Store) Hash() [32]byte {
	s.settle(0)
	s.owing.list = nil
	now := *s.snap
	now.sum, now.owed = s.sum, nil
	return now.Hash()
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
	sum, scratch, done := s.sum, &Store{}, map[any]bool{}
	for _, e := range s.owed {
		if e.table.has(s, e.row) && !done[e.row] {
			sum.add(scratch.digest(e.table.Name(), e.row))
			done[e.row] = true
		}
	}
	for _, lane := range sum {
		b = binary.BigEndian.AppendUint64(b, lane)
	}
	return sha256.Sum256(b)
}

// Rehash computes Hash from the rows themselves: the check of the incremental sum.
func (s *Snapshot) Rehash() [32]byte {
	fresh := *s
	fresh.sum, fresh.owed = sum{}, nil
	for _, t := range tables {
		fresh.sum.join(t.sum(s))
	}
	return fresh.Hash()
}
