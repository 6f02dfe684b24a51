package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// allFlags returns the flags of all commands that help lists, by command and name, as testdata/flags.txt has them. What one
// function declares for many commands is one flag, of "*".
func allFlags() map[string]bool {
	shared := generalFlags()
	lists := &cobra.Command{}
	new(format).listFlags(lists)
	new(env).ofAlloc(lists, new(bool))
	shared.AddFlagSet(lists.Flags())
	out := map[string]bool{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.InitDefaultHelpFlag()
		c.InitDefaultVersionFlag()
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			name := strings.TrimPrefix(strings.TrimPrefix(c.CommandPath(), "muster"), " ")
			if s := shared.Lookup(f.Name); s != nil && s.Usage == f.Usage || f.Name == "help" || name == "" {
				name = "*"
			}
			if !f.Hidden {
				out[name+" -"+f.Name] = true
			}
		})
		for _, sub := range documented(c) {
			walk(sub)
		}
	}
	walk(newRoot(&env{out: new(bytes.Buffer), err: new(bytes.Buffer)}))
	return out
}

// flagRow is a row of testdata/flags.txt.
type flagRow struct {
	line           int
	flag           string // command and flag
	dir, test, sub string // the witness and what it has for the flag
}

func flagRows(t *testing.T) []flagRow {
	t.Helper()
	b, err := os.ReadFile("testdata/flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	var rows []flagRow
	for i, line := range strings.Split(strings.TrimRight(string(b), "\n"), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		cells := append(strings.Split(line, "\t"), "", "")
		r := flagRow{line: i + 1, flag: cells[0], test: cells[1], sub: cells[2]}
		if dir, test, ok := strings.Cut(cells[1], " "); ok {
			r.dir, r.test = dir, test
		}
		rows = append(rows, r)
	}
	return rows
}

// TestFlagRows keeps testdata/flags.txt complete: each flag of each command has a row that names a test whose outcome
// depends on the flag, and the test exists.
func TestFlagRows(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("not run: the table has the flags of commands that only a build for Linux has")
	}
	want, seen, tests := allFlags(), map[string]bool{}, map[string]map[string]bool{}
	for _, r := range flagRows(t) {
		at := func(format string, args ...any) {
			t.Helper()
			t.Errorf("flags.txt:%d: %s: "+format, append([]any{r.line, r.flag}, args...)...)
		}
		if seen[r.flag] {
			at("it has two rows")
		}
		if seen[r.flag] = true; !want[r.flag] {
			at("there is no such flag: remove the row")
		}
		if r.test == "-" {
			if r.sub == "" {
				at("say why it needs no witness")
			}
			continue
		}
		if tests[r.dir] == nil {
			tests[r.dir] = testsIn(t, filepath.Join("../..", r.dir))
		}
		_, own := flagLines[r.flag]
		switch {
		case !tests[r.dir][r.test]:
			at("%s has no test %q", r.dir, r.test)
		case r.test == "TestFlags" && !own:
			at("flagLines has no entry for it")
		}
	}
	for _, f := range slices.Sorted(maps.Keys(want)) {
		if !seen[f] {
			t.Errorf("%q has no row in testdata/flags.txt. Name a test that fails when the flag has no effect; an entry in flagLines is one", f)
		}
	}
}

// testsIn returns the names of the tests in the files of a directory.
func testsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") {
				out[fn.Name.Name] = true
			}
		}
	}
	return out
}

// withoutFlag removes a flag of a command, with its value, from a command line.
func withoutFlag(c *cobra.Command, args []string, name string) []string {
	f := c.Flags().Lookup(name)
	var out []string
	for i := 0; i < len(args); i++ {
		word, _, assigned := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		if f == nil || args[i][0] != '-' || word != f.Name && (f.Shorthand == "" || word != f.Shorthand) {
			out = append(out, args[i])
		} else if f.NoOptDefVal == "" && !assigned {
			i++
		}
	}
	return out
}

// TestFlags runs the command lines that flags.txt names as witnesses, in flagLines and among those of TestGolden, with the
// flag and without it: what they print and ask must differ.
func TestFlags(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("not run: the table has the flags of commands that only a build for Linux has")
	}
	root, rows := newRoot(&env{out: new(bytes.Buffer), err: new(bytes.Buffer)}), flagRows(t)
	data, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		cut := strings.LastIndex(r.flag, " -")
		command, name := r.flag[:cut], r.flag[cut+2:]
		line, own := flagLines[r.flag]
		if command != "*" {
			line.args = command + " " + line.args
		}
		if !own && (r.dir != "./cmd/muster" || r.test != "TestGolden") {
			continue
		}
		if !own {
			i := slices.IndexFunc(golden, func(g struct {
				name, args, stdin string
				code              int
			},
			) bool {
				return g.name == r.sub
			})
			if i < 0 {
				t.Errorf("%s: TestGolden has no entry %q", r.flag, r.sub)
				continue
			}
			line.args, line.stdin = golden[i].args, golden[i].stdin
		}
		t.Run(r.flag, func(t *testing.T) {
			args := strings.Fields(line.args)
			for i, a := range args {
				args[i] = strings.ReplaceAll(a, "_", " ")
			}
			c, _, err := root.Find(normalize(root, args))
			if err != nil || command != "*" && c.CommandPath() != "muster "+command {
				t.Fatalf("%q is no line of the command", line.args)
			}
			bare := withoutFlag(c, args, name)
			if len(bare) == len(args) {
				t.Fatalf("%q does not have the flag", line.args)
			}
			run := func(args []string) string {
				dir := t.TempDir()
				t.Chdir(dir) // some commands write files
				if err := os.Symlink(data, "testdata"); err != nil {
					t.Fatal(err)
				}
				f := newAgentFake(t)
				f.whole, f.tty = true, line.tty
				maps.Copy(f.answers, line.answers)
				r := f.run(t, line.stdin, args...)
				all := fmt.Sprintf("exit %d\n-- stdout\n%s-- stderr\n%s-- requests\n%s\n", r.code, r.out, r.errOut, f.log())
				return strings.ReplaceAll(all, dir, "DIR") // its name has digits by chance
			}
			with, without := run(args), run(bare)
			if with == without || !strings.Contains(with, line.with) || line.with != "" && strings.Contains(without, line.with) ||
				!strings.Contains(without, line.gone) || line.gone != "" && strings.Contains(with, line.gone) {
				t.Errorf("want %q with the flag only and %q without it only\n-- with\n%s\n-- without\n%s", line.with, line.gone, with, without)
			}
		})
	}
}

// TestFlagsThatExcludeEachOther: a flag that would be ignored with another, or without one, is refused in one sentence.
func TestFlagsThatExcludeEachOther(t *testing.T) {
	for args, want := range map[string]string{
		"alloc fs -stat -tail 8ba85cef note.txt":                 "-stat prints no content",
		"alloc fs -stat -f 8ba85cef note.txt":                    "-stat prints no content",
		"job inspect -with-vars example":                         "give -hcl, too",
		"job logs -rank 1 -index 2 pair":                         "-rank and -index exclude each other",
		"job status -filter Status=='dead' example":              "-filter is for the list of all: leave it out for one job",
		"job status -short":                                      "-short is for one job: name it",
		"node status -o wide gpu-01":                             "-out is for the list of all: leave it out for one node",
		"node status -self -per-page 3":                          "-per-page is for the list of all: leave it out for one node",
		"node status -stats":                                     "-stats is for one node: name it",
		"node status -stats -short gpu-01":                       "-short leaves out what -stats shows",
		"alloc status -stats -short 8ba85cef":                    "-short leaves out what -stats shows",
		"alloc status -stats":                                    "-stats is for one allocation: name it",
		"job history -diff-version 2 -diff-tag known-good train": "-diff-version and -diff-tag exclude each other",
	} {
		f := newAgentFake(t)
		if r := f.run(t, "", strings.Fields(args)...); r.code != exitError || !strings.Contains(r.errOut, want) || strings.Count(r.errOut, "\n") != 1 || f.log() != "" {
			t.Errorf("%s: exit status %d, %q, asked %q; want 1 and a line with %q", args, r.code, r.errOut, f.log(), want)
		}
	}
}
