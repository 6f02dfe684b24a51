package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBugsFit: every bug and every mutant still fits the tree and compiles. One that does not is adapted to the code that
// has changed.
func TestBugsFit(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	bugs, err := readBugs("bugs")
	if err != nil {
		t.Fatal(err)
	}
	mutants, err := readMutants("mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	if err := check(root, append(bugs, mutants...)); err != nil {
		t.Error(err)
	}
}

// TestPage: the table of bugs is true. `make planted` writes it.
func TestPage(t *testing.T) {
	bugs, err := readBugs("bugs")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	_, in, _, err := split(string(b))
	if err != nil {
		t.Fatal(err)
	}
	if want := table(bugs, nil, in); in != want {
		t.Errorf("the table of DESIGN.md is\n%s\nwant\n%s\nrun `make planted`", in, want)
	}
	for _, b := range bugs {
		if !strings.Contains(in, "| "+b.Name+" |") {
			t.Errorf("bug %s is not in the table", b.Name)
		}
	}
	if strings.Contains(in, "|  |") {
		t.Error("a bug has no seconds: it was never planted; run `make planted`")
	}
}

func TestReadBug(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.bug")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# breaks: A.\n# suite: ./x\n=== new x.go\npackage x\n")
	if _, err := readBugs(dir); err == nil || !strings.Contains(err.Error(), `"# says: ..."`) {
		t.Errorf("a bug without what the test says: %v", err)
	}
	write("# breaks: A.\n# suite: ./x\n# says: no\n=== edit gone.go\n--- find\nold\n--- replace\nnew\n")
	bugs, err := readBugs(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := check(dir, bugs); err == nil || !strings.Contains(err.Error(), "bug x: ") {
		t.Errorf("a bug in a file that does not exist: %v", err)
	}
}
