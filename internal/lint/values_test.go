package lint

import (
	"go/ast"
	"go/token"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// enums returns the settings with a fixed set of values, and those. The values of placements and of some settings are those
// of others.
func enums() map[string][]string {
	out := maps.Clone(structs.Enums)
	out["Job.Placement"], out["NodePool.Algorithm"], out["SchedulerConfig.Algorithm"] = policy.Names(), policy.Names(), policy.Names()
	out["SchedulerConfig.Order"], out["SchedulerConfig.Backfill"] = out["Queue.Order"], out["Queue.Backfill"]
	return out
}

// mentions returns for each test of the tree, as values.txt names it, the string literals of its file, with the values of
// the constants of structs that occur in it.
func mentions(t *testing.T) map[string]map[string]bool {
	all := sources(t)
	constants := map[string]string{}
	for _, s := range all {
		if s.dir != "structs" || s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok {
				for i, name := range v.Names {
					if i < len(v.Values) {
						if text, ok := literal(v.Values[i]); ok {
							constants[name.Name] = text
						}
					}
				}
			}
			return true
		})
	}
	out := map[string]map[string]bool{}
	for _, s := range all {
		if !s.test {
			continue
		}
		said := map[string]bool{}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if text, ok := literal(n); ok {
					said[text] = true
					for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(" =\"\n:;,", r) }) {
						said[word] = true
					}
				}
			case *ast.Ident:
				if text, ok := constants[n.Name]; ok {
					said[text] = true
				}
			case *ast.FuncDecl:
				if n.Recv == nil && strings.HasPrefix(n.Name.Name, "Test") {
					out["./"+s.dir+" "+n.Name.Name] = said
				}
			}
			return true
		})
	}
	return out
}

func literal(e ast.Expr) (string, bool) {
	b, ok := e.(*ast.BasicLit)
	if !ok || b.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(b.Value)
	return text, err == nil
}

// TestWitnessesOfValues keeps testdata/values.txt complete: each value of each setting with a fixed set of values has a row
// that names a test whose outcome depends on the value, or says why there is none. The file of the test mentions the value;
// where the row is of all values ("*"), it mentions the name of the setting, under which structs.Enums has them.
func TestWitnessesOfValues(t *testing.T) {
	b, err := os.ReadFile("testdata/values.txt")
	if err != nil {
		t.Fatal(err)
	}
	tests, want, seen := mentions(t), enums(), map[string]bool{}
	for i, line := range strings.Split(strings.TrimRight(string(b), "\n"), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := func(format string, args ...any) {
			t.Helper()
			t.Errorf("values.txt:%d: "+format, append([]any{i + 1}, args...)...)
		}
		parts := strings.Split(line, "\t")
		if len(parts) < 3 {
			at("want a setting, a value and a test, separated by tabs")
			continue
		}
		setting, value, test := parts[0], parts[1], parts[2]
		if value != "*" && !slices.Contains(want[setting], value) || want[setting] == nil {
			at("%s has no value %q: remove the row", setting, value)
		}
		for _, v := range want[setting] {
			if value != "*" && value != v {
				continue
			}
			if seen[setting+"\t"+v] {
				at("%s %q has two rows", setting, v)
			}
			seen[setting+"\t"+v] = true
		}
		mention := value
		if value == "*" {
			mention = setting
		}
		switch {
		case test == "-":
			if len(parts) != 4 || parts[3] == "" {
				at("%s %q: say why it needs no witness", setting, value)
			}
		case tests[test] == nil:
			at("%s %q: there is no test %q", setting, value, test)
		case !tests[test][mention]:
			at("%s %q: the file of %s does not mention %q", setting, value, test, mention)
		}
	}
	for _, s := range slices.Sorted(maps.Keys(want)) {
		for _, v := range want[s] {
			if !seen[s+"\t"+v] {
				t.Errorf("%s %q has no row in testdata/values.txt. Name a test that fails when the value does what another one does; write one if there is none", s, v)
			}
		}
	}
}

// TestEnumsAreListed finds settings with a fixed set of values that structs.Enums does not have: a check of a list that is
// written where it is checked.
func TestEnumsAreListed(t *testing.T) {
	found := 0
	for _, s := range sources(t) {
		if s.test || !in(s.dir, "structs", "nomadlike/wire", "server/endpoint") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			switch f.Sel.Name {
			case "oneOf", "oneOfOrNone":
				if id, ok := call.Args[len(call.Args)-1].(*ast.Ident); ok && id.Name == "enum" {
					return true // oneOfOrNone itself
				}
				found++
				if name, ok := literal(call.Args[len(call.Args)-1]); len(call.Args) != 3 || !ok || structs.Enums[name] == nil {
					t.Errorf("%s: %s wants the name of a list in structs.Enums", s.name, f.Sel.Name)
				}
			case "Contains":
				if list, ok := call.Args[0].(*ast.CompositeLit); ok && list.Type != nil {
					if first, _ := literal(list.Elts[0]); first == "" && len(list.Elts) > 2 {
						t.Errorf("%s checks a setting against a list of its own: give it a row in structs.Enums, so that internal/lint asks for a witness of each value", s.name)
					}
				}
			}
			return true
		})
	}
	if found < 25 {
		t.Errorf("only %d checks found", found)
	}
}
