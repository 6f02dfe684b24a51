package lint

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fuzzTargetsMin is how many fuzz targets there are at least. It may only rise.
const fuzzTargetsMin = 40

// TestFuzzCorpora checks that every fuzz target has a kept corpus, from which each run of `make fuzz` starts and which
// plain tests replay.
func TestFuzzCorpora(t *testing.T) {
	targets := 0
	for _, s := range sources(t) {
		if !s.test {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Fuzz") {
				continue
			}
			targets++
			kept := filepath.Join(root, s.dir, "testdata", "fuzz", f.Name.Name)
			if files, err := os.ReadDir(kept); err != nil || len(files) == 0 {
				t.Errorf("%s: %s has no kept corpus; make one with `KEEP=16 TIME=1m scripts/fuzz %s`", s.name, f.Name.Name, f.Name.Name)
			}
		}
	}
	if targets < fuzzTargetsMin {
		t.Errorf("%d fuzz targets; there were %d", targets, fuzzTargetsMin)
	}
}

// TestLeakChecks checks that the tests of a package whose code starts goroutines end them.
func TestLeakChecks(t *testing.T) {
	ran["leak"] = true
	starts, checked := map[string]string{}, map[string]bool{}
	for _, s := range sources(t) {
		if s.test && strings.Contains(string(s.text), "goleak.VerifyTestMain(") {
			checked[s.dir] = true
		}
		if s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, _ := n.(*ast.CallExpr)
			_, found := n.(*ast.GoStmt)
			if call != nil && len(call.Args) == 1 { // as that of sync.WaitGroup and errgroup.Group
				f, ok := call.Fun.(*ast.SelectorExpr)
				found = ok && f.Sel.Name == "Go"
			}
			if found && starts[s.dir] == "" {
				starts[s.dir] = fset.Position(n.Pos()).String()
			}
			return true
		})
	}
	for dir, at := range starts {
		if !checked[dir] && !strings.HasPrefix(dir, "e2e/") && !silenced("leak", dir) {
			t.Errorf("package %s starts a goroutine (%s), and no test of it checks that all end: write func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }", dir, at)
		}
	}
}

// TestEndToEndTestsRun: each test below e2e is run by a target of the makefile. A target whose -run leaves it out runs it nowhere.
func TestEndToEndTestsRun(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "GNUmakefile"))
	if err != nil {
		t.Fatal(err)
	}
	runs, all := map[string][]*regexp.Regexp{}, map[string]bool{}
	for line := range strings.Lines(string(text)) {
		for _, m := range regexp.MustCompile(`\./(e2e/\w+)\b`).FindAllStringSubmatch(line, -1) {
			if r := regexp.MustCompile(`-run '?([^' ]+)'?`).FindStringSubmatch(line); strings.Contains(line, "$(GO) test") && r != nil {
				runs[m[1]] = append(runs[m[1]], regexp.MustCompile(r[1]))
			} else if strings.Contains(line, "$(GO) test") {
				all[m[1]] = true
			}
		}
	}
	found := 0
	for _, s := range sources(t) {
		if !s.test || !strings.HasPrefix(s.dir, "e2e/") || !strings.Contains(string(s.text), "//go:build e2e\n") {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") || f.Name.Name == "TestMain" {
				continue
			}
			found++
			if !all[s.dir] && !slices.ContainsFunc(runs[s.dir], func(r *regexp.Regexp) bool { return r.MatchString(f.Name.Name) }) {
				t.Errorf("%s: no target of the makefile runs %s: its package is not named, or -run leaves it out", s.name, f.Name.Name)
			}
		}
	}
	if found < 60 {
		t.Errorf("only %d end-to-end tests were found: did their layout change?", found)
	}
}
