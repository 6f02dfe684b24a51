package endpoint

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/server/watch"
	"github.com/muster-sched/muster/structs"
)

func (s *Set) registerServices() {
	handle(s, methods.ServiceList, s.serviceList)
	handle(s, methods.ServiceGet, s.serviceGet)
	handle(s, methods.ServiceDelete, s.serviceDelete)
	handle(s, methods.ServiceAlloc, s.serviceAlloc)
	handle(s, methods.ServiceJob, s.serviceJob)
}

// servicesIndex returns the index of answers about services. It is the table's, because a removed service has no index.
func servicesIndex(p *replica.Published) structs.Index {
	return max(1, p.Snapshot.TableIndex(state.Services))
}

// maySeeServices returns which registrations the caller may see. A task sees those of its own namespace; the wrapper
// has checked that it asks for those.
func maySeeServices(ctx context.Context, ns string) func(*structs.ServiceRegistration) bool {
	if id := auth.Who(ctx); id.Task != nil {
		return func(r *structs.ServiceRegistration) bool { return r.Namespace == id.Task.Namespace }
	}
	may := visible(ctx, ns, acl.CapReadJob)
	return func(r *structs.ServiceRegistration) bool { return may(r.Namespace) }
}

func (s *Set) serviceList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.ServiceListResponse, error) {
	ns := auth.NamespaceOf(c)
	may := maySeeServices(ctx, ns)
	match, err := s.filter("service", req.Filter)
	if err != nil {
		return nil, err
	}
	resp := &methods.ServiceListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Services)}, func(p *replica.Published) (structs.Index, error) {
		out, tags := []methods.ServiceName(nil), map[string]bool{}
		for r := range p.Snapshot.Services(ns) {
			if !may(r) || len(req.Prefix) > len(r.Service) || r.Service[:len(req.Prefix)] != req.Prefix {
				continue
			}
			if match != nil {
				if ok, err := match(r); err != nil {
					return 0, err
				} else if !ok {
					continue
				}
			}
			if n := len(out); n == 0 || out[n-1].Namespace != r.Namespace || out[n-1].Service != r.Service {
				out = append(out, methods.ServiceName{Namespace: r.Namespace, Service: r.Service})
				clear(tags)
			}
			last := &out[len(out)-1]
			for _, t := range r.Tags {
				if !tags[t] {
					tags[t] = true
					last.Tags = append(last.Tags, t)
				}
			}
		}
		for i := range out {
			slices.Sort(out[i].Tags)
		}
		resp.Services = out
		return servicesIndex(p), nil
	})
}

func (s *Set) serviceGet(ctx context.Context, c *rpc.Call, req *methods.ServiceGetRequest) (*methods.ServiceGetResponse, error) {
	ns := auth.NamespaceOf(c)
	may := maySeeServices(ctx, ns)
	if req.Choose < 0 {
		return nil, structs.Errorf(structs.CodeInvalid, "choose must be N|KEY with N of at least 1")
	}
	resp := &methods.ServiceGetResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnService(ns, req.Service)}, func(p *replica.Published) (structs.Index, error) {
		seq := p.Snapshot.ServicesOf(ns, req.Service)
		if ns == "*" {
			seq = p.Snapshot.Services(ns)
		}
		list, next, err := list(s, &req.Query, lister[structs.ServiceRegistration]{kind: "service",
			key:  func(r *structs.ServiceRegistration) string { return r.Namespace + "!" + r.ID },
			keep: func(r *structs.ServiceRegistration) bool { return r.Service == req.Service && may(r) },
		}, seq)
		resp.Services, resp.NextToken = Choose(list, req.Choose, req.Key), next
		return servicesIndex(p), err
	})
}

// Choose returns the n registrations that match a key best, or all if n is 0. The weight of a registration depends on
// the key and itself only, so that adding or removing one moves few keys (rendezvous hashing).
func Choose(list []*structs.ServiceRegistration, n int, key string) []*structs.ServiceRegistration {
	if n == 0 {
		return list
	}
	type weighed struct {
		r      *structs.ServiceRegistration
		weight [sha256.Size]byte
	}
	all := make([]weighed, len(list))
	for i, r := range list {
		all[i] = weighed{r, sha256.Sum256([]byte(key + "\x00" + r.Namespace + "\x00" + r.ID))}
	}
	slices.SortFunc(all, func(a, b weighed) int {
		return cmp.Or(bytes.Compare(b.weight[:], a.weight[:]), cmp.Compare(a.r.ID, b.r.ID))
	})
	out := make([]*structs.ServiceRegistration, min(n, len(all)))
	for i := range out {
		out[i] = all[i].r
	}
	return out
}

func (s *Set) serviceDelete(ctx context.Context, c *rpc.Call, req *methods.ServiceDeleteRequest) (*methods.WriteResponse, error) {
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.ServiceDeleteCommand{
		Namespace: auth.NamespaceOf(c), Service: req.Service, ID: req.ID,
	}})
	if err != nil {
		return nil, err
	}
	return &methods.WriteResponse{Index: res.Index}, nil
}

func (s *Set) serviceAlloc(ctx context.Context, c *rpc.Call, req *methods.AllocGetRequest) (*methods.ServiceGetResponse, error) {
	resp, may := &methods.ServiceGetResponse{}, visible(ctx, "*", acl.CapReadJob)
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnAlloc(req.AllocID), watch.OnTable(state.Services)}, func(p *replica.Published) (structs.Index, error) {
		a := p.Snapshot.AllocByID(req.AllocID)
		if a == nil || !may(a.Namespace) {
			return 0, structs.Errorf(structs.CodeNotFound, "alloc not found")
		}
		resp.Services = p.Snapshot.ServicesByAlloc(a.ID)
		return servicesIndex(p), nil
	})
}

func (s *Set) serviceJob(ctx context.Context, c *rpc.Call, req *methods.JobGetRequest) (*methods.ServiceGetResponse, error) {
	k := structs.JobKey{Namespace: auth.NamespaceOf(c), ID: req.JobID}
	resp := &methods.ServiceGetResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Services)}, func(p *replica.Published) (structs.Index, error) {
		if p.Snapshot.JobByKey(k) == nil {
			return 0, structs.Errorf(structs.CodeNotFound, "job not found")
		}
		resp.Services = nil
		for _, a := range p.Snapshot.AllocsByJob(k) {
			if a.Serves() {
				resp.Services = append(resp.Services, p.Snapshot.ServicesByAlloc(a.ID)...)
			}
		}
		slices.SortFunc(resp.Services, func(a, b *structs.ServiceRegistration) int {
			return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.ID, b.ID))
		})
		return servicesIndex(p), nil
	})
}
