package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/internal/version"
	"github.com/muster-sched/muster/nomadlike/wire"
)

type versionOptions struct {
	*env
	form format
}

func newVersion(e *env) *cobra.Command {
	o := &versionOptions{env: e}
	c := e.verb("version [options]", "Print the version of this program", "", `
muster version
muster version -json`, 0, 0, o.run)
	o.form.flags(c)
	return c
}

func (o *versionOptions) run(context.Context, []string) error {
	v := map[string]string{"Version": version.Version, "Commit": version.Commit, "NomadAPI": version.NomadCompat, "Go": runtime.Version(), "Platform": runtime.GOOS + "/" + runtime.GOARCH}
	if done, err := o.form.done(o.env, v); done || err != nil {
		return err
	}
	o.println(version.String())
	return nil
}

type agentInfoOptions struct {
	*env
	form format
}

func newAgentInfo(e *env) *cobra.Command {
	o := &agentInfoOptions{env: e}
	c := e.verb("agent-info [options]", "Show the statistics of the agent that answers", "", `
muster agent-info
muster agent-info -json`, 0, 0, o.run)
	o.form.flags(c)
	return c
}

func (o *agentInfoOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var self wire.AgentSelf
	if _, err := a.get(ctx, "/v1/agent/self", nil, &self); err != nil {
		return err
	}
	if done, err := o.form.done(o.env, &self); done || err != nil {
		return err
	}
	for i, group := range sortedKeys(self.Stats) {
		if i > 0 {
			o.println()
		}
		o.println(o.bold(group))
		o.stringMap(self.Stats[group])
	}
	return nil
}

type statusOptions struct {
	*env
	form    format
	verbose bool
}

func newStatus(e *env) *cobra.Command {
	o := &statusOptions{env: e}
	c := e.verb("status [options] [ID]", "Show the object with an id", "Show the job, allocation, node or evaluation that an id (or the beginning of one) means; without one, list jobs.", `
muster status
muster status example
muster status 8ba85cef`, 0, 1, o.run)
	o.form.listFlags(c)
	c.Flags().BoolVar(&o.verbose, "verbose", false, "long ids")
	return c
}

// search finds the one object with an id or id prefix. A job with exactly this id wins.
func (a *api) search(ctx context.Context, text string) (kind, id, namespace string, err error) {
	var resp wire.SearchResponse
	if _, err := a.put(ctx, "/v1/search", ns(a.anyNamespace()), wire.SearchRequest{Prefix: text, Context: "all"}, &resp); err != nil {
		return "", "", "", fmt.Errorf("look for %q: %w", text, err)
	}
	var hits [][2]string
	for _, k := range sortedKeys(resp.Matches) {
		for _, m := range resp.Matches[k] {
			if m == text {
				return k, m, a.namespace, nil
			}
			hits = append(hits, [2]string{k, m})
		}
	}
	switch len(hits) {
	case 0:
		return "", "", "", fmt.Errorf("nothing has an id that begins with %q", text)
	case 1:
		return hits[0][0], hits[0][1], a.namespace, nil
	}
	names := []string{}
	for _, h := range hits {
		names = append(names, h[1]+" ("+strings.TrimSuffix(h[0], "s")+")")
	}
	return "", "", "", ambiguous("things", text, names)
}

func (o *statusOptions) run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return (&jobStatusOptions{env: o.env, form: o.form, verbose: o.verbose}).run(ctx, nil)
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	kind, id, _, err := a.search(ctx, args[0])
	if err != nil {
		return err
	}
	switch kind {
	case "jobs":
		return (&jobStatusOptions{env: o.env, form: o.form, verbose: o.verbose}).run(ctx, []string{id})
	case "allocs":
		return (&allocStatusOptions{env: o.env, form: o.form, verbose: o.verbose}).run(ctx, []string{id})
	case "nodes":
		return (&nodeStatusOptions{env: o.env, form: o.form, verbose: o.verbose}).run(ctx, []string{id})
	case "evals":
		return (&evalStatusOptions{env: o.env, form: o.form, verbose: o.verbose}).run(ctx, []string{id})
	case "namespaces":
		return (&namespaceOptions{env: o.env, form: o.form}).status(ctx, []string{id})
	case "node_pools":
		return (&nodePoolOptions{env: o.env, form: o.form}).info(ctx, []string{id})
	}
	return fmt.Errorf("%q is one of the %s, which have no status", id, kind)
}

// splitComma splits a list at commas and drops empty parts.
func splitComma(s string) []string {
	var out []string
	for p := range strings.SplitSeq(s, ",") {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, p)
		}
	}
	return out
}
