// Package script runs tests written as text that a reader can review: a command with its input, a line of four dashes,
// and the expected answer. With the flag -rewrite the answers in the file are replaced by the actual ones; review the
// diff then.
//
//	# A comment.
//	schedule job=web count=2
//	more input, up to the dashes
//	----
//	the expected answer, up to a blank line
//
// An answer with blank lines is written between two pairs of dashes.
package script

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "replace the expected answers in script files by those the code gives")

const dashes = "----"

// Case is one command of a script.
type Case struct {
	Pos      string // file:line of the command
	Cmd      string
	Args     []Arg
	Input    string // the lines between the command and the dashes
	Expected string
}

// Arg is "key=value" or "key"; a value may be quoted as in Go.
type Arg struct {
	Key, Value string
	HasValue   bool
}

// Has reports whether an argument is given.
func (c *Case) Has(key string) bool {
	_, ok := c.find(key)
	return ok
}

func (c *Case) find(key string) (Arg, bool) {
	for _, a := range c.Args {
		if a.Key == key {
			return a, true
		}
	}
	return Arg{}, false
}

// String returns an argument's value, or def when it is not given.
func (c *Case) String(key, def string) string {
	if a, ok := c.find(key); ok {
		return a.Value
	}
	return def
}

// Int returns an argument's value as a number, or def when it is not given. It fails the test for anything else.
func (c *Case) Int(t testing.TB, key string, def int) int {
	t.Helper()
	a, ok := c.find(key)
	if !ok {
		return def
	}
	n, err := strconv.Atoi(a.Value)
	if err != nil {
		t.Fatalf("%s: %s=%q: want a number", c.Pos, key, a.Value)
	}
	return n
}

// Walk runs f as a subtest for every file of a directory, in order of their names.
func Walk(t *testing.T, dir string, f func(t *testing.T, path string)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in %s", dir)
	}
	for _, path := range files {
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			continue // corpora of fuzz targets
		}
		t.Run(filepath.Base(path), func(t *testing.T) { f(t, path) })
	}
}

// Run runs one script: f answers each command.
func Run(t *testing.T, path string, f func(t *testing.T, c *Case) string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	lines := strings.Split(string(text), "\n")
	for i := 0; i < len(lines); {
		line := lines[i]
		if trimmed := strings.TrimSpace(line); trimmed == "" || strings.HasPrefix(trimmed, "#") {
			if i < len(lines)-1 || line != "" {
				out.WriteString(line + "\n")
			}
			i++
			continue
		}
		c, next, err := parse(path, lines, i)
		if err != nil {
			t.Fatal(err)
		}
		head := lines[i : i+1+strings.Count(c.Input, "\n")]
		i = next
		got := f(t, c)
		if got != "" && !strings.HasSuffix(got, "\n") {
			got += "\n"
		}
		for _, h := range head {
			out.WriteString(h + "\n")
		}
		out.WriteString(dashes + "\n")
		if strings.Contains("\n"+got, "\n\n") {
			out.WriteString(dashes + "\n" + got + dashes + "\n" + dashes + "\n")
		} else {
			out.WriteString(got)
		}
		if got != c.Expected && !*rewrite {
			t.Errorf("%s: %s\nexpected:\n%s\ngot:\n%s", c.Pos, strings.Join(head, "\n"), c.Expected, got)
		}
	}
	if *rewrite && out.String() != string(text) {
		if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// parse reads the command at line i and gives the line after its answer.
func parse(path string, lines []string, i int) (*Case, int, error) {
	c := &Case{Pos: fmt.Sprintf("%s:%d", path, i+1)}
	words, err := split(lines[i])
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", c.Pos, err)
	}
	c.Cmd = words[0]
	for _, w := range words[1:] {
		a := Arg{Key: w}
		if k, v, ok := strings.Cut(w, "="); ok {
			a = Arg{Key: k, Value: v, HasValue: true}
		}
		c.Args = append(c.Args, a)
	}
	for i++; ; i++ {
		if i >= len(lines) {
			return nil, 0, fmt.Errorf("%s: the command has no line of %s", c.Pos, dashes)
		}
		if lines[i] == dashes {
			break
		}
		c.Input += lines[i] + "\n"
	}
	i++
	if i < len(lines) && lines[i] == dashes {
		for i++; ; i++ {
			if i+1 >= len(lines) {
				return nil, 0, fmt.Errorf("%s: the answer between two pairs of %s has no end", c.Pos, dashes)
			}
			if lines[i] == dashes && lines[i+1] == dashes {
				return c, i + 2, nil
			}
			c.Expected += lines[i] + "\n"
		}
	}
	for ; i < len(lines) && lines[i] != ""; i++ {
		c.Expected += lines[i] + "\n"
	}
	return c, i, nil
}

// split cuts a line into words; a word may contain a Go-quoted part.
func split(line string) ([]string, error) {
	var words []string
	var cur strings.Builder
	for line = strings.TrimSpace(line); line != ""; {
		switch {
		case line[0] == ' ' || line[0] == '\t':
			if cur.Len() > 0 {
				words = append(words, cur.String())
				cur.Reset()
			}
			line = line[1:]
		case line[0] == '"':
			q, err := strconv.QuotedPrefix(line)
			if err != nil {
				return nil, fmt.Errorf("unbalanced quote in %q", line)
			}
			s, err := strconv.Unquote(q)
			if err != nil {
				return nil, fmt.Errorf("bad quoted text %s", q)
			}
			cur.WriteString(s)
			line = line[len(q):]
		default:
			cur.WriteByte(line[0])
			line = line[1:]
		}
	}
	if cur.Len() > 0 {
		words = append(words, cur.String())
	}
	return words, nil
}
