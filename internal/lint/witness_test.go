package lint

import (
	"go/ast"
	"go/token"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-sched/muster/internal/agentconfig"
	"github.com/muster-sched/muster/structs"
)

// settings returns the names of all settings, as witnesses.txt has them: the keys of agents, and the fields of what users and
// operators submit.
func settings() map[string]bool {
	out := map[string]bool{}
	for _, k := range agentconfig.Keys() {
		out["agent "+k] = true
	}
	// What servers write into the objects is no setting.
	seen := map[reflect.Type]bool{reflect.TypeFor[structs.Grant](): true, reflect.TypeFor[structs.Vector](): true, reflect.TypeFor[structs.Submitter](): true,
		reflect.TypeFor[structs.JobVersionTag](): true, reflect.TypeFor[structs.ReservationPlace](): true}
	var walk func(t reflect.Type)
	walk = func(t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[structs.Job]().PkgPath() || seen[t] {
			return
		}
		seen[t] = true
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() {
				out[t.Name()+"."+f.Name] = true
				walk(f.Type)
			}
		}
	}
	for _, t := range []reflect.Type{reflect.TypeFor[structs.Job](), reflect.TypeFor[structs.Queue](), reflect.TypeFor[structs.QuotaSpec](), reflect.TypeFor[structs.Namespace](),
		reflect.TypeFor[structs.NodePool](), reflect.TypeFor[structs.Reservation](), reflect.TypeFor[structs.SchedulerConfig]()} {
		walk(t)
	}
	return out
}

// TestWitnesses keeps testdata/witnesses.txt complete: each setting has a row that names a test whose outcome depends on
// the setting, and the test exists. A setting without effect names the test in which it is refused or warned about. The
// tests named most often run each scenario without the setting and with it, and fail if the outcomes are equal.
func TestWitnesses(t *testing.T) {
	b, err := os.ReadFile("testdata/witnesses.txt")
	if err != nil {
		t.Fatal(err)
	}
	funcs, texts := map[string]bool{}, map[string]bool{}
	for _, s := range sources(t) {
		if !s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil && strings.HasPrefix(n.Name.Name, "Test") {
					funcs["./"+s.dir+" "+n.Name.Name] = true
				}
			case *ast.BasicLit:
				if n.Kind == token.STRING {
					if v, err := strconv.Unquote(n.Value); err == nil {
						texts["./"+s.dir+" "+v] = true
					}
				}
			}
			return true
		})
	}
	want, seen := settings(), map[string]bool{}
	for i, line := range strings.Split(strings.TrimRight(string(b), "\n"), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := func(format string, args ...any) {
			t.Helper()
			t.Errorf("witnesses.txt:%d: "+format, append([]any{i + 1}, args...)...)
		}
		setting, witness, _ := strings.Cut(line, "\t")
		if seen[setting] {
			at("%s has two rows", setting)
		}
		seen[setting] = true
		if !want[setting] {
			at("there is no setting %s: remove the row", setting)
		}
		parts := strings.Split(witness, "\t")
		switch {
		case parts[0] == "-":
			if len(parts) != 2 || parts[1] == "" {
				at("%s: say why it needs no witness", setting)
			}
		case !funcs[parts[0]]:
			at("%s: there is no test %q", setting, parts[0])
		case len(parts) == 2 && !texts[strings.Fields(parts[0])[0]+" "+parts[1]]:
			at("%s: the tests of the package have no entry %q", setting, parts[1])
		}
	}
	for _, s := range slices.Sorted(maps.Keys(want)) {
		if !seen[s] {
			t.Errorf("%s has no row in testdata/witnesses.txt. Name a test that fails when the setting has no effect; write one if there is none", s)
		}
	}
}
