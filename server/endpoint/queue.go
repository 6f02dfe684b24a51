package endpoint

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/server/watch"
	"github.com/muster-sched/muster/structs"
)

func (s *Set) registerQueues() {
	handle(s, methods.QueueTree, s.queueTree)
	handle(s, methods.QueueGet, s.queueGet)
	handle(s, methods.QueueUpsert, s.queueUpsert)
	handle(s, methods.QueueDelete, s.queueDelete)
	handle(s, methods.QuotaList, s.quotaList)
	handle(s, methods.QuotaGet, s.quotaGet)
	handle(s, methods.QuotaUpsert, s.quotaUpsert)
	handle(s, methods.QuotaDelete, s.quotaDelete)
	handle(s, methods.ReservationList, s.reservationList)
	handle(s, methods.ReservationGet, s.reservationGet)
	handle(s, methods.ReservationUpsert, s.reservationUpsert)
	handle(s, methods.ReservationDelete, s.reservationDelete)
}

// queueStates describes queues, sorted by path: configured ones, the root, the default queue, and those in use.
func (s *Set) queueStates(snap *state.Snapshot, keep func(path string) bool, users bool) []methods.QueueState {
	now := max(snap.Time(), s.env.Replica.Now())
	cfg := snap.SchedulerConfig()
	table := s.env.Decide.QueueTable(snap)
	if len(table.Usage) == 0 { // the state keeps none yet
		table.Usage = countedUse(snap, now)
	}
	stand := s.standings(snap, table)
	submitted := map[structs.QueuePath]int64{}
	for j := range snap.Jobs("", "") {
		if j.Status != structs.JobDead && !j.IsPeriodic() && !j.IsParameterized() {
			for _, r := range structs.UseRowsOf(j.Namespace, j.QueueName(), "") {
				submitted[r.Path]++
			}
		}
	}
	paths := map[structs.QueuePath]bool{structs.QueueRoot: true, structs.QueueDefault: true}
	for q := range snap.Queues() {
		paths[q.Path] = true
	}
	for p := range submitted {
		paths[p] = true
	}
	for p := range stand {
		paths[p] = true
	}
	var out []methods.QueueState
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		if p.IsNamespace() || !keep(string(p)) {
			continue
		}
		x := stand.at(p)
		settings := table.Settings(p, cfg)
		st := methods.QueueState{Queue: snap.QueueByPath(p), Effective: &settings, Waiting: x.Waiting, Submitted: submitted[p],
			Part: x.Part, Target: x.Target, Jain: x.Jain, Oldest: x.Oldest, Preemptions: x.Preemptions, Lost: x.Lost}
		scene := queue.Scene{Now: now, Queue: settings, Total: table.Total}
		scene.Total.Billed = settings.Billing.OfCluster(table.Total, table.Models)
		if u := table.Use(p, ""); u != nil {
			st.Usage = *u
		}
		if period := st.Queue.BudgetPeriod(); period != "" {
			st.PeriodUse = st.Usage.PeriodUse(now, period)
			_, st.PeriodEnd = structs.PeriodOf(now, period)
		}
		st.Mean, st.Share = st.Usage.MeanAt(now, settings.HalfLife), scene.Share(st.Usage.Held)/1000/max(settings.Weight, 1)
		if users {
			st.Users = usersOf(x, table, &scene)
		}
		out = append(out, st)
	}
	return out
}

// countedUse returns the usage of queues, counted from the allocations, by path and submitter. What was used before now
// is not known.
func countedUse(snap *state.Snapshot, now structs.LogTime) (all []*structs.QueueUsage) {
	for _, u := range snap.CountedUse() {
		u.At = now
		all = append(all, &u)
	}
	slices.SortFunc(all, func(a, b *structs.QueueUsage) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.User, b.User))
	})
	return all
}

// usersOf describes the submitters of a queue who hold, have held or want something, or have lost something, by name.
func usersOf(x *Standing, table *contend.QueueTable, at *queue.Scene) (out []methods.QueueUserState) {
	for _, name := range slices.Sorted(maps.Keys(x.Users)) {
		if name == "" {
			continue
		}
		s, weight := x.Users[name], at.Queue.UserWeight(name)
		u := structs.QueueUsage{Path: x.Path, User: name}
		if has := table.Use(x.Path, name); has != nil {
			u = *has
		}
		part := at.Share(u.Held) / 1000
		out = append(out, methods.QueueUserState{Usage: u, Mean: u.MeanAt(at.Now, at.Queue.HalfLife), Weight: weight, Share: part / weight,
			PeriodUse: u.PeriodUse(at.Now, at.Queue.BudgetPeriod()), Part: part, Target: s.Target, Waiting: s.Waiting, Oldest: s.Oldest,
			Preempted: s.Preempted, Lost: s.Lost})
	}
	return out
}

func queueIndex(snap *state.Snapshot) structs.Index {
	return max(snap.TableIndex(state.Queues), snap.TableIndex(state.QueueUse), snap.TableIndex(state.Workloads), 1)
}

var queueKeys = []watch.Key{watch.OnTable(state.Queues), watch.OnTable(state.QueueUse), watch.OnTable(state.Workloads)}

func (s *Set) queueTree(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.QueueTreeResponse, error) {
	resp, id := &methods.QueueTreeResponse{}, auth.Who(ctx)
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, queueKeys, func(p *replica.Published) (structs.Index, error) {
		resp.Queues = s.queueStates(p.Snapshot, func(path string) bool {
			return strings.HasPrefix(path, req.Prefix) && id.ACL.AllowQueue(path, acl.CapQueueRead)
		}, false)
		resp.Total = s.env.Decide.Total(p.Snapshot)
		return queueIndex(p.Snapshot), nil
	})
}

func (s *Set) queueGet(ctx context.Context, c *rpc.Call, req *methods.NameRequest) (*methods.QueueGetResponse, error) {
	resp := &methods.QueueGetResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, queueKeys, func(p *replica.Published) (structs.Index, error) {
		resp.Queue = nil
		if qs := s.queueStates(p.Snapshot, func(path string) bool { return path == req.Name }, true); len(qs) > 0 {
			resp.Queue = &qs[0]
		}
		return queueIndex(p.Snapshot), nil
	})
}

func (s *Set) queueUpsert(ctx context.Context, c *rpc.Call, req *methods.QueueUpsertRequest) (*methods.QueueUpsertResponse, error) {
	if len(req.Queues) == 0 {
		return nil, structs.Errorf(structs.CodeInvalid, "the request names no queue")
	}
	for _, q := range req.Queues {
		if q == nil {
			return nil, structs.Errorf(structs.CodeInvalid, "a queue in the request is null")
		}
		if err := q.Check(); err != nil {
			return nil, err
		}
		if err := q.CheckRoot(); err != nil {
			return nil, err
		}
		if len(q.Description) > 256 || len(q.AllowedUsers) > 1000 {
			return nil, structs.Errorf(structs.CodeInvalid, "queue %q: a description may have 256 bytes, allowed_users 1000 names", q.Path)
		}
	}
	res, err := s.write(ctx, &structs.QueueUpsertCommand{Queues: req.Queues})
	if err != nil {
		return nil, err
	}
	snap := s.published().Snapshot
	var all []*structs.Queue
	for q := range snap.Queues() {
		all = append(all, q)
	}
	warnings := guaranteeWarnings(all, s.env.Decide.Total(snap))
	for _, q := range req.Queues {
		for _, limits := range [...][]structs.ModelAmount{q.LimitModels, q.UserLimitModels, q.SoftLimitModels} {
			warnings = append(warnings, unknownModels(snap.Nodes(), "queue "+string(q.Path), limits)...)
		}
	}
	return &methods.QueueUpsertResponse{Index: res.Index, Warnings: slices.Compact(warnings)}, nil
}

func (s *Set) queueDelete(ctx context.Context, c *rpc.Call, req *methods.NameRequest) (*methods.WriteResponse, error) {
	path := structs.QueuePath(req.Name)
	if (path == structs.QueueRoot || path == structs.QueueDefault) && s.published().Snapshot.QueueByPath(path) == nil {
		return nil, structs.Errorf(structs.CodeInvalid, "queue %q is built in and cannot be deleted", path)
	}
	return s.write(ctx, &structs.QueueDeleteCommand{Paths: []structs.QueuePath{path}})
}

// mayReadQuota reports whether the caller may read a quota: by policy, or because a namespace of theirs has it.
func mayReadQuota(id *auth.Identity, snap *state.Snapshot, name string) bool {
	if id.ACL.AllowQuota("read") {
		return true
	}
	for n := range snap.Namespaces() {
		if n.Quota == name && name != "" && id.ACL.AllowNamespace(n.Name) {
			return true
		}
	}
	return false
}

// quotaState describes a quota, with those of its namespaces that the caller may see.
func quotaState(snap *state.Snapshot, q *structs.QuotaSpec, may *acl.ACL) methods.QuotaState {
	st := methods.QuotaState{Quota: q, Held: snap.QuotaHeld(q.Name), Models: snap.QuotaModels(q.Name)}
	for n := range snap.Namespaces() {
		if n.Quota == q.Name && (may.AllowQuota("read") || may.AllowNamespace(n.Name)) {
			st.Namespaces = append(st.Namespaces, n.Name)
		}
	}
	return st
}

var quotaKeys = []watch.Key{watch.OnTable(state.Quotas), watch.OnTable(state.QueueUse), watch.OnTable(state.Namespaces)}

func quotaIndex(snap *state.Snapshot) structs.Index {
	return max(snap.TableIndex(state.Quotas), snap.TableIndex(state.QueueUse), 1)
}

func (s *Set) quotaList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.QuotaListResponse, error) {
	resp, id := &methods.QuotaListResponse{}, auth.Who(ctx)
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, quotaKeys, func(p *replica.Published) (structs.Index, error) {
		qs, next, err := list(s, &req.Query, lister[structs.QuotaSpec]{kind: "quota",
			key: func(x *structs.QuotaSpec) string { return x.Name },
			keep: func(x *structs.QuotaSpec) bool {
				return strings.HasPrefix(x.Name, req.Prefix) && mayReadQuota(id, p.Snapshot, x.Name)
			},
		}, p.Snapshot.Quotas())
		resp.Quotas, resp.NextToken = nil, next
		for _, q := range qs {
			resp.Quotas = append(resp.Quotas, quotaState(p.Snapshot, q, id.ACL))
		}
		return quotaIndex(p.Snapshot), err
	})
}

func (s *Set) quotaGet(ctx context.Context, c *rpc.Call, req *methods.NameRequest) (*methods.QuotaGetResponse, error) {
	resp, id := &methods.QuotaGetResponse{}, auth.Who(ctx)
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, quotaKeys, func(p *replica.Published) (structs.Index, error) {
		resp.Quota = nil
		if !mayReadQuota(id, p.Snapshot, req.Name) {
			return 0, structs.Denied("quota policy read, or a capability in a namespace of quota %q", req.Name)
		}
		if q := p.Snapshot.Quota(req.Name); q != nil {
			st := quotaState(p.Snapshot, q, id.ACL)
			resp.Quota = &st
		}
		return quotaIndex(p.Snapshot), nil
	})
}

func (s *Set) quotaUpsert(ctx context.Context, c *rpc.Call, req *methods.QuotaUpsertRequest) (*methods.QueueUpsertResponse, error) {
	q := req.Quota
	if q == nil {
		return nil, structs.Errorf(structs.CodeInvalid, "missing quota specification")
	}
	if err := validName("quota", q.Name, 128); err != nil {
		return nil, err
	}
	if len(q.Description) > 256 {
		return nil, structs.Errorf(structs.CodeInvalid, "description longer than 256")
	}
	seen := map[string]bool{}
	for _, l := range q.Limits {
		if l.Region == "" {
			return nil, structs.Errorf(structs.CodeInvalid, "quota %q: a limit names no region: write region = %q, or the region that it is for", q.Name, s.env.Region)
		}
		if seen[l.Region] {
			return nil, structs.Errorf(structs.CodeInvalid, "quota %q has two limits for region %q", q.Name, l.Region)
		}
		seen[l.Region] = true
	}
	if err := q.Check(); err != nil {
		return nil, err
	}
	res, err := s.write(ctx, &structs.QuotaUpsertCommand{Quotas: []*structs.QuotaSpec{q}})
	if err != nil {
		return nil, err
	}
	var warnings []string
	for i := range q.Limits {
		if r := q.Limits[i].Region; r != s.env.Region {
			warnings = append(warnings, fmt.Sprintf("quota %q: nothing is limited here by what is for region %q: this is region %q, and each region has quotas of its own", q.Name, r, s.env.Region))
		}
		warnings = append(warnings, unknownModels(s.published().Snapshot.Nodes(), "quota "+q.Name, slices.Concat(q.Limits[i].HardModels, q.Limits[i].SoftModels))...)
	}
	return &methods.QueueUpsertResponse{Index: res.Index, Warnings: slices.Compact(warnings)}, nil
}

func (s *Set) quotaDelete(ctx context.Context, c *rpc.Call, req *methods.NameRequest) (*methods.WriteResponse, error) {
	return s.write(ctx, &structs.QuotaDeleteCommand{Names: []string{req.Name}})
}

// reservationsOf returns which reservations a caller may see: those of jobs that they may list, and those of operators,
// unless they are for queues that the caller may not read.
func reservationsOf(ctx context.Context) func(r *structs.Reservation) bool {
	lists, id := visible(ctx, "*", acl.CapListJobs), auth.Who(ctx)
	return func(r *structs.Reservation) bool {
		if r.JobID != "" {
			return lists(r.Namespace)
		}
		return len(r.Queues) == 0 || slices.ContainsFunc(r.Queues, func(q structs.QueuePath) bool { return id.ACL.AllowQueue(string(q), acl.CapQueueRead) })
	}
}

func (s *Set) reservationList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.ReservationListResponse, error) {
	resp, may := &methods.ReservationListResponse{}, reservationsOf(ctx)
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Reservations)}, func(p *replica.Published) (structs.Index, error) {
		resp.Reservations = nil
		for r := range p.Snapshot.Reservations() {
			if strings.HasPrefix(r.ID, req.Prefix) && may(r) {
				resp.Reservations = append(resp.Reservations, r)
			}
		}
		return max(p.Snapshot.TableIndex(state.Reservations), 1), nil
	})
}

func (s *Set) reservationGet(ctx context.Context, c *rpc.Call, req *methods.NameRequest) (*methods.ReservationGetResponse, error) {
	resp, may := &methods.ReservationGetResponse{}, reservationsOf(ctx)
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Reservations)}, func(p *replica.Published) (structs.Index, error) {
		resp.Reservation = p.Snapshot.Reservation(req.Name)
		if r := resp.Reservation; r != nil && !may(r) {
			resp.Reservation = nil
		}
		return max(p.Snapshot.TableIndex(state.Reservations), 1), nil
	})
}

func (s *Set) reservationUpsert(ctx context.Context, c *rpc.Call, req *methods.ReserveRequest) (*methods.WriteResponse, error) {
	if req.Reservation == nil {
		return nil, structs.Errorf(structs.CodeInvalid, "missing reservation")
	}
	if err := req.Reservation.Check(); err != nil {
		return nil, err
	}
	return s.write(ctx, &structs.ReserveCommand{Reservations: []*structs.Reservation{req.Reservation}})
}

func (s *Set) reservationDelete(ctx context.Context, c *rpc.Call, req *methods.NameRequest) (*methods.WriteResponse, error) {
	return s.write(ctx, &structs.UnreserveCommand{IDs: []string{req.Name}})
}

var _ contend.Line = (*queue.Line)(nil)
