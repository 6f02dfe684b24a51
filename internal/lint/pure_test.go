package lint

import (
	"go/ast"
	"go/token"
	"go/types"
	"path"
	"strings"
	"testing"
)

// clockFuncs read or wait for the clock.
var clockFuncs = map[string]bool{"Now": true, "Since": true, "Until": true, "After": true, "AfterFunc": true, "Sleep": true,
	"Tick": true, "NewTimer": true, "NewTicker": true}

// mathFuncs differ between processors in the last bit, with and without fused multiply-add.
var mathFuncs = map[string]bool{"Exp": true, "Exp2": true, "Expm1": true, "Pow": true, "Pow10": true, "Log": true, "Log2": true,
	"Log10": true, "Log1p": true, "FMA": true, "Sin": true, "Cos": true, "Tan": true}

// TestPureCode keeps clock, goroutines and floating point out of what must give equal bytes everywhere.
func TestPureCode(t *testing.T) {
	for _, r := range []string{"clock", "goroutine", "float", "math"} {
		ran[r] = true
	}
	for _, s := range sources(t) {
		if s.test || !in(s.dir, pure...) {
			continue
		}
		for _, d := range s.file.Decls {
			where := s.name
			if f, ok := d.(*ast.FuncDecl); ok {
				where = s.name + ":" + f.Name.Name
			}
			bad := func(n ast.Node, rule, what, instead string) {
				if !silenced(rule, s.name, where) {
					t.Errorf("%s: %s in %s. %s", fset.Position(n.Pos()), what, s.dir, instead)
				}
			}
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					bad(n, "goroutine", "a goroutine", "Decisions and Apply run on the caller's; concurrency belongs to the shell around them (package server)")
				case *ast.SelectorExpr:
					x, ok := n.X.(*ast.Ident)
					if !ok {
						return true
					}
					switch {
					case x.Name == "time" && clockFuncs[n.Sel.Name]:
						bad(n, "clock", "time."+n.Sel.Name, "Take now (structs.LogTime) as an argument: time is fixed before the log (D11)")
					case x.Name == "math" && mathFuncs[n.Sel.Name] && in(s.dir, "fsm/...", "scheduler/queue"):
						bad(n, "math", "math."+n.Sel.Name, "Use an integer table (D10): its last bit differs between processors")
					}
				case *ast.Ident:
					if n.Name == "float64" || n.Name == "float32" {
						bad(n, "float", n.Name, "State and comparisons are int64 in fixed point (D10); a score term that needs more names its file in exceptions.go")
					}
				case *ast.BasicLit:
					if n.Kind == token.FLOAT && (strings.ContainsAny(n.Value, ".pP") || strings.Contains(n.Value, "e-")) {
						bad(n, "float", "the constant "+n.Value, "State and comparisons are int64 in fixed point (D10); a score term that needs more names its file in exceptions.go")
					}
				}
				return true
			})
		}
	}
}

// TestNoFloatInState keeps floating point out of everything that is stored or sent through the log.
func TestNoFloatInState(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || s.dir != "structs" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			st, ok := n.(*ast.StructType)
			if !ok {
				return true
			}
			for _, f := range st.Fields.List {
				ast.Inspect(f.Type, func(x ast.Node) bool {
					if id, ok := x.(*ast.Ident); ok && strings.HasPrefix(id.Name, "float") {
						t.Errorf("%s: a field of type %s. Keep millionths in an int64, as Attribute and ScoreTerm do (D10)", fset.Position(f.Pos()), id.Name)
					}
					return true
				})
			}
			return true
		})
	}
}

// TestMapOrder finds loops over maps whose order could reach an output. A loop is accepted when its function sorts, or
// when its body cannot tell an order: it only deletes, counts, sets a key of another map, or looks for whether something
// exists.
func TestMapOrder(t *testing.T) {
	ran["map-order"] = true
	all := sources(t)
	c := newChecker(all)
	loops := 0
	for _, s := range all {
		if s.test || tagged(s) || !in(s.dir, pure...) {
			continue
		}
		c.Import(module + s.dir)
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			sorts := callsSort(f.Body)
			ast.Inspect(f.Body, func(n ast.Node) bool {
				r, ok := n.(*ast.RangeStmt)
				if !ok || !c.isMap(r.X) {
					return true
				}
				loops++
				if !sorts && !orderless(r.Body) && !silenced("map-order", s.name+":"+f.Name.Name) {
					t.Errorf("%s: %s ranges over a map and does not sort. The order differs from run to run, and with it the plan or the state; collect the keys, sort them, then loop; or say in exceptions.go why no order can get out", fset.Position(r.Pos()), f.Name.Name)
				}
				return true
			})
		}
	}
	if loops < 5 {
		t.Errorf("only %d loops over maps were found: the rule sees too little", loops)
	}
	t.Logf("%d loops over maps", loops)
}

// checker gives types to the module's own packages. What they import from elsewhere stays unknown, which is fine: the
// maps in question are our own.
type checker struct {
	files map[string][]*source // without tests
	done  map[string]*types.Package
	info  *types.Info
}

func (c *checker) Import(p string) (*types.Package, error) {
	dir, own := strings.CutPrefix(p, module)
	if !own {
		pkg := types.NewPackage(p, path.Base(p))
		pkg.MarkComplete()
		return pkg, nil
	}
	if pkg := c.done[dir]; pkg != nil {
		return pkg, nil
	}
	var files []*ast.File
	for _, s := range c.files[dir] {
		files = append(files, s.file)
	}
	conf := types.Config{Importer: c, Error: func(error) {}}
	pkg, _ := conf.Check(p, fset, files, c.info) // errors are about what is unknown
	c.done[dir] = pkg
	return pkg, nil
}

func newChecker(all []*source) *checker {
	c := &checker{files: map[string][]*source{}, done: map[string]*types.Package{}, info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}}
	for _, s := range all {
		if !s.test && !tagged(s) {
			c.files[s.dir] = append(c.files[s.dir], s)
		}
	}
	return c
}

// tagged reports whether a file is left out of an ordinary build.
func tagged(s *source) bool {
	for _, g := range s.file.Comments {
		if g.Pos() > s.file.Package {
			return false
		}
		for _, l := range g.List {
			if strings.HasPrefix(l.Text, "//go:build ") && !strings.HasPrefix(l.Text, "//go:build !") {
				return true
			}
		}
	}
	return false
}

func (c *checker) isMap(e ast.Expr) bool {
	t := c.info.Types[e].Type
	if t == nil {
		return false
	}
	_, ok := t.Underlying().(*types.Map)
	return ok
}

func callsSort(body ast.Node) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		c, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if sel, ok := c.Fun.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && (x.Name == "sort" || x.Name == "slices" && strings.HasPrefix(sel.Sel.Name, "Sort")) {
				found = true
			}
		}
		return !found
	})
	return found
}

// orderless reports whether a loop's body does the same whatever the order: deletes, writes of a map's key, counting,
// and flags, behind conditions.
func orderless(b *ast.BlockStmt) bool {
	for _, st := range b.List {
		if !orderlessStmt(st) {
			return false
		}
	}
	return true
}

func orderlessStmt(st ast.Stmt) bool {
	switch st := st.(type) {
	case *ast.IncDecStmt, *ast.BranchStmt, *ast.EmptyStmt:
		return true
	case *ast.ExprStmt:
		c, ok := st.X.(*ast.CallExpr)
		if !ok {
			return false
		}
		id, ok := c.Fun.(*ast.Ident)
		return ok && id.Name == "delete"
	case *ast.AssignStmt:
		if st.Tok == token.DEFINE || st.Tok == token.ADD_ASSIGN || st.Tok == token.XOR_ASSIGN || st.Tok == token.OR_ASSIGN {
			return true
		}
		for i, l := range st.Lhs {
			if _, ok := l.(*ast.IndexExpr); ok {
				continue // a key of another map
			}
			if i < len(st.Rhs) && commutes(st.Rhs[i]) {
				continue
			}
			return false
		}
		return true
	case *ast.IfStmt:
		ok := orderless(st.Body)
		if st.Else != nil {
			ok = ok && orderlessStmt(st.Else)
		}
		return ok
	case *ast.BlockStmt:
		return orderless(st)
	case *ast.RangeStmt:
		return orderless(st.Body)
	case *ast.ForStmt:
		return orderless(st.Body)
	case *ast.ReturnStmt:
		for _, r := range st.Results { // "is there one?"
			if id, ok := r.(*ast.Ident); !ok || id.Name != "true" && id.Name != "false" && id.Name != "nil" {
				return false
			}
		}
		return true
	}
	return false
}

// commutes reports whether an assigned value does not depend on which iteration comes last.
func commutes(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == "true" || e.Name == "false"
	case *ast.BinaryExpr:
		return e.Op == token.LOR || e.Op == token.LAND || e.Op == token.ADD
	case *ast.CallExpr:
		id, ok := e.Fun.(*ast.Ident)
		return ok && (id.Name == "max" || id.Name == "min")
	}
	return false
}
