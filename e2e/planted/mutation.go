package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/e2e/overlay"
)

// Mutations are small changes of code, made by rule: a comparison turned or off by one, an operand of a condition dropped, a
// statement left out, a constant answer turned. All of them are compiled into the test binaries at once, each behind a
// comparison with a number, and the environment chooses one for each run (mutant schemata: Untch, Offutt, Harrold, "Mutation
// Analysis Using Mutant Schemata", ISSTA 1993). A run then costs no build.

// mutation is one change.
type mutation struct {
	File   string // below the root
	Func   string // "Recv.Name" or "Name"
	Change string // "old text -> new text"
	Nth    int    // of the same change in the function, from 1
	edits  []edit
}

// key identifies a mutation as long as its function has the same change as often before it.
func (m *mutation) key() string {
	return m.File + "\t" + m.Func + "\t" + m.Change + "\t" + strconv.Itoa(m.Nth)
}

// here stands for the number of the mutation in the text of an edit. No source has it.
const here = "\x00"

// edit replaces a part of a file.
type edit struct {
	from, to int
	text     string
}

var turned = map[token.Token]token.Token{token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR, token.EQL: token.NEQ, token.NEQ: token.EQL}

// mutationsOf returns the possible mutations of a file, in order.
func mutationsOf(root, file string) ([]*mutation, error) {
	src, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	at := func(p token.Pos) int { return fset.Position(p).Offset }
	text := func(n ast.Node) string { return string(src[at(n.Pos()):at(n.End())]) }
	var out []*mutation
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		name, seen := funcName(fn), map[string]int{}
		var ends []ast.Expr
		add := func(change string, edits ...edit) {
			change = strings.Join(strings.Fields(change), " ")
			seen[change]++
			out = append(out, &mutation{File: file, Func: name, Change: change, Nth: seen[change], edits: edits})
		}
		statement := func(list []ast.Stmt) {
			for _, s := range list {
				if leftOut(s) {
					add(text(s)+" -> (left out)", edit{at(s.Pos()), at(s.Pos()), "if !mutant.On(" + here + ") { "}, edit{at(s.End()), at(s.End()), " }"})
				}
			}
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BlockStmt:
				statement(n.List)
			case *ast.CaseClause:
				statement(n.Body)
			case *ast.ForStmt:
				ends = append(ends, n.Cond) // a loop that runs over its end fails at once in any test
			case *ast.ReturnStmt:
				if len(n.Results) == 1 {
					if id, ok := n.Results[0].(*ast.Ident); ok && isBool(fn, n) && (id.Name == "true" || id.Name == "false") {
						not := map[string]string{"true": "!", "false": ""}[id.Name]
						add("return "+id.Name+" -> the contrary", edit{at(id.Pos()), at(id.End()), not + "mutant.On(" + here + ")"})
					}
				}
			case *ast.BinaryExpr:
				if slices.Contains(ends, ast.Expr(n)) {
					return false
				}
				switch to, compares := turned[n.Op]; {
				case n.Op == token.LAND && !isNil(n.X):
					add(text(n)+" -> without its first operand", edit{at(n.X.Pos()), at(n.X.Pos()), "(mutant.On(" + here + ") || ("}, edit{at(n.X.End()), at(n.X.End()), "))"})
				case n.Op == token.LOR && !isNil(n.X):
					add(text(n)+" -> without its first operand", edit{at(n.X.Pos()), at(n.X.Pos()), "(!mutant.On(" + here + ") && ("}, edit{at(n.X.End()), at(n.X.End()), "))"})
				case compares && !isNil(n) && !hasFunc(n):
					x, y := text(n.X), text(n.Y)
					now, then := x+" "+n.Op.String()+" "+y, x+" "+to.String()+" "+y
					add(now+" -> "+then, edit{at(n.Pos()), at(n.End()), "(mutant.On(" + here + ") && (" + then + ") || !mutant.On(" + here + ") && (" + now + "))"})
					return false
				}
			}
			return true
		})
	}
	return out, nil
}

func funcName(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return fn.Name.Name
	}
	t := fn.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
			continue
		case *ast.IndexExpr:
			t = x.X
			continue
		case *ast.Ident:
			return x.Name + "." + fn.Name.Name
		}
		return fn.Name.Name
	}
}

// leftOut reports whether the function compiles without the statement.
func leftOut(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.IncDecStmt:
		return true
	case *ast.AssignStmt:
		if id, ok := s.Lhs[0].(*ast.Ident); ok && id.Name == "_" {
			return false
		}
		return s.Tok != token.DEFINE
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		if !ok {
			return false
		}
		id, ok := call.Fun.(*ast.Ident)
		return !ok || id.Name != "panic"
	}
	return false
}

// isNil reports whether an expression compares with nil: without it, what follows fails at once in any test.
func isNil(n ast.Expr) bool {
	b, ok := ast.Unparen(n).(*ast.BinaryExpr)
	if !ok {
		return false
	}
	id, ok := b.Y.(*ast.Ident)
	return ok && id.Name == "nil"
}

func hasFunc(n ast.Node) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		_, is := n.(*ast.FuncLit)
		found = found || is
		return !found
	})
	return found
}

// isBool reports whether a return statement is the function's own, not that of a literal in it, and its only result is a bool.
func isBool(fn *ast.FuncDecl, ret *ast.ReturnStmt) bool {
	r := fn.Type.Results
	if r == nil || len(r.List) != 1 || len(r.List[0].Names) > 1 {
		return false
	}
	if id, ok := r.List[0].Type.(*ast.Ident); !ok || id.Name != "bool" {
		return false
	}
	own := true
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if l, ok := n.(*ast.FuncLit); ok && l.Pos() <= ret.Pos() && ret.End() <= l.End() {
			own = false
		}
		return own
	})
	return own
}

// allMutations returns the possible mutations of packages, by file and place.
func allMutations(root string, pkgs []string) ([]*mutation, error) {
	var all []*mutation
	for _, pkg := range pkgs {
		files, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
		if err != nil || len(files) == 0 {
			return nil, errors.Join(fmt.Errorf("package %s has no files", pkg), err)
		}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			rel, err := filepath.Rel(root, f)
			if err != nil {
				return nil, err
			}
			ms, err := mutationsOf(root, filepath.ToSlash(rel))
			if err != nil {
				return nil, err
			}
			all = append(all, ms...)
		}
	}
	return all, nil
}

// drawn returns n mutations of each package, in order.
func drawn(all []*mutation, n int, seed uint64) (out []*mutation) {
	by := map[string][]*mutation{}
	for _, m := range all {
		by[filepath.Dir(m.File)] = append(by[filepath.Dir(m.File)], m)
	}
	for _, pkg := range slices.Sorted(maps.Keys(by)) {
		ms := by[pkg]
		rnd := rand.New(rand.NewPCG(seed, uint64(len(pkg))))
		picks := rnd.Perm(len(ms))[:min(n, len(ms))]
		slices.Sort(picks)
		for _, i := range picks {
			out = append(out, ms[i])
		}
	}
	return out
}

const (
	mutantPackage = "internal/mutant"
	mutantEnv     = "MUSTER_MUTANT" // the number of the mutation that is on
)

// instrument returns the files with mutations 1 to len(ms) in them.
func instrument(root string, ms []*mutation) (*overlay.Change, error) {
	type numbered struct {
		edit
		id  int
		end int // of the whole mutation
	}
	files := map[string][]numbered{}
	for i, m := range ms {
		for _, e := range m.edits {
			files[m.File] = append(files[m.File], numbered{e, i + 1, m.edits[len(m.edits)-1].to})
		}
	}
	texts := map[string]string{mutantPackage + "/mutant.go": `package mutant

import (
	"os"
	"strconv"
)

var on, _ = strconv.Atoi(os.Getenv("` + mutantEnv + `"))

func On(id int) bool { return id == on }
`}
	for name, edits := range files { // into a map, so the order does not matter
		src, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		// Of two mutations that begin at one place, the one that ends later holds the other, and begins first.
		slices.SortStableFunc(edits, func(a, b numbered) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.end, a.end)) })
		var out []byte
		last := 0
		for _, e := range edits {
			if e.from < last {
				return nil, fmt.Errorf("%s: mutation %d, %q, lies in another", name, e.id, ms[e.id-1].Change)
			}
			out = append(out, src[last:e.from]...)
			out = append(out, strings.ReplaceAll(e.text, here, strconv.Itoa(e.id))...)
			last = e.to
		}
		out = append(out, src[last:]...)
		f, err := parser.ParseFile(token.NewFileSet(), name, out, parser.PackageClauseOnly)
		if err != nil {
			return nil, err
		}
		end := int(f.Name.End()) - 1
		texts[name] = string(out[:end]) + "; import \"github.com/muster-sched/muster/" + mutantPackage + "\"" + string(out[end:])
	}
	return overlay.Files(texts), nil
}
