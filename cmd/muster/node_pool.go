package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func newNodePool(e *env) *cobra.Command {
	return e.group("pool", "Sets of nodes", "A node pool is a named set of nodes; a job runs in one pool.", `
muster node pool list
muster node pool apply -description "the A100s" a100
muster node pool nodes a100`, newPoolList, newPoolInfo, newPoolApply, newPoolInit, newPoolDelete, newPoolNodes, newPoolJobs)
}

type nodePoolOptions struct {
	*env
	form                   format
	description, algorithm string
	weights                string
	overCPU, overMemory    int64 // percent
	checkpoints, powerW    int64
	meta                   []string
	json                   bool
	changed                func(string) bool
	filter                 string
	verbose                bool
}

func poolPath(name string, rest string) string { return "/v1/node/pool/" + url.PathEscape(name) + rest }

func newPoolList(e *env) *cobra.Command {
	o := &nodePoolOptions{env: e}
	c := e.verb("list [options]", "List node pools", "", "muster node pool list\nmuster node pool list -o wide", 0, 0, o.list)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	c.Flags().StringVar(&o.filter, "filter", "", "only pools for which an expression holds")
	return c
}

func (o *nodePoolOptions) list(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	q := url.Values{}
	if o.filter != "" {
		q.Set("filter", o.filter)
	}
	var list []*wire.NodePool
	if _, err := a.get(ctx, "/v1/node/pools", q, &list); err != nil {
		return err
	}
	if done, err := listed(&o.form, o.env, list, "", func(p *wire.NodePool) string { return p.Name }); done || err != nil {
		return err
	}
	head, rows := "Name|Description", [][]string{}
	if o.form.wide {
		head += "|Algorithm|Overcommit CPU|Overcommit Memory|Power Budget|Max Checkpoints"
	}
	for _, p := range list {
		r := []string{p.Name, orNone(p.Description)}
		if o.form.wide {
			s := val(p.SchedulerConfiguration)
			set := func(n int64, unit string) string {
				if n == 0 {
					return "-"
				}
				return strconv.FormatInt(n, 10) + unit
			}
			r = append(r, orDash(s.SchedulerAlgorithm), set(s.OvercommitCPU, "%"), set(s.OvercommitMemory, "%"), set(s.PowerBudgetW, " W"), set(s.MaxCheckpoints, ""))
		}
		rows = append(rows, r)
	}
	o.table(head, rows)
	return nil
}

func newPoolInfo(e *env) *cobra.Command {
	o := &nodePoolOptions{env: e}
	c := e.verb("info [options] NAME", "Show a node pool", "", `muster node pool info a100`, 1, 1, o.info)
	o.form.flags(c)
	return c
}

func (o *nodePoolOptions) info(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var p wire.NodePool
	if _, err := a.get(ctx, poolPath(args[0], ""), nil, &p); err != nil {
		return fmt.Errorf("node pool %q: %w", args[0], err)
	}
	if done, err := o.form.done(o.env, &p); done || err != nil {
		return err
	}
	o.kv([][2]string{{"Name", p.Name}, {"Description", p.Description}})
	o.heading("Metadata")
	o.stringMap(p.Meta)
	o.heading("Scheduler Configuration")
	algorithm, s := "as the cluster's", o.settings(&p)
	if s.SchedulerAlgorithm != "" {
		algorithm = s.SchedulerAlgorithm
	}
	o.kv([][2]string{{"Scheduler Algorithm", algorithm}, {"Score Weights", weightsText(s.ScoreWeights)}, {"CPU Overcommit", ratio(s.OvercommitCPU)}, {"Memory Overcommit", ratio(s.OvercommitMemory)},
		{"Checkpoints At A Time", orNoLimit(s.MaxCheckpoints)}, {"Power Budget (W)", orNoLimit(s.PowerBudgetW)}})
	return nil
}

// settings returns the scheduler settings of a pool, creating them if absent.
func (o *nodePoolOptions) settings(p *wire.NodePool) *wire.PoolSchedulerSettings {
	if p.SchedulerConfiguration == nil {
		p.SchedulerConfiguration = &wire.PoolSchedulerSettings{}
	}
	return p.SchedulerConfiguration
}

// orNoLimit formats a limit.
func orNoLimit(n int64) string {
	if n == 0 {
		return "no limit"
	}
	return strconv.FormatInt(n, 10)
}

// ratio formats an overcommit ratio.
func ratio(percent int64) string {
	if percent == 0 {
		percent = 100
	}
	return fmt.Sprintf("%d %%", percent)
}

func newPoolApply(e *env) *cobra.Command {
	o := &nodePoolOptions{env: e}
	c := e.verb("apply [options] NAME|FILE", "Make or change a node pool", "Make or change a node pool from flags, or from a file in HCL or JSON; \"-\" is standard input.", `
muster node pool apply -description "the A100s" -scheduler-algorithm spread a100
muster node pool apply a100.hcl`, 1, 1, o.apply)
	f := c.Flags()
	f.StringVar(&o.description, "description", "", "what it is for")
	f.StringVar(&o.algorithm, "scheduler-algorithm", "", "how nodes are chosen, instead of the cluster's way")
	f.StringVar(&o.weights, "score-weights", "", "weights of the terms of a node's score, as fit=30,cost=40 (see operator scheduler set-config)")
	f.Int64Var(&o.overCPU, "overcommit-cpu", 0, "percent of its nodes' CPU that may be allocated; 0 means 100")
	f.Int64Var(&o.overMemory, "overcommit-memory", 0, "percent of its nodes' memory that may be allocated; 0 means 100")
	f.Int64Var(&o.powerW, "power-budget-w", 0, "watts that the GPUs in use on its nodes may draw together, by their power limits; 0: no limit")
	f.Int64Var(&o.checkpoints, "max-checkpoints", 0, "how many allocations on its nodes save their state at a time when drains or preemptions end them; 0: no limit")
	f.StringArrayVar(&o.meta, "meta", nil, "metadata, as key=value; may be repeated")
	f.BoolVar(&o.json, "json", false, "the argument is a file, in JSON (recognized without this flag)")
	o.changed = f.Changed
	return files(c, "hcl", "json")
}

func (o *nodePoolOptions) apply(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	p := &wire.NodePool{Name: args[0]}
	if o.json || looksLikeFile(args[0]) {
		p.Name = ""
		if err := o.specFile(args[0], "node_pool", o.json, p); err != nil {
			return err
		}
		if p.Name == "" {
			return fmt.Errorf("%s names no node pool: write node_pool \"name\" { ... }", args[0])
		}
	} else {
		var cur wire.NodePool
		if _, err := a.get(ctx, poolPath(args[0], ""), nil, &cur); err == nil {
			p = &cur
		} else if !notFound(err) {
			return err
		}
	}
	if o.changed("description") {
		p.Description = o.description
	}
	if o.changed("scheduler-algorithm") {
		o.settings(p).SchedulerAlgorithm = o.algorithm
	}
	if o.changed("score-weights") {
		if o.settings(p).ScoreWeights, err = readWeights(o.settings(p).ScoreWeights, o.weights); err != nil {
			return fmt.Errorf("-score-weights %w", err)
		}
	}
	if o.changed("overcommit-cpu") {
		o.settings(p).OvercommitCPU = o.overCPU
	}
	if o.changed("overcommit-memory") {
		o.settings(p).OvercommitMemory = o.overMemory
	}
	if o.changed("power-budget-w") {
		o.settings(p).PowerBudgetW = o.powerW
	}
	if o.changed("max-checkpoints") {
		o.settings(p).MaxCheckpoints = o.checkpoints
	}
	metaMap, err := varMap("-meta", o.meta)
	if err != nil {
		return err
	}
	if len(metaMap) > 0 {
		p.Meta = metaMap
	}
	if _, err := a.put(ctx, "/v1/node/pools", nil, p, nil); err != nil {
		return fmt.Errorf("apply node pool %q: %w", p.Name, err)
	}
	o.printf("Node pool %q applied\n", p.Name)
	return nil
}

func newPoolInit(e *env) *cobra.Command {
	o := &nodePoolOptions{env: e}
	return e.verb("init", "Print an example node pool file", "", `muster node pool init > pool.hcl`, 0, 0, o.init)
}

func (o *nodePoolOptions) init(context.Context, []string) error {
	o.printf(`node_pool "example" {
  description = "Nodes with A100s"

  meta {
    team = "vision"
  }
}
`)
	return nil
}

func newPoolDelete(e *env) *cobra.Command {
	o := &nodePoolOptions{env: e}
	c := e.verb("delete [options] NAME", "Delete a node pool without nodes and jobs", "", `muster node pool delete a100`, 1, 1, o.delete)
	return c
}

func (o *nodePoolOptions) delete(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	if _, err := a.delete(ctx, poolPath(args[0], ""), nil, nil); err != nil {
		return fmt.Errorf("delete node pool %q: %w", args[0], err)
	}
	o.printf("Node pool %q deleted\n", args[0])
	return nil
}

func newPoolNodes(e *env) *cobra.Command {
	o := &nodePoolOptions{env: e}
	c := e.verb("nodes [options] NAME", "List the nodes of a pool", "", `muster node pool nodes a100`, 1, 1, o.nodes)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	c.Flags().BoolVar(&o.verbose, "verbose", false, "long ids")
	return c
}

func (o *nodePoolOptions) nodes(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var list []*wire.NodeListStub
	q := url.Values{}
	queryFlag(q, "resources", o.form.wide)
	if _, err := a.get(ctx, poolPath(args[0], "/nodes"), q, &list); err != nil {
		return fmt.Errorf("node pool %q: %w", args[0], err)
	}
	if done, err := listed(&o.form, o.env, list, "No nodes", func(n *wire.NodeListStub) string { return n.ID }); done || err != nil {
		return err
	}
	head, rows := "ID|Name|DC|Drain|Eligibility|Status", [][]string{}
	if o.form.wide {
		head += nodeWideHead
	}
	for _, n := range list {
		r := []string{shortID(n.ID, o.verbose), n.Name, n.Datacenter, strconv.FormatBool(n.Drain), n.SchedulingEligibility, n.Status}
		if o.form.wide {
			r = append(r, nodeWide(n)...)
		}
		rows = append(rows, r)
	}
	o.table(head, rows)
	return nil
}

func newPoolJobs(e *env) *cobra.Command {
	o := &nodePoolOptions{env: e}
	c := e.verb("jobs [options] NAME", "List the jobs of a pool", "", `muster node pool jobs -namespace '*' a100`, 1, 1, o.jobs)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	return c
}

func (o *nodePoolOptions) jobs(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var list []*wire.JobListStub
	if _, err := a.get(ctx, poolPath(args[0], "/jobs"), nil, &list); err != nil {
		return fmt.Errorf("node pool %q: %w", args[0], err)
	}
	if done, err := listed(&o.form, o.env, list, "No jobs", func(j *wire.JobListStub) string { return j.ID }); done || err != nil {
		return err
	}
	head, rows := "ID|Type|Priority|Status|Submit Date", [][]string{}
	if o.form.wide {
		head += "|Namespace|User" + jobWideHead
	}
	for _, j := range list {
		r := []string{j.ID, jobType(j), strconv.Itoa(j.Priority), j.Status, date(time.Unix(0, j.SubmitTime))}
		if o.form.wide {
			r = append(append(r, j.Namespace, orDash(j.User)), jobWide(j)...)
		}
		rows = append(rows, r)
	}
	o.table(head, rows)
	return nil
}

func newNodeMeta(e *env) *cobra.Command {
	return e.group("meta", "A node's metadata", "Metadata that can be changed while the node runs; it is kept on the node.", `
muster node meta read -self
muster node meta apply -node-id 46f1c6c4 rack=r7 -unset old`, newNodeMetaRead, newNodeMetaApply)
}

type nodeMetaOptions struct {
	*env
	form   format
	nodeID string
	unset  string
	self   bool
}

func newNodeMetaRead(e *env) *cobra.Command {
	o := &nodeMetaOptions{env: e}
	c := e.verb("read [options]", "Show a node's metadata", "Show the metadata of a node; of the agent's own unless -node-id is given.", `
muster node meta read
muster node meta read -node-id 46f1c6c4 -json`, 0, 0, o.read)
	o.form.flags(c)
	c.Flags().StringVar(&o.nodeID, "node-id", "", "the node")
	c.Flags().BoolVar(&o.self, "self", false, "the agent's own node (the default)")
	return c
}

func (o *nodeMetaOptions) query(ctx context.Context, a *api) (url.Values, error) {
	q := url.Values{}
	if o.nodeID != "" {
		n, err := a.nodeStub(ctx, o.nodeID)
		if err != nil {
			return nil, err
		}
		q.Set("node_id", n.ID)
	}
	return q, nil
}

func (o *nodeMetaOptions) read(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	q, err := o.query(ctx, a)
	if err != nil {
		return err
	}
	var resp wire.NodeMetaResponse
	if _, err := a.get(ctx, "/v1/client/metadata", q, &resp); err != nil {
		return fmt.Errorf("read metadata: %w", err)
	}
	if done, err := o.form.done(o.env, &resp); done || err != nil {
		return err
	}
	o.println(o.bold("All Meta"))
	o.stringMap(resp.Meta)
	dyn := map[string]string{}
	for k, v := range resp.Dynamic {
		if v == nil {
			dyn[k] = "<unset>"
		} else {
			dyn[k] = *v
		}
	}
	o.heading("Dynamic Meta")
	o.stringMap(dyn)
	o.heading("Static Meta")
	o.stringMap(resp.Static)
	return nil
}

func newNodeMetaApply(e *env) *cobra.Command {
	o := &nodeMetaOptions{env: e}
	c := e.verb("apply [options] KEY=VALUE...", "Change a node's metadata", "Change the metadata of a node; of the agent's own unless -node-id is given.", `
muster node meta apply rack=r7
muster node meta apply -node-id 46f1c6c4 -unset old,older`, 0, -1, o.apply)
	o.form.flags(c)
	c.Flags().StringVar(&o.nodeID, "node-id", "", "the node")
	c.Flags().StringVar(&o.unset, "unset", "", "keys to take away, with commas between")
	return c
}

func (o *nodeMetaOptions) apply(ctx context.Context, args []string) error {
	pairs, err := varMap("metadata", args)
	if err != nil {
		return err
	}
	req := wire.NodeMetaApplyRequest{Meta: map[string]*string{}}
	for k, v := range pairs {
		req.Meta[k] = &v
	}
	for _, k := range splitComma(o.unset) {
		req.Meta[k] = nil
	}
	if len(req.Meta) == 0 {
		return fmt.Errorf("nothing to change: give KEY=VALUE or -unset KEY")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	q, err := o.query(ctx, a)
	if err != nil {
		return err
	}
	req.NodeID = q.Get("node_id")
	var resp wire.NodeMetaResponse
	if _, err := a.put(ctx, "/v1/client/metadata", q, req, &resp); err != nil {
		return fmt.Errorf("change metadata: %w", err)
	}
	if done, err := o.form.done(o.env, &resp); done || err != nil {
		return err
	}
	o.println("Metadata changed")
	return nil
}
