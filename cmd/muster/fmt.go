package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/internal/hclgate"
	"github.com/muster-sched/muster/nomadlike/objectfile"
)

type fmtOptions struct {
	*env
	check, list, write, recursive bool
	changed                       int
}

func newFmt(e *env) *cobra.Command {
	o := &fmtOptions{env: e}
	c := e.verb("fmt [options] [PATH...]", "Format job files and other HCL files",
		`Format HCL files: indent blocks and align attributes, in place. It prints the files that it changes. A PATH is a file or a directory, of
which the files with the endings .hcl and .nomad are formatted; "-" is standard input, formatted to standard output. Without PATH it is this directory.

With -check nothing is written, and the exit code is 1 if a file is not formatted.`, `
muster fmt
muster fmt -recursive jobs/
muster fmt -check example.muster.hcl
muster fmt - < example.muster.hcl`, 0, -1, o.run)
	f := c.Flags()
	f.BoolVar(&o.check, "check", false, "write nothing; exit code 1 if a file is not formatted")
	f.BoolVar(&o.list, "list", true, "print the names of the files that change")
	f.BoolVar(&o.write, "write", true, "write the files; -write=false prints the formatted text instead")
	f.BoolVarP(&o.recursive, "recursive", "r", false, "also the directories below")
	c.ValidArgsFunction = nil // files
	return c
}

func (o *fmtOptions) run(_ context.Context, args []string) error {
	if len(args) == 0 {
		args = []string{"."}
	}
	var errs []error
	for _, arg := range args {
		errs = append(errs, o.path(arg))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if o.check && o.changed > 0 {
		return exitCode(exitError)
	}
	return nil
}

func (o *fmtOptions) path(arg string) error {
	if arg == "-" {
		return o.file(arg, 0)
	}
	st, err := os.Stat(arg)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return o.file(arg, st.Mode())
	}
	var errs []error
	err = filepath.WalkDir(arg, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != arg && (!o.recursive || strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.Type().IsRegular() && (strings.HasSuffix(p, ".hcl") || strings.HasSuffix(p, ".nomad")):
			info, err := d.Info()
			if err != nil {
				return err
			}
			errs = append(errs, o.file(p, info.Mode()))
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// file formats one file. A file that does not parse stays as it is.
func (o *fmtOptions) file(name string, mode fs.FileMode) error {
	src, err := o.readFile(name, jobFileMax)
	if err != nil {
		return err
	}
	shown := name
	if name == "-" {
		shown = "<stdin>"
	}
	if _, diags := hclgate.Parse(shown, src, jobFileMax); diags.HasErrors() {
		return objectfile.Diagnostics(&hcl.File{Bytes: src}, diags)
	}
	text := hclwrite.Format(src)
	same := bytes.Equal(src, text)
	if !same {
		o.changed++
	}
	switch {
	case o.check && (same || !o.list), name != "-" && same && o.write:
		return nil
	case o.check, o.list && o.write && name != "-":
		o.println(shown)
	}
	if o.check {
		return nil
	}
	if name == "-" || !o.write {
		_, err := o.out.Write(text)
		return err
	}
	return replaceFile(name, text, mode)
}

// replaceFile writes a file so that it is never half written, with the mode that it had.
func replaceFile(name string, text []byte, mode fs.FileMode) error {
	real, err := filepath.EvalSymlinks(name) // a link stays one
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(real), ".fmt-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(mode.Perm()), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return os.Rename(f.Name(), real)
}
