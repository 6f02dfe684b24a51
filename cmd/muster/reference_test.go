package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	goldenfile "github.com/muster-sched/muster/internal/golden"
)

// referenceRoot is the tree of commands as a machine without settings in its environment has it.
func referenceRoot(t *testing.T, dir string, args ...string) {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "MUSTER_") || strings.HasPrefix(name, "NOMAD_") || name == "NO_COLOR" {
			t.Setenv(name, "")
		}
	}
	var errs strings.Builder
	if code := run(append([]string{"muster", "reference"}, append(args, dir)...), strings.NewReader(""), &errs, &errs); code != 0 {
		t.Fatalf("exit %d: %s", code, errs.String())
	}
}

// TestReference looks into the pages: each command that help lists has a section, and each block an end.
func TestReference(t *testing.T) {
	dir := t.TempDir()
	referenceRoot(t, dir)
	sections := 0
	files, _ := filepath.Glob(filepath.Join(dir, "*.md"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(b), "\n```")%2 != 0 {
			t.Errorf("%s: a block has no end", filepath.Base(f))
		}
		sections += strings.Count(string(b), "\n# muster ") + strings.Count(string(b), "\n## muster ")
	}
	if len(files) < 20 || sections < 80 {
		t.Errorf("%d pages with %d sections", len(files), sections)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "job.md")); err != nil || !strings.Contains(string(b), "\n## muster job why\n") {
		t.Errorf("job.md: %v\n%.500s", err, b)
	}
}

// TestReferencePages keeps the committed reference equal to the commands: no page differs, lacks or is left over. `go
// generate ./cmd/muster` writes it.
func TestReferencePages(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("not run: the reference has the options of commands that only a build for Linux has")
	}
	fresh, committed := t.TempDir(), "../../docs/reference/cli"
	referenceRoot(t, fresh)
	made, err := filepath.Glob(filepath.Join(fresh, "*"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, f := range made {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		want[filepath.Base(f)] = true
		goldenfile.Compare(t, filepath.Join(committed, filepath.Base(f)), b, *update)
	}
	kept, err := filepath.Glob(filepath.Join(committed, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range kept {
		switch {
		case want[filepath.Base(f)]:
		case *update:
			if err := os.Remove(f); err != nil {
				t.Error(err)
			}
		default:
			t.Errorf("%s is about no command; remove it with: go generate ./cmd/muster", f)
		}
	}
}

// TestManPages checks the manual pages, by man's own formatter where it is installed.
func TestManPages(t *testing.T) {
	dir := t.TempDir()
	referenceRoot(t, dir, "-man")
	files, _ := filepath.Glob(filepath.Join(dir, "*.1"))
	if len(files) < 100 {
		t.Fatalf("%d manual pages", len(files))
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{".TH ", ".SH NAME\n", ".SH SYNOPSIS\n", ".SH DESCRIPTION\n"} {
			if !strings.Contains(string(b), part) {
				t.Errorf("%s has no %q", filepath.Base(f), part)
			}
		}
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("not run: groff is not installed, which would say whether the pages are formatted without warnings")
	}
	out, err := exec.Command(groff, append([]string{"-man", "-Tascii", "-ww", "-z"}, files...)...).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("groff: %v\n%.2000s", err, out)
	}
}
