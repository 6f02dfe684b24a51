// Package overlay builds the binary from the tree with changes that are not in it: what a later release might add, or a bug
// that a test must find. It uses `go build -overlay`, so the tree stays as it is.
//
// A change is a text file:
//
//	=== edit fsm/commands.go
//	--- find
//	var commands = tableOf(
//	--- replace
//	var commands = tableOf(
//		command(120, applyProbe),
//	=== new structs/probe.go
//	package structs
//
// A text to find must occur exactly once, so a change that no longer fits the tree fails with a sentence. An edit may have
// several pairs of find and replace. `{{name}}` stands for a variable.
package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Change is what differs from the tree, by path below its root.
type Change struct{ files []*file }

type file struct {
	path  string
	text  string // of a new file, or of a whole one
	whole bool   // text stands in the place of what the tree has
	pairs []pair // of an edit
}

type pair struct{ find, replace string }

// Read reads a change and fills in its variables.
func Read(path string, vars map[string]string) (*Change, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	text := string(b)
	for name, v := range vars {
		text = strings.ReplaceAll(text, "{{"+name+"}}", v)
	}
	c, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Edit returns a change of one text in one file.
func Edit(path, find, replace string) *Change {
	return &Change{files: []*file{{path: path, pairs: []pair{{find, replace}}}}}
}

// Files returns a change of whole files, given by path below the root with their text. The tree may have them.
func Files(texts map[string]string) *Change {
	c := &Change{}
	for _, path := range slices.Sorted(maps.Keys(texts)) {
		c.files = append(c.files, &file{path: path, text: texts[path], whole: true})
	}
	return c
}

func parse(text string) (*Change, error) {
	c := &Change{}
	var at *file
	var to *string // receives lines
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		edit, isEdit := strings.CutPrefix(line, "=== edit ")
		created, isNew := strings.CutPrefix(line, "=== new ")
		switch {
		case isEdit || isNew:
			at, to = &file{path: edit}, nil
			if isNew {
				at.path, to = created, &at.text
			}
			c.files = append(c.files, at)
		case line == "--- find" && at != nil && at.text == "":
			at.pairs = append(at.pairs, pair{})
			to = &at.pairs[len(at.pairs)-1].find
		case line == "--- replace" && at != nil && len(at.pairs) > 0:
			to = &at.pairs[len(at.pairs)-1].replace
		case to != nil:
			*to += line + "\n"
		case strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#"):
			return nil, fmt.Errorf("line %d belongs to no file: %q", i+1, line)
		}
	}
	if len(c.files) == 0 {
		return nil, errors.New("it changes no file")
	}
	return c, nil
}

// apply returns the new text of a file of the tree at root.
func (f *file) apply(root string) (string, error) {
	path := filepath.Join(root, f.path)
	if len(f.pairs) == 0 {
		if _, err := os.Stat(path); err == nil && !f.whole {
			return "", fmt.Errorf("%s is new in the change, but the tree has it", f.path)
		}
		return f.text, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	text := string(b)
	for _, p := range f.pairs {
		find, replace := strings.TrimSuffix(p.find, "\n"), strings.TrimSuffix(p.replace, "\n")
		if n := strings.Count(text, find); n != 1 || find == "" {
			return "", fmt.Errorf("%s has the text to replace %d times, not once; adapt the change to the tree: %q", f.path, n, find)
		}
		text = strings.Replace(text, find, replace, 1)
	}
	return text, nil
}

// Texts returns the changed files by path below root, with their new text.
func (c *Change) Texts(root string) (map[string]string, error) {
	texts := map[string]string{}
	for _, f := range c.files {
		text, err := f.apply(root)
		if err != nil {
			return nil, err
		}
		texts[f.path] = text
	}
	return texts, nil
}

// Write writes the changed files to dir and returns the path of the file for `go build -overlay`.
func (c *Change) Write(root, dir string) (string, error) {
	texts, err := c.Texts(root)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for path, text := range texts {
		to := filepath.Join(dir, strings.ReplaceAll(path, "/", "-"))
		if err := os.WriteFile(to, []byte(text), 0o644); err != nil {
			return "", err
		}
		replace[filepath.Join(root, path)] = to
	}
	b, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "\t")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, b, 0o644)
}

// Build builds package pkg ("./cmd/muster") of the tree at root, with the change (nil: without), into the file out, without
// debug information, which halves the time to link. dir is an empty directory for the changed files.
func Build(root, pkg, out, dir string, c *Change) error {
	args := []string{"build", "-trimpath", "-ldflags", "-s -w", "-o", out}
	if c != nil {
		path, err := c.Write(root, dir)
		if err != nil {
			return err
		}
		args = append(args, "-overlay", path)
	}
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Dir = root
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args, " "), root, err, b)
	}
	return nil
}
