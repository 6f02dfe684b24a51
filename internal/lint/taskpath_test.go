package lint

import (
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// taskFiles are the packages that work on files below an allocation, where tasks can replace every name.
var taskFiles = []string{"client", "client/allocdir", "client/artifact", "client/driver/...", "client/gpu/shim", "client/logfile", "client/ranks",
	"client/runner", "client/supervisor", "client/template"}

// byPath are the functions that look up a path, by package.
var byPath = map[string][]string{
	"os": {"Chmod", "Chown", "Chtimes", "CopyFS", "Create", "CreateTemp", "DirFS", "Lchown", "Link", "Lstat", "Mkdir", "MkdirAll", "MkdirTemp", "Open",
		"OpenFile", "OpenInRoot", "OpenRoot", "ReadDir", "ReadFile", "Readlink", "Remove", "RemoveAll", "Rename", "Stat", "Symlink", "Truncate", "WriteFile"},
	"filepath": {"EvalSymlinks", "Glob", "Walk", "WalkDir"},
	"unix":     kernelByPath,
	"syscall":  kernelByPath,
}

var kernelByPath = []string{"Access", "Chmod", "Chown", "Faccessat", "Fchmodat", "Fchownat", "Fstatat", "Lchown", "Link", "Linkat", "Lstat", "Mkdir", "Mkdirat",
	"Mkfifo", "Mkfifoat", "Mknod", "Mknodat", "Mount", "MoveMount", "Open", "OpenTree", "Openat", "Openat2", "Readlink", "Rename", "Renameat", "Renameat2", "Rmdir",
	"Stat", "Statx", "Symlink", "Symlinkat", "Truncate", "Unlink", "Unlinkat", "Unmount"}

// TestTaskFilesGoByHandle keeps path strings out of what the agent, as root, does below an allocation (ADR 0018).
func TestTaskFilesGoByHandle(t *testing.T) {
	ran["path"] = true
	for _, s := range sources(t) {
		if s.test || !in(s.dir, taskFiles...) || strings.Contains(s.dir, "/testdata/") {
			continue
		}
		for _, d := range s.file.Decls {
			where := s.name
			if f, ok := d.(*ast.FuncDecl); ok {
				where = s.name + ":" + f.Name.Name
			}
			ast.Inspect(d, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				f, ok := call.Fun.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				x, ok := f.X.(*ast.Ident)
				if ok && slices.Contains(byPath[x.Name], f.Sel.Name) && !slices.ContainsFunc(call.Args, ofKernel) && !silenced("path", s.name, where) {
					t.Errorf("%s: %s.%s goes by path in %s. A task may replace any name below its allocation between two calls of the agent, which is root: open the directory as a taskfs.Dir and use its methods. A path that no task can write to is listed in exceptions.go, with the reason", fset.Position(n.Pos()), x.Name, f.Sel.Name, s.dir)
				}
				return true
			})
		}
	}
}

// ofKernel reports whether an argument is a path that begins with /proc, /sys or /dev.
func ofKernel(arg ast.Expr) bool {
	switch x := arg.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(x.Value)
		return x.Kind == token.STRING && (strings.HasPrefix(text, "/proc") || strings.HasPrefix(text, "/sys") || strings.HasPrefix(text, "/dev"))
	case *ast.BinaryExpr:
		return ofKernel(x.X)
	case *ast.SelectorExpr:
		return x.Sel.Name == "DevNull"
	case *ast.CallExpr:
		return len(x.Args) > 0 && ofKernel(x.Args[0])
	}
	return false
}
