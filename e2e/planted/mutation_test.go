package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const mutable = `package p

import "fmt"

func Small(a, b int, on bool) bool {
	n := 0
	n = a
	if on && n < b || n == 7 {
		return true
	}
	return false
}

func Text(a int) bool { return fmt.Sprintf("%d%%", a) == "7%" }
`

// TestMutations: the rules find each change once, and what is written compiles and does what the change says.
func TestMutations(t *testing.T) {
	root := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("go.mod", "module github.com/muster-sched/muster\n\ngo 1.26\n")
	put("p/p.go", mutable)
	put("main.go", "package main\n\nimport \"github.com/muster-sched/muster/p\"\n\nfunc main() { print(p.Small(1, 1, true), p.Small(0, 1, false), p.Small(0, 1, true), p.Small(7, 1, true), p.Text(7)) }\n")
	ms, err := allMutations(root, []string{"p"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{ // what main prints with each; without any: false false true true true
		"n = a -> (left out)", "truefalsetruetruetrue",
		"on && n < b || n == 7 -> without its first operand", "falsefalsefalsetruetrue",
		"on && n < b -> without its first operand", "falsetruetruetruetrue",
		"n < b -> n <= b", "truefalsetruetruetrue",
		"n == 7 -> n != 7", "truetruetruefalsetrue",
		"return true -> the contrary", "falsefalsefalsefalsetrue",
		"return false -> the contrary", "truetruetruetruetrue",
		`fmt.Sprintf("%d%%", a) == "7%" -> fmt.Sprintf("%d%%", a) != "7%"`, "falsefalsetruetruefalse",
	}
	for range 2 { // in the order of the source, and the other way round: a sample is in any order
		slices.Reverse(ms)
		var changes []string
		for _, m := range ms {
			changes = append(changes, m.Change)
		}
		dir := t.TempDir()
		change, err := instrument(root, ms)
		if err != nil {
			t.Fatal(err)
		}
		file, err := change.Write(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		bin := filepath.Join(dir, "p")
		build := exec.Command("go", "build", "-overlay", file, "-o", bin, ".")
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		prints := func(id string) string {
			cmd := exec.Command(bin)
			cmd.Env = append(os.Environ(), "MUSTER_MUTANT="+id)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatal(err)
			}
			return string(out)
		}
		if got := prints("0"); got != "falsefalsetruetruetrue" {
			t.Errorf("without a mutation: %s", got)
		}
		if len(changes)*2 != len(want) {
			t.Fatalf("%d mutations, want %d:\n%s", len(changes), len(want)/2, strings.Join(changes, "\n"))
		}
		for i, c := range changes {
			at := -1
			for k := 0; k < len(want); k += 2 {
				if want[k] == c {
					at = k
				}
			}
			if at < 0 {
				t.Errorf("%q is not wanted", c)
				continue
			}
			if got := prints(string(rune('1' + i))); got != want[at+1] {
				t.Errorf("with %q: %s, want %s", c, got, want[at+1])
			}
		}
	}
}

// TestMutationsFit: the code still has what each row of the table changes.
func TestMutationsFit(t *testing.T) {
	t.Chdir("../..")
	rows, err := readRows(scoreFile)
	if err != nil || len(rows) < 150 {
		t.Fatalf("%d rows, want 150 or more: %v", len(rows), err)
	}
	var pkgs []string
	for _, m := range mutated {
		pkgs = append(pkgs, m.pkg)
	}
	all, err := allMutations(".", pkgs)
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, m := range all {
		has[m.key()] = true
	}
	for _, r := range rows {
		if !has[r.key] {
			t.Errorf("no longer in the code, put another one in its place (make mutations PER=1 CHANGED=REVISION does): %s", r.key)
		}
		if r.by == survives && r.note == "" {
			t.Errorf("nothing finds this, and it does not say why: %s", r.key)
		}
	}
}
