package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/examples"
	"github.com/muster-sched/muster/nomadlike/wire"
)

type jobInitOptions struct {
	*env
	short    bool
	template string
	list     bool
}

func newJobInit(e *env) *cobra.Command {
	o := &jobInitOptions{env: e}
	c := e.verb("init [options] [FILE]", "Write an example job file",
		"Write an example job file, example.muster.hcl unless another name is given. It runs on any machine with `muster agent -dev`; where\nan agent answers whose nodes have no driver exec, it asks for raw_exec.", `
muster job init
muster job init -short
muster job init -template torchrun train.muster.hcl
muster job init -list-templates`, 0, 1, o.run)
	c.Flags().BoolVar(&o.short, "short", false, "leave the comments out")
	c.Flags().StringVar(&o.template, "template", "example", "which example: "+strings.Join(templates(), ", "))
	c.Flags().BoolVar(&o.list, "list-templates", false, "list the examples there are")
	return files(c, "hcl")
}

// templates lists the embedded examples.
func templates() []string {
	var out []string
	entries, _ := fs.ReadDir(examples.Files, ".") // embedded: cannot fail
	for _, d := range entries {
		out = append(out, strings.TrimSuffix(d.Name(), ".hcl"))
	}
	return out
}

// driver returns the default of the variable "driver" in a file: raw_exec where an agent answers and no node has exec.
func (o *jobInitOptions) driver(ctx context.Context, text string) string {
	a, err := o.api()
	if err != nil {
		return text
	}
	ctx, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	var nodes []*wire.NodeListStub
	if _, err := a.get(ctx, "/v1/nodes", nil, &nodes); err == nil && len(nodes) > 0 && !haveDriver(nodes, "exec") && haveDriver(nodes, "raw_exec") {
		return strings.Replace(text, `default = "exec"`, `default = "raw_exec"`, 1)
	}
	return text
}

func (o *jobInitOptions) run(ctx context.Context, args []string) error {
	if o.list {
		for _, t := range templates() {
			o.println(t)
		}
		return nil
	}
	if !slices.Contains(templates(), o.template) {
		return fmt.Errorf("no template %q: there are %s", o.template, strings.Join(templates(), ", "))
	}
	b, err := examples.Files.ReadFile(o.template + ".hcl")
	if err != nil {
		return err
	}
	name := "example.muster.hcl"
	if o.template != "example" {
		name = o.template + ".muster.hcl"
	}
	if len(args) == 1 {
		name = args[0]
	}
	text := o.driver(ctx, string(b))
	if o.short {
		text = withoutComments(text)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists already; move it away or give another name", name)
	}
	if err != nil {
		return fmt.Errorf("write the example: %w", err)
	}
	if _, err = f.WriteString(text); err == nil {
		err = f.Close()
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	o.printf("Example job file written to %s\n", name)
	o.hint("Run it with:  muster job run %s", name)
	return nil
}

// withoutComments drops comment lines and the blank lines that this would double.
func withoutComments(s string) string {
	var out []string
	for l := range strings.SplitSeq(s, "\n") {
		t := strings.TrimSpace(l)
		if strings.HasPrefix(t, "#") {
			continue
		}
		if t == "" && (len(out) == 0 || out[len(out)-1] == "" || strings.HasSuffix(out[len(out)-1], "{")) {
			continue
		}
		if t == "}" && len(out) > 0 && out[len(out)-1] == "" {
			out = out[:len(out)-1]
		}
		out = append(out, strings.TrimRight(l, " "))
	}
	return strings.TrimRight(strings.Join(out, "\n"), "\n") + "\n"
}
