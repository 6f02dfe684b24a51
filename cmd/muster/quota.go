package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

func newQuota(e *env) *cobra.Command {
	return e.group("quota", "Limits of namespaces", "A quota limits what the allocations of the namespaces that name it hold together.", `
muster quota apply team.hcl
muster namespace apply -quota team ml
muster quota status team`, newQuotaApply, newQuotaInspect, newQuotaList, newQuotaDelete, newQuotaStatus)
}

func newQuotaApply(e *env) *cobra.Command {
	o := &objectOptions{env: e}
	c := e.verb("apply [options] FILE", "Make or change quotas", "Make or change quotas from a file in HCL or JSON, in the shape that Nomad has; \"-\" is standard input. In HCL the file holds blocks\nquota \"NAME\" { ... }, or one quota's settings with its name among them.\n\n  quota \"team\" {\n    limit {\n      region_limit {\n        memory = 262144 # MiB\n        device \"nvidia/gpu\" {\n          count = 16\n        }\n      }\n    }\n  }", `muster quota apply team.hcl`, 1, 1, func(ctx context.Context, args []string) error {
		specs, err := o.quotaSpecs(args[0])
		if err != nil {
			return err
		}
		a, err := o.api()
		if err != nil {
			return err
		}
		for _, s := range specs {
			q := &wire.QuotaSpec{}
			if err := s.Decode("quota", q); err != nil {
				return err
			}
			if _, err := q.ToStructs(); err != nil {
				return s.At(err)
			}
			var w *nomadlike.QueueWritten // nothing, unless there are warnings
			if _, err := a.put(ctx, "/v1/quota", nil, q, &w); err != nil {
				return fmt.Errorf("apply quota %q: %w", q.Name, err)
			}
			o.printf("Quota %q applied\n", q.Name)
			if w != nil {
				o.warn(w.Warnings)
			}
		}
		return nil
	})
	return files(c, "hcl", "json")
}

func newQuotaInspect(e *env) *cobra.Command {
	return objectInspect(e, "quota", "/v1/quota/", "team", func() any { return &wire.QuotaSpec{} })
}

func newQuotaDelete(e *env) *cobra.Command {
	return objectDelete(e, "quota", "/v1/quota/", "team", "Delete a quota that no namespace names")
}

func newQuotaList(e *env) *cobra.Command {
	o := &objectOptions{env: e}
	c := e.verb("list [options]", "List quotas", "", "muster quota list\nmuster quota list -o wide", 0, 0, func(ctx context.Context, _ []string) error {
		list, done, err := fetchList(ctx, &o.form, o.env, "/v1/quotas", nil, "No quotas", func(q *wire.QuotaSpec) string { return q.Name })
		if done || err != nil {
			return err
		}
		head, rows := "Name|Description", [][]string{}
		if o.form.wide {
			head += "|Region|CPU (MHz)|Memory (MiB)|GPU memory (MiB)|GPUs"
		}
		for _, q := range list {
			r := []string{q.Name, orNone(q.Description)}
			if !o.form.wide {
				rows = append(rows, r)
				continue
			}
			limits := q.Limits
			if len(limits) == 0 {
				limits = []*wire.QuotaLimit{{Region: "-"}}
			}
			for _, l := range limits {
				line := append(slices.Clone(r), l.Region)
				for _, x := range quotaRows(l, &wire.QuotaResources{}) {
					line = append(line, x[3]) // the limit
				}
				rows = append(rows, line)
			}
		}
		o.table(head, rows)
		return nil
	})
	o.form.listFlags(c)
	o.form.wideFlag(c)
	return c
}

func newQuotaStatus(e *env) *cobra.Command {
	o := &objectOptions{env: e}
	c := e.verb("status [options] NAME", "Show a quota with what is used of it", "", `muster quota status team`, 1, 1, func(ctx context.Context, args []string) error {
		a, err := o.api()
		if err != nil {
			return err
		}
		var q wire.QuotaSpec
		var u wire.QuotaUsage
		if _, err := a.get(ctx, "/v1/quota/"+escapePath(args[0]), nil, &q); err != nil {
			return fmt.Errorf("quota %q: %w", args[0], err)
		}
		if _, err := a.get(ctx, "/v1/quota/usage/"+escapePath(args[0]), nil, &u); err != nil {
			return fmt.Errorf("usage of quota %q: %w", args[0], err)
		}
		if done, err := o.form.done(o.env, &u); done || err != nil {
			return err
		}
		o.kv([][2]string{{"Name", q.Name}, {"Description", orNone(q.Description)}, {"Namespaces", orNone(strings.Join(u.Namespaces, ", "))}})
		o.heading("Usage")
		rows := [][]string{}
		for _, l := range q.Limits {
			used := &wire.QuotaResources{}
			if x := u.Used[l.Region]; x != nil && x.RegionLimit != nil {
				used = x.RegionLimit
			}
			rows = append(rows, quotaRows(l, used)...)
		}
		o.table("Region|Resource|Used|Limit|Soft limit", rows)
		return nil
	})
	o.form.flags(c)
	return c
}

// quotaRows shows what is used in a region, and both limits.
func quotaRows(l *wire.QuotaLimit, used *wire.QuotaResources) (rows [][]string) {
	amount := func(n *int) string {
		if n == nil {
			return "0"
		}
		return strconv.Itoa(*n)
	}
	limit := func(r *wire.QuotaResources, of func(*wire.QuotaResources) *int) string {
		if r == nil {
			return "-"
		}
		switch n := of(r); {
		case n == nil || *n == 0:
			return "unlimited"
		case *n < 0: // nothing is allowed
			return "0"
		default:
			return strconv.Itoa(*n)
		}
	}
	for _, c := range []struct {
		name string
		of   func(*wire.QuotaResources) *int
	}{
		{"CPU (MHz)", func(r *wire.QuotaResources) *int { return r.CPU }}, {"Memory (MiB)", func(r *wire.QuotaResources) *int { return r.MemoryMB }},
		{"GPU memory (MiB)", func(r *wire.QuotaResources) *int { return r.GPUMemoryMB }},
	} {
		rows = append(rows, []string{l.Region, c.name, amount(c.of(used)), limit(l.RegionLimit, c.of), limit(l.Soft, c.of)})
	}
	devices := func(r *wire.QuotaResources, model, none string) string {
		if r == nil {
			return "-"
		}
		for _, d := range r.Devices {
			if d.Count != nil && structs.DeviceModel(d.Name) == model {
				return strconv.FormatUint(*d.Count, 10)
			}
		}
		return none
	}
	var models []string
	for _, r := range []*wire.QuotaResources{l.RegionLimit, l.Soft} {
		if r == nil {
			continue
		}
		for _, d := range r.Devices {
			if m := structs.DeviceModel(d.Name); m != "" && !slices.Contains(models, m) {
				models = append(models, m)
			}
		}
	}
	slices.Sort(models)
	for i, m := range append([]string{""}, models...) {
		name := "GPUs"
		if i > 0 {
			name += " of model " + m
		}
		rows = append(rows, []string{l.Region, name, devices(used, m, "0"), devices(l.RegionLimit, m, "unlimited"), devices(l.Soft, m, "unlimited")})
	}
	return rows
}
