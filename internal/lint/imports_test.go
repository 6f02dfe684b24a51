package lint

import (
	"sort"
	"strconv"
	"strings"
	"testing"
)

// imports is the table of D1: which packages of this module a package may use. "x/..." is x and all below it. The longest
// matching row counts, and a package without a row fails: a new package states its place.
var imports = map[string][]string{
	"structs":              {"internal/pack"},
	"scheduler/model":      {"structs"},
	"scheduler/verify":     {"structs", "scheduler/model", "scheduler/match"},
	"scheduler/match":      {"structs", "scheduler/model"},
	"scheduler":            {"structs", "internal/pack", "scheduler/model", "scheduler/match", "scheduler/search", "scheduler/reconcile", "scheduler/contend"},
	"scheduler/contend":    {"structs", "scheduler/model", "scheduler/match", "scheduler/search"},
	"scheduler/suggest":    {"structs", "scheduler", "scheduler/model", "scheduler/match", "scheduler/search", "scheduler/contend"},
	"scheduler/reconcile":  {"structs", "scheduler/model", "scheduler/match"},
	"scheduler/search":     {"structs", "scheduler/model", "scheduler/match"},
	"scheduler/policy":     {"structs", "scheduler/model", "scheduler/search"},
	"scheduler/unblock":    {"structs"},
	"scheduler/queue":      {"structs", "scheduler", "scheduler/model", "scheduler/contend", "scheduler/predict"},
	"scheduler/predict":    {},
	"scheduler/jobdiff":    {"structs", "scheduler/reconcile"},
	"fsm/state":            {"structs", "internal/feature", "internal/pack"},
	"fsm":                  {"structs", "internal/feature", "internal/pack", "fsm/state"},
	"server/broker":        {"structs", "scheduler/..."},
	"server/planner":       {"structs", "scheduler/..."},
	"server/acl":           {"structs", "internal/suggest"},
	"server/admit":         {"structs", "internal/gcra"},
	"server/archive":       {"structs"},
	"server/raftlog":       {"internal/boltfile", "internal/fsync", "internal/syncfail"},
	"server/checkpoint":    {"structs"},
	"server/drain":         {"structs", "server/checkpoint"},
	"server/duty":          {"structs", "internal/cron", "internal/feature", "fsm", "fsm/state", "scheduler/reconcile", "server/drain"},
	"server/decide":        {"structs", "internal/feature", "scheduler/...", "fsm/state", "server/broker", "server/planner", "server/replica"},
	"server/replica":       {"structs", "internal/feature", "internal/fsync", "internal/syncfail", "scheduler/model", "fsm/...", "server/raftlog"},
	"server/auth":          {"structs", "fsm/state", "internal/...", "server/acl", "server/replica"},
	"server/watch":         {"structs", "fsm/state", "internal/methods", "server/admit", "server/auth", "server/replica"},
	"server/events":        {"structs", "fsm", "internal/methods", "server/replica"},
	"server/keystore":      {"structs", "fsm/state", "internal/...", "server/replica"},
	"server/member":        {"structs", "internal/...", "server/replica"},
	"server/bundles":       {"structs", "internal/..."},
	"server/nodes":         {"structs", "internal/rpc", "server/replica"},
	"server/endpoint":      {"structs", "scheduler/...", "fsm/...", "internal/...", "server/acl", "server/archive", "server/auth", "server/bundles", "server/checkpoint", "server/decide", "server/duty", "server/events", "server/keystore", "server/member", "server/nodes", "server/replica", "server/watch"},
	"server":               {"structs", "scheduler/...", "fsm/...", "server/...", "internal/..."},
	"client/...":           {"structs", "client/...", "internal/..."},
	"nomadlike/edge":       {"structs", "internal/gcra"},
	"nomadlike/...":        {"structs", "nomadlike/...", "internal/..."},
	"sim/...":              {"structs", "scheduler/...", "server/broker", "server/checkpoint", "server/drain", "server/planner", "sim/..."},
	"examples":             {},
	"dist":                 {},
	"cmd/...":              {"structs", "examples", "scheduler/...", "fsm/...", "server/...", "client/...", "nomadlike/...", "sim/...", "internal/...", "cmd/..."},
	"e2e/...":              {"structs", "examples", "internal/...", "e2e/...", "nomadlike/...", "client/...", "scheduler/...", "fsm/...", "server/...", "cmd/..."},
	"internal/rpc":         {"structs", "internal/pack", "internal/tlsutil"},
	"internal/methods":     {"structs", "internal/rpc"},
	"internal/bundle":      {"structs", "internal/fsync"},
	"internal/gossip":      {"structs", "internal/fsync", "internal/loglimit", "internal/rpc"},
	"internal/agentconfig": {"structs", "internal/suggest", "internal/tlsutil"},
	"internal/telemetry":   {},
	"internal/cron":        {},
	"internal/gcra":        {},
	"internal/driverconf":  {"internal/suggest"},
	"internal/feature":     {"structs", "internal/version"},
	"internal/histories":   {"structs", "scheduler/..."},
	"internal/...":         {"structs"},
	"internal/lint":        {},
	"internal/errcheck":    {},
}

// banned are imports from outside the module, with why. Rows are directories as above.
var banned = []struct {
	dirs []string
	path string
	why  string
}{
	{pure, "os", "it decides or applies; files are the shell's business"},
	{pure, "net", "it decides or applies; the network is the shell's business"},
	{pure, "net/http", "it decides or applies; the network is the shell's business"},
	{pure, "math/rand", "randomness is an argument (D5): derive it from the seed"},
	{pure, "math/rand/v2", "randomness is an argument (D5): derive it from the seed"},
	{pure, "crypto/rand", "randomness is an argument (D5): derive it from the seed"},
	{pure, "unsafe", "state and decisions must be the same bytes everywhere"},
	{[]string{"nomadlike/...", "cmd/...", "server/...", "client/..."}, "github.com/hashicorp/nomad/api", "it is a test client, in a module of its own below e2e"},
}

// pure are the packages that must give the same answer to the same question, on every machine.
var pure = []string{"fsm/...", "scheduler/...", "server/broker", "server/planner", "server/checkpoint", "server/drain", "server/duty", "internal/pack", "internal/cron"}

// TestImports checks the table, and that only package structs stays with the standard library.
func TestImports(t *testing.T) {
	ran["import"] = true
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		row, allowed := importRow(s.dir)
		if row == "" {
			if !seen[s.dir] {
				t.Errorf("package %s has no row in the import table (internal/lint/imports_test.go); say there what it may use, so that the arrows keep pointing one way", s.dir)
			}
			seen[s.dir] = true
			continue
		}
		for _, im := range s.file.Imports {
			p, _ := strconv.Unquote(im.Path.Value)
			if own, ok := strings.CutPrefix(p, module); ok {
				if !in(own, allowed...) && !silenced("import", s.name, s.dir) {
					t.Errorf("%s imports %s, which packages like %s may not (docs/design.md, D1). Declare a small interface where it is used, or move what both need to structs", s.name, own, row)
				}
				continue
			}
			if s.dir == "structs" && strings.Contains(strings.Split(p, "/")[0], ".") {
				t.Errorf("%s imports %s: the glossary uses the standard library only", s.name, p)
			}
			for _, b := range banned {
				if b.path == p && in(s.dir, b.dirs...) && !silenced("import", s.name) {
					t.Errorf("%s imports %s: %s", s.name, p, b.why)
				}
			}
		}
	}
}

func importRow(dir string) (row string, allowed []string) {
	rows := make([]string, 0, len(imports))
	for r := range imports {
		rows = append(rows, r)
	}
	sort.Slice(rows, func(i, k int) bool { return len(rows[i]) > len(rows[k]) })
	for _, r := range rows {
		if r == dir {
			return r, imports[r]
		}
	}
	for _, r := range rows {
		if in(dir, r) {
			return r, imports[r]
		}
	}
	return "", nil
}
