package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/nomadlike/wire"
)

const candidatesShown = 20 // of an ambiguous prefix

// anyNamespace returns the namespace in which to look for allocations and evaluations: the requested one, or all.
func (a *api) anyNamespace() string {
	if a.namespace != "" {
		return a.namespace
	}
	return "*"
}

// ns returns a query for objects of a namespace.
func ns(namespace string) url.Values {
	q := url.Values{}
	if namespace != "" {
		q.Set("namespace", namespace)
	}
	return q
}

// inNoNamespace returns an error when a list is empty because the namespace that was asked for does not exist.
func (a *api) inNoNamespace(ctx context.Context, n int) error {
	if n > 0 || a.namespace == "" || a.namespace == "default" || a.namespace == "*" {
		return nil
	}
	if _, err := a.get(ctx, "/v1/namespace/"+url.PathEscape(a.namespace), nil, nil); !notFound(err) {
		return nil
	}
	var all []*wire.Namespace
	names := []string{}
	if _, err := a.get(ctx, "/v1/namespaces", nil, &all); err == nil {
		for _, n := range all {
			names = append(names, n.Name)
		}
	}
	return fmt.Errorf("there is no namespace %q%s (muster namespace list)", a.namespace, suggest.DidYouMean(a.namespace, names))
}

// jobPath returns the API path of a job; ids may contain slashes.
func jobPath(id string, rest ...string) string {
	return "/v1/job/" + url.PathEscape(id) + strings.Join(rest, "")
}

// ambiguous returns the error for a prefix with several matches, and lists them.
func ambiguous(what, prefix string, candidates []string) error {
	n := len(candidates)
	if n > candidatesShown {
		candidates = append(candidates[:candidatesShown:candidatesShown], fmt.Sprintf("... and %d more", n-candidatesShown))
	}
	return fmt.Errorf("%q matches %d %s; give more characters:\n  %s", prefix, n, what, strings.Join(candidates, "\n  "))
}

// noJob is the error for a job that does not exist.
type noJob string

func (e noJob) Error() string { return string(e) }

// job finds the one job with an id or id prefix.
func (a *api) job(ctx context.Context, prefix string) (*wire.JobListStub, error) {
	q := url.Values{"prefix": {prefix}}
	var list []*wire.JobListStub
	if _, err := a.get(ctx, "/v1/jobs", q, &list); err != nil {
		return nil, fmt.Errorf("look for job %q: %w", prefix, err)
	}
	var exact, names = []*wire.JobListStub(nil), []string(nil)
	for _, j := range list {
		if j.ID == prefix {
			exact = append(exact, j)
		}
		names = append(names, j.ID+" (namespace "+j.Namespace+", "+j.Status+")")
	}
	switch {
	case len(exact) == 1:
		return exact[0], nil
	case len(exact) > 1:
		return nil, fmt.Errorf("job %q exists in %d namespaces: choose one with -namespace", prefix, len(exact))
	case len(list) == 0:
		where := ""
		if a.namespace != "*" {
			where = fmt.Sprintf(" in namespace %q", orDefault(a.namespace))
		}
		return nil, noJob(fmt.Sprintf("no job has an id that is or begins with %q%s (muster job status lists jobs)", prefix, where))
	case len(list) > 1:
		return nil, ambiguous("jobs", prefix, names)
	}
	return list[0], nil
}

func orDefault(namespace string) string {
	if namespace == "" {
		return "default"
	}
	return namespace
}

// idPrefix validates a UUID prefix and shortens it to an even length, as list endpoints require.
func idPrefix(what, s string) (string, error) {
	clean := strings.ToLower(s)
	if len(clean) < 2 {
		return "", fmt.Errorf("%s %q is too short: give at least two characters of the id", what, s)
	}
	if len(clean) > 36 || strings.Trim(clean, "0123456789abcdef-") != "" {
		return "", fmt.Errorf("%s %q is not the beginning of an id: want up to 36 of 0-9, a-f and -", what, s)
	}
	if n := strings.ReplaceAll(clean, "-", ""); len(n)%2 == 1 {
		clean = clean[:len(clean)-1]
	}
	return strings.TrimSuffix(clean, "-"), nil
}

// alloc reads the one allocation with an id prefix.
func (a *api) alloc(ctx context.Context, prefix string) (*wire.Allocation, error) {
	p, err := idPrefix("allocation", prefix)
	if err != nil {
		return nil, err
	}
	q := ns(a.anyNamespace())
	q.Set("prefix", p)
	var list []*wire.AllocationListStub
	if _, err := a.get(ctx, "/v1/allocations", q, &list); err != nil {
		return nil, fmt.Errorf("look for allocation %q: %w", prefix, err)
	}
	var hits []*wire.AllocationListStub
	var names []string
	for _, s := range list {
		if strings.HasPrefix(s.ID, strings.ToLower(prefix)) {
			hits = append(hits, s)
			names = append(names, s.ID+" ("+s.Name+", "+s.ClientStatus+")")
		}
	}
	switch len(hits) {
	case 0:
		return nil, fmt.Errorf("no allocation has an id that begins with %q (muster alloc status lists allocations)", prefix)
	case 1:
		var out wire.Allocation
		if _, err := a.get(ctx, "/v1/allocation/"+hits[0].ID, ns(hits[0].Namespace), &out); err != nil {
			return nil, fmt.Errorf("read allocation %s: %w", hits[0].ID, err)
		}
		return &out, nil
	}
	return nil, ambiguous("allocations", prefix, names)
}

// evaluation finds the one evaluation with an id prefix.
func (a *api) evaluation(ctx context.Context, prefix string, related bool) (*wire.Evaluation, error) {
	p, err := idPrefix("evaluation", prefix)
	if err != nil {
		return nil, err
	}
	id, nsName := p, a.anyNamespace()
	if len(p) != 36 {
		q := ns(a.anyNamespace())
		q.Set("prefix", p)
		var list []*wire.Evaluation
		if _, err := a.get(ctx, "/v1/evaluations", q, &list); err != nil {
			return nil, fmt.Errorf("look for evaluation %q: %w", prefix, err)
		}
		var names []string
		for _, ev := range list {
			if strings.HasPrefix(ev.ID, strings.ToLower(prefix)) {
				names = append(names, ev.ID+" (job "+ev.JobID+", "+ev.Status+")")
				id, nsName = ev.ID, ev.Namespace
			}
		}
		switch {
		case len(names) == 0:
			return nil, fmt.Errorf("no evaluation has an id that begins with %q", prefix)
		case len(names) > 1:
			return nil, ambiguous("evaluations", prefix, names)
		}
	}
	q := ns(nsName)
	if related {
		q.Set("related", "true")
	}
	var ev wire.Evaluation
	if _, err := a.get(ctx, "/v1/evaluation/"+id, q, &ev); err != nil {
		return nil, fmt.Errorf("read evaluation %s: %w", id, err)
	}
	return &ev, nil
}

// nodeStub finds the one node with an id, an id prefix or a name.
func (a *api) nodeStub(ctx context.Context, arg string) (*wire.NodeListStub, error) {
	if p, err := idPrefix("node", arg); err == nil {
		var list []*wire.NodeListStub
		if _, err := a.get(ctx, "/v1/nodes", url.Values{"prefix": {p}}, &list); err != nil {
			return nil, fmt.Errorf("look for node %q: %w", arg, err)
		}
		var hits []*wire.NodeListStub
		var names []string
		for _, n := range list {
			if strings.HasPrefix(n.ID, strings.ToLower(arg)) {
				hits = append(hits, n)
				names = append(names, n.ID+" ("+n.Name+", "+n.Status+")")
			}
		}
		switch {
		case len(hits) == 1:
			return hits[0], nil
		case len(hits) > 1:
			return nil, ambiguous("nodes", arg, names)
		}
	}
	var list []*wire.NodeListStub
	if _, err := a.get(ctx, "/v1/nodes", nil, &list); err != nil {
		return nil, fmt.Errorf("look for node %q: %w", arg, err)
	}
	n, err := nodeNamed(list, arg)
	if n == nil && err == nil {
		err = fmt.Errorf("no node has the name %q or an id that begins with it (muster node status lists nodes)", arg)
	}
	return n, err
}

// nodeNamed finds the one node of a list with a name; nil if there is none.
func nodeNamed(list []*wire.NodeListStub, name string) (*wire.NodeListStub, error) {
	var hits []*wire.NodeListStub
	var names []string
	for _, n := range list {
		if n.Name == name {
			hits = append(hits, n)
			names = append(names, n.ID+" ("+n.Name+", "+n.Status+")")
		}
	}
	switch len(hits) {
	case 0:
		return nil, nil
	case 1:
		return hits[0], nil
	}
	return nil, ambiguousNode(name, names)
}

// ambiguousNode returns the error for a name that several nodes have.
func ambiguousNode(name string, candidates []string) error {
	n := len(candidates)
	if n > candidatesShown {
		candidates = append(candidates[:candidatesShown:candidatesShown], fmt.Sprintf("... and %d more", n-candidatesShown))
	}
	return fmt.Errorf("%d nodes have the name %q; give the id of one:\n  %s", n, name, strings.Join(candidates, "\n  "))
}

// selfNode returns the id of the node that the agent itself runs.
func (a *api) selfNode(ctx context.Context) (string, error) {
	var self wire.AgentSelf
	if _, err := a.get(ctx, "/v1/agent/self", nil, &self); err != nil {
		return "", fmt.Errorf("ask the agent for its node: %w", err)
	}
	if id := self.Stats["client"]["node_id"]; id != "" {
		return id, nil
	}
	return "", errors.New("this agent runs no client, so -self means no node; name one")
}

// node reads the node that an argument or -self selects.
func (a *api) node(ctx context.Context, arg string, self bool) (*wire.Node, error) {
	id := ""
	if self {
		var err error
		if id, err = a.selfNode(ctx); err != nil {
			return nil, err
		}
	} else {
		s, err := a.nodeStub(ctx, arg)
		if err != nil {
			return nil, err
		}
		id = s.ID
	}
	var n wire.Node
	if _, err := a.get(ctx, "/v1/node/"+id, nil, &n); err != nil {
		return nil, fmt.Errorf("read node %s: %w", id, err)
	}
	return &n, nil
}

// oneOrSelf checks that a command got either a node or -self.
func oneOrSelf(args []string, self bool) (string, error) {
	switch {
	case self && len(args) == 0:
		return "", nil
	case !self && len(args) == 1:
		return args[0], nil
	case self:
		return "", errors.New("-self and a node exclude each other: choose one")
	}
	return "", errors.New("name a node, or use -self for the agent's own")
}
