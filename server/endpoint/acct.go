package endpoint

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/server/watch"
	"github.com/muster-sched/muster/structs"
)

func (s *Set) registerAcct() {
	handle(s, methods.AcctList, s.acctList)
	handle(s, methods.DecisionList, s.decisionList)
}

// inQueue reports whether a queue is the requested one or below it. "" requests all.
func inQueue(queue, asked structs.QueuePath) bool {
	return asked == "" || asked.Contains(queue)
}

// pageSize returns the number of objects in a page.
func pageSize(q *methods.Query) (int, error) {
	switch {
	case q.PerPage < 0:
		return 0, structs.Errorf(structs.CodeInvalid, "per_page is %d; want 0 or more", q.PerPage)
	case q.PerPage == 0:
		return methods.PageMax, nil
	}
	return min(q.PerPage, methods.PageMax), nil
}

// acctList lists accounting records in pages. The token is the position of the next record: the index of its end, then
// the job.
func (s *Set) acctList(ctx context.Context, c *rpc.Call, req *methods.AcctRequest) (*methods.AcctResponse, error) {
	may := visible(ctx, auth.NamespaceOf(c), acl.CapListJobs)
	resp := &methods.AcctResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Acct)}, func(p *replica.Published) (structs.Index, error) {
		resp.Records, resp.NextToken = nil, ""
		size, err := pageSize(&req.Query)
		if err != nil {
			return 0, err
		}
		token := func(r *structs.AcctRecord) string { return fmt.Sprintf("%020d/%s", r.CreateIndex, r.Key()) }
		seq := p.Snapshot.Acct()
		if req.Reverse {
			seq = p.Snapshot.AcctBack()
		}
		for r := range seq {
			if req.NextToken != "" && (!req.Reverse && token(r) < req.NextToken || req.Reverse && token(r) > req.NextToken) {
				continue
			}
			switch {
			case req.Until != 0 && r.End >= req.Until, r.End < req.Since, !may(r.Namespace), req.User != "" && r.User != req.User, !inQueue(r.Queue, req.Queue),
				!strings.HasPrefix(r.JobID, req.Prefix):
				continue
			}
			if len(resp.Records) == size {
				resp.NextToken = token(r)
				break
			}
			out := *r
			out.ID = structs.AcctID(r)
			resp.Records = append(resp.Records, &out)
		}
		return p.Snapshot.TableIndex(state.Acct), nil
	})
}

// decisionList lists rows of the decision log in pages. The token is the number of the next row.
func (s *Set) decisionList(ctx context.Context, c *rpc.Call, req *methods.DecisionsRequest) (*methods.DecisionsResponse, error) {
	may := visible(ctx, auth.NamespaceOf(c), acl.CapListJobs)
	resp := &methods.DecisionsResponse{}
	wanted := func(r *structs.DecisionRow) bool {
		r.Victims = slices.DeleteFunc(r.Victims, func(v structs.DecisionVictim) bool { return !may(v.Namespace) })
		return may(r.Namespace) && (req.JobID == "" || r.JobID == req.JobID || slices.ContainsFunc(r.Victims, func(v structs.DecisionVictim) bool { return v.JobID == req.JobID })) && inQueue(r.Queue, req.Queue) && (req.Kind == "" || r.Kind == req.Kind) &&
			r.Time >= req.Since && r.Seq > req.After && strings.HasPrefix(r.JobID, req.Prefix)
	}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Allocs)}, func(p *replica.Published) (structs.Index, error) {
		resp.Rows, resp.NextToken, resp.Kept = nil, "", int64(p.Snapshot.DecisionCount())
		size, err := pageSize(&req.Query)
		if err != nil {
			return 0, err
		}
		from := req.After + 1
		if req.NextToken != "" {
			if from, err = strconv.ParseUint(req.NextToken, 10, 64); err != nil {
				return 0, structs.Errorf(structs.CodeInvalid, "next_token %q is not the number of a row", req.NextToken)
			}
		}
		index := p.Snapshot.TableIndex(state.DecisionLog)
		if req.Last > 0 && req.NextToken == "" {
			for r := range p.Snapshot.DecisionsBack() {
				if r.Seq <= req.After || r.Time < req.Since || len(resp.Rows) == min(req.Last, methods.PageMax) {
					break
				}
				if wanted(&r) {
					resp.Rows = append(resp.Rows, r)
				}
			}
			slices.Reverse(resp.Rows)
			return index, nil
		}
		for r := range p.Snapshot.Decisions(from) {
			if !wanted(&r) {
				continue
			}
			if len(resp.Rows) == size {
				resp.NextToken = strconv.FormatUint(r.Seq, 10)
				break
			}
			resp.Rows = append(resp.Rows, r)
		}
		return index, nil
	})
}
