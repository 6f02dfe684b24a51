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

	"github.com/muster-sched/muster/nomadlike/wire"
)

const (
	completionTime  = 150 * time.Millisecond // a shell must not wait longer for names
	completionNodes = 200                    // names of nodes that are offered
)

// complete offers the ids of a search context ("jobs", "allocs", "nodes", "evals", "namespaces", "node_pools") for the
// first argument of a command. Without an agent it offers nothing.
func (e *env) complete(c *cobra.Command, kind string) *cobra.Command {
	c.ValidArgsFunction = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && kind != "namespaces" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return e.names(cmd, kind, toComplete)
	}
	return c
}

// names returns the ids of a search context that begin with a prefix.
func (e *env) names(cmd *cobra.Command, kind, prefix string) ([]string, cobra.ShellCompDirective) {
	e.useContext(cmd.Flags())
	ctx, cancel := context.WithTimeout(context.Background(), completionTime)
	defer cancel()
	a, err := e.api()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if kind == "nodes" { // people know them by name
		var nodes []*wire.NodeListStub
		q := url.Values{"per_page": {strconv.Itoa(completionNodes)}}
		if prefix != "" {
			q.Set("filter", fmt.Sprintf("Name matches %q", "^"+regexp.QuoteMeta(prefix)))
		}
		if _, err := a.get(ctx, "/v1/nodes", q, &nodes); err == nil {
			var names []string
			for _, n := range nodes {
				if strings.HasPrefix(n.Name, prefix) {
					names = append(names, n.Name)
				}
			}
			if len(names) > 0 {
				slices.Sort(names)
				return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
			}
		}
	}
	var resp wire.SearchResponse
	if _, err := a.put(ctx, "/v1/search", nil, wire.SearchRequest{Prefix: prefix, Context: kind}, &resp); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return resp.Matches[kind], cobra.ShellCompDirectiveNoFileComp
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
