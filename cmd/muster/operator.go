package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func newOperator(e *env) *cobra.Command {
	return e.group("operator", "Run the cluster: raft, snapshots, configuration", "", `
muster operator raft list-peers
muster operator snapshot save backup.snap
muster operator scheduler get-config`,
		newOperatorRaft, newOperatorSnapshot, newOperatorScheduler, newOperatorAutopilot, newOperatorGossip, newOperatorJoinKey, newOperatorRoot, newOperatorMetrics, newOperatorDecisions,
		newOperatorAPI, newOperatorStateHash, newOperatorDebug, newOperatorUpgrade)
}

func newOperatorRaft(e *env) *cobra.Command {
	return e.group("raft", "The servers that agree by raft", "", `muster operator raft list-peers`, newRaftListPeers, newRaftRemovePeer, newRaftTransfer, newRaftMigrate)
}

type raftListOptions struct {
	*env
	form  format
	stale bool
}

func newRaftListPeers(e *env) *cobra.Command {
	o := &raftListOptions{env: e}
	c := e.verb("list-peers [options]", "List the raft peers", "", `
muster operator raft list-peers
muster operator raft list-peers -stale   # also without a leader`, 0, 0, o.run)
	o.form.listFlags(c)
	c.Flags().BoolVar(&o.stale, "stale", false, "as the server that answers knows them, even if it does not lead")
	return c
}

func (o *raftListOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var conf wire.RaftConfiguration
	q := ns("")
	queryFlag(q, "stale", o.stale)
	if _, err := a.get(ctx, "/v1/operator/raft/configuration", q, &conf); err != nil {
		return err
	}
	if done, err := o.form.done(o.env, &conf); done || err != nil {
		return err
	}
	if o.form.quiet {
		_, err := listed(&o.form, o.env, conf.Servers, "", func(s *wire.RaftServer) string { return s.ID })
		return err
	}
	rows := [][]string{}
	for _, s := range conf.Servers {
		state := "follower"
		if s.Leader {
			state = "leader"
		}
		rows = append(rows, []string{s.Node, s.ID, s.Address, state, strconv.FormatBool(s.Voter), s.RaftProtocol})
	}
	o.table("Node|ID|Address|State|Voter|RaftProtocol", rows)
	return nil
}

type raftPeerOptions struct {
	*env
	form     format
	id, peer string
	yes      bool
}

func (o *raftPeerOptions) flags(c *cobra.Command) {
	c.Flags().StringVar(&o.id, "peer-id", "", "the server's raft id")
	c.Flags().StringVar(&o.peer, "peer-address", "", "the server's raft address, as HOST:PORT")
}

func (o *raftPeerOptions) query() (url.Values, string, error) {
	if (o.id == "") == (o.peer == "") {
		return nil, "", fmt.Errorf("give one of -peer-id and -peer-address (muster operator raft list-peers shows both)")
	}
	if o.id != "" {
		return url.Values{"id": {o.id}}, o.id, nil
	}
	return url.Values{"address": {o.peer}}, o.peer, nil
}

func newRaftRemovePeer(e *env) *cobra.Command {
	o := &raftPeerOptions{env: e}
	c := e.verb("remove-peer [options]", "Take a server out of raft", "Take a server out of raft that is gone for good. Autopilot does this by itself for dead servers.", `
muster operator raft remove-peer -peer-id 5e38b4ee-4c2f-8a25-3ac5-bb8dd2c56d43
muster operator raft remove-peer -peer-address 10.0.0.3:4647 -yes`, 0, 0, o.remove)
	o.flags(c)
	c.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	return c
}

func (o *raftPeerOptions) remove(ctx context.Context, _ []string) error {
	q, who, err := o.query()
	if err != nil {
		return err
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	if err := o.confirm(ctx, o.yes, "Take server %q out of raft?", who); err != nil {
		return err
	}
	if _, err := a.delete(ctx, "/v1/operator/raft/peer", q, nil); err != nil {
		return fmt.Errorf("remove peer %q: %w", who, err)
	}
	o.printf("Removed peer with %s %q\n", map[bool]string{true: "id", false: "address"}[o.id != ""], who)
	return nil
}

func newRaftTransfer(e *env) *cobra.Command {
	o := &raftPeerOptions{env: e}
	c := e.verb("transfer-leadership [options]", "Make another server lead", "", `
muster operator raft transfer-leadership -peer-address 10.0.0.3:4647
muster operator raft transfer-leadership -peer-id 5e38b4ee-4c2f-8a25-3ac5-bb8dd2c56d43`, 0, 0, o.transfer)
	o.flags(c)
	o.form.flags(c)
	return c
}

func (o *raftPeerOptions) transfer(ctx context.Context, _ []string) error {
	q, who, err := o.query()
	if err != nil {
		return err
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	var resp wire.LeadershipTransferResponse
	if _, err := a.put(ctx, "/v1/operator/raft/transfer-leadership", q, nil, &resp); err != nil {
		return fmt.Errorf("transfer leadership to %q: %w", who, err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	if resp.Noop {
		o.printf("Server %q leads already\n", who)
		return nil
	}
	o.printf("Leadership goes from %s to %s\n", orNone(resp.From.Address), resp.To.Address)
	return nil
}

type metricsOptions struct {
	*env
	format string
	pretty bool
	tmpl   format
}

func newOperatorMetrics(e *env) *cobra.Command {
	o := &metricsOptions{env: e}
	c := e.verb("metrics [options]", "Print an agent's metrics", "", `
muster operator metrics
muster operator metrics -format prometheus`, 0, 0, o.run)
	c.Flags().StringVar(&o.format, "format", "", "prometheus for the text exposition; JSON otherwise")
	c.Flags().BoolVar(&o.pretty, "pretty", false, "indent the JSON")
	o.tmpl.flags(c)
	return c
}

func (o *metricsOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	q := url.Values{}
	if o.tmpl.json || o.tmpl.tmpl != "" {
		var v any
		if _, err := a.get(ctx, "/v1/metrics", q, &v); err != nil {
			return err
		}
		_, err = o.tmpl.done(o.env, v)
		return err
	}
	if o.format != "" {
		q.Set("format", o.format)
	}
	queryFlag(q, "pretty", o.pretty)
	rc, _, err := a.stream(ctx, http.MethodGet, "/v1/metrics", q, nil)
	if err != nil {
		return err
	}
	defer rc.Close()
	if _, err := io.Copy(o.out, rc); err != nil {
		return err
	}
	o.println()
	return nil
}

type apiOptions struct {
	*env
	method  string
	filter  string
	headers []string
	verbose bool
}

func newOperatorAPI(e *env) *cobra.Command {
	o := &apiOptions{env: e}
	c := e.verb("api [options] PATH", "Send a request to the HTTP API", "Send a request to the HTTP API with this command's address, token and certificates, and print the answer as it comes. A body is read from stdin when that is a file or a pipe.", `
muster operator api /v1/jobs
muster operator api '/v1/nodes?resources=true'
muster operator api -X PUT /v1/system/gc
muster operator api /v1/validate/job < job.json`, 1, 1, o.run)
	f := c.Flags()
	f.StringVarP(&o.method, "method", "X", "", "method; GET unless there is a body, then PUT")
	f.StringVar(&o.filter, "filter", "", "filter expression")
	f.StringArrayVarP(&o.headers, "header", "H", nil, "a further header, as 'Name: value'; may be repeated")
	f.BoolVar(&o.verbose, "verbose", false, "print the request to stderr")
	return c
}

func (o *apiOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	u, err := url.Parse(args[0])
	if err != nil {
		return fmt.Errorf("path %q is not usable: %w", args[0], err)
	}
	path := u.EscapedPath()
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	if !strings.HasPrefix(path, "/v1/") && !strings.HasPrefix(path, "/.well-known/") {
		path = "/v1" + path
	}
	q := u.Query()
	if o.filter != "" {
		q.Set("filter", o.filter)
	}
	var body io.Reader
	if f, ok := o.in.(*os.File); ok {
		if st, err := f.Stat(); err == nil && (st.Mode().IsRegular() || st.Mode()&os.ModeNamedPipe != 0) {
			body = o.in
		}
	} else if o.in != nil {
		body = o.in
	}
	method := strings.ToUpper(o.method)
	if method == "" {
		method = http.MethodGet
		if body != nil {
			b, err := io.ReadAll(io.LimitReader(body, 64<<20))
			if err != nil {
				return fmt.Errorf("read the body: %w", err)
			}
			body = nil
			if len(b) > 0 {
				method, body = http.MethodPut, strings.NewReader(string(b))
			}
		}
	}
	a.headers = http.Header{}
	for _, h := range o.headers {
		k, v, ok := strings.Cut(h, ":")
		if !ok {
			return fmt.Errorf("header %q: want 'Name: value'", h)
		}
		a.headers.Add(strings.TrimSpace(k), strings.TrimSpace(v))
	}
	if o.verbose {
		o.hint("> %s %s", method, a.url(path, q))
	}
	start := time.Now()
	rc, _, err := a.stream(ctx, method, path, q, body)
	if err != nil {
		return err
	}
	defer rc.Close()
	if _, err := io.Copy(o.out, rc); err != nil && ctx.Err() == nil {
		return err
	}
	if o.verbose {
		o.hint("< answered in %s", time.Since(start).Round(time.Millisecond))
	}
	return nil
}

type stateHashOptions struct {
	*env
	form format
}

func newOperatorStateHash(e *env) *cobra.Command {
	o := &stateHashOptions{env: e}
	c := e.verb("state-hash [options]", "Print a server's state hash", "Print the hash of a server's replicated state and the index it belongs to. Servers at the same index have the same hash.", `
muster operator state-hash
muster operator state-hash -address http://10.0.0.2:4646 -json`, 0, 0, o.run)
	o.form.flags(c)
	return c
}

func (o *stateHashOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var resp struct {
		Server string
		Index  uint64
		Hash   string
		Format int
	}
	if _, err := a.get(ctx, "/v1/operator/state-hash", nil, &resp); err != nil {
		return err
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	o.kv([][2]string{{"Server", resp.Server}, {"Index", strconv.FormatUint(resp.Index, 10)}, {"Hash", resp.Hash}, {"Format", strconv.Itoa(resp.Format)}})
	return nil
}
