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

func newACLRole(e *env) *cobra.Command {
	return e.group("role", "Named sets of policies", "", `
muster acl role create -name ops -policy readers -policy writers
muster acl role list`, newRoleCreate, newRoleList, newRoleInfo, newRoleUpdate, newRoleDelete)
}

type aclRoleOptions struct {
	*env
	form              format
	name, description string
	policies          []string
	byName, noMerge   bool
	changed           func(string) bool
}

func (o *aclRoleOptions) flags(c *cobra.Command) {
	o.form.flags(c)
	f := c.Flags()
	f.StringVar(&o.name, "name", "", "its name")
	f.StringVar(&o.description, "description", "", "what it is for")
	f.StringArrayVar(&o.policies, "policy", nil, "a policy; may be repeated")
	o.changed = f.Changed
}

func (o *aclRoleOptions) print(r *wire.ACLRole) error {
	if done, err := o.form.done(o.env, r); done || err != nil {
		return err
	}
	names := []string{}
	for _, p := range r.Policies {
		names = append(names, p.Name)
	}
	o.kv([][2]string{{"ID", r.ID}, {"Name", r.Name}, {"Description", r.Description}, {"Policies", strings.Join(names, ",")},
		{"Create Index", strconv.FormatUint(r.CreateIndex, 10)}, {"Modify Index", strconv.FormatUint(r.ModifyIndex, 10)}})
	return nil
}

func (o *aclRoleOptions) links() []*wire.ACLRolePolicyLink {
	var out []*wire.ACLRolePolicyLink
	for _, p := range o.policies {
		out = append(out, &wire.ACLRolePolicyLink{Name: p})
	}
	return out
}

func newRoleCreate(e *env) *cobra.Command {
	o := &aclRoleOptions{env: e}
	c := e.verb("create [options]", "Make a role", "", `muster acl role create -name ops -policy readers`, 0, 0, o.create)
	o.flags(c)
	return c
}

func (o *aclRoleOptions) create(ctx context.Context, _ []string) error {
	if o.name == "" || len(o.policies) == 0 {
		return fmt.Errorf("a role needs a name and a policy: give -name and -policy")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	var r wire.ACLRole
	if _, err := a.put(ctx, "/v1/acl/role", nil, wire.ACLRole{Name: o.name, Description: o.description, Policies: o.links()}, &r); err != nil {
		return fmt.Errorf("create role: %w", err)
	}
	return o.print(&r)
}

func newRoleList(e *env) *cobra.Command {
	o := &aclRoleOptions{env: e}
	c := e.verb("list [options]", "List roles", "", "muster acl role list\nmuster acl role list -o wide", 0, 0, o.list)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	return c
}

func (o *aclRoleOptions) list(ctx context.Context, _ []string) error {
	list, done, err := fetchList(ctx, &o.form, o.env, "/v1/acl/roles", nil, "No roles found", func(r *wire.ACLRole) string { return r.ID })
	if done || err != nil {
		return err
	}
	head, rows := "ID|Name|Description|Policies", [][]string{}
	if o.form.wide {
		head += "|Create Index|Modify Index"
	}
	for _, r := range list {
		names := []string{}
		for _, p := range r.Policies {
			names = append(names, p.Name)
		}
		row := []string{r.ID, r.Name, orNone(r.Description), strings.Join(names, ",")}
		if o.form.wide {
			row = append(row, strconv.FormatUint(r.CreateIndex, 10), strconv.FormatUint(r.ModifyIndex, 10))
		}
		rows = append(rows, row)
	}
	o.table(head, rows)
	return nil
}

func newRoleInfo(e *env) *cobra.Command {
	o := &aclRoleOptions{env: e}
	c := e.verb("info [options] ID", "Show a role", "", `
muster acl role info 8ba85cef-26dc-4bd2-9c7e-3b0a1e2f4d5c
muster acl role info -by-name ops`, 1, 1, o.info)
	o.form.flags(c)
	c.Flags().BoolVar(&o.byName, "by-name", false, "the argument is a name")
	return c
}

func (o *aclRoleOptions) info(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	path := "/v1/acl/role/" + url.PathEscape(args[0])
	if o.byName {
		path = "/v1/acl/role/name/" + url.PathEscape(args[0])
	}
	var r wire.ACLRole
	if _, err := a.get(ctx, path, nil, &r); err != nil {
		return fmt.Errorf("role %q: %w", args[0], err)
	}
	return o.print(&r)
}

func newRoleUpdate(e *env) *cobra.Command {
	o := &aclRoleOptions{env: e}
	c := e.verb("update [options] ID", "Change a role", "Change a role. Policies are added unless -no-merge is given.", `
muster acl role update -policy deployers 8ba85cef-26dc-4bd2-9c7e-3b0a1e2f4d5c
muster acl role update -no-merge -name ops -policy readers 8ba85cef-26dc-4bd2-9c7e-3b0a1e2f4d5c`, 1, 1, o.update)
	o.flags(c)
	c.Flags().BoolVar(&o.noMerge, "no-merge", false, "replace everything by what is named")
	return c
}

func (o *aclRoleOptions) update(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	path := "/v1/acl/role/" + url.PathEscape(args[0])
	var r wire.ACLRole
	if _, err := a.get(ctx, path, nil, &r); err != nil {
		return fmt.Errorf("role %q: %w", args[0], err)
	}
	if o.noMerge {
		r.Name, r.Description, r.Policies = o.name, o.description, o.links()
	} else {
		if o.changed("name") {
			r.Name = o.name
		}
		if o.changed("description") {
			r.Description = o.description
		}
		for _, l := range o.links() {
			known := false
			for _, p := range r.Policies {
				known = known || p.Name == l.Name
			}
			if !known {
				r.Policies = append(r.Policies, l)
			}
		}
	}
	var out wire.ACLRole
	if _, err := a.put(ctx, path, nil, &r, &out); err != nil {
		return fmt.Errorf("update role %q: %w", args[0], err)
	}
	return o.print(&out)
}

func newRoleDelete(e *env) *cobra.Command {
	o := &aclRoleOptions{env: e}
	return e.verb("delete [options] ID", "Delete a role", "", `muster acl role delete 8ba85cef-26dc-4bd2-9c7e-3b0a1e2f4d5c`, 1, 1, o.delete)
}

func (o *aclRoleOptions) delete(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	if _, err := a.delete(ctx, "/v1/acl/role/"+url.PathEscape(args[0]), nil, nil); err != nil {
		return fmt.Errorf("delete role %q: %w", args[0], err)
	}
	o.printf("Role %s deleted\n", args[0])
	return nil
}
