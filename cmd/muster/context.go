package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

type contextCmdOptions struct {
	*env
	form                format
	file                string // of the token; - for standard input
	use, replace, unset bool
	flags               *pflag.FlagSet
}

func newContext(e *env) *cobra.Command {
	return e.group("context", "Clusters by name: addresses, tokens and namespaces", "A context is a name for the general options that reach a cluster. An option's value is, in this order, that of the flag, of MUSTER_x in\nthe environment, of the context in use, of NOMAD_x, and the default. The context in use is that of -context, of MUSTER_CONTEXT, or the one that\n`muster context use` made the current one. Where -address or MUSTER_ADDR names another address than the current context, that context is set\naside, so its token goes to no other cluster.\n\nContexts are kept in muster/contexts.json in the user's configuration directory ($XDG_CONFIG_HOME or ~/.config), and tokens each in a file of its\nown. What other users of the machine may read is refused.", `
muster context add prod -address https://10.0.0.1:4646 -ca-cert ca.pem -namespace ml -token-file ~/.muster-token -use
muster context list
muster context use prod
muster job status -context prod`, newContextAdd, newContextUse, newContextList, newContextShow, newContextRemove)
}

func newContextAdd(e *env) *cobra.Command {
	o := &contextCmdOptions{env: e}
	c := e.verb("add [options] NAME", "Give a cluster a name", "Keep the general options of this command line under a name. -address is needed; the environment is not looked at. A token that is given\nby -token or on standard input (-token-file -) is written to a file that only you may read; with -token-file FILE that file is used.", `
muster context add prod -address https://10.0.0.1:4646 -ca-cert ca.pem -namespace ml -token-file ~/.muster-token
muster context add prod -address https://10.0.0.1:4646 -token-file - -use < secret`, 1, 1, o.add)
	f := c.Flags()
	f.StringVar(&o.file, "token-file", "", "file that holds the token, which only you may read; - reads the token from standard input")
	f.BoolVar(&o.use, "use", false, "make it the current context")
	f.BoolVar(&o.replace, "replace", false, "replace a context of this name")
	o.flags = f
	return c
}

func newContextUse(e *env) *cobra.Command {
	o := &contextCmdOptions{env: e}
	c := e.verb("use [options] [NAME]", "Choose the current context", "Make a context the current one: commands use it unless -context or MUSTER_CONTEXT names another.", `
muster context use prod
muster context use -none`, 0, 1, o.choose)
	c.Flags().BoolVar(&o.unset, "none", false, "have no current context")
	return contextNames(c)
}

func newContextList(e *env) *cobra.Command {
	o := &contextCmdOptions{env: e}
	c := e.verb("list [options]", "List contexts", "List contexts. * marks the one in use.", `
muster context list
muster context list -q`, 0, 0, o.list)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	o.flags = c.Flags()
	return c
}

func newContextShow(e *env) *cobra.Command {
	o := &contextCmdOptions{env: e}
	c := e.verb("show [options] [NAME]", "Show the context in use, and where each option comes from", "Show the context in use and the general options in force, each with where it comes from; with a name, that context. No agent is asked\nand no token is shown. -q prints the name of the context in use and nothing else, for a shell's prompt.", `
muster context show
muster context show prod
muster context show -q`, 0, 1, o.show)
	o.form.listFlags(c)
	o.flags = c.Flags()
	return contextNames(c)
}

func newContextRemove(e *env) *cobra.Command {
	o := &contextCmdOptions{env: e}
	return contextNames(e.verb("remove NAME", "Forget a context", "Forget a context, with the token that it keeps. A file that -token-file named stays.", `muster context remove prod`, 1, 1, o.remove))
}

// contextNames offers the names of contexts for the first argument of a command.
func contextNames(c *cobra.Command) *cobra.Command {
	c.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		b, err := readContexts()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return b.names(), cobra.ShellCompDirectiveNoFileComp
	}
	return c
}

func (o *contextCmdOptions) add(_ context.Context, args []string) error {
	name := args[0]
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" || strings.Trim(name, ".") == "" || len(name) > 64 || name[0] == '-' {
		return fmt.Errorf("%q is no name of a context: want up to 64 letters, digits, dots, dashes and underscores", name)
	}
	c := clusterContext{}
	var err error
	for _, opt := range contextOptions {
		f := o.flags.Lookup(opt.flag)
		if !f.Changed || opt.flag == "token" {
			continue
		}
		c[opt.flag] = f.Value.String()
		if strings.ContainsFunc(c[opt.flag], unicode.IsControl) {
			return fmt.Errorf("-%s has control characters", opt.flag)
		}
		if slices.Contains([]string{"ca-cert", "client-cert", "client-key"}, opt.flag) {
			if c[opt.flag], err = filepath.Abs(c[opt.flag]); err != nil {
				return err
			}
		}
	}
	if c["address"] == "" {
		return errors.New("a context needs an address: give -address http://HOST:PORT, https://HOST:PORT or unix:///PATH")
	}
	if u, err := url.Parse(c["address"]); err == nil && u.User != nil {
		return errors.New("a context keeps no password in its address; give a token with -token-file")
	}
	o.contextErr = nil // of the context in use, which is not asked
	if _, err := o.api(); err != nil {
		return err
	}
	token, err := o.givenToken(c)
	if err != nil {
		return err
	}
	return changeContexts(func(b *contextBook) error {
		old, exists := b.Contexts[name]
		if exists && !o.replace {
			return fmt.Errorf("context %q exists: -replace replaces it", name)
		}
		if token != "" {
			c[tokenFile] = b.ownToken(name)
			if err := writePrivate(c[tokenFile], []byte(token+"\n")); err != nil {
				return err
			}
		}
		if b.Contexts == nil {
			b.Contexts = map[string]clusterContext{}
		}
		b.Contexts[name] = c
		if o.use {
			b.Current = name
		}
		if err := b.write(); err != nil {
			if token != "" {
				err = errors.Join(err, os.Remove(c[tokenFile]))
			}
			return err
		}
		o.printf("Context %q is kept in %s\n", name, b.path())
		if b.Current != name {
			o.hint("Use it:  muster context use %s   or   -context %s", name, name)
		}
		return b.dropToken(old)
	})
}

// givenToken returns the token that was given itself, which is to be kept, or "". A file of the user's is named in c.
func (o *contextCmdOptions) givenToken(c clusterContext) (token string, err error) {
	given := o.flags.Lookup("token").Changed
	switch {
	case given && o.file != "":
		return "", errors.New("-token and -token-file exclude each other: choose one")
	case o.file == "-":
		in, err := io.ReadAll(io.LimitReader(o.in, privateMax))
		if err != nil {
			return "", err
		}
		if token = strings.TrimSpace(string(in)); !isToken(token) {
			return "", errors.New("standard input does not hold one token")
		}
		return token, nil
	case o.file != "":
		if c[tokenFile], err = filepath.Abs(o.file); err != nil {
			return "", err
		}
		_, err = c.token()
		return "", err
	case !given || o.token == "":
		return "", nil
	case !isToken(o.token):
		return "", errors.New("-token is no token: it has spaces, control characters or letters beyond ASCII")
	}
	return o.token, nil
}

// dropToken removes the token that is kept for a context that is no longer in the book, if any.
func (b *contextBook) dropToken(old clusterContext) error {
	if !b.owns(old[tokenFile]) {
		return nil
	}
	if err := os.Remove(old[tokenFile]); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (o *contextCmdOptions) choose(_ context.Context, args []string) error {
	if o.unset == (len(args) > 0) {
		return errors.New("name a context, or give -none (muster context list)")
	}
	return changeContexts(func(b *contextBook) error {
		if o.unset {
			b.Current = ""
			if err := b.write(); err != nil {
				return err
			}
			o.println("No context is the current one")
			return nil
		}
		c, err := b.named(args[0])
		if err != nil {
			return err
		}
		b.Current = args[0]
		if err := b.write(); err != nil {
			return err
		}
		o.printf("The current context is %q (%s)\n", b.Current, c["address"])
		if other := os.Getenv("MUSTER_CONTEXT"); other != "" && other != b.Current {
			o.hint("MUSTER_CONTEXT is set, and comes first here: context %q", other)
		}
		if addr := os.Getenv("MUSTER_ADDR"); addr != "" && !sameAddress(addr, c["address"]) {
			o.hint("MUSTER_ADDR is set, and comes first here: %s. The context is set aside until it is unset.", addr)
		}
		return nil
	})
}

// contextEntry is the JSON form of a context in a list.
type contextEntry struct {
	Name     string
	Current  bool // in use here
	Settings clusterContext
}

func (o *contextCmdOptions) list(context.Context, []string) error {
	b, err := readContexts()
	if err != nil {
		return err
	}
	list := []contextEntry{}
	for _, name := range b.names() {
		list = append(list, contextEntry{name, name == o.context, b.Contexts[name]})
	}
	if done, err := listed(&o.form, o.env, list, "No contexts (muster context add -help)", func(c contextEntry) string { return c.Name }); done || err != nil {
		return err
	}
	head, rows := "|Name|Address|Namespace|Region|Token", [][]string{}
	if o.form.wide {
		head += " File|CA Certificate|Client Certificate"
	}
	for _, c := range list {
		token := map[bool]string{true: "yes", false: "-"}[c.Settings[tokenFile] != ""]
		if o.form.wide {
			token = orDash(c.Settings[tokenFile])
		}
		row := []string{map[bool]string{true: "*"}[c.Current], c.Name, c.Settings["address"], orDash(c.Settings["namespace"]), orDash(c.Settings["region"]), token}
		if o.form.wide {
			row = append(row, orDash(c.Settings["ca-cert"]), orDash(c.Settings["client-cert"]))
		}
		rows = append(rows, row)
	}
	o.table(head, rows)
	return nil
}

// contextSetting is a general option in force, and where its value comes from.
type contextSetting struct{ Value, From string }

func (o *contextCmdOptions) show(_ context.Context, args []string) error {
	if len(args) > 0 {
		return o.showNamed(args[0])
	}
	if o.form.quiet {
		if o.context != "" {
			o.println(o.context)
		}
		return nil // also where the file is refused: a prompt is no place for errors
	}
	if o.contextErr != nil {
		return o.contextErr
	}
	out := struct {
		Context  string // in use, or ""
		Settings map[string]contextSetting
	}{o.context, map[string]contextSetting{}}
	rows := [][2]string{{"Context", o.context}}
	for _, opt := range contextOptions {
		v := o.flags.Lookup(opt.flag).Value.String()
		if opt.flag == "token" && v != "" {
			v = "(set)"
		}
		out.Settings[opt.flag] = contextSetting{v, o.from[opt.flag]}
		if v != "" && v != "false" {
			rows = append(rows, [2]string{opt.flag, v + "  (" + o.from[opt.flag] + ")"})
		}
	}
	if done, err := o.form.done(o.env, out); done || err != nil {
		return err
	}
	o.kv(rows)
	return nil
}

func (o *contextCmdOptions) showNamed(name string) error {
	b, err := readContexts()
	if err != nil {
		return err
	}
	c, err := b.named(name)
	if err != nil {
		return err
	}
	if o.form.quiet {
		o.println(name)
		return nil
	}
	if done, err := o.form.done(o.env, contextEntry{name, name == o.context, c}); done || err != nil {
		return err
	}
	rows := [][2]string{{"Context", name}}
	for _, key := range sortedKeys(c) {
		rows = append(rows, [2]string{key, c[key]})
	}
	o.kv(rows)
	return nil
}

func (o *contextCmdOptions) remove(_ context.Context, args []string) error {
	return changeContexts(func(b *contextBook) error {
		old, err := b.named(args[0])
		if err != nil {
			return err
		}
		delete(b.Contexts, args[0])
		current := b.Current == args[0]
		if current {
			b.Current = ""
		}
		if err := b.write(); err != nil {
			return err
		}
		o.printf("Context %q is gone\n", args[0])
		if current {
			o.hint("It was the current one; now there is none:  muster context use NAME")
		}
		return b.dropToken(old)
	})
}
