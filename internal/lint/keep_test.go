package lint

import (
	"go/ast"
	"os"
	"path/filepath"
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
