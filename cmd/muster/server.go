package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func newServer(e *env) *cobra.Command {
	return e.group("server", "List, join and remove servers", "", `
muster server members
muster server join 10.0.0.2:4648`, newServerMembers, newServerJoin, newServerForceLeave)
}

type serverMembersOptions struct {
	*env
	form              format
	detailed, verbose bool
}

func newServerMembers(e *env) *cobra.Command {
	o := &serverMembersOptions{env: e}
	c := e.verb("members [options]", "List the servers", "List the servers that gossip knows, and which one leads.", `
muster server members
muster server members -o wide
muster server members -t '{{range .Members}}{{println .Name .Status}}{{end}}'`, 0, 0, o.run)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	c.Flags().BoolVar(&o.detailed, "detailed", false, "the tags of each, too")
	c.Flags().BoolVar(&o.verbose, "verbose", false, "versions and raft ids, too")
	return c
}

func (o *serverMembersOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var m wire.ServerMembers
	if _, err := a.get(ctx, "/v1/agent/members", nil, &m); err != nil {
		return err
	}
	if done, err := o.form.done(o.env, &m); done || err != nil {
		return err
	}
	if o.form.quiet {
		_, err := listed(&o.form, o.env, m.Members, "", func(s *wire.AgentMember) string { return s.Name })
		return err
	}
	leaders := map[string]string{}
	var lost []string
	for _, s := range m.Members {
		region := s.Tags["region"]
		if _, ok := leaders[region]; ok {
			continue
		}
		leaders[region] = ""
		var addr string
		if _, err := a.get(ctx, "/v1/status/leader", url.Values{"region": {region}}, &addr); err != nil {
			lost = append(lost, fmt.Sprintf("* %s: %v", region, err))
			continue
		}
		leaders[region] = addr
	}
	slices.SortFunc(m.Members, func(x, y *wire.AgentMember) int { return strings.Compare(x.Name, y.Name) })
	rows := [][]string{}
	for _, s := range m.Members {
		leader := leaders[s.Tags["region"]]
		rpc := s.Tags["rpc_addr"] // only a host from Nomad's servers; else host and port
		if rpc == "" {
			rpc = s.Addr
		}
		if _, _, err := net.SplitHostPort(rpc); err != nil {
			rpc = net.JoinHostPort(rpc, s.Tags["port"])
		}
		r := []string{s.Name, s.Addr, strconv.Itoa(int(s.Port)), s.Status, strconv.FormatBool(leader != "" && leader == rpc)}
		if o.verbose || o.form.wide {
			r = append(r, s.Tags["raft_vsn"], orNone(s.Tags["id"]))
		}
		r = append(r, orNone(s.Tags["muster"]), orNone(s.Tags["formats"]), s.Tags["dc"], s.Tags["region"])
		if o.detailed {
			tags := []string{}
			for _, k := range sortedKeys(s.Tags) {
				tags = append(tags, k+"="+s.Tags[k])
			}
			r = append(r, strings.Join(tags, ","))
		}
		rows = append(rows, r)
	}
	head := "Name|Address|Port|Status|Leader"
	if o.verbose || o.form.wide {
		head += "|Raft Version|Raft ID"
	}
	head += "|Version|Formats|Datacenter|Region"
	if o.detailed {
		head += "|Tags"
	}
	o.table(head, rows)
	if len(lost) > 0 {
		o.hint("\nThe leader is not known in:\n%s", strings.Join(lost, "\n"))
		return exitCode(exitError)
	}
	return nil
}

type serverJoinOptions struct {
	*env
	form format
}

func newServerJoin(e *env) *cobra.Command {
	o := &serverJoinOptions{env: e}
	c := e.verb("join [options] ADDRESS...", "Make a server join others", "Make the agent that answers join the servers at these gossip addresses; the port is 4648 unless given.", `
muster server join 10.0.0.2
muster server join 10.0.0.2:4648 10.0.0.3:4648`, 1, -1, o.run)
	o.form.flags(c)
	return c
}

func (o *serverJoinOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var resp wire.JoinResponse
	if _, err := a.put(ctx, "/v1/agent/join", url.Values{"address": args}, nil, &resp); err != nil {
		return err
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	if resp.Error != "" && resp.NumJoined == 0 {
		return fmt.Errorf("join: %s", resp.Error)
	}
	o.printf("Joined %s\n", plural(int64(resp.NumJoined), "server"))
	if resp.Error != "" {
		o.hint("Not all answered: %s", resp.Error)
	}
	return nil
}

type serverForceLeaveOptions struct {
	*env
	prune bool
}

func newServerForceLeave(e *env) *cobra.Command {
	o := &serverForceLeaveOptions{env: e}
	c := e.verb("force-leave [options] NAME", "Mark a failed member as left", "Mark a failed member as left, so that no member tries to reach it again. A member that is alive joins again.", `
muster server force-leave server-2.global
muster server force-leave -prune server-2.global`, 1, 1, o.run)
	c.Flags().BoolVar(&o.prune, "prune", false, "forget it altogether")
	return c
}

func (o *serverForceLeaveOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	q := url.Values{"node": {args[0]}}
	queryFlag(q, "prune", o.prune)
	if _, err := a.put(ctx, "/v1/agent/force-leave", q, nil, nil); err != nil {
		return fmt.Errorf("force %q to leave: %w", args[0], err)
	}
	o.printf("Member %q is marked as left\n", args[0])
	return nil
}
