package lint

import (
	"go/ast"
	"go/token"
	"slices"
	"testing"
)

// readers are functions of package strings that take a sentence apart.
var readers = []string{"HasPrefix", "HasSuffix", "Cut", "CutPrefix", "CutSuffix", "Contains", "Fields", "Split", "SplitN", "Index", "TrimPrefix", "TrimSuffix", "EqualFold"}

// TestNobodyReadsRefusals keeps code from parsing the sentences of refusals, and dimensions from becoming strings again.
func TestNobodyReadsRefusals(t *testing.T) {
	sentence := func(e ast.Expr) bool {
		c, ok := e.(*ast.CallExpr)
		if !ok || len(c.Args) > 0 {
			return false
		}
		s, ok := c.Fun.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		if x, ok := s.X.(*ast.Ident); ok && x.Name == "sc" { // a bufio.Scanner
			return false
		}
		return slices.Contains([]string{"Text", "What", "Limit", "Hint"}, s.Sel.Name)
	}
	literal := func(e ast.Expr) bool {
		l, ok := e.(*ast.BasicLit)
		return ok && l.Value != `""`
	}
	for _, s := range sources(t) {
		if s.test || !in(s.dir, "structs", "scheduler/...", "server/...", "fsm/...", "sim", "nomadlike/...", "cmd/muster") {
			continue
		}
		bad := func(at token.Pos) {
			t.Errorf("%s reads the sentence of a refusal: compare its dimension, holder, subject or reason code", fset.Position(at))
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				f, ok := n.Fun.(*ast.SelectorExpr)
				if !ok || len(n.Args) == 0 || !slices.Contains(readers, f.Sel.Name) {
					break
				}
				if pkg, ok := f.X.(*ast.Ident); ok && pkg.Name == "strings" && sentence(n.Args[0]) {
					bad(n.Pos())
				}
			case *ast.BinaryExpr:
				if (n.Op == token.EQL || n.Op == token.NEQ) && (sentence(n.X) && literal(n.Y) || literal(n.X) && sentence(n.Y)) {
					bad(n.Pos())
				}
			case *ast.SwitchStmt:
				if n.Tag != nil && sentence(n.Tag) {
					bad(n.Pos())
				}
			case *ast.Field:
				for _, name := range n.Names {
					if typ, ok := n.Type.(*ast.Ident); ok && typ.Name == "string" && (name.Name == "Dimension" || name.Name == "dimension") {
						t.Errorf("%s: a dimension is a structs.Dimension", fset.Position(n.Pos()))
					}
				}
			}
			return true
		})
	}
}
