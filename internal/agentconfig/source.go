package agentconfig

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// errorsMax is how many problems of one load are reported.
const errorsMax = 20

// source is one text with settings.
type source struct {
	name  string // the file, or "flag -x"
	text  []byte // nil for flags and defaults
	lines []int  // offset of each line
}

func newSource(name string, text []byte) *source {
	s := &source{name: name, text: text, lines: []int{0}}
	for i, b := range text {
		if b == '\n' {
			s.lines = append(s.lines, i+1)
		}
	}
	return s
}

// at returns the position of a byte.
func (s *source) at(offset int) pos {
	offset = max(0, min(offset, len(s.text)))
	line := sort.SearchInts(s.lines, offset+1)
	return pos{src: s, line: line, col: offset - s.lines[line-1] + 1}
}

// pos is a place in a source. The zero value is no place: a default, or the whole configuration.
type pos struct {
	src       *source
	line, col int // from 1; 0 without lines
}

func (p pos) String() string {
	switch {
	case p.src == nil:
		return ""
	case p.line == 0:
		return p.src.name
	}
	return fmt.Sprintf("%s:%d:%d", p.src.name, p.line, p.col)
}

// snippet returns the line and a mark under the column, or "".
func (p pos) snippet() string {
	if p.src == nil || p.line < 1 || p.line > len(p.src.lines) {
		return ""
	}
	text := string(p.src.text[p.src.lines[p.line-1]:])
	text, _, _ = strings.Cut(text, "\n")
	if len(text) > 200 || p.col > len(text)+1 {
		return ""
	}
	pad := strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, text[:p.col-1])
	return fmt.Sprintf("    %s\n    %s^", strings.TrimRight(text, "\r"), pad)
}

// A Problem is one thing wrong with a configuration.
type Problem struct {
	Where   string // "file:line:column", "flag -x", a file, or "" for the configuration as a whole
	Message string
	Snippet string // the line and a mark under the column, or ""
}

// Error returns the problem as a compiler would print it.
func (p Problem) Error() string {
	s := p.Message
	if p.Where != "" {
		s = p.Where + ": " + s
	}
	if p.Snippet != "" {
		s += "\n" + p.Snippet
	}
	return s
}

// Errors are the problems found, in the order of the text, at most 20.
type Errors []Problem

// Error lists them, one per line.
func (e Errors) Error() string {
	var b strings.Builder
	for i, p := range e {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(p.Error())
	}
	return b.String()
}

// problems collects problems up to errorsMax.
type problems struct {
	list Errors
	more int
}

func (p *problems) add(at pos, format string, args ...any) {
	found := Problem{Where: at.String(), Message: fmt.Sprintf(format, args...), Snippet: at.snippet()}
	switch {
	case slices.Contains(p.list, found): // one setting serves several addresses
	case len(p.list) >= errorsMax:
		p.more++
	default:
		p.list = append(p.list, found)
	}
}

// err returns the collected problems, or nil if there are none.
func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	if p.more > 0 {
		return append(p.list, Problem{Message: fmt.Sprintf("and %d more problems", p.more)})
	}
	return p.list
}
