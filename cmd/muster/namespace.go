package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func newNamespace(e *env) *cobra.Command {
	return e.group("namespace", "Keep jobs apart", "Namespaces keep the jobs, tokens and policies of teams apart.", `
muster namespace list
muster namespace apply -description "machine learning" ml`, newNamespaceList, newNamespaceStatus, newNamespaceInspect, newNamespaceApply, newNamespaceDelete)
}

type namespaceOptions struct {
	*env
	form               format
	description, quota string
	json               bool
	meta               []string
	changed            func(string) bool
}

func newNamespaceList(e *env) *cobra.Command {
	o := &namespaceOptions{env: e}
	c := e.verb("list [options]", "List namespaces", "", "muster namespace list\nmuster namespace list -o wide", 0, 0, o.list)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	return c
}

func (o *namespaceOptions) list(ctx context.Context, _ []string) error {
	list, done, err := fetchList(ctx, &o.form, o.env, "/v1/namespaces", nil, "", func(n *wire.Namespace) string { return n.Name })
	if done || err != nil {
		return err
	}
	head, rows := "Name|Description", [][]string{}
	if o.form.wide {
		head += "|Quota|Default Priority|Max Priority|Node Pools|Queues|Tolerations"
	}
	for _, n := range list {
		r := []string{n.Name, orNone(n.Description)}
		if o.form.wide {
			r = append(r, orDash(n.Quota), priorityText(int64(n.DefaultPriority)), priorityText(int64(n.MaxPriority)))
			for _, c := range []*wire.NamespaceChoice{n.NodePoolConfiguration, n.QueueConfiguration, n.TolerationConfiguration} {
				r = append(r, orDash(choiceText(c)))
			}
		}
		rows = append(rows, r)
	}
	o.table(head, rows)
	return nil
}

func (o *namespaceOptions) read(ctx context.Context, name string) (*wire.Namespace, error) {
	a, err := o.api()
	if err != nil {
		return nil, err
	}
	var n wire.Namespace
	if _, err := a.get(ctx, "/v1/namespace/"+url.PathEscape(name), nil, &n); err != nil {
		return nil, fmt.Errorf("namespace %q: %w", name, err)
	}
	return &n, nil
}

func newNamespaceStatus(e *env) *cobra.Command {
	o := &namespaceOptions{env: e}
	c := e.verb("status [options] NAME", "Show a namespace", "", `muster namespace status ml`, 1, 1, o.status)
	o.form.flags(c)
	return c
}

func (o *namespaceOptions) status(ctx context.Context, args []string) error {
	n, err := o.read(ctx, args[0])
	if err != nil {
		return err
	}
	if done, err := o.form.done(o.env, n); done || err != nil {
		return err
	}
	rows := [][2]string{{"Name", n.Name}, {"Description", n.Description}, {"Quota", n.Quota}}
	if c := n.Capabilities; c != nil {
		rows = append(rows, [2]string{"EnabledDrivers", strings.Join(c.EnabledTaskDrivers, ",")}, [2]string{"DisabledDrivers", strings.Join(c.DisabledTaskDrivers, ",")})
	}
	for _, x := range []struct {
		name string
		c    *wire.NamespaceChoice
	}{{"NodePools", n.NodePoolConfiguration}, {"Queues", n.QueueConfiguration}, {"Tolerations", n.TolerationConfiguration}} {
		if x.c != nil {
			rows = append(rows, [2]string{x.name, choiceText(x.c)})
		}
	}
	if n.MaxPriority > 0 {
		rows = append(rows, [2]string{"MaxPriority", strconv.Itoa(n.MaxPriority)})
	}
	if n.DefaultPriority > 0 {
		rows = append(rows, [2]string{"DefaultPriority", strconv.Itoa(n.DefaultPriority)})
	}
	o.kv(rows)
	if len(n.Meta) > 0 {
		o.heading("Metadata")
		o.stringMap(n.Meta)
	}
	return nil
}

// choiceText describes what jobs of a namespace may choose.
func choiceText(c *wire.NamespaceChoice) string {
	if c == nil {
		return ""
	}
	var parts []string
	if c.Default != "" {
		parts = append(parts, c.Default+" by default")
	}
	switch {
	case len(c.Allowed) > 0:
		parts = append(parts, "allowed "+strings.Join(c.Allowed, ","))
	case c.Allowed != nil:
		parts = append(parts, "no other allowed")
	case len(c.Denied) > 0:
		parts = append(parts, "denied "+strings.Join(c.Denied, ","))
	}
	return strings.Join(parts, ", ")
}

func newNamespaceInspect(e *env) *cobra.Command {
	o := &namespaceOptions{env: e}
	c := e.verb("inspect [options] NAME", "Print a namespace as JSON", "", `
muster namespace inspect ml
muster namespace inspect -t '{{.Description}}' ml`, 1, 1, o.inspect)
	o.form.flags(c)
	return c
}

func (o *namespaceOptions) inspect(ctx context.Context, args []string) error {
	n, err := o.read(ctx, args[0])
	if err != nil {
		return err
	}
	if done, err := o.form.done(o.env, n); done || err != nil {
		return err
	}
	return o.env.json(n)
}

func newNamespaceApply(e *env) *cobra.Command {
	o := &namespaceOptions{env: e}
	c := e.verb("apply [options] NAME|FILE", "Make or change a namespace", "Make or change a namespace from flags, or from a file in HCL or JSON; \"-\" is standard input. Flags change what they name and keep the rest. A file is the whole namespace: what it does not mention is removed, and printed.", `
muster namespace apply -description "machine learning" -meta team=vision ml
muster namespace apply ml.hcl`, 1, 1, o.apply)
	f := c.Flags()
	f.StringVar(&o.description, "description", "", "what it is for")
	f.StringVar(&o.quota, "quota", "", "name of its quota")
	f.StringArrayVar(&o.meta, "meta", nil, "metadata, as key=value; may be repeated")
	f.BoolVar(&o.json, "json", false, "the argument is a file, in JSON (recognized without this flag)")
	o.changed = f.Changed
	return files(c, "hcl", "json")
}

func (o *namespaceOptions) apply(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	n, cur, file := &wire.Namespace{Name: args[0]}, &wire.Namespace{}, o.json || looksLikeFile(args[0])
	if file {
		n.Name = ""
		if err := o.specFile(args[0], "namespace", o.json, n); err != nil {
			return err
		}
		if n.Name == "" {
			return fmt.Errorf("%s names no namespace: write name = \"...\"", args[0])
		}
	}
	switch _, err := a.get(ctx, "/v1/namespace/"+url.PathEscape(n.Name), nil, cur); {
	case err != nil && !notFound(err):
		return err
	case err == nil && !file:
		*n = *cur
	}
	if o.changed("description") {
		n.Description = o.description
	}
	if o.changed("quota") {
		n.Quota = o.quota
	}
	metaMap, err := varMap("-meta", o.meta)
	if err != nil {
		return err
	}
	if len(metaMap) > 0 {
		n.Meta = metaMap
	}
	if _, err := a.put(ctx, "/v1/namespace", nil, n, nil); err != nil {
		return fmt.Errorf("apply namespace %q: %w", n.Name, err)
	}
	o.printf("Namespace %q applied\n", n.Name)
	if lost := removed(cur, n); file && len(lost) > 0 {
		o.printf("Removed, because the file does not mention it: %s\n", strings.Join(lost, ", "))
	}
	return nil
}

// removed names what a namespace had and has no longer.
func removed(cur, n *wire.Namespace) (out []string) {
	for _, f := range []struct {
		name     string
		was, has bool
	}{
		{fmt.Sprintf("quota %q", cur.Quota), cur.Quota != "", n.Quota != ""}, {"description", cur.Description != "", n.Description != ""}, {"meta", len(cur.Meta) > 0, len(n.Meta) > 0},
		{"capabilities", cur.Capabilities != nil, n.Capabilities != nil}, {"node_pool_config", cur.NodePoolConfiguration != nil, n.NodePoolConfiguration != nil},
		{"queue_config", cur.QueueConfiguration != nil, n.QueueConfiguration != nil}, {"toleration_config", cur.TolerationConfiguration != nil, n.TolerationConfiguration != nil},
		{fmt.Sprintf("max_priority = %d", cur.MaxPriority), cur.MaxPriority != 0, n.MaxPriority != 0},
		{fmt.Sprintf("default_priority = %d", cur.DefaultPriority), cur.DefaultPriority != 0, n.DefaultPriority != 0},
	} {
		if f.was && !f.has {
			out = append(out, f.name)
		}
	}
	return out
}

func newNamespaceDelete(e *env) *cobra.Command {
	o := &namespaceOptions{env: e}
	c := e.verb("delete [options] NAME", "Delete a namespace without jobs", "", `muster namespace delete ml`, 1, 1, o.delete)
	return c
}

func (o *namespaceOptions) delete(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	if _, err := a.delete(ctx, "/v1/namespace/"+url.PathEscape(args[0]), nil, nil); err != nil {
		return fmt.Errorf("delete namespace %q: %w", args[0], err)
	}
	o.printf("Namespace %q deleted\n", args[0])
	return nil
}
