package fsm

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/golden"
)

// TestConstants lists the constants that Apply can see: those of this package and of state, and those of structs that
// either uses, also through functions of structs (by name, so some are listed that no entry reaches). If one of them decides what an entry does, servers of two releases with different values diverge. So a
// changed value needs a gate: keep the old constant for the old formats.
func TestConstants(t *testing.T) {
	used := map[string]bool{}
	var lines []string
	for _, dir := range []string{".", "state"} {
		for _, f := range sources(t, dir) {
			lines = append(lines, constants(f, filepath.Join("fsm", dir), nil)...)
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					used[s.Sel.Name] = true
				}
				return true
			})
		}
	}
	mentions := map[string][]string{} // by name of a function or method
	for _, f := range sources(t, "../structs") {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				ast.Inspect(fn, func(n ast.Node) bool {
					if id, ok := n.(*ast.Ident); ok {
						mentions[fn.Name.Name] = append(mentions[fn.Name.Name], id.Name)
					}
					return true
				})
			}
		}
	}
	for todo := slices.Collect(maps.Keys(used)); len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		for _, m := range mentions[name] {
			if !used[m] {
				used[m] = true
				todo = append(todo, m)
			}
		}
	}
	for _, f := range sources(t, "../structs") {
		lines = append(lines, constants(f, "structs", used)...)
	}
	slices.Sort(lines)
	golden.Compare(t, file(feature.Newest, "constants.txt"), []byte(strings.Join(lines, "\n")+"\n"), *update)
}

func sources(t *testing.T, dir string) (out []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
	}
	return out
}

// constants lists the constants that a file declares, as written; with wanted, only those.
func constants(f *ast.File, pkg string, wanted map[string]bool) (out []string) {
	for _, d := range f.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.CONST {
			continue
		}
		for _, s := range decl.Specs {
			spec := s.(*ast.ValueSpec)
			for i, name := range spec.Names {
				if wanted != nil && !wanted[name.Name] {
					continue
				}
				var value bytes.Buffer
				if i < len(spec.Values) {
					_ = printer.Fprint(&value, token.NewFileSet(), spec.Values[i])
				}
				out = append(out, fmt.Sprintf("%s.%s = %s", pkg, name.Name, value.String()))
			}
		}
	}
	return out
}
