package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"text/template"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// verb makes a command. use is its usage line; it takes from to to arguments (to < 0: any number).
func (e *env) verb(use, short, long, example string, from, to int, run func(ctx context.Context, args []string) error) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Long: long, Example: indent(example), DisableFlagsInUseLine: true,
		ValidArgsFunction: e.complete,
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) < from || (to >= 0 && len(args) > to) {
			hint := ""
			if strings.Contains(cmd.UseLine(), "-- COMMAND") && len(args) > to {
				hint = fmt.Sprintf(" (put -- before a command: %s -- %s)", cmd.CommandPath(), strings.Join(args, " "))
			}
			return fmt.Errorf("%s takes %s, got %d: %s%s", cmd.CommandPath(), arguments(from, to), len(args), cmd.UseLine(), hint)
		}
		if name := emptyArgument(use, args); name != "" {
			return fmt.Errorf("%s is empty: %s", name, cmd.UseLine())
		}
		if err := listOrOne(cmd, len(args) > 0); err != nil {
			return err
		}
		e.useContext(cmd.Flags())
		return run(cmd.Context(), args)
	}
	if long == "" {
		c.Long = short + "."
	}
	e.clientFlags(c.Flags())
	_ = c.RegisterFlagCompletionFunc("context", contextNames(new(cobra.Command)).ValidArgsFunction)
	return c
}

// ofList marks flags of a command that lists objects or shows one: they are of the list only. ofOne marks those that are of one object only.
func ofList(c *cobra.Command, names ...string) { markFlags(c, "list", names) }
func ofOne(c *cobra.Command, names ...string)  { markFlags(c, "one", names) }

func markFlags(c *cobra.Command, mark string, names []string) {
	for _, n := range names {
		f := c.Flags().Lookup(n)
		f.Annotations = map[string][]string{mark: nil}
	}
}

// listOrOne refuses a flag that would be ignored: of lists where one object is named, of one object where none is.
func listOrOne(c *cobra.Command, one bool) (err error) {
	noun := strings.ToLower(strings.Trim(c.Use[strings.LastIndex(c.Use, " ")+1:], "[]"))
	if f := c.Flags().Lookup("self"); f != nil && f.Changed {
		one = true
	}
	c.Flags().Visit(func(f *pflag.Flag) {
		_, list := f.Annotations["list"]
		_, single := f.Annotations["one"]
		switch {
		case list && one:
			err = fmt.Errorf("-%s is for the list of all: leave it out for one %s", f.Name, noun)
		case single && !one:
			err = fmt.Errorf("-%s is for one %s: name it", f.Name, noun)
		}
	})
	return err
}

// emptyArgument returns the name, as in the usage line, of the first empty argument, or "". It is most likely an unset
// variable of the user's shell, and an API path without a name never does what was meant. A prefix may be empty, and so
// may arguments of a program.
func emptyArgument(use string, args []string) string {
	names := slices.DeleteFunc(strings.Fields(use)[1:], func(name string) bool { return name == "[options]" })
	for i, a := range args {
		if a != "" || len(names) == 0 {
			continue
		}
		name := strings.Trim(names[min(i, len(names)-1)], "[].")
		if name != "PREFIX" && name != "ARGUMENT" {
			return name
		}
	}
	return ""
}

func arguments(from, to int) string {
	switch {
	case to == 0:
		return "no arguments"
	case from == to && from == 1:
		return "one argument"
	case from == to:
		return fmt.Sprintf("%d arguments", from)
	case to < 0:
		return fmt.Sprintf("at least %d arguments", from)
	case from == 0:
		return fmt.Sprintf("at most %d arguments", to)
	}
	return fmt.Sprintf("%d to %d arguments", from, to)
}

// group makes a command that only has subcommands.
func (e *env) group(use, short, long, example string, subs ...func(*env) *cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long, Example: indent(example)}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return noCommand(cmd, args...)
	}
	for _, s := range subs {
		c.AddCommand(s(e))
	}
	return c
}

func indent(s string) string {
	s = strings.TrimSpace(s)
	if s == "" {
		return ""
	}
	return "  " + strings.ReplaceAll(s, "\n", "\n  ")
}

// format selects the output form when it is not a table.
type format struct {
	json  bool
	tmpl  string
	quiet bool
	wide  bool
}

// wideFlag adds -o wide, of commands whose table has more columns to show.
func (f *format) wideFlag(c *cobra.Command) {
	c.Flags().VarP((*wideValue)(&f.wide), "out", "o", "wide: a table with more columns")
}

// wideValue is the value of -o.
type wideValue bool

// Set implements pflag.Value.
func (w *wideValue) Set(s string) error {
	switch s {
	case "wide":
		*w = true
	case "json":
		return errors.New("want wide; for JSON there is -json")
	default:
		return errors.New("want wide")
	}
	return nil
}

// String implements pflag.Value.
func (w *wideValue) String() string {
	if *w {
		return "wide"
	}
	return ""
}

// Type implements pflag.Value.
func (w *wideValue) Type() string { return "form" }

// flags adds -json and -t.
func (f *format) flags(c *cobra.Command) {
	c.Flags().BoolVar(&f.json, "json", false, "print the answer as JSON, in the shape of the HTTP API")
	f.template(c)
}

// template adds -t only, for commands whose -json refers to their input.
func (f *format) template(c *cobra.Command) {
	c.Flags().StringVarP(&f.tmpl, "template", "t", "", "print the answer through a Go template over its JSON shape, such as '{{.ID}}'")
}

// listFlags adds -json, -t and -q.
func (f *format) listFlags(c *cobra.Command) {
	f.flags(c)
	c.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "print ids only, one a line")
}

// done prints v if a form other than the table was selected.
func (f *format) done(e *env, v any) (bool, error) {
	switch {
	case f.json && f.tmpl != "":
		return true, fmt.Errorf("-json and -t exclude each other: choose one")
	case f.json:
		return true, e.json(v)
	case f.tmpl != "":
		return true, e.template(f.tmpl, v)
	}
	return false, nil
}

// listed prints a list in every form except the table: as JSON, through a template, or ids only with -q. For an empty
// list it prints none; "" leaves that to the table. done means that nothing is left to print.
func listed[T any](f *format, e *env, list []T, none string, id func(T) string) (done bool, err error) {
	if done, err := f.done(e, list); done || err != nil {
		return true, err
	}
	switch {
	case f.quiet:
		for _, v := range list {
			e.println(oneLine(id(v)))
		}
	case len(list) == 0 && none != "":
		e.println(none)
	default:
		return false, nil
	}
	return true, nil
}

// fetchList fetches a list and prints it like listed.
func fetchList[T any](ctx context.Context, f *format, e *env, path string, q url.Values, none string, id func(T) string) (list []T, done bool, err error) {
	a, err := e.api()
	if err != nil {
		return nil, true, err
	}
	if _, err := a.get(ctx, path, q, &list); err != nil {
		return nil, true, err
	}
	done, err = listed(f, e, list, none, id)
	return list, done, err
}

func (e *env) json(v any) error {
	enc := json.NewEncoder(e.out)
	enc.SetIndent("", "    ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func (e *env) template(text string, v any) error {
	t, err := template.New("-t").Funcs(template.FuncMap{
		"json": func(v any) (string, error) {
			b, err := json.Marshal(v)
			return string(b), err
		},
		"join": func(sep string, list []string) string { return strings.Join(list, sep) },
	}).Parse(text)
	if err != nil {
		return fmt.Errorf("the template does not parse: %w", err)
	}
	if err := t.Execute(e.out, v); err != nil {
		return fmt.Errorf("the template does not fit the answer: %w", err)
	}
	e.println()
	return nil
}

// generalFlags are the flags of clientFlags; help shows them last.
func generalFlags() *pflag.FlagSet {
	f := pflag.NewFlagSet("general", pflag.ContinueOnError)
	new(env).clientFlags(f)
	return f
}

func ownFlagUsages(c *cobra.Command) string {
	general := generalFlags()
	own := pflag.NewFlagSet("own", pflag.ContinueOnError)
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if general.Lookup(f.Name) == nil && f.Name != "help" {
			own.AddFlag(f)
		}
	})
	return strings.TrimRight(own.FlagUsages(), "\n")
}

func generalFlagUsages(c *cobra.Command) string {
	if c.LocalFlags().Lookup("address") == nil {
		return ""
	}
	return strings.TrimRight(generalFlags().FlagUsages(), "\n")
}

func init() {
	cobra.EnableCommandSorting = false // help lists commands in the order of their table
	cobra.AddTemplateFunc("ownFlags", ownFlagUsages)
	cobra.AddTemplateFunc("ordered", ordered)
	cobra.AddTemplateFunc("topicNames", topicNames)
	cobra.AddTemplateFunc("generalFlags", generalFlagUsages)
}

// usageTemplate shows examples first, and the general flags last.
const usageTemplate = `Usage: {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND{{else}}{{.UseLine}}{{end}}
{{if .HasExample}}
Examples:

{{.Example}}
{{end}}{{if .HasAvailableSubCommands}}
{{$cmd := .}}{{range .Groups}}{{.Title}}:

{{range ordered $cmd .ID}}  {{rpad .Name .NamePadding }} {{.Short}}
{{end}}
{{end}}{{if .Groups}}Topics, such as "muster help gangs":

  {{topicNames}}
{{else}}Commands:
{{range .Commands}}{{if (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}
{{end}}{{end}}{{with ownFlags .}}
Options (one dash works as well as two):

{{.}}
{{end}}{{with generalFlags .}}
General options:

{{.}}
{{end}}{{if .HasAvailableSubCommands}}
"{{.CommandPath}} COMMAND -help" shows more about a command.
{{end}}`
