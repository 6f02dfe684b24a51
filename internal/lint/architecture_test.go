package lint

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	quoted    = regexp.MustCompile("`([^`\n]+)`")
	goName    = regexp.MustCompile(`^(?:[a-z]\w*\.)?(?:\w+\.)?(\w+)$`)
	decision  = regexp.MustCompile(`\b[DI][1-9][0-9]?\b`)
	explained = regexp.MustCompile(`(?m)^(?:- )?\*\*([DI][1-9][0-9]?) `)
	pathInDoc = regexp.MustCompile(`^[\w./-]+\.(?:go|md|sh)$`)
)

// ARCHITECTURE.md and the pages for readers of the code name functions and files. A name that does not exist any more is a
// lie to the next reader: correct the page in the commit that moves the function.
func TestArchitectureNamesWhatExists(t *testing.T) {
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	code := namesOf(all)
	pages, err := filepath.Glob(filepath.Join(root, "docs/how-to/*.md"))
	if err != nil || len(pages) < 7 {
		t.Fatalf("%d pages in docs/how-to, error %v", len(pages), err)
	}
	names, files := 0, 0
	for _, page := range append(pages, filepath.Join(root, "ARCHITECTURE.md"), filepath.Join(root, "docs/walk.md")) {
		doc, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		short, _ := filepath.Rel(root, page)
		for _, m := range quoted.FindAllStringSubmatch(string(doc), -1) {
			text := m[1]
			switch {
			case strings.ContainsAny(text, "* ") || strings.Contains(text, "NAME") || strings.Contains(text, "..."):
				// A pattern, a command, or a sentence.
			case pathInDoc.MatchString(text):
				files++
				if !strings.Contains(text, "/") {
					continue // a kind of file (DESIGN.md), not a path
				}
				if _, err := os.Stat(filepath.Join(root, text)); err != nil {
					t.Errorf("%s names the file %s, which does not exist", short, text)
				}
			case goName.MatchString(text) && strings.Contains(text, ".") || strings.HasPrefix(text, "apply"):
				names++
				words := strings.Split(text, ".")
				last := words[len(words)-1]
				if !code.declared[last] {
					t.Errorf("%s names %s, but nothing is called %s any more", short, text, last)
				} else if of := code.methods[words[max(len(words)-2, 0)]]; of != nil && !of[last] && !(len(words) == 2 && code.packages[words[0]]) {
					t.Errorf("%s names %s, but that type has no method %s", short, text, last)
				}
			}
		}
	}
	if names < 50 || files < 30 {
		t.Fatalf("only %d names and %d files were found: did the layout of the pages change?", names, files)
	}
}

// names are what the code declares.
type names struct {
	declared map[string]bool // functions, methods, types and values; of tests only the tests themselves
	packages map[string]bool
	methods  map[string]map[string]bool // of each type, by name
}

func namesOf(all []*source) names {
	n := names{map[string]bool{}, map[string]bool{}, map[string]map[string]bool{}}
	for _, src := range all {
		n.packages[src.file.Name.Name] = true
		for _, decl := range src.file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				n.declared[d.Name.Name] = n.declared[d.Name.Name] || !src.test || strings.HasPrefix(d.Name.Name, "Test")
				if typ := receiver(d); typ != "" {
					if n.methods[typ] == nil {
						n.methods[typ] = map[string]bool{}
					}
					n.methods[typ][d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						n.declared[s.Name.Name] = true
						if i, ok := s.Type.(*ast.InterfaceType); ok {
							for _, m := range i.Methods.List {
								for _, id := range m.Names {
									n.declared[id.Name] = true
								}
							}
						}
					case *ast.ValueSpec:
						for _, id := range s.Names {
							n.declared[id.Name] = true
						}
					}
				}
			}
		}
	}
	return n
}

// receiver returns the name of the type that a method belongs to; "" for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	typ := d.Recv.List[0].Type
	if p, ok := typ.(*ast.StarExpr); ok {
		typ = p.X
	}
	switch x := typ.(type) {
	case *ast.IndexExpr:
		typ = x.X
	case *ast.IndexListExpr:
		typ = x.X
	}
	id, _ := typ.(*ast.Ident)
	if id == nil {
		return ""
	}
	return id.Name
}

// Comments name decisions and promises by the numbers of docs/design.md. A number that is not explained there tells the
// reader nothing.
func TestNumbersInCommentsAreExplained(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(root, "docs/design.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range explained.FindAllStringSubmatch(string(doc), -1) {
		if known[m[1]] {
			t.Errorf("docs/design.md explains %s twice", m[1])
		}
		known[m[1]] = true
	}
	uses := 0
	check := func(name, text string) {
		for _, n := range decision.FindAllString(text, -1) {
			if uses++; !known[n] {
				t.Errorf("%s names %s, which docs/design.md does not explain: explain it there, or say in the comment what is meant", name, n)
			}
		}
	}
	for _, s := range sources(t) {
		for _, g := range s.file.Comments {
			check(s.name, g.Text())
		}
	}
	err = walk(func(name string, text []byte) error {
		if strings.HasSuffix(name, ".md") {
			check(name, string(text))
		}
		return nil
	})
	if err != nil || uses < 50 {
		t.Fatalf("%d numbers found, %v: did comments change their form?", uses, err)
	}
}
