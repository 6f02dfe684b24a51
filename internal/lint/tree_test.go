package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/muster-sched/muster/"

// root is the top of the tree, seen from this package.
const root = "../.."

// source is one Go file of the tree.
type source struct {
	name  string // slash-separated, from the top of the tree
	dir   string
	test  bool
	lines int
	text  []byte
	file  *ast.File
}

var load = sync.OnceValues(func() ([]*source, error) {
	var all []*source
	err := walk(func(name string, text []byte) error {
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		all = append(all, &source{name: name, dir: path.Dir(name), test: strings.HasSuffix(name, "_test.go"),
			lines: strings.Count(string(text), "\n"), text: text, file: f})
		return nil
	})
	return all, err
})

var fset = token.NewFileSet()

// walk visits every file of the tree that belongs to it, by name.
func walk(visit func(name string, text []byte) error) error {
	return filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(strings.TrimPrefix(p, root), string(filepath.Separator)))
		if d.IsDir() {
			switch base := d.Name(); {
			case p == root:
			case strings.HasPrefix(base, ".") && base != ".ci", base == "testdata", base == "node_modules", base == "bin", base == "tmp", base == "dist":
				return filepath.SkipDir
			}
			return nil
		}
		switch path.Ext(name) {
		case ".go", ".md":
		default:
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		return visit(name, text)
	})
}

func sources(t *testing.T) []*source {
	t.Helper()
	all, err := load()
	if err != nil {
		t.Fatalf("the tree does not parse: %v", err)
	}
	if len(all) < 50 {
		t.Fatalf("only %d Go files found below %s: the rules would check nothing", len(all), root)
	}
	return all
}

// in reports whether a directory is one of dirs or below one that ends in "/...".
func in(dir string, dirs ...string) bool {
	for _, d := range dirs {
		if base, ok := strings.CutSuffix(d, "/..."); ok && (dir == base || strings.HasPrefix(dir, base+"/")) || dir == d {
			return true
		}
	}
	return false
}

// used counts what each exception silenced; TestExceptionsAreUsed runs last, by its name.
var used = map[exception]int{}

// silenced reports whether a rule is silenced at a place.
func silenced(rule string, places ...string) bool {
	for _, e := range exceptions {
		if e.rule != rule {
			continue
		}
		for _, p := range places {
			if e.where == p {
				used[e]++
				return true
			}
		}
	}
	return false
}

// TestZExceptionsAreUsed runs after the rules and finds exceptions that outlived their reason.
func TestZExceptionsAreUsed(t *testing.T) {
	if testing.Short() {
		t.Skip("checked without -short, which may leave rules out")
	}
	list := append([]exception(nil), exceptions...)
	sort.Slice(list, func(i, k int) bool { return list[i].where < list[k].where })
	for _, e := range list {
		if e.why == "" {
			t.Errorf("exception %s at %s gives no reason", e.rule, e.where)
		}
		if used[e] == 0 && ran[e.rule] {
			t.Errorf("exception %s at %s silences nothing any more; delete it from exceptions.go", e.rule, e.where)
		}
	}
}

// ran notes which rules were checked, so that running one test alone does not report the others' exceptions.
var ran = map[string]bool{}
