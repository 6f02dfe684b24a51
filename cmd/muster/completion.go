package main

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
)

const (
	completionTime = 150 * time.Millisecond // for all requests; a shell must not wait longer for names
	completionMax  = 200                    // names that are offered
)

const noFiles = cobra.ShellCompDirectiveNoFileComp

// argumentKinds are what the arguments of usage lines name. Those of objects that have a group of commands (NAME, PATH)
// are named by groupKinds.
var argumentKinds = map[string]string{
	"JOB": "jobs", "NODE": "nodes", "node": "nodes", "ALLOCATION": "allocs", "EVALUATION": "evals", "SERVICE": "services", "TASK": "tasks", "GROUP": "groups",
	"VERSION|TAG": "versions", "ACCESSOR": "tokens",
}

// groupKinds are what NAME, PATH, ID and PREFIX mean in a group of commands.
var groupKinds = map[string]string{
	"namespace": "namespaces", "pool": "node_pools", "queue": "queues", "quota": "quotas", "reservation": "reservations", "policy": "policies", "role": "roles",
	"var": "variables", "service": "services", "muster": "jobs",
}

// flagKinds are what the values of flags name, in all commands; a flag whose name has another meaning somewhere has
// "command -flag".
var flagKinds = map[string]string{
	"namespace": "namespaces", "queue": "queues", "pool": "node_pools", "node-pool": "node_pools", "job": "jobs", "node-id": "nodes", "task": "tasks", "group": "groups",
	"quota": "quotas", "policy": "policies", "job init -template": "templates", "sim -policy": "", "agent -node-pool": "", "nodesim -pool": "",
	"acl policy apply -job": "jobs", "acl policy apply -group": "", "acl policy apply -task": "",
}

// complete offers what the next argument of a command may name, by its usage line.
func (e *env) complete(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, w := range strings.Fields(cmd.Use)[1:] {
		if w == "|" {
			break
		}
		if w != "[options]" {
			names = append(names, strings.Trim(w, "[]<>"))
		}
	}
	at := len(args)
	if last := len(names) - 1; at > last && last >= 0 && strings.HasSuffix(names[last], "...") {
		at = last
	}
	if at >= len(names) {
		return nil, noFiles
	}
	name := strings.TrimRight(names[at], ".]")
	kind := argumentKinds[name]
	if kind == "" && cmd.HasParent() && slices.Contains([]string{"NAME", "PATH", "ID", "PREFIX"}, name) {
		kind = groupKinds[cmd.Parent().Name()]
	}
	list, how := e.names(cmd, kind, args, prefix)
	return slices.DeleteFunc(list, func(s string) bool { return slices.Contains(args, s) }), how
}

// completeFlags adds what the values of flags may name to all commands.
func (e *env) completeFlags(c *cobra.Command) {
	path := strings.TrimPrefix(c.CommandPath(), "muster ")
	for key, kind := range flagKinds {
		name := key
		if command, flag, one := strings.Cut(key, " -"); one && command == path {
			name = flag
		} else if one {
			continue
		} else if own, has := flagKinds[path+" -"+key]; has {
			kind = own
		}
		if f := c.Flags().Lookup(name); kind != "" && f != nil && f.Value.Type() != "bool" {
			_ = c.RegisterFlagCompletionFunc(name, func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
				return e.names(cmd, kind, args, prefix)
			}) // it fails for a flag that has one already
		}
	}
	for _, sub := range c.Commands() {
		e.completeFlags(sub)
	}
}

// names lists the objects of a kind whose names begin with a prefix. Without an agent that answers in time it lists none.
func (e *env) names(cmd *cobra.Command, kind string, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	switch kind {
	case "":
		return nil, noFiles
	case "templates":
		return begin(templates(), prefix), noFiles
	}
	e.useContext(cmd.Flags())
	ctx, cancel := context.WithTimeout(context.Background(), completionTime)
	defer cancel()
	a, err := e.api()
	if err != nil {
		return nil, noFiles
	}
	isJob := false
	if f := cmd.Flags().Lookup("job"); f != nil {
		isJob = f.Value.Type() == "bool" && f.Value.String() == "true"
	}
	switch {
	case kind == "allocs" && isJob:
		kind = "jobs"
	case kind == "nodes":
		if names := a.nodeNames(ctx, prefix); len(names) > 0 {
			return names, noFiles
		}
	case kind == "tasks" || kind == "groups" || kind == "versions":
		if len(args) == 0 {
			return nil, noFiles
		}
		byAlloc := strings.Contains(cmd.Use, "ALLOCATION") && !isJob
		return begin(a.partsOf(ctx, kind, args[0], byAlloc), prefix), noFiles
	}
	if list, is := ownLists[kind]; is {
		return begin(list(ctx, a, prefix), prefix), noFiles
	}
	return a.begins(ctx, kind, prefix), noFiles
}

// begin returns those of the names that begin with a prefix, sorted, each once.
func begin(names []string, prefix string) []string {
	names = slices.DeleteFunc(slices.Clone(names), func(s string) bool { return !strings.HasPrefix(s, prefix) })
	slices.Sort(names)
	names = slices.Compact(names)
	return names[:min(len(names), completionMax)]
}

// begins asks the servers for the ids of a search context. Ids of allocations and evaluations are looked for by an even
// number of characters.
func (a *api) begins(ctx context.Context, kind, prefix string) []string {
	ask := prefix
	if (kind == "allocs" || kind == "evals" || kind == "nodes") && prefix != "" {
		var err error
		if ask, err = idPrefix("id", prefix); err != nil {
			if len(prefix) > 1 {
				return nil
			}
			ask = "" // one character: the first ids that begin with it
		}
	}
	var resp wire.SearchResponse
	if _, err := a.put(ctx, "/v1/search", nil, wire.SearchRequest{Prefix: ask, Context: kind}, &resp); err != nil {
		return nil
	}
	return begin(resp.Matches[kind], prefix)
}

// nodeNames lists nodes by name, as people know them.
func (a *api) nodeNames(ctx context.Context, prefix string) []string {
	var nodes []*wire.NodeListStub
	q := url.Values{"per_page": {strconv.Itoa(completionMax)}}
	if prefix != "" {
		q.Set("filter", fmt.Sprintf("Name matches %q", "^"+regexp.QuoteMeta(prefix)))
	}
	if _, err := a.get(ctx, "/v1/nodes", q, &nodes); err != nil {
		return nil
	}
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return begin(names, prefix)
}

// partsOf lists the tasks, groups, or versions and their tags, of a job, or of the job of an allocation.
func (a *api) partsOf(ctx context.Context, kind, of string, byAlloc bool) (names []string) {
	if kind == "versions" {
		var v wire.JobVersionsResponse
		if _, err := a.get(ctx, jobPath(of, "/versions"), nil, &v); err != nil {
			return nil
		}
		for _, j := range v.Versions {
			names = append(names, strconv.FormatUint(val(j.Version), 10))
			if j.VersionTag != nil {
				names = append(names, j.VersionTag.Name)
			}
		}
		return names
	}
	var job *wire.Job
	group := ""
	if byAlloc {
		alloc, err := a.alloc(ctx, of)
		if err != nil {
			return nil
		}
		job, group = alloc.Job, alloc.TaskGroup
	} else if _, err := a.get(ctx, jobPath(of), nil, &job); err != nil {
		return nil
	}
	if job == nil {
		return nil
	}
	for _, g := range job.TaskGroups {
		switch {
		case group != "" && val(g.Name) != group:
		case kind == "groups":
			names = append(names, val(g.Name))
		default:
			for _, t := range g.Tasks {
				names = append(names, t.Name)
			}
		}
	}
	return names
}

// ownLists are the kinds that have a list of their own in the API, and no search.
var ownLists = map[string]func(ctx context.Context, a *api, prefix string) []string{
	"queues":       lister("/v1/queues", func(q nomadlike.QueueState) string { return q.Path }),
	"quotas":       lister("/v1/quotas", func(q *wire.QuotaSpec) string { return q.Name }),
	"reservations": lister("/v1/reservations", func(r *wire.Reservation) string { return r.ID }),
	"policies":     lister("/v1/acl/policies", func(p *wire.ACLPolicyListStub) string { return p.Name }),
	"roles":        lister("/v1/acl/roles", func(r *wire.ACLRole) string { return r.ID }),
	"tokens":       lister("/v1/acl/tokens", func(t *wire.ACLTokenListStub) string { return t.AccessorID }),
	"variables":    lister("/v1/vars", func(v *wire.VariableMetadata) string { return v.Path }),
	"services": func(ctx context.Context, a *api, _ string) (names []string) {
		for _, of := range listOrNone[*wire.ServicesOfNamespace](ctx, a, "/v1/services", nil) {
			for _, s := range of.Services {
				names = append(names, s.ServiceName)
			}
		}
		return names
	},
}

// lister lists the names of what an endpoint lists.
func lister[T any](path string, name func(T) string) func(context.Context, *api, string) []string {
	return func(ctx context.Context, a *api, prefix string) (names []string) {
		for _, v := range listOrNone[T](ctx, a, path, url.Values{"prefix": {prefix}}) {
			names = append(names, name(v))
		}
		return names
	}
}

func listOrNone[T any](ctx context.Context, a *api, path string, q url.Values) []T {
	var out []T
	if _, err := a.get(ctx, path, q, &out); err != nil {
		return nil
	}
	return out
}

// files completes a command's arguments as files.
func files(c *cobra.Command, ext ...string) *cobra.Command {
	c.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		if len(ext) == 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return ext, cobra.ShellCompDirectiveFilterFileExt
	}
	return c
}
