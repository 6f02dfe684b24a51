package lint

import (
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// byPath are the functions that look up a path, by package.
var byPath = map[string][]string{
	"os": {"Chdir", "Chmod", "Chown", "Chtimes", "CopyFS", "Create", "CreateTemp", "DirFS", "Lchown", "Link", "Lstat", "Mkdir", "MkdirAll", "MkdirTemp", "Open",
		"OpenFile", "OpenInRoot", "OpenRoot", "ReadDir", "ReadFile", "Readlink", "Remove", "RemoveAll", "Rename", "Stat", "Symlink", "Truncate", "WriteFile"},
	"filepath": {"EvalSymlinks", "Glob", "Walk", "WalkDir"},
	"unix":     kernelByPath,
	"syscall":  kernelByPath,
}

var kernelByPath = []string{"Access", "Chdir", "Chmod", "Chown", "Chroot", "Creat", "Faccessat", "Fchmodat", "Fchownat", "Fstatat", "Getxattr", "Lchown", "Lgetxattr",
	"Link", "Linkat", "Listxattr", "Lsetxattr", "Lstat", "Lutimes", "Mkdir", "Mkdirat", "Mkfifo", "Mkfifoat", "Mknod", "Mknodat", "Mount", "MoveMount", "Open",
	"OpenTree", "Openat", "Openat2", "Readlink", "Removexattr", "Rename", "Renameat", "Renameat2", "Rmdir", "Setxattr", "Stat", "Statx", "Symlink", "Symlinkat",
	"Truncate", "Unlink", "Unlinkat", "Unmount", "Utimes", "UtimesNano", "UtimesNanoAt"}

// TestTaskFilesGoByHandle keeps path strings out of what the agent, as root, does below an allocation (ADR 0018). It looks
// at every package of the client, so that a new one is covered from its first line.
func TestTaskFilesGoByHandle(t *testing.T) {
	ran["path"] = true
	for _, s := range sources(t) {
		if s.test || !in(s.dir, "client/...") || strings.Contains(s.dir, "/testdata/") {
			continue
		}
		for _, d := range s.file.Decls {
			where := s.name
			if f, ok := d.(*ast.FuncDecl); ok {
				where = s.name + ":" + f.Name.Name
			}
			kernel := map[ast.Expr]bool{} // functions that are called with a path of the kernel
			ast.Inspect(d, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					kernel[call.Fun] = slices.ContainsFunc(call.Args, ofKernel)
				}
				f, ok := n.(*ast.SelectorExpr) // also one that is not called: a variable may be called later
				if !ok {
					return true
				}
				x, ok := f.X.(*ast.Ident)
				if ok && slices.Contains(byPath[x.Name], f.Sel.Name) && !kernel[f] && !silenced("path", s.dir, s.name, where) {
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
