package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/muster-sched/muster/e2e/overlay"
)

// Bug is a change that breaks the tree, and the tests that must find it.
type Bug struct {
	Name   string // of the file
	Breaks string // one sentence
	Suite  string // arguments of `go test`
	Says   string // part of the output of the test that finds it, so that a failure for another reason does not count
	change *overlay.Change
}

const bugExt = ".bug"

// readBugs reads the bugs in a directory, sorted by name.
func readBugs(dir string) ([]*Bug, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"+bugExt))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(fmt.Errorf("%s has no bugs", dir), err)
	}
	var bugs []*Bug
	for _, f := range files {
		b, err := readBug(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		bugs = append(bugs, b)
	}
	return bugs, nil
}

// readBug reads a bug: comments with its fields, then the change as package overlay describes it.
func readBug(file string) (*Bug, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	b := &Bug{Name: strings.TrimSuffix(filepath.Base(file), bugExt)}
	fields := []struct {
		name string
		to   *string
	}{{"breaks", &b.Breaks}, {"suite", &b.Suite}, {"says", &b.Says}}
	for line := range strings.Lines(string(text)) {
		for _, f := range fields {
			if v, ok := strings.CutPrefix(line, "# "+f.name+": "); ok && *f.to == "" {
				*f.to = strings.TrimSpace(v)
			}
		}
	}
	for _, f := range fields {
		if *f.to == "" {
			return nil, fmt.Errorf("it lacks the line %q", "# "+f.name+": ...")
		}
	}
	b.change, err = overlay.Read(file, nil)
	return b, err
}

// endToEnd reports whether the suite runs real processes.
func (b *Bug) endToEnd() bool { return strings.Contains(b.Suite, "./e2e/") }

// check type-checks the packages that bugs change, each bug alone. It compiles nothing but the packages that they import.
func check(root string, bugs []*Bug) error {
	var pkgs []string
	texts := map[*Bug]map[string]string{}
	var errs []error
	for _, b := range bugs {
		changed, err := b.change.Texts(root)
		if err != nil {
			errs = append(errs, fmt.Errorf("bug %s: %w", b.Name, err))
			continue
		}
		texts[b] = changed
		for file := range changed {
			pkgs = append(pkgs, "./"+path.Dir(file))
		}
	}
	slices.Sort(pkgs)
	ex, err := exportsOf(root, slices.Compact(pkgs))
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, b := range bugs {
		dirs := map[string]bool{}
		for file := range texts[b] {
			dirs["./"+path.Dir(file)] = true
		}
		for dir := range dirs {
			if err := ex.check(dir, texts[b]); err != nil {
				errs = append(errs, fmt.Errorf("bug %s does not compile: %w", b.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// exports are the compiled interfaces of packages, and the files of those that are checked.
type exports struct {
	root  string
	of    map[string]string   // the file of a package's interface, by import path
	files map[string][]string // names below root, by directory
	fset  *token.FileSet
	from  types.Importer
}

func exportsOf(root string, pkgs []string) (*exports, error) {
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", `{{.ImportPath}}|{{.Export}}|{{.Dir}}|{{join .GoFiles "|"}}`}, pkgs...)...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	x := &exports{root: root, of: map[string]string{}, files: map[string][]string{}, fset: token.NewFileSet()}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), "|")
		x.of[f[0]] = f[1]
		if dir, err := filepath.Rel(root, f[2]); err == nil && !strings.HasPrefix(dir, "..") {
			for _, name := range f[3:] {
				x.files["./"+dir] = append(x.files["./"+dir], path.Join(dir, name))
			}
		}
	}
	x.from = importer.ForCompiler(x.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(x.of[path]) })
	return x, nil
}

// check type-checks the package in a directory with changed texts.
func (x *exports) check(dir string, texts map[string]string) error {
	names := slices.Clone(x.files[dir])
	for file := range texts {
		if "./"+path.Dir(file) == dir && !slices.Contains(names, file) {
			names = append(names, file)
		}
	}
	var files []*ast.File
	for _, name := range names {
		var src any
		if text, ok := texts[name]; ok {
			src = text
		}
		f, err := parser.ParseFile(x.fset, filepath.Join(x.root, name), src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	_, err := (&types.Config{Importer: x.from}).Check(dir, x.fset, files, nil)
	return err
}
