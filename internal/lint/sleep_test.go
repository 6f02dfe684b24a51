package lint

import (
	"go/ast"
	"maps"
	"slices"
	"strings"
	"testing"
)

// realSleeps are the test files that may sleep in real time outside a wait for a condition, with how often and why. No
// number may rise.
var realSleeps = map[string]struct {
	count int
	why   string
}{
	"client/cgroup/freeze_test.go":         {1, "a child that was started outside the frozen group ends"},
	"client/checkpoint_test.go":            {1, "nothing is found"},
	"client/driver/docker/pin_test.go":     {1, "the pace of a task that exchanges files"},
	"client/gang_test.go":                  {1, "nothing starts"},
	"client/gpu/activity_test.go":          {1, "nothing is read"},
	"client/gpu/shim/shim_test.go":         {1, "the instant of a kill"},
	"client/health_test.go":                {1, "nothing starts on a sick node"},
	"client/netns/hostile_test.go":         {1, "the pace of packets"},
	"client/services_test.go":              {1, "no check runs"},
	"client/supervisor/supervisor_test.go": {1, "the instant of a kill"},
	"client/suspend_test.go":               {1, "a limit passes and ends nothing"},
	"e2e/docker/docker_test.go":            {1, "the instant of a kill"},
	"e2e/docker/engine_test.go":            {1, "a slow registry"},
	"e2e/gpu/account_test.go":              {1, "GPUs are used for this long"},
	"e2e/gpu/health_test.go":               {1, "a GPU does not come back"},
	"e2e/gpu/quota_test.go":                {1, "nothing is killed"},
	"e2e/history/cluster_test.go":          {1, "a server is out of raft for this long"},
	"e2e/history/faults_test.go":           {1, "the instants of a schedule"},
	"e2e/history/history_test.go":          {1, "clients go on after the last fault"},
	"e2e/hostile/sandbox_test.go":          {1, "the instant of a stop"},
	"e2e/limits/limits_test.go":            {2, "the time of a measurement, and the pace of samples"},
	"e2e/overload/overload_test.go":        {1, "the pace of the load"},
	"e2e/queue/judged_test.go":             {1, "the pace of looks, which are counted"},
	"e2e/queue/reason_test.go":             {1, "preempt_min_runtime passes"},
	"e2e/restart/kill_test.go":             {2, "the instant of a kill, and the least life of an agent"},
	"e2e/restart/restart_test.go":          {1, "the instant of a kill"},
	"e2e/restart/services_test.go":         {1, "nothing is registered twice"},
	"nomadlike/server_test.go":             {1, "a slow sender"},
	"server/dryrun_test.go":                {3, "functions of a table that a bubble calls"},
	"server/openb_test.go":                 {1, "a method that a bubble calls"},
	"server/pass_bench_test.go":            {1, "the cluster is idle again"},
	"server/raftlog/kill_test.go":          {2, "the instant of a kill"},
}

// TestSleeps finds time.Sleep in tests outside synctest bubbles: such a sleep is too short on a slow machine and too long
// on a fast one. The interval of a poll that ends at a deadline is allowed.
func TestSleeps(t *testing.T) {
	byDir := map[string][]*source{}
	for _, s := range sources(t) {
		if s.test {
			byDir[s.dir] = append(byDir[s.dir], s)
		}
	}
	found := map[string][]string{}
	for _, files := range byDir {
		for _, at := range sleepsOutsideBubbles(files) {
			p := fset.Position(at.Pos())
			found[p.Filename] = append(found[p.Filename], p.String())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		got, want := found[name], realSleeps[name].count
		if len(got) > want {
			t.Errorf("%s sleeps in real time %d times, want at most %d: wait for the condition with a deadline, or test in a synctest bubble\n\t%s",
				name, len(got), want, strings.Join(got, "\n\t"))
		}
	}
	for name, allowed := range realSleeps {
		if got := len(found[name]); got < allowed.count {
			t.Errorf("%s sleeps in real time %d times, and %d are allowed: lower the number in realSleeps", name, got, allowed.count)
		}
	}
}

// reference is the use of a function's name, or of time.Sleep.
type reference struct {
	name   string
	at     ast.Node
	bubble bool // inside a function literal that runs in a bubble
}

// sleepsOutsideBubbles returns the calls of time.Sleep in a package's tests that may run in real time. A function runs in
// virtual time if everything that names it does. Methods are told apart by name only.
func sleepsOutsideBubbles(files []*source) []ast.Node {
	funcs := map[string][]reference{} // references by the function that they are in
	var decls []*ast.FuncDecl
	for _, s := range files {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				decls = append(decls, f)
				funcs[f.Name.Name] = nil
			}
		}
	}
	enters := map[string]bool{} // functions that run a function parameter in a bubble
	for _, f := range decls {
		enters[f.Name.Name] = takesFunc(f) && callsBubble(f)
	}
	for _, f := range decls {
		funcs[f.Name.Name] = append(funcs[f.Name.Name], references(f, funcs, enters)...)
	}
	uses := map[string]int{}
	for _, refs := range funcs {
		for _, r := range refs {
			uses[r.name]++
		}
	}
	inReal := map[string]bool{}
	var mark func(name string)
	mark = func(name string) {
		if inReal[name] {
			return
		}
		inReal[name] = true
		for _, r := range funcs[name] {
			if !r.bubble {
				mark(r.name)
			}
		}
	}
	for name := range funcs {
		if uses[name] == 0 {
			mark(name) // a test, or called by something else
		}
	}
	var sleeps []ast.Node
	for name, refs := range funcs {
		for _, r := range refs {
			if r.name == sleepCall && inReal[name] && !r.bubble {
				sleeps = append(sleeps, r.at)
			}
		}
	}
	slices.SortFunc(sleeps, func(a, b ast.Node) int { return int(a.Pos() - b.Pos()) })
	return sleeps
}

// sleepCall is the name of a reference to time.Sleep.
const sleepCall = "time.Sleep"

// references returns the uses in f of the functions of its package and of time.Sleep.
func references(f *ast.FuncDecl, funcs map[string][]reference, enters map[string]bool) []reference {
	var refs []reference
	var loops []*ast.ForStmt
	var visit func(n ast.Node, bubble bool)
	visit = func(n ast.Node, bubble bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ForStmt:
				loops = append(loops, n)
			case *ast.CallExpr:
				if !bubble && (isCall(n, "synctest", "Test") || enters[calleeName(n)]) {
					visit(n.Fun, bubble)
					for _, arg := range n.Args {
						visit(arg, true)
					}
					return false
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name+"."+n.Sel.Name == sleepCall && !polls(loops, n) {
					refs = append(refs, reference{sleepCall, n, bubble})
				}
			case *ast.Ident:
				if _, ok := funcs[n.Name]; ok {
					refs = append(refs, reference{n.Name, n, bubble})
				}
			}
			return true
		})
	}
	visit(f.Body, false)
	return refs
}

// polls says whether the innermost loop around n compares the time that it takes with a limit.
func polls(loops []*ast.ForStmt, n ast.Node) bool {
	for _, loop := range slices.Backward(loops) {
		if loop.Pos() <= n.Pos() && n.End() <= loop.End() {
			return hasDeadline(loop)
		}
	}
	return false
}

func hasDeadline(loop *ast.ForStmt) bool {
	found := false
	ast.Inspect(loop, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt:
			return n == loop
		case *ast.BinaryExpr:
			c, ok := n.X.(*ast.CallExpr)
			found = found || ok && isCall(c, "time", "Since")
		case *ast.CallExpr:
			found = found || !isCall(n, "time", "After") && slices.Contains([]string{"After", "Before"}, calleeName(n))
		}
		return !found
	})
	return found
}

// takesFunc says whether f has a parameter of a function type.
func takesFunc(f *ast.FuncDecl) bool {
	return slices.ContainsFunc(f.Type.Params.List, func(p *ast.Field) bool {
		_, ok := p.Type.(*ast.FuncType)
		return ok
	})
}

// callsBubble says whether f calls synctest.Test.
func callsBubble(f *ast.FuncDecl) bool {
	found := false
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok && isCall(c, "synctest", "Test") {
			found = true
		}
		return !found
	})
	return found
}

func isCall(c *ast.CallExpr, pkg, name string) bool {
	s, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg && s.Sel.Name == name
}

// calleeName is the name of the function that c calls, without its package or receiver.
func calleeName(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}
