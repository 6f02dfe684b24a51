// Package pages runs the commands of the documentation, each page in a new cluster, and compares what it shows.
package pages

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A block is a fenced part of a page.
type block struct {
	line   int    // of its first line of text
	lang   string // what the fence says: sh for commands, console for commands with their output, hcl for files
	text   string
	reason string // why it is not run; empty if it is
}

// reasoned is the line above a block that says why it is not run here. Readers see it too.
var reasoned = regexp.MustCompile(`^\*Not run by the tests: (.+)\.\*$`)

// blocks returns the fenced parts of a page in order.
func blocks(page string) (out []block, err error) {
	var b *block
	last, indent := "", ""
	for i, line := range strings.Split(page, "\n") {
		line = strings.TrimPrefix(line, indent)
		if b == nil { // in a list a block is indented
			trimmed := strings.TrimLeft(line, " ")
			if strings.HasPrefix(trimmed, "```") {
				indent, line = line[:len(line)-len(trimmed)], trimmed
			}
		}
		switch lang, fence := strings.CutPrefix(line, "```"); {
		case fence && b == nil:
			b = &block{line: i + 2, lang: lang}
			if m := reasoned.FindStringSubmatch(strings.TrimSpace(last)); m != nil {
				b.reason = m[1]
			}
		case fence:
			out = append(out, *b)
			b, last, indent = nil, "", ""
		case b != nil:
			b.text += line + "\n"
		case strings.TrimSpace(line) != "":
			last = line
		}
	}
	if b != nil {
		return nil, fmt.Errorf("line %d: the block that begins here has no end", b.line-1)
	}
	return out, nil
}

// A command is one line of a page that a reader types.
type command struct {
	line int
	text string
	want string // the output that the page shows; empty if it shows none
	show bool   // the page shows an output
}

var hereDocument = regexp.MustCompile(`<<-?['"]?(\w+)`)

// open reports whether a command continues in the next line: after a backslash, or until the end of a here-document.
func (c command) open() bool {
	if m := hereDocument.FindStringSubmatch(c.text); m != nil {
		return !strings.HasSuffix(c.text, "\n"+m[1])
	}
	return strings.HasSuffix(c.text, "\\")
}

// commands returns what a reader types of a block. Lines that go on with a backslash, and here-documents, are one command.
func (b block) commands() (out []command) {
	text := strings.TrimSuffix(b.text, "\n")
	for i, line := range strings.Split(text, "\n") {
		n := len(out)
		typed, prompt := strings.CutPrefix(line, "$ ")
		switch {
		case n > 0 && !out[n-1].show && out[n-1].open():
			out[n-1].text += "\n" + line
		case b.lang == "console" && !prompt && n > 0:
			out[n-1].want += line + "\n"
			out[n-1].show = true
		case strings.TrimSpace(typed) == "" || strings.HasPrefix(typed, "#"):
		default:
			out = append(out, command{line: b.line + i, text: typed})
		}
	}
	return out
}

var label = regexp.MustCompile(`(?m)^(\w+) "([^"]+)"`)

// fileNames returns the names under which a reader keeps an HCL block. Pages name files after the label of the first block.
func (b block) fileNames() []string {
	m := label.FindStringSubmatch(b.text)
	if m == nil {
		return nil
	}
	return []string{m[2] + ".hcl", m[2] + ".muster.hcl"}
}

func (b block) isJob() bool { return strings.HasPrefix(b.text, "job ") }

// masks hide in an output what differs from run to run: ids, times and spans, and how columns are aligned.
var masks = []struct {
	is   *regexp.Regexp
	then string
}{
	{regexp.MustCompile(`\b(GPU-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "ID"},
	{regexp.MustCompile(`\b[0-9a-f]{8}\b`), "ID"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:?\d\d)?\b`), "TIME"},
	{regexp.MustCompile(`\b\d\d:\d\d(:\d\d)?\b`), "TIME"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(d|h|m|s|ms|µs))+\b`), "SPAN"},
	{regexp.MustCompile(`[-=─]{4,}`), "----"},
	{regexp.MustCompile(`[ \t]+`), " "},
	{regexp.MustCompile(`(?m)^ | $`), ""},
	{regexp.MustCompile(`\n{2,}`), "\n"},
}

func masked(s string) string {
	s = strings.Trim(s, "\n") + "\n"
	for _, m := range masks {
		s = m.is.ReplaceAllString(s, m.then)
	}
	return strings.TrimSpace(s)
}

// shown reports whether an output is the one that a page shows. A line of three dots stands for any number of lines.
func shown(want, got string) bool {
	parts := regexp.MustCompile(`(?m)^\.\.\.$`).Split(masked(want), -1)
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(strings.Trim(p, "\n"))
	}
	return regexp.MustCompile(`(?s)^` + strings.Join(parts, `(\n?.*\n?)`) + `$`).MatchString(masked(got))
}

// all returns every page, in order, by its path from the root of the tree.
func all(root string) (out []string, err error) {
	out = []string{"README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"}
	err = filepath.WalkDir(filepath.Join(root, "docs"), func(p string, d os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(p, ".md") {
			rel, _ := filepath.Rel(root, p)
			out = append(out, rel)
		}
		return err
	})
	slices.Sort(out)
	return out, err
}
