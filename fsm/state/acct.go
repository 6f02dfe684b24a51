package state

import (
	"iter"

	"github.com/muster-sched/muster/structs"
)

// acctKey orders accounting records by their end: the log entry in which the job ended, then the job.
type acctKey struct {
	index structs.Index
	job   structs.JobKey
}

func lessAcct(a, b acctKey) bool {
	if a.index != b.index {
		return a.index < b.index
	}
	return a.job.Less(b.job)
}

// DropAcct deletes the oldest accounting record.
func (s *Store) DropAcct() {
	if r := s.Acct.First(); r != nil {
		s.Acct.Delete(acctKey{r.CreateIndex, r.Key()})
	}
}

// Acct gives the accounting records by the end of their jobs, oldest first. Their ID is empty (structs.AcctID).
func (s *Snapshot) Acct() iter.Seq[*structs.AcctRecord] { return ascend(s.acct) }

// AcctBack gives the accounting records newest first.
func (s *Snapshot) AcctBack() iter.Seq[*structs.AcctRecord] {
	return func(yield func(*structs.AcctRecord) bool) {
		s.acct.Descend(func(it item[acctKey, structs.AcctRecord]) bool { return yield(it.val) })
	}
}

// AcctCount is the number of accounting records.
func (s *Snapshot) AcctCount() int { return s.acct.Len() }
