package methods

import "github.com/muster-sched/muster/structs"

type (
	// AcctRequest asks for accounting records, oldest first (Reverse: newest first). Empty fields ask for all.
	AcctRequest struct {
		Query
		User  string
		Queue structs.QueuePath // subtrees included
		Since structs.LogTime   // ended at or after
		Until structs.LogTime   // ended before
	}
	// AcctResponse lists accounting records, with their ids.
	AcctResponse struct {
		Meta
		Records []*structs.AcctRecord
	}
	// DecisionsRequest asks for rows of the decision log. Empty fields ask for all.
	DecisionsRequest struct {
		Query
		JobID string
		Queue structs.QueuePath // subtrees included
		Kind  string
		Since structs.LogTime
		After uint64 // rows with a higher number
		Last  int    // the newest ones only; 0: from the oldest on
	}
	// DecisionsResponse lists rows of the decision log, oldest first.
	DecisionsResponse struct {
		Meta
		Rows []structs.DecisionRow
		Kept int64 // rows in the log
	}
)
