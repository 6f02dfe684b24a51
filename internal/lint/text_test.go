package lint

import (
	"errors"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/muster-sched/muster/internal/agentconfig"
	"github.com/muster-sched/muster/nomadlike/jobspec"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/server/acl"
)

// TestPackageDocs wants a sentence at the top of every package.
func TestPackageDocs(t *testing.T) {
	doc, dirs := map[string]bool{}, []string{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		if _, seen := doc[s.dir]; !seen {
			doc[s.dir] = false
			dirs = append(dirs, s.dir)
		}
		if s.file.Doc != nil && len(strings.TrimSpace(s.file.Doc.Text())) > 20 {
			doc[s.dir] = true
		}
	}
	for _, d := range dirs {
		if !doc[d] {
			t.Errorf("package %s has no comment. Say in one sentence what it gives, above the package clause of its main file or of doc.go", d)
		}
	}
}

// linesMax is how long a file may be: about two nouns.
const linesMax = 900

// TestFileLength finds files that want to be two.
func TestFileLength(t *testing.T) {
	ran["long-file"] = true
	for _, s := range sources(t) {
		if s.lines > linesMax && !silenced("long-file", s.name) {
			t.Errorf("%s has %d lines; the limit is %d. One file per noun: split it where a second noun begins", s.name, s.lines, linesMax)
		}
	}
}

// TestScriptLines keeps what a script expects short enough to be reviewed.
func TestScriptLines(t *testing.T) {
	files := 0
	for _, pattern := range []string{"scheduler/testdata/scripts/*", "server/duty/testdata/*.txt"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			files++
			for i, line := range strings.Split(string(text), "\n") {
				if len(line) > 160 {
					t.Errorf("%s:%d: %d characters; print what the decision is in at most 160 a line", name, i+1, len(line))
				}
			}
		}
	}
	if files < 40 {
		t.Fatalf("only %d scripts found", files)
	}
}

// marks are promises to finish something later. Written apart, so that this file does not break its own rule.
var marks = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`)

// TestNothingPostponed finds notes to finish something later: they name nobody who will.
func TestNothingPostponed(t *testing.T) {
	ran["todo"] = true
	for _, s := range sources(t) {
		for _, g := range s.file.Comments {
			for _, c := range g.List {
				if m := marks.FindString(c.Text); m != "" && !silenced("todo", s.name) {
					t.Errorf("%s: %q. Do it now, or say as a fact what the code does not do", fset.Position(c.Pos()), m)
				}
			}
		}
	}
}

// TestExportedAreDocumented wants a comment on what other packages see of those that decide and store.
func TestExportedAreDocumented(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || !in(s.dir, append([]string{"structs", "internal/rpc", "internal/methods"}, pure...)...) {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !f.Name.IsExported() || f.Doc != nil || receiverHidden(f) || standardMethod(f) {
				continue
			}
			t.Errorf("%s: %s is exported and says nothing. Tell its meaning, units and errors in a sentence", fset.Position(f.Pos()), f.Name.Name)
		}
	}
}

func receiverHidden(f *ast.FuncDecl) bool {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return false
	}
	x := f.Recv.List[0].Type
	for {
		switch y := x.(type) {
		case *ast.StarExpr:
			x = y.X
		case *ast.IndexExpr:
			x = y.X
		case *ast.Ident:
			return !y.IsExported()
		default:
			return false
		}
	}
}

// standardMethod are methods whose meaning an interface of the standard library fixes.
func standardMethod(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return false
	}
	switch f.Name.Name {
	case "Error", "String", "Unwrap", "Is", "Read", "Write", "Close", "Len", "Less", "Swap", "MarshalText", "UnmarshalText", "Temporary", "Timeout":
		return true
	}
	return false
}

var fence = regexp.MustCompile("(?ms)^```hcl[^\\n]*\\n(.*?)^```")

// TestDocumentedHCL parses every HCL block of the documentation: what people copy must work.
func TestDocumentedHCL(t *testing.T) {
	blocks := 0
	err := walk(func(name string, text []byte) error {
		if !strings.HasSuffix(name, ".md") || !(name == "README.md" || name == "ARCHITECTURE.md" || strings.HasPrefix(name, "docs/")) {
			return nil
		}
		for _, m := range fence.FindAllSubmatchIndex(text, -1) {
			blocks++
			src := text[m[2]:m[3]]
			line := 1 + strings.Count(string(text[:m[2]]), "\n")
			file, diags := hclsyntax.ParseConfig(src, name, hcl.Pos{Line: line, Column: 1})
			if diags.HasErrors() {
				t.Errorf("%s:%d: the HCL block does not parse: %v", name, line, diags)
				continue
			}
			switch {
			case hasBlock(file, "job"):
				job, ds := jobspec.ParseHCL(name, src, jobspec.ParseOptions{})
				if ds.HasErrors() {
					t.Errorf("%s:%d: the job in this block is refused (lines count from the block's first): %v", name, line, ds)
					continue
				}
				if _, p := wire.Prepare(job); p.Err() != nil {
					t.Errorf("%s:%d: the job in this block is not valid: %v", name, line, p.Err())
				}
			case hasBlock(file, "namespace"):
				if _, err := acl.Parse(name, string(src)); err != nil {
					t.Errorf("%s:%d: the policy in this block is refused: %v", name, line, err)
				}
			case hasBlock(file, "queue"), hasBlock(file, "quota"), hasBlock(file, "reservation"):
				// Package cmd/muster reads these as its commands do (TestDocumentedQueues).
			default:
				checkAgent(t, name, line, src)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d HCL blocks parsed", blocks)
}

// checkAgent reads a block as an agent's configuration. Whether files that it names exist, and whether a part is complete
// without the rest, is not the documentation's business; that every key is known and every value possible is.
func checkAgent(t *testing.T, name string, line int, src []byte) {
	file := filepath.Join(t.TempDir(), "agent.hcl")
	if err := os.WriteFile(file, src, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := agentconfig.Load(agentconfig.Options{Paths: []string{file}, Dev: true,
		Hostname: func() (string, error) { return "host", nil }, DefaultIP: func() (string, error) { return "10.0.0.1", nil }})
	var all agentconfig.Errors
	if err != nil && !errors.As(err, &all) {
		t.Errorf("%s:%d: the agent configuration in this block: %v", name, line, err)
	}
	for _, p := range all {
		// A file of the reader's machine, and a key that only the reader can make, are absent here.
		if !strings.Contains(p.Message, "no such file or directory") && !strings.Contains(p.Message, "bytes in base64") {
			t.Errorf("%s:%d: the agent configuration in this block is refused (lines count from the block's first): %s", name, line, p.Error())
		}
	}
}

func hasBlock(f *hcl.File, typ string) bool {
	body, ok := f.Body.(*hclsyntax.Body)
	if !ok {
		return false
	}
	for _, b := range body.Blocks {
		if b.Type == typ {
			return true
		}
	}
	return false
}
