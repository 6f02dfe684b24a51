package endpoint

import (
	"context"
	"encoding/json"
	"iter"
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

// Limits of searching.
const (
	searchMax     = 20
	fuzzyTextMin  = 2
	fuzzyLooksMax = 200_000 // objects that one fuzzy search looks at; beyond it the answer is marked as truncated
)

func (s *Set) registerSearch() {
	handle(s, methods.Search, s.search)
	handle(s, methods.SearchFuzzy, s.searchFuzzy)
}

var searchContexts = []string{"jobs", "allocs", "evals", "nodes", "node_pools", "namespaces"}

func wanted(context string) ([]string, error) {
	switch context {
	case "", "all":
		return searchContexts, nil
	case "deployment", "plugins", "volumes", "scaling_policy", "vars", "quotas", "host_volumes":
		return nil, nil // this cluster has no such objects
	}
	for _, c := range searchContexts {
		if c == context {
			return []string{c}, nil
		}
	}
	return nil, structs.Errorf(structs.CodeInvalid, "context must be one of %s or all; got %q", strings.Join(searchContexts, ", "), context)
}

// search finds IDs by prefix among objects that the caller may see.
func (s *Set) search(ctx context.Context, c *rpc.Call, req *methods.SearchRequest) (*methods.SearchResponse, error) {
	contexts, err := wanted(req.Context)
	if err != nil {
		return nil, err
	}
	resp := &methods.SearchResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Jobs), watch.OnTable(state.Allocs), watch.OnTable(state.Evals), watch.OnTable(state.Nodes)}, func(p *replica.Published) (structs.Index, error) {
		resp.Matches, resp.Truncations = map[string][]string{}, map[string]bool{}
		for _, kind := range contexts {
			ids, cut := s.searchKind(ctx, p.Snapshot, kind, auth.NamespaceOf(c), req.Text)
			resp.Matches[kind], resp.Truncations[kind] = ids, cut
		}
		return p.Index, nil
	})
}

// gather returns the first IDs, and whether there are more.
func gather[T any](seq iter.Seq[*T], keep func(*T) bool, id func(*T) string) (ids []string, cut bool) {
	ids = []string{}
	if seq == nil {
		return ids, false
	}
	for x := range seq {
		if !keep(x) {
			continue
		}
		if len(ids) == searchMax {
			return ids, true
		}
		ids = append(ids, id(x))
	}
	return ids, false
}

func (s *Set) searchKind(ctx context.Context, snap *state.Snapshot, kind, ns, prefix string) ([]string, bool) {
	id := auth.Who(ctx)
	reads := visible(ctx, ns, acl.CapReadJob)
	switch kind {
	case "jobs":
		lists := visible(ctx, ns, acl.CapListJobs)
		return gather(snap.Jobs(ns, prefix), func(j *structs.Job) bool { return lists(j.Namespace) || reads(j.Namespace) }, func(j *structs.Job) string { return j.ID })
	case "allocs":
		seq, err := snap.AllocsByPrefix(prefix)
		if err != nil {
			seq = nil
		}
		return gather(seq, func(a *structs.Allocation) bool { return reads(a.Namespace) }, func(a *structs.Allocation) string { return a.ID.String() })
	case "evals":
		seq, err := snap.EvalsByPrefix(prefix)
		if err != nil {
			seq = nil
		}
		return gather(seq, func(e *structs.Evaluation) bool { return reads(e.Namespace) }, func(e *structs.Evaluation) string { return e.ID.String() })
	case "nodes":
		seq, err := snap.NodesByPrefix(prefix)
		if err != nil || !id.ACL.AllowNode("read") {
			seq = nil
		}
		return gather(seq, func(*structs.Node) bool { return true }, func(n *structs.Node) string { return n.ID.String() })
	case "node_pools":
		return gather(snap.Pools(), func(x *structs.NodePool) bool {
			return strings.HasPrefix(string(x.Name), prefix) && id.ACL.AllowNodePool(x.Name, "read")
		}, func(x *structs.NodePool) string { return string(x.Name) })
	case "namespaces":
		return gather(snap.Namespaces(), func(x *structs.Namespace) bool {
			return strings.HasPrefix(x.Name, prefix) && id.ACL.AllowNamespace(x.Name)
		}, func(x *structs.Namespace) string { return x.Name })
	}
	return nil, false
}

// searchFuzzy finds names that contain the text: of jobs, their groups and tasks, nodes, namespaces, pools and
// allocations.
func (s *Set) searchFuzzy(ctx context.Context, c *rpc.Call, req *methods.SearchRequest) (*methods.SearchFuzzyResponse, error) {
	text := strings.ToLower(req.Text)
	if len(text) < fuzzyTextMin {
		return nil, structs.Errorf(structs.CodeInvalid, "fuzzy search query must be at least %d characters, got %d", fuzzyTextMin, len(text))
	}
	switch req.Context {
	case "groups", "services", "tasks", "images", "commands", "classes":
	default:
		if _, err := wanted(req.Context); err != nil {
			return nil, err
		}
	}
	all := req.Context == "" || req.Context == "all"
	ns := auth.NamespaceOf(c)
	id := auth.Who(ctx)
	reads := visible(ctx, ns, acl.CapReadJob)
	resp := &methods.SearchFuzzyResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Jobs), watch.OnTable(state.Nodes), watch.OnTable(state.Allocs)}, func(p *replica.Published) (structs.Index, error) {
		resp.Matches, resp.Truncations = map[string][]methods.FuzzyMatch{}, map[string]bool{}
		looks := 0
		hit := func(kind, name, shown string, scope ...string) {
			if !all && req.Context != kind && req.Context != "jobs" || !strings.Contains(strings.ToLower(name), text) {
				return
			}
			if len(resp.Matches[kind]) >= searchMax {
				resp.Truncations[kind] = true
				return
			}
			resp.Matches[kind] = append(resp.Matches[kind], methods.FuzzyMatch{ID: shown, Scope: scope})
		}
		snap := p.Snapshot
		in := func(kinds ...string) bool {
			for _, k := range kinds {
				if all || req.Context == k {
					return true
				}
			}
			return false
		}
		if in("jobs", "groups", "tasks", "images", "commands") {
			for j := range snap.Jobs(ns, "") {
				if looks++; looks > fuzzyLooksMax {
					resp.Truncations["jobs"] = true
					break
				}
				if !reads(j.Namespace) {
					continue
				}
				if in("jobs") {
					hit("jobs", j.Name, j.Name, j.Namespace, j.ID)
				}
				for _, g := range j.Groups {
					if in("jobs", "groups") {
						hit("groups", string(g.Name), string(g.Name), j.Namespace, j.ID)
					}
					for _, t := range g.Tasks {
						if in("jobs", "tasks") {
							hit("tasks", t.Name, t.Name, j.Namespace, j.ID, string(g.Name))
						}
						if in("jobs", "images", "commands") {
							image, command := runs(t)
							hit("images", image, image, j.Namespace, j.ID, string(g.Name), t.Name)
							hit("commands", command, command, j.Namespace, j.ID, string(g.Name), t.Name)
						}
					}
				}
			}
		}
		if in("nodes", "classes") && id.ACL.AllowNode("read") {
			for n := range snap.Nodes() {
				if looks++; looks > fuzzyLooksMax {
					resp.Truncations["nodes"] = true
					break
				}
				hit("nodes", n.Name, n.Name, n.ID.String())
				hit("classes", n.Class, n.Class, n.ID.String())
			}
		}
		if in("allocs") {
			for a := range snap.Allocs() {
				if looks++; looks > fuzzyLooksMax {
					resp.Truncations["allocs"] = true
					break
				}
				if reads(a.Namespace) {
					hit("allocs", a.Name(), a.Name(), a.Namespace, a.ID.String())
				}
			}
		}
		if in("namespaces") {
			for x := range snap.Namespaces() {
				if id.ACL.AllowNamespace(x.Name) {
					hit("namespaces", x.Name, x.Name)
				}
			}
		}
		if in("node_pools") {
			for x := range snap.Pools() {
				if id.ACL.AllowNodePool(x.Name, "read") {
					hit("node_pools", string(x.Name), string(x.Name))
				}
			}
		}
		return p.Index, nil
	})
}

// runs returns the image or the command in a task's driver settings, if they have one.
func runs(t *structs.Task) (image, command string) {
	var conf struct{ Image, Command any }
	_ = json.Unmarshal(t.Config, &conf) // settings of another shape have neither
	image, _ = conf.Image.(string)
	command, _ = conf.Command.(string)
	return image, command
}
