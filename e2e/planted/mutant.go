package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/muster-sched/muster/e2e/overlay"
)

// readMutants reads a table of mutants. A row is a file, the text that occurs in it once, what replaces it, the package and
// the test that must fail, separated by tabs. In both texts \n is a line break and \t a tab.
func readMutants(name string) ([]*Bug, error) {
	lines, err := readTable(name, "file", "old text", "new text", "package", "test")
	if err != nil {
		return nil, err
	}
	plain := strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\\`, `\`)
	var bugs []*Bug
	for _, l := range lines {
		f := l.fields
		bugs = append(bugs, &Bug{Name: fmt.Sprintf("%s:%d", name, l.number), Breaks: fmt.Sprintf("%s: %q instead of %q", f[0], f[2], f[1]),
			Suite: fmt.Sprintf("-failfast -run ^%s$ %s", f[4], f[3]), Says: "--- FAIL: " + f[4], change: overlay.Edit(f[0], plain.Replace(f[1]), plain.Replace(f[2]))})
	}
	return bugs, nil
}

// line is a line of a table.
type line struct {
	number int
	fields []string
}

// readTable reads a file of lines with fields of the given names, separated by tabs. Lines that begin with # are comments.
func readTable(name string, names ...string) ([]line, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var out []line
	for i, l := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		if strings.HasPrefix(l, "#") {
			continue
		}
		f := strings.Split(l, "\t")
		if len(f) != len(names) {
			return nil, fmt.Errorf("%s, line %d: %d fields, want %d, separated by tabs: %s", name, i+1, len(f), len(names), strings.Join(names, ", "))
		}
		out = append(out, line{i + 1, f})
	}
	return out, nil
}
