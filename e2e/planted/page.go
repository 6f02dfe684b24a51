package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// The table of DESIGN.md stands between these lines. The seconds are those of the run that wrote it.
const tableBegin, tableEnd = "<!-- bugs: begin -->\n", "<!-- bugs: end -->\n"

var tableRow = regexp.MustCompile("(?m)^\\| ([a-z0-9-]+) \\| .* \\| ([0-9.]*) \\|$")

// table returns the table of bugs. Bugs that were not planted keep the seconds of the table before.
func table(bugs []*Bug, took map[string]string, before string) string {
	old := map[string]string{}
	for _, m := range tableRow.FindAllStringSubmatch(before, -1) {
		old[m[1]] = m[2]
	}
	var s strings.Builder
	s.WriteString("| Bug | What it breaks | Found by `go test` | Seconds |\n|---|---|---|---:|\n")
	for _, b := range bugs {
		seconds, ok := took[b.Name]
		if !ok {
			seconds = old[b.Name]
		}
		fmt.Fprintf(&s, "| %s | %s | `%s` | %s |\n", b.Name, b.Breaks, strings.ReplaceAll(b.Suite, "|", "\\|"), seconds)
	}
	return s.String()
}

// split returns the page before, in and after the table.
func split(text string) (before, in, after string, err error) {
	before, rest, ok := strings.Cut(text, tableBegin)
	in, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		return "", "", "", fmt.Errorf("the page has no table between %q and %q", strings.TrimSpace(tableBegin), strings.TrimSpace(tableEnd))
	}
	return before, in, after, nil
}

func writePage(path string, bugs []*Bug, took map[string]string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, in, after, err := split(string(b))
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(before+tableBegin+table(bugs, took, in)+tableEnd+after), 0o644)
}
