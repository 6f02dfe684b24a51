package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func newService(e *env) *cobra.Command {
	return e.group("service", "Services: find what runs by name", "A service is a name under which the allocations of a job are found. Jobs declare it (service blocks), agents register it\nwhile it runs, and other jobs look it up in their templates.", `
muster service list
muster service info llm
muster service info -t '{{ range . }}{{ .Address }}:{{ .Port }} {{ end }}' llm`, newServiceList, newServiceInfo, newServiceDelete)
}

func servicePath(name string) string { return "/v1/service/" + url.PathEscape(name) }

func newServiceList(e *env) *cobra.Command {
	o := &objectOptions{env: e}
	c := e.verb("list [options] [PREFIX]", "List registered services", "", `
muster service list
muster service list -o wide -namespace '*'`, 0, 1, func(ctx context.Context, args []string) error {
		a, err := o.api()
		if err != nil {
			return err
		}
		q := url.Values{}
		if len(args) > 0 {
			q.Set("prefix", args[0])
		}
		var list []*wire.ServicesOfNamespace
		if _, err := a.get(ctx, "/v1/services", q, &list); err != nil {
			return err
		}
		if done, err := o.form.done(o.env, list); done || err != nil {
			return err
		}
		rows := [][]string{}
		for _, ns := range list {
			for _, s := range ns.Services {
				rows = append(rows, []string{ns.Namespace, s.ServiceName, "[" + strings.Join(s.Tags, ",") + "]"})
			}
		}
		if err := a.inNoNamespace(ctx, len(rows)); err != nil {
			return err
		}
		if done, err := listed(&o.form, o.env, rows, "No services", func(r []string) string { return r[1] }); done || err != nil {
			return err
		}
		head := "Namespace|Service Name|Tags"
		if o.form.wide {
			head += "|Registrations|Passing|Jobs"
			if err := o.registrations(ctx, a, rows); err != nil {
				return err
			}
		}
		o.table(head, rows)
		return nil
	})
	o.form.listFlags(c)
	o.form.wideFlag(c)
	return c
}

// registrations adds to the row of each service how many registrations it has, how many of them pass their checks ("-" for one
// without checks), and of which jobs they are. It asks once for each service.
func (o *objectOptions) registrations(ctx context.Context, a *api, rows [][]string) error {
	for i, r := range rows {
		list, err := pages[*wire.ServiceRegistration](ctx, a, servicePath(r[1]), ns(r[0]))
		if err != nil {
			return fmt.Errorf("service %q: %w", r[1], err)
		}
		jobs, passing, checked := map[string]bool{}, 0, false
		for _, s := range list {
			jobs[s.JobID] = true
			passing += b2i(s.Health == "passing")
			checked = checked || s.Health != ""
		}
		pass := "-"
		if checked {
			pass = strconv.Itoa(passing)
		}
		rows[i] = append(r, strconv.Itoa(len(list)), pass, orDash(strings.Join(sortedKeys(jobs), ",")))
	}
	return nil
}

func newServiceInfo(e *env) *cobra.Command {
	o := &objectOptions{env: e}
	filter, choose, verbose := "", "", false
	c := e.verb("info [options] SERVICE", "Show the registrations of a service", "", `
muster service info llm
muster service info -filter 'Health == "passing"' llm
muster service info -choose '1|my-client' llm`, 1, 1, func(ctx context.Context, args []string) error {
		a, err := o.api()
		if err != nil {
			return err
		}
		q := url.Values{}
		if filter != "" {
			q.Set("filter", filter)
		}
		if choose != "" {
			q.Set("choose", choose)
		}
		var list []*wire.ServiceRegistration
		if choose != "" {
			_, err = a.get(ctx, servicePath(args[0]), q, &list)
		} else {
			list, err = pages[*wire.ServiceRegistration](ctx, a, servicePath(args[0]), q)
		}
		if err != nil {
			return fmt.Errorf("service %q: %w", args[0], err)
		}
		if done, err := o.form.done(o.env, list); done || err != nil {
			return err
		}
		if len(list) == 0 {
			if filter == "" {
				return fmt.Errorf("no registrations of service %q; muster service list shows which there are", args[0])
			}
			o.printf("No registrations of service %q for which the filter holds\n", args[0])
			return nil
		}
		rows := [][]string{}
		for _, s := range list {
			row := []string{s.JobID, net.JoinHostPort(s.Address, strconv.Itoa(s.Port)), "[" + strings.Join(s.Tags, ",") + "]", orDash(s.Health), shortID(s.NodeID, verbose), shortID(s.AllocID, verbose)}
			if verbose {
				row = append([]string{s.ID}, row...)
			}
			rows = append(rows, row)
		}
		head := "Job ID|Address|Tags|Health|Node ID|Alloc ID"
		if verbose {
			head = "ID|" + head
		}
		o.table(head, rows)
		return nil
	})
	c.Flags().StringVar(&filter, "filter", "", "only registrations for which this expression holds, such as 'Health == \"passing\"'")
	c.Flags().StringVar(&choose, "choose", "", "so many registrations as suit a key best, as `N|KEY`: the same for the same key")
	c.Flags().BoolVar(&verbose, "verbose", false, "long ids")
	o.form.flags(c)
	return c
}

func newServiceDelete(e *env) *cobra.Command {
	o := &objectOptions{env: e}
	return e.verb("delete [options] SERVICE ID", "Remove a registration", "Remove a registration by its ID (muster service info -verbose). While its allocation offers the service, the next report\nbrings it back.",
		`muster service delete llm _nomad-task-8ba85cef-f1a3-4e1c-9c2b-0d1e2f3a4b5c-group-server-llm-http`, 2, 2, func(ctx context.Context, args []string) error {
			a, err := o.api()
			if err != nil {
				return err
			}
			if _, err := a.delete(ctx, servicePath(args[0])+"/"+url.PathEscape(args[1]), nil, nil); err != nil {
				return fmt.Errorf("service %q: %w", args[0], err)
			}
			o.printf("Registration %q of service %q removed\n", args[1], args[0])
			return nil
		})
}
