package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

const completionTime = 150 * time.Millisecond // a shell must not wait longer for names

// complete offers the ids of a search context ("jobs", "allocs", "nodes", "evals", "namespaces", "node_pools") for the
// first argument of a command. Without an agent it offers nothing.
func (e *env) complete(c *cobra.Command, kind string) *cobra.Command {
	c.ValidArgsFunction = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && kind != "namespaces" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(context.Background(), completionTime)
		defer cancel()
		a, err := e.api()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var resp wire.SearchResponse
		if _, err := a.put(ctx, "/v1/search", nil, wire.SearchRequest{Prefix: toComplete, Context: kind}, &resp); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return resp.Matches[kind], cobra.ShellCompDirectiveNoFileComp
	}
	return c
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
