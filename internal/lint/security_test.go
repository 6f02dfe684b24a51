package lint

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var namedTest = regexp.MustCompile("`([a-z0-9/]+)/(Test\\w+)`")

// The threat model names a test for each boundary. A test that is gone leaves the boundary without a guard: name the one
// that took its place.
func TestBoundariesHaveTests(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/operate/security.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := namedTest.FindAllStringSubmatch(string(page), -1)
	for _, m := range found {
		files, _ := filepath.Glob(filepath.Join(root, m[1], "*_test.go"))
		there := false
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			there = there || strings.Contains(string(text), "func "+m[2]+"(")
		}
		if !there {
			t.Errorf("docs/operate/security.md names %s/%s, which does not exist", m[1], m[2])
		}
	}
	if len(found) < 30 {
		t.Errorf("the threat model names only %d tests: did its layout change?", len(found))
	}
}

// The parser of HCL overflows the stack on deep input, which ends the process. Only packages that gate what they parse
// call it.
func TestDeepFilesAreRefused(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || in(s.dir, "internal/hclgate", "internal/agentconfig", "nomadlike/jobspec", "server/acl") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "ParseConfig" {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "hclsyntax" {
					t.Errorf("%s: hclsyntax.ParseConfig. Use hclgate.Parse", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}
