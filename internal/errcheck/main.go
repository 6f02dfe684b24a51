// Command errcheck is errcheck as a tool of `go vet`, which keeps its results for unchanged packages: `make lint` runs it.
// It looks at no tests, and at no calls whose error says nothing: allowed has them with the reasons.
package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"

	"github.com/kisielk/errcheck/errcheck"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/unitchecker"
)

// allowed are functions whose error may be ignored, by name, or by full name where another function of the name may fail
// in a way that matters.
var allowed = map[string]string{
	"Close":                      "of what was read, or what has failed already; a file that was written is synced, or closed with a check",
	"CloseNow":                   "of a connection that has ended already",
	"CloseWrite":                 "of a connection that has ended already",
	"SetDeadline":                "of a connection; if it is gone, the next call says so",
	"SetReadDeadline":            "of a connection; if it is gone, the next call says so",
	"SetWriteDeadline":           "of a connection; if it is gone, the next call says so",
	"Control":                    "of a descriptor that the caller holds open; the function inside keeps its own error",
	"os.Remove":                  "of what is left over; the next start or collection removes it",
	"os.RemoveAll":               "of what is left over; the next start or collection removes it",
	"(*os.Root).Remove":          "of what is left over; the whole directory goes in the end",
	"unix.Rmdir":                 "of a group that still has tasks, which the next collection removes",
	"unix.PidfdSendSignal":       "to a process that may have ended; its end is awaited",
	"(cgroup.Group).Remove":      "of a group that still has tasks, which the next collection removes",
	"(*cgroup.Manager).Remove":   "of a group that still has tasks, which the next collection removes",
	"(cgroup.Group).Kill":        "of tasks that may have ended; their end is awaited",
	"(*supervisor.task).signal":  "to a process that may have ended; its end is awaited",
	"(*supervisor.task).killAll": "to processes that may have ended; their end is awaited",
	"unix.SetNonblock":           "of a descriptor that was opened right before",
	"unix.IoctlSetWinsize":       "of a terminal that may be closed",
	"syscall.Kill":               "to a process that may have ended; its end is awaited",
	"unix.Kill":                  "to a process that may have ended; its end is awaited",
	"(*os.Process).Kill":         "to a process that may have ended; its end is awaited",
	"(*bbolt.Tx).Rollback":       "of a transaction that may be committed",
	"fmt.Fprint":                 "to a terminal, a log or a hash; cmd/muster's outlet remembers a failed write",
	"fmt.Fprintf":                "to a terminal, a log or a hash; cmd/muster's outlet remembers a failed write",
	"fmt.Fprintln":               "to a terminal, a log or a hash; cmd/muster's outlet remembers a failed write",
	"(raft.SnapshotSink).Cancel": "after another error, which is returned",
	"term.Restore":               "of a terminal that may be gone",
	"syscall.Flock":              "gives up a lock that the close gives up anyway",
	"unix.Flock":                 "gives up a lock that the close gives up anyway",
}

func main() {
	run := errcheck.Analyzer.Run
	errcheck.Analyzer.Run = func(pass *analysis.Pass) (any, error) {
		calls := map[token.Pos]*types.Func{}
		for _, f := range pass.Files {
			ast.Inspect(f, func(n ast.Node) bool {
				if c, ok := n.(*ast.CallExpr); ok {
					calls[c.Lparen] = called(pass.TypesInfo, c)
				}
				return true
			})
		}
		report := pass.Report
		pass.Report = func(d analysis.Diagnostic) {
			at := pass.Fset.Position(d.Pos)
			if strings.HasSuffix(at.Filename, "_test.go") || strings.Contains(at.Filename, "/e2e/") {
				return
			}
			f, call := calls[d.Pos]
			if !call { // a channel that is only waited for
				return
			}
			if f != nil {
				name := short(f.FullName())
				if allowed[f.Name()] != "" || allowed[name] != "" {
					return
				}
				d.Message = "the error of " + name + " is ignored: handle it, or write _ = before the call and why"
			}
			report(d)
		}
		return run(pass)
	}
	unitchecker.Main(errcheck.Analyzer)
}

// called returns the function of a call, or nil.
func called(info *types.Info, c *ast.CallExpr) *types.Func {
	switch f := ast.Unparen(c.Fun).(type) {
	case *ast.Ident:
		fn, _ := info.Uses[f].(*types.Func)
		return fn
	case *ast.SelectorExpr:
		fn, _ := info.Uses[f.Sel].(*types.Func)
		return fn
	}
	return nil
}

// short removes the directories from the package in a full name.
func short(name string) string {
	head, open := "", strings.TrimLeft(name, "(*")
	head = name[:len(name)-len(open)]
	return head + open[strings.LastIndex(open, "/")+1:]
}
