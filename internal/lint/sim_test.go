package lint

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// simSorts are the files of package sim that may sort, with why: what they sort is not work that waits.
var simSorts = map[string]string{
	"sim/acct.go":    "records of the past, by the time of their submission",
	"sim/cluster.go": "names of namespaces, and queues by path",
	"sim/drain.go":   "allocations on one node, by id, as the state lists them",
	"sim/dist.go":    "values, for their quantiles",
	"sim/format.go":  "names of policies, for a message",
	"sim/inorder.go": "rows of a trace, by the time of their submission",
	"sim/rules.go":   "names of policies, for a message",
}

// TestSimDecidesNothing finds a second implementation of a policy in the simulator: something that is sorted, a rating
// of nodes, or an order of workloads. What comes first and where it goes is decided by package scheduler and its policies,
// so that deleting one of them breaks the simulation.
func TestSimDecidesNothing(t *testing.T) {
	calls, files := 0, 0
	for _, s := range sources(t) {
		if s.test || !in(s.dir, "sim/...") {
			continue
		}
		files++
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				if !ok {
					return true
				}
				if x.Name == "scheduler" && (n.Sel.Name == "Schedule" || n.Sel.Name == "Verify") {
					calls++
				}
				sorts := x.Name == "sort" || x.Name == "heap" || x.Name == "slices" && (strings.HasPrefix(n.Sel.Name, "Sort") || strings.HasPrefix(n.Sel.Name, "Min") || strings.HasPrefix(n.Sel.Name, "Max"))
				if _, may := simSorts[s.name]; sorts && !may && x.Obj == nil {
					t.Errorf("%s uses %s.%s: the simulator sorts nothing that waits; orders live in scheduler/queue", s.name, x.Name, n.Sel.Name)
				}
			case *ast.FuncDecl:
				if n.Recv == nil {
					return true
				}
				switch n.Name.Name {
				case "Fit", "RateGPUs", "Weights", "Compare":
					t.Errorf("%s has a method %s: ratings live in scheduler/policy, orders in scheduler/queue", s.name, n.Name.Name)
				}
			case *ast.BasicLit:
				if n.Kind == token.STRING && strings.Contains(strings.ToLower(n.Value), "score") && n.Value != `"score"` {
					t.Errorf("%s speaks of a score: %s", s.name, n.Value)
				}
			}
			return true
		})
	}
	if files == 0 || calls < 2 {
		t.Errorf("package sim has %d files and calls scheduler.Schedule and Verify %d times: it decides by itself", files, calls)
	}
}
