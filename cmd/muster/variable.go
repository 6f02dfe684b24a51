package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/spf13/cobra"
	"github.com/zclconf/go-cty/cty"

	"github.com/muster-sched/muster/nomadlike/objectfile"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

func newVar(e *env) *cobra.Command {
	return e.group("var", "Variables: small secrets and settings that jobs read", "Variables are maps of strings under a path of a namespace. Servers keep them encrypted, policies say who may read them,\nand templates of jobs use them. A task may read nomad/jobs, nomad/jobs/JOB, nomad/jobs/JOB/GROUP and\nnomad/jobs/JOB/GROUP/TASK of its own without a policy.", `
muster var put nomad/jobs/web password=@password.txt
muster var get -item password nomad/jobs/web
muster var list nomad/jobs`, newVarPut, newVarGet, newVarList, newVarPurge)
}

// varOptions are the flags of commands on one variable.
type varOptions struct {
	*env
	out, in, item, tmpl string
	force               bool
	checkIndex          string
}

func (o *varOptions) forms(c *cobra.Command, def string) {
	c.Flags().StringVar(&o.out, "out", def, "how the variable is printed: table, json, hcl, go-template or none")
	c.Flags().StringVarP(&o.tmpl, "template", "t", "", "with -out go-template, the template over the JSON shape, such as '{{.Items.password}}'")
	_ = c.RegisterFlagCompletionFunc("out", cobra.FixedCompletions([]string{"table", "json", "hcl", "go-template", "none"}, cobra.ShellCompDirectiveNoFileComp)) //nolint:errcheck // the flag is there
}

func varPath(p string) string { return "/v1/var/" + escapePath(p) }

func newVarPut(e *env) *cobra.Command {
	o := &varOptions{env: e}
	c := e.verb("put [options] [PATH] [@FILE|-] [KEY=VALUE]...", "Write a variable", "Write a variable. A value @FILE is read from that file, @- from standard input; \\@ begins a value with that letter. @FILE or -\nalone is a file in HCL or JSON with the path and items; KEY=VALUE then replaces single items of it. Values on a command line\nare seen by everybody on the machine while it runs: prefer files for secrets.\n\nA variable that exists is replaced as a whole, and only with -force, or with its index in -check-index or in the file.", `
muster var put app/db user=me password=@password.txt
muster var put -force app/db user=me password=@-
muster var put @db.hcl`, 1, -1, func(ctx context.Context, args []string) error {
		v, err := o.varSpec(args)
		if err != nil {
			return err
		}
		return o.put(ctx, v)
	})
	c.Flags().StringVar(&o.in, "in", "", "what the file is in, json or hcl (default: by its name and content)")
	c.Flags().StringVar(&o.checkIndex, "check-index", "", "write only if the variable was last changed at this `index`; 0: if it does not exist")
	c.Flags().BoolVar(&o.force, "force", false, "replace the variable regardless of its current version")
	o.forms(c, "none")
	c.ValidArgsFunction = nil
	return c
}

func (o *varOptions) put(ctx context.Context, v *wire.Variable) error {
	if o.force && o.checkIndex != "" {
		return errors.New("-force and -check-index exclude each other: choose one")
	}
	q := url.Values{}
	if !o.force {
		q.Set("cas", strconv.FormatUint(v.ModifyIndex, 10))
		if o.checkIndex != "" {
			if _, err := strconv.ParseUint(o.checkIndex, 10, 64); err != nil {
				return fmt.Errorf("-check-index %q: want a whole number", o.checkIndex)
			}
			q.Set("cas", o.checkIndex)
		}
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	if a.namespace == "" && v.Namespace != "" {
		a.namespace = v.Namespace
	}
	in := map[string]any{"Path": v.Path, "Items": v.Items}
	var out wire.Variable
	if _, err := a.put(ctx, varPath(v.Path), q, in, &out); err != nil {
		return conflicting(err, v.Path, "-force")
	}
	if o.out == "none" {
		verb := "updated"
		if out.CreateIndex == out.ModifyIndex {
			verb = "created"
		}
		o.printf("Variable %q %s (index %d)\n", out.Path, verb, out.ModifyIndex)
		return nil
	}
	return o.print(&out)
}

// conflicting describes a failed check-and-set. The answer has the variable's items; they are not shown.
func conflicting(err error, path, cure string) error {
	var ae *apiError
	if !errors.As(err, &ae) {
		return fmt.Errorf("variable %q: %w", path, err)
	}
	if ae.Status != http.StatusConflict {
		return fmt.Errorf("variable %q: %w", path, err)
	}
	var v struct{ ModifyIndex uint64 }
	_ = json.NewDecoder(strings.NewReader(ae.Msg)).Decode(&v)
	if _, rest, ok := strings.Cut(ae.Msg, `"ModifyIndex":`); v.ModifyIndex == 0 && ok { // a large answer is cut
		v.ModifyIndex, _ = strconv.ParseUint(rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))], 10, 64)
	}
	if v.ModifyIndex == 0 {
		return fmt.Errorf("variable %q does not exist, and an index was given", path)
	}
	return fmt.Errorf("variable %q exists and was last changed at index %d: give -check-index %d if you know what it holds, or %s", path, v.ModifyIndex, v.ModifyIndex, cure)
}

// varSpec parses the arguments of put.
func (o *varOptions) varSpec(args []string) (*wire.Variable, error) {
	v := &wire.Variable{Items: map[string]string{}}
	path, file := "", ""
	items := map[string]string{}
	for _, arg := range args {
		key, value, pair := strings.Cut(arg, "=")
		switch {
		case !pair && (arg == "-" || strings.HasPrefix(arg, "@")):
			if file != "" {
				return nil, fmt.Errorf("%s and %s: one file is read", file, arg)
			}
			file = arg
		case !pair && path == "" && len(items) == 0:
			path = arg
		case !pair:
			return nil, fmt.Errorf("%q is not KEY=VALUE", arg)
		case key == "":
			return nil, fmt.Errorf("an item without a key: want KEY=VALUE")
		default:
			text, err := o.itemValue(value)
			if err != nil {
				return nil, fmt.Errorf("item %q: %w", key, err)
			}
			items[key] = text
		}
	}
	if file != "" {
		if err := o.varFile(strings.TrimPrefix(file, "@"), v); err != nil {
			return nil, err
		}
	}
	if path != "" {
		v.Path = strings.Trim(path, "/")
	}
	if v.Path == "" {
		return nil, errors.New("the path of the variable is missing")
	}
	if err := structs.CheckVariablePath(v.Path); err != nil {
		return nil, err
	}
	maps.Copy(v.Items, items)
	if len(v.Items) == 0 {
		return nil, errors.New("the variable has no items: give KEY=VALUE, @FILE or -")
	}
	return v, nil
}

func (o *varOptions) itemValue(value string) (string, error) {
	switch {
	case strings.HasPrefix(value, `\@`):
		return value[1:], nil
	case !strings.HasPrefix(value, "@"):
		return value, nil
	}
	b, err := o.readFile(value[1:], structs.VariableSizeMax)
	return string(b), err
}

// varFile reads a variable from a file: in HCL its path and a block (or object) items, in JSON the shape of the API.
func (o *varOptions) varFile(name string, v *wire.Variable) error {
	src, err := o.readFile(name, specFileMax)
	if err != nil {
		return fmt.Errorf("read variable: %w", err)
	}
	isJSON := o.in == "json" || o.in == "" && bytes.HasPrefix(bytes.TrimSpace(src), []byte("{"))
	if o.in != "" && o.in != "json" && o.in != "hcl" {
		return fmt.Errorf("-in %q: want json or hcl", o.in)
	}
	if isJSON {
		unknown, err := wire.Decode(src, v)
		if err == nil && len(unknown) > 0 {
			err = fmt.Errorf("unknown fields: %s", strings.Join(unknown, ", "))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if v.Items == nil {
			v.Items = map[string]string{}
		}
		return nil
	}
	obj, err := objectfile.Attributes(src, name)
	if err != nil {
		return err
	}
	for key, raw := range obj {
		var err error
		switch key {
		case "path":
			err = json.Unmarshal(raw, &v.Path)
		case "namespace":
			err = json.Unmarshal(raw, &v.Namespace)
		case "modify_index":
			err = json.Unmarshal(raw, &v.ModifyIndex)
		case "create_index", "create_time", "modify_time": // written by get -out hcl
		case "items":
			err = json.Unmarshal(raw, &v.Items)
		default:
			return fmt.Errorf("%s: a variable has no %q", name, key)
		}
		if err != nil {
			return fmt.Errorf("%s: %s: want text (items: an object of texts)", name, key)
		}
	}
	return nil
}

func newVarGet(e *env) *cobra.Command {
	o := &varOptions{env: e}
	c := e.verb("get [options] PATH", "Show a variable, or one item of it", "", `
muster var get app/db
muster var get -item password app/db
muster var get -out json app/db`, 1, 1, func(ctx context.Context, args []string) error {
		a, err := o.api()
		if err != nil {
			return err
		}
		path := strings.Trim(args[0], "/")
		var v wire.Variable
		if _, err := a.get(ctx, varPath(path), nil, &v); err != nil {
			return fmt.Errorf("variable %q: %w", path, err)
		}
		if o.item == "" {
			return o.print(&v)
		}
		text, ok := v.Items[o.item]
		if !ok {
			return fmt.Errorf("variable %q has no item %q; it has %s", path, o.item, strings.Join(slices.Sorted(maps.Keys(v.Items)), ", "))
		}
		_, err = io.WriteString(o.env.out, text)
		return err
	})
	c.Flags().StringVar(&o.item, "item", "", "print the value of this `key` alone, without a line break")
	o.forms(c, "table")
	return c
}

// print shows a variable with its items.
func (o *varOptions) print(v *wire.Variable) error {
	switch o.out {
	case "none":
		return nil
	case "json":
		return o.json(v)
	case "hcl":
		return o.hcl(v)
	case "go-template":
		if o.tmpl == "" {
			return errors.New("-out go-template takes a -template")
		}
		return o.template(o.tmpl, v)
	case "table":
		if o.tmpl != "" {
			return o.template(o.tmpl, v)
		}
	default:
		return fmt.Errorf("-out %q: want table, json, hcl, go-template or none", o.out)
	}
	o.kv([][2]string{{"Namespace", v.Namespace}, {"Path", v.Path}, {"Created", varTime(v.CreateTime)}, {"Modified", varTime(v.ModifyTime)}, {"Check Index", strconv.FormatUint(v.ModifyIndex, 10)}})
	o.heading("Items")
	rows := [][2]string{}
	for _, k := range slices.Sorted(maps.Keys(v.Items)) {
		rows = append(rows, [2]string{k, v.Items[k]})
	}
	o.kv(rows)
	return nil
}

func varTime(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339) }

// hcl prints a variable in the form that put reads.
func (o *varOptions) hcl(v *wire.Variable) error {
	f := hclwrite.NewEmptyFile()
	b := f.Body()
	b.SetAttributeValue("namespace", cty.StringVal(v.Namespace))
	b.SetAttributeValue("path", cty.StringVal(v.Path))
	b.SetAttributeValue("create_index", cty.NumberUIntVal(v.CreateIndex))
	b.SetAttributeValue("modify_index", cty.NumberUIntVal(v.ModifyIndex))
	b.SetAttributeValue("create_time", cty.NumberIntVal(v.CreateTime))
	b.SetAttributeValue("modify_time", cty.NumberIntVal(v.ModifyTime))
	items := map[string]cty.Value{}
	for k, text := range v.Items {
		items[k] = cty.StringVal(text)
	}
	b.SetAttributeValue("items", cty.ObjectVal(items))
	_, err := f.WriteTo(o.env.out)
	return err
}

func newVarList(e *env) *cobra.Command {
	o := &objectOptions{env: e}
	filter := ""
	c := e.verb("list [options] [PREFIX]", "List variables, without their items", "", `
muster var list
muster var list -o wide nomad/jobs`, 0, 1, func(ctx context.Context, args []string) error {
		a, err := o.api()
		if err != nil {
			return err
		}
		q := url.Values{}
		if len(args) > 0 {
			q.Set("prefix", strings.TrimPrefix(args[0], "/"))
		}
		if filter != "" {
			q.Set("filter", filter)
		}
		list, err := pages[*wire.VariableMetadata](ctx, a, "/v1/vars", q)
		if err != nil {
			return err
		}
		if err := a.inNoNamespace(ctx, len(list)); err != nil {
			return err
		}
		if done, err := listed(&o.form, o.env, list, "No variables", func(v *wire.VariableMetadata) string { return v.Path }); done || err != nil {
			return err
		}
		head, rows := "Namespace|Path|Last Updated", [][]string{}
		if o.form.wide {
			head += "|Created|Create Index|Check Index"
		}
		for _, v := range list {
			r := []string{v.Namespace, v.Path, varTime(v.ModifyTime)}
			if o.form.wide {
				r = append(r, varTime(v.CreateTime), strconv.FormatUint(v.CreateIndex, 10), strconv.FormatUint(v.ModifyIndex, 10))
			}
			rows = append(rows, r)
		}
		o.table(head, rows)
		return nil
	})
	c.Flags().StringVar(&filter, "filter", "", "only variables for which this expression holds, such as 'Path contains \"db\"'")
	o.form.listFlags(c)
	o.form.wideFlag(c)
	return c
}

func newVarPurge(e *env) *cobra.Command {
	o := &varOptions{env: e}
	c := e.verb("purge [options] PATH", "Delete a variable", "", `muster var purge app/db`, 1, 1, func(ctx context.Context, args []string) error {
		a, err := o.api()
		if err != nil {
			return err
		}
		path := strings.Trim(args[0], "/")
		q := url.Values{}
		if o.checkIndex != "" {
			if _, err := strconv.ParseUint(o.checkIndex, 10, 64); err != nil {
				return fmt.Errorf("-check-index %q: want a whole number", o.checkIndex)
			}
			q.Set("cas", o.checkIndex)
		}
		if _, err := a.delete(ctx, varPath(path), q, nil); err != nil {
			return conflicting(err, path, "none at all")
		}
		o.printf("Variable %q purged\n", path)
		return nil
	})
	c.Flags().StringVar(&o.checkIndex, "check-index", "", "delete only if the variable was last changed at this `index`")
	return c
}
