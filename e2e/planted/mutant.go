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
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	plain := strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\\`, `\`)
	var bugs []*Bug
	for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 5 {
			return nil, fmt.Errorf("%s, line %d: %d fields, want 5: file, old text, new text, package and test, separated by tabs", name, i+1, len(f))
		}
		bugs = append(bugs, &Bug{Name: fmt.Sprintf("%s:%d", name, i+1), Breaks: fmt.Sprintf("%s: %q instead of %q", f[0], f[2], f[1]),
			Suite: fmt.Sprintf("-failfast -run ^%s$ %s", f[4], f[3]), Says: "--- FAIL: " + f[4], change: overlay.Edit(f[0], plain.Replace(f[1]), plain.Replace(f[2]))})
	}
	return bugs, nil
}
