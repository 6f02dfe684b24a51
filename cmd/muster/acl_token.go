package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

func newACLToken(e *env) *cobra.Command {
	return e.group("token", "Secrets that stand for people and programs", "", `
muster acl token create -name alice -policy readers
muster acl token list
muster acl token self`, newTokenCreate, newTokenList, newTokenInfo, newTokenSelf, newTokenUpdate, newTokenDelete)
}

type aclTokenOptions struct {
	*env
	form                     format
	name, typ                string
	policies, roleIDs, roles []string
	global                   bool
	ttl                      time.Duration
	changed                  func(string) bool
}

func (o *aclTokenOptions) flags(c *cobra.Command) {
	o.form.flags(c)
	f := c.Flags()
	f.StringVar(&o.name, "name", "", "a name, for people")
	f.StringVar(&o.typ, "type", "client", "client (what its policies allow) or management (everything)")
	f.StringArrayVar(&o.policies, "policy", nil, "a policy; may be repeated")
	f.StringArrayVar(&o.roleIDs, "role-id", nil, "a role, by id; may be repeated")
	f.StringArrayVar(&o.roles, "role-name", nil, "a role, by name; may be repeated")
	f.BoolVar(&o.global, "global", false, "valid in every region")
	o.changed = f.Changed
}

func (o *aclTokenOptions) links() []*wire.ACLTokenRoleLink {
	var out []*wire.ACLTokenRoleLink
	for _, id := range o.roleIDs {
		out = append(out, &wire.ACLTokenRoleLink{ID: id})
	}
	for _, n := range o.roles {
		out = append(out, &wire.ACLTokenRoleLink{Name: n})
	}
	return out
}

func newTokenCreate(e *env) *cobra.Command {
	o := &aclTokenOptions{env: e}
	c := e.verb("create [options]", "Make a token", "", `
muster acl token create -name alice -policy readers -policy writers
muster acl token create -name ci -type management -ttl 8h`, 0, 0, o.create)
	o.flags(c)
	c.Flags().DurationVar(&o.ttl, "ttl", 0, "after how long it expires, such as 8h; never if left out")
	return c
}

func (o *aclTokenOptions) create(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	in := wire.ACLToken{Name: o.name, Type: o.typ, Policies: o.policies, Roles: o.links(), Global: o.global, ExpirationTTL: wire.TextDuration(o.ttl)}
	var t wire.ACLToken
	if _, err := a.put(ctx, "/v1/acl/token", nil, in, &t); err != nil {
		return fmt.Errorf("create token: %w", err)
	}
	for _, name := range o.policies {
		var status *apiError
		if _, err := a.get(ctx, "/v1/acl/policy/"+url.PathEscape(name), nil, nil); errors.As(err, &status) && status.Status == http.StatusNotFound {
			o.hint("There is no policy %q: until there is one, it allows this token nothing (muster acl policy list)", name)
		}
	}
	if done, err := o.form.done(o.env, &t); done || err != nil {
		return err
	}
	o.showToken(&t)
	return nil
}

func newTokenList(e *env) *cobra.Command {
	o := &aclTokenOptions{env: e}
	c := e.verb("list [options]", "List tokens, without their secrets", "", "muster acl token list\nmuster acl token list -o wide", 0, 0, o.list)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	return c
}

func (o *aclTokenOptions) list(ctx context.Context, _ []string) error {
	list, done, err := fetchList(ctx, &o.form, o.env, "/v1/acl/tokens", nil, "No tokens found", func(t *wire.ACLTokenListStub) string { return t.AccessorID })
	if done || err != nil {
		return err
	}
	head, rows := "Name|Type|Global|Accessor ID|Expired", [][]string{}
	if o.form.wide {
		head += "|Policies|Roles|Created|Expires"
	}
	for _, t := range list {
		expired := "false"
		if t.ExpirationTime != nil && t.ExpirationTime.Before(o.now()) {
			expired = "true"
		}
		r := []string{orNone(t.Name), t.Type, strconv.FormatBool(t.Global), t.AccessorID, expired}
		if o.form.wide {
			roles := []string{}
			for _, l := range t.Roles {
				roles = append(roles, cmp.Or(l.Name, l.ID))
			}
			r = append(r, orDash(strings.Join(t.Policies, ",")), orDash(strings.Join(roles, ",")), date(t.CreateTime), date(val(t.ExpirationTime)))
		}
		rows = append(rows, r)
	}
	o.table(head, rows)
	return nil
}

func newTokenInfo(e *env) *cobra.Command {
	o := &aclTokenOptions{env: e}
	c := e.verb("info [options] ACCESSOR", "Show a token", "", `muster acl token info 8ba85cef-26dc-4bd2-9c7e-3b0a1e2f4d5c`, 1, 1, o.info)
	o.form.flags(c)
	return c
}

// accessor finds the one token with an accessor id prefix.
func (a *api) accessor(ctx context.Context, prefix string) (string, error) {
	if len(prefix) == 36 {
		return prefix, nil
	}
	var list []*wire.ACLTokenListStub
	if _, err := a.get(ctx, "/v1/acl/tokens", nil, &list); err != nil {
		return "", err
	}
	var hits []string
	for _, t := range list {
		if len(prefix) >= 2 && len(t.AccessorID) >= len(prefix) && t.AccessorID[:len(prefix)] == prefix {
			hits = append(hits, t.AccessorID)
		}
	}
	switch len(hits) {
	case 0:
		return "", fmt.Errorf("no token has an accessor that begins with %q", prefix)
	case 1:
		return hits[0], nil
	}
	return "", ambiguous("tokens", prefix, hits)
}

func (o *aclTokenOptions) info(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	id, err := a.accessor(ctx, args[0])
	if err != nil {
		return err
	}
	return o.show(ctx, a, "/v1/acl/token/"+id)
}

func (o *aclTokenOptions) show(ctx context.Context, a *api, path string) error {
	var t wire.ACLToken
	if _, err := a.get(ctx, path, nil, &t); err != nil {
		return fmt.Errorf("read token: %w", err)
	}
	if done, err := o.form.done(o.env, &t); done || err != nil {
		return err
	}
	o.showToken(&t)
	return nil
}

func newTokenSelf(e *env) *cobra.Command {
	o := &aclTokenOptions{env: e}
	c := e.verb("self [options]", "Show the token in use", "", `muster acl token self`, 0, 0, o.self)
	o.form.flags(c)
	return c
}

func (o *aclTokenOptions) self(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	err = o.show(ctx, a, "/v1/acl/token/self")
	if answer := (*apiError)(nil); errors.As(err, &answer) && answer.Msg == structs.ACLDisabled {
		return fmt.Errorf("%w: %s", err, structs.ACLEnable)
	}
	return err
}

func newTokenUpdate(e *env) *cobra.Command {
	o := &aclTokenOptions{env: e}
	c := e.verb("update [options] ACCESSOR", "Change a token", "Change a token. Settings without a flag keep their values.", `muster acl token update -policy readers 8ba85cef-26dc-4bd2-9c7e-3b0a1e2f4d5c`, 1, 1, o.update)
	o.flags(c)
	return c
}

func (o *aclTokenOptions) update(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	id, err := a.accessor(ctx, args[0])
	if err != nil {
		return err
	}
	var t wire.ACLToken
	if _, err := a.get(ctx, "/v1/acl/token/"+id, nil, &t); err != nil {
		return fmt.Errorf("read token: %w", err)
	}
	if o.changed("name") {
		t.Name = o.name
	}
	if o.changed("type") {
		t.Type = o.typ
	}
	if o.changed("policy") {
		t.Policies = o.policies
	}
	if o.changed("role-id") || o.changed("role-name") {
		t.Roles = o.links()
	}
	if o.changed("global") {
		t.Global = o.global
	}
	var out wire.ACLToken
	if _, err := a.put(ctx, "/v1/acl/token/"+id, nil, &t, &out); err != nil {
		return fmt.Errorf("update token: %w", err)
	}
	if done, err := o.form.done(o.env, &out); done || err != nil {
		return err
	}
	o.showToken(&out)
	return nil
}

func newTokenDelete(e *env) *cobra.Command {
	o := &aclTokenOptions{env: e}
	return e.verb("delete [options] ACCESSOR", "Delete a token", "", `muster acl token delete 8ba85cef-26dc-4bd2-9c7e-3b0a1e2f4d5c`, 1, 1, o.delete)
}

func (o *aclTokenOptions) delete(ctx context.Context, args []string) error {
	if len(args[0]) != 36 {
		return errors.New("name the token to delete by its whole accessor id")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	if _, err := a.delete(ctx, "/v1/acl/token/"+args[0], nil, nil); err != nil {
		return fmt.Errorf("delete token: %w", err)
	}
	o.printf("Token %s deleted\n", args[0])
	return nil
}
