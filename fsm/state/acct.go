package state

import (
	"iter"

	"github.com/muster-sched/muster/structs"
)

// acctKey orders accounting records by the log entry in which the job ended, then by job.
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
	if r := Acct.First(s); r != nil {
		Acct.Delete(s, acctKey{r.CreateIndex, r.Key()})
	}
}

// Acct returns the accounting records in the order in which their jobs ended. Their ID is empty (structs.AcctID).
func (s *Snapshot) Acct() iter.Seq[*structs.AcctRecord] { return Acct.All(s) }

// AcctBack returns the accounting records newest first.
func (s *Snapshot) AcctBack() iter.Seq[*structs.AcctRecord] { return Acct.backward(s) }

// AcctCount returns the number of accounting records.
func (s *Snapshot) AcctCount() int { return Acct.Len(s) }
