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

func newACL(e *env) *cobra.Command {
	return e.group("acl", "Who may do what", "Tokens, policies and roles.", `
muster acl bootstrap
muster acl policy apply readers readers.policy.hcl
muster acl token create -name alice -policy readers`, newACLBootstrap, newACLPolicy, newACLToken, newACLRole)
}

type aclBootstrapOptions struct {
	*env
	form format
}

func newACLBootstrap(e *env) *cobra.Command {
	o := &aclBootstrapOptions{env: e}
	c := e.verb("bootstrap [options] [FILE]", "Make the first token", "Make the first token, which may do everything. This works once. With a file (\"-\" is standard input) its content, a UUID, becomes the secret.", `
muster acl bootstrap
muster acl bootstrap -t '{{.SecretID}}'
uuidgen | muster acl bootstrap -`, 0, 1, o.run)
	o.form.flags(c)
	return files(c)
}

func (o *aclBootstrapOptions) run(ctx context.Context, args []string) error {
	var req wire.BootstrapRequest
	if len(args) == 1 {
		b, err := o.readFile(args[0], 4096)
		if err != nil {
			return fmt.Errorf("read the secret: %w", err)
		}
		req.BootstrapSecret = strings.TrimSpace(string(b))
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	var t wire.ACLToken
	if _, err := a.put(ctx, "/v1/acl/bootstrap", nil, req, &t); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	if done, err := o.form.done(o.env, &t); done || err != nil {
		return err
	}
	o.showToken(&t)
	o.hint("\nUse it with:  export MUSTER_TOKEN=<Secret ID>   and keep it safe: it may do everything.")
	return nil
}

// showToken prints a token, secret included.
func (e *env) showToken(t *wire.ACLToken) {
	expires := "<none>"
	if t.ExpirationTime != nil {
		expires = date(*t.ExpirationTime)
	}
	rows := [][2]string{{"Accessor ID", t.AccessorID}, {"Secret ID", t.SecretID}, {"Name", t.Name}, {"Type", t.Type}, {"Global", strconv.FormatBool(t.Global)},
		{"Create Time", date(t.CreateTime)}, {"Expiry Time", expires}, {"Create Index", strconv.FormatUint(t.CreateIndex, 10)}, {"Modify Index", strconv.FormatUint(t.ModifyIndex, 10)}}
	if t.Type == "management" {
		rows = append(rows, [2]string{"Policies", "n/a"}, [2]string{"Roles", "n/a"})
	} else {
		roles := []string{}
		for _, r := range t.Roles {
			roles = append(roles, r.Name)
		}
		rows = append(rows, [2]string{"Policies", strings.Join(t.Policies, ", ")}, [2]string{"Roles", strings.Join(roles, ", ")})
	}
	e.kv(rows)
}

func newACLPolicy(e *env) *cobra.Command {
	return e.group("policy", "Sets of rules", "", `
muster acl policy list
muster acl policy apply -description "may look" readers readers.policy.hcl`, newPolicyList, newPolicyInfo, newPolicyApply, newPolicyDelete, newPolicySelf)
}

type aclPolicyOptions struct {
	*env
	form                            format
	description, jobID, group, task string
}

func policyPath(name string) string { return "/v1/acl/policy/" + url.PathEscape(name) }

func newPolicyList(e *env) *cobra.Command {
	o := &aclPolicyOptions{env: e}
	c := e.verb("list [options]", "List policies", "", "muster acl policy list\nmuster acl policy list -o wide", 0, 0, func(ctx context.Context, _ []string) error { return o.list(ctx, "/v1/acl/policies") })
	o.form.listFlags(c)
	o.form.wideFlag(c)
	return c
}

func newPolicySelf(e *env) *cobra.Command {
	o := &aclPolicyOptions{env: e}
	c := e.verb("self [options]", "List the policies of the token in use", "", `muster acl policy self`, 0, 0, func(ctx context.Context, _ []string) error { return o.list(ctx, "/v1/acl/policy/self") })
	o.form.listFlags(c)
	o.form.wideFlag(c)
	return c
}

func (o *aclPolicyOptions) list(ctx context.Context, path string) error {
	list, done, err := fetchList(ctx, &o.form, o.env, path, nil, "No policies found", func(p *wire.ACLPolicyListStub) string { return p.Name })
	if done || err != nil {
		return err
	}
	head, rows := "Name|Description", [][]string{}
	if o.form.wide {
		head += "|Workload|Create Index|Modify Index"
	}
	for _, p := range list {
		r := []string{p.Name, orNone(p.Description)}
		if o.form.wide {
			work := ""
			if j := p.JobACL; j != nil {
				work = strings.TrimRight(strings.Join([]string{j.Namespace, j.JobID, j.Group, j.Task}, "/"), "/")
			}
			r = append(r, orDash(work), strconv.FormatUint(p.CreateIndex, 10), strconv.FormatUint(p.ModifyIndex, 10))
		}
		rows = append(rows, r)
	}
	o.table(head, rows)
	return nil
}

func newPolicyInfo(e *env) *cobra.Command {
	o := &aclPolicyOptions{env: e}
	c := e.verb("info [options] NAME", "Show a policy", "", `muster acl policy info readers`, 1, 1, o.info)
	o.form.flags(c)
	return c
}

func (o *aclPolicyOptions) info(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var p wire.ACLPolicy
	if _, err := a.get(ctx, policyPath(args[0]), nil, &p); err != nil {
		return fmt.Errorf("policy %q: %w", args[0], err)
	}
	if done, err := o.form.done(o.env, &p); done || err != nil {
		return err
	}
	rows := [][2]string{{"Name", p.Name}, {"Description", p.Description}, {"CreateIndex", strconv.FormatUint(p.CreateIndex, 10)}, {"ModifyIndex", strconv.FormatUint(p.ModifyIndex, 10)}}
	if j := p.JobACL; j != nil {
		rows = append(rows, [2]string{"Namespace", j.Namespace}, [2]string{"JobID", j.JobID}, [2]string{"Group", j.Group}, [2]string{"Task", j.Task})
	}
	o.kv(rows)
	o.heading("Rules")
	o.println(strings.TrimRight(p.Rules, "\n"))
	return nil
}

func newPolicyApply(e *env) *cobra.Command {
	o := &aclPolicyOptions{env: e}
	c := e.verb("apply [options] NAME FILE", "Make or change a policy", "Make or change a policy from a file of rules; \"-\" is standard input.", `
muster acl policy apply -description "may look" readers readers.policy.hcl
echo 'namespace "default" { policy = "read" }' | muster acl policy apply readers -`, 2, 2, o.apply)
	f := c.Flags()
	f.StringVar(&o.description, "description", "", "what it is for")
	f.StringVar(&o.jobID, "job", "", "attach it to the workloads of this job")
	f.StringVar(&o.group, "group", "", "with -job: only of this group")
	f.StringVar(&o.task, "task", "", "with -group: only of this task")
	return c
}

func (o *aclPolicyOptions) apply(ctx context.Context, args []string) error {
	b, err := o.readFile(args[1], specFileMax)
	if err != nil {
		return fmt.Errorf("read the rules: %w", err)
	}
	p := wire.ACLPolicy{Name: args[0], Description: o.description, Rules: string(b)}
	switch {
	case o.task != "" && o.group == "", o.group != "" && o.jobID == "":
		return fmt.Errorf("-task needs -group, and -group needs -job")
	case o.jobID != "":
		p.JobACL = &wire.JobACL{Namespace: orDefault(o.namespace), JobID: o.jobID, Group: o.group, Task: o.task}
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	if _, err := a.put(ctx, policyPath(args[0]), nil, p, nil); err != nil {
		return fmt.Errorf("apply policy %q: %w", args[0], err)
	}
	o.printf("Policy %q applied\n", args[0])
	return nil
}

func newPolicyDelete(e *env) *cobra.Command {
	o := &aclPolicyOptions{env: e}
	return e.verb("delete [options] NAME", "Delete a policy", "", `muster acl policy delete readers`, 1, 1, o.delete)
}

func (o *aclPolicyOptions) delete(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	if _, err := a.delete(ctx, policyPath(args[0]), nil, nil); err != nil {
		return fmt.Errorf("delete policy %q: %w", args[0], err)
	}
	o.printf("Policy %q deleted\n", args[0])
	return nil
}
