package agentconfig

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference/agent.md")

const page = "../../docs/reference/agent.md"

// TestPage keeps the reference of the configuration equal to what the program reads: every key, from the comments of its
// field, and every key that is only accepted. `go generate ./internal/agentconfig` writes it.
func TestPage(t *testing.T) {
	head, err := os.ReadFile("testdata/page.md")
	if err != nil {
		t.Fatal(err)
	}
	want := string(head) + reference(t)
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the configuration's fields say; write it with: go generate ./internal/agentconfig", page)
	}
	for _, k := range Keys() {
		if leaf := k[strings.LastIndex(k, ".")+1:]; !strings.Contains(want, "`"+leaf+"`") {
			t.Errorf("%s is not told", k)
		}
	}
}

// TestPageExamples loads every example of the page as a user would have copied it.
func TestPageExamples(t *testing.T) {
	b, err := os.ReadFile("testdata/page.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, f := range []string{"ca.pem", "server.pem", "server.key"} {
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	blocks := regexp.MustCompile("(?s)```hcl\n(.*?)```").FindAllStringSubmatch(string(b), -1)
	if len(blocks) < 3 {
		t.Fatalf("%d examples", len(blocks))
	}
	for i, m := range blocks {
		text := strings.ReplaceAll(m[1], "/etc/muster/tls", dir)
		var paths []string
		if !strings.Contains(text, "data_dir") { // a part of a client's file
			paths = append(paths, filepath.Join(dir, "base.hcl"))
			base := "data_dir = \"/var/lib/muster\"\nbind_addr = \"127.0.0.1\"\nclient {\n  enabled = true\n  servers = [\"10.0.0.1\"]\n}\n"
			if err := os.WriteFile(paths[0], []byte(base), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		name := filepath.Join(dir, fmt.Sprintf("%d.hcl", i))
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(Options{Paths: append(paths, name)})
		if err != nil {
			t.Errorf("example %d: %v\n%s", i+1, err, text)
			continue
		}
		for _, w := range c.Warnings {
			t.Errorf("example %d warns: %s", i+1, w)
		}
	}
}

// reference is a table for each block, in the order of the fields.
func reference(t *testing.T) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	p := pageWriter{types: map[string]*ast.StructType{}, docs: map[string]string{}, keys: map[string]string{}}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		spec := g.Specs[0].(*ast.TypeSpec)
		if s, ok := spec.Type.(*ast.StructType); ok {
			p.types[spec.Name.Name], p.docs[spec.Name.Name] = s, flat(g.Doc)
			ast.Inspect(s, func(n ast.Node) bool {
				if f, ok := n.(*ast.Field); ok && len(f.Names) == 1 && keyOf(f) != "" {
					p.keys[f.Names[0].Name] = keyOf(f)
				}
				return true
			})
		}
	}
	p.section("", "", p.types["Config"])
	p.accepted()
	return p.String()
}

type pageWriter struct {
	strings.Builder
	types map[string]*ast.StructType
	docs  map[string]string // of types
	keys  map[string]string // keys by the name of the field
}

type row struct{ keys, kinds, text string }

func (p *pageWriter) section(path, doc string, s *ast.StructType) {
	type block struct {
		path, doc string
		s         *ast.StructType
	}
	var rows []row
	var blocks []block
	for _, f := range s.Fields.List {
		key := keyOf(f)
		if key == "" {
			continue
		}
		text := p.words(f)
		full := strings.TrimPrefix(path+"."+key, ".")
		if in, doc, labelled := p.inner(f.Type); in != nil {
			if labelled {
				full += " \"NAME\""
			}
			if f.Doc != nil || f.Comment != nil { // what the field says comes before what its type says
				_, more, _ := strings.Cut(doc, ". ")
				doc = strings.TrimSpace(strings.TrimSuffix(text, ".") + ". " + more)
			}
			blocks = append(blocks, block{full, doc, in})
			continue
		}
		if text == "" && len(rows) > 0 { // in one row with the key before
			last := &rows[len(rows)-1]
			last.keys += ", `" + key + "`"
			continue
		}
		rows = append(rows, row{"`" + key + "`", kindOf(f.Type), text})
	}
	if path == "" {
		p.WriteString("\n## At the top of a file\n")
	} else if len(rows) > 0 || doc != "" {
		fmt.Fprintf(p, "\n## %s\n", strings.ReplaceAll(path, ".", " > "))
		if doc != "" {
			fmt.Fprintf(p, "\n%s\n", doc)
		}
	}
	if len(rows) > 0 {
		p.WriteString("\n| key | value | meaning |\n|---|---|---|\n")
		for _, r := range rows {
			fmt.Fprintf(p, "| %s | %s | %s |\n", r.keys, r.kinds, r.text)
		}
	}
	for _, b := range blocks {
		p.section(b.path, b.doc, b.s)
	}
}

// inner returns the struct of a block.
func (p *pageWriter) inner(e ast.Expr) (s *ast.StructType, doc string, labelled bool) {
	switch x := e.(type) {
	case *ast.StarExpr:
		return p.inner(x.X)
	case *ast.MapType:
		s, doc, _ = p.inner(x.Value)
		return s, doc, s != nil
	case *ast.StructType:
		return x, "", false
	case *ast.Ident:
		if s := p.types[x.Name]; s != nil {
			return s, upper(p.named(p.docs[x.Name], x.Name)), false
		}
	}
	return nil, "", false
}

// words returns a field's comment with names of fields replaced by keys.
func (p *pageWriter) words(f *ast.Field) string {
	text := flat(f.Doc)
	if text == "" {
		text = flat(f.Comment)
	}
	text = strings.ReplaceAll(text, " Ours.", " Muster's own.")
	return upper(p.named(text, f.Names[0].Name))
}

func (p *pageWriter) named(text, own string) string {
	if rest, ok := strings.CutPrefix(text, own+" "); ok && own != "" && !regexp.MustCompile(`^(of|in|and|whose|whole)\b`).MatchString(rest) {
		text = strings.TrimPrefix(strings.TrimPrefix(rest, "is "), "are ")
	}
	text = regexp.MustCompile(`\b[A-Z]\w*[A-Z]\w*[a-z]\w*\b|\b[A-Z][a-z]+[A-Z]\w*\b`).ReplaceAllStringFunc(text, func(w string) string {
		if k := p.keys[w]; k != "" {
			return "`" + k + "`"
		}
		return w
	})
	return strings.ReplaceAll(text, "|", "\\|")
}

// accepted are the keys that other schedulers' files have.
func (p *pageWriter) accepted() {
	p.WriteString("\n## Taken without effect\n\nKeys that files for Nomad may have. They are accepted with a warning that says why they mean nothing here.\n\n| block | key | why |\n|---|---|---|\n")
	for _, section := range slices.Sorted(maps.Keys(noEffect)) {
		for _, key := range slices.Sorted(maps.Keys(noEffect[section])) {
			fmt.Fprintf(p, "| %s | %s | %s |\n", code(strings.ReplaceAll(section, ".", " > ")), strings.Replace(code(key), "`*`", "any other", 1), noEffect[section][key])
		}
	}
	p.WriteString("\n## Refused\n\nKeys that forbid something. To pass over them would allow what they forbid, so the agent does not start.\n\n| block | key | instead |\n|---|---|---|\n")
	for _, section := range slices.Sorted(maps.Keys(refused)) {
		for _, key := range slices.Sorted(maps.Keys(refused[section])) {
			fmt.Fprintf(p, "| %s | %s | %s |\n", code(strings.ReplaceAll(section, ".", " > ")), code(key), strings.ReplaceAll(refused[section][key], "|", "\\|"))
		}
	}
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

func upper(s string) string {
	if s == "" || s[0] == '`' {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func flat(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }

func keyOf(f *ast.Field) string {
	if f.Tag == nil {
		return ""
	}
	tag, _ := strconv.Unquote(f.Tag.Value)
	return reflect.StructTag(tag).Get("conf")
}

func kindOf(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.ArrayType:
		return "list of " + map[string]string{"text": "texts", "number": "numbers"}[kindOf(x.Elt)]
	case *ast.MapType:
		return "block of texts"
	case *ast.SelectorExpr:
		return "duration"
	case *ast.Ident:
		switch x.Name {
		case "bool":
			return "bool"
		case "string":
			return "text"
		}
		return "number"
	}
	return "?"
}
