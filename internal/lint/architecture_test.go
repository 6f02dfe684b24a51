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

// ARCHITECTURE.md names the function at each hop of a job's path. A name or file that does not exist any more is a lie
// to the next reader: correct the document in the commit that moves the function.
func TestArchitectureNamesWhatExists(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	for _, src := range all {
		if src.test {
			continue
		}
		for _, decl := range src.file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				declared[d.Name.Name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if ts, ok := s.(*ast.TypeSpec); ok {
						declared[ts.Name.Name] = true
					}
				}
			}
		}
	}
	names, files := 0, 0
	for _, m := range quoted.FindAllStringSubmatch(string(doc), -1) {
		text := m[1]
		switch {
		case pathInDoc.MatchString(text):
			files++
			if !strings.Contains(text, "/") {
				continue // a kind of file (DESIGN.md), not a path
			}
			if _, err := os.Stat(filepath.Join(root, text)); err != nil {
				t.Errorf("ARCHITECTURE.md names the file %s, which does not exist", text)
			}
		case goName.MatchString(text) && strings.Contains(text, ".") || strings.HasPrefix(text, "apply"):
			names++
			if last := goName.FindStringSubmatch(text)[1]; !declared[last] {
				t.Errorf("ARCHITECTURE.md names %s, but nothing is called %s any more", text, last)
			}
		}
	}
	if names < 30 || files < 10 {
		t.Fatalf("only %d names and %d files were found in ARCHITECTURE.md: did its layout change?", names, files)
	}
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
