package jobspec

import (
	"bytes"
	"fmt"
	"sort"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// diagnosticsMax limits the reported problems; a broken file rarely has more that are worth reading.
const diagnosticsMax = 100

// Diagnostic is one problem of a job file.
type Diagnostic struct {
	Warning bool `json:",omitempty"`
	Summary string
	Detail  string
	File    string
	Line    int // starting at 1; 0: no particular line
	Column  int // starting at 1
	Length  int // characters to underline, at least 1
	Snippet string
}

// String returns the problem as a compiler would show it: file, line, column, the line itself, a caret and a sentence.
func (d Diagnostic) String() string {
	var b strings.Builder
	kind := "Error"
	if d.Warning {
		kind = "Warning"
	}
	fmt.Fprintf(&b, "%s: %s\n", kind, d.Summary)
	if d.Line > 0 {
		fmt.Fprintf(&b, "\n  on %s line %d, column %d:\n", d.File, d.Line, d.Column)
		if d.Snippet != "" {
			fmt.Fprintf(&b, "  %4d | %s\n", d.Line, d.Snippet)
			fmt.Fprintf(&b, "       | %s%s\n", strings.Repeat(" ", max(0, d.Column-1)), strings.Repeat("^", max(1, d.Length)))
		}
	} else if d.File != "" {
		fmt.Fprintf(&b, "\n  in %s\n", d.File)
	}
	if d.Detail != "" {
		fmt.Fprintf(&b, "\n  %s\n", strings.ReplaceAll(d.Detail, "\n", "\n  "))
	}
	return b.String()
}

// Diagnostics is every problem of a job file, in file order.
type Diagnostics []Diagnostic

// HasErrors reports whether the file is unusable.
func (d Diagnostics) HasErrors() bool {
	for _, x := range d {
		if !x.Warning {
			return true
		}
	}
	return false
}

// String formats all diagnostics, separated by empty lines.
func (d Diagnostics) String() string {
	var parts []string
	for _, x := range d {
		parts = append(parts, x.String())
	}
	return strings.Join(parts, "\n")
}

// Error makes Diagnostics an error; use Err to get nil without errors.
func (d Diagnostics) Error() string { return d.String() }

// Err returns nil unless there is an error among the diagnostics.
func (d Diagnostics) Err() error {
	if d.HasErrors() {
		return d
	}
	return nil
}

// finish converts, sorts and truncates the collected diagnostics.
func finish(in hcl.Diagnostics, sources map[string][]byte) Diagnostics {
	out := Diagnostics{}
	seen := map[Diagnostic]bool{}
	for _, d := range in {
		x := Diagnostic{Warning: d.Severity == hcl.DiagWarning, Summary: d.Summary, Detail: d.Detail}
		if r := d.Subject; r != nil {
			x.File, x.Line, x.Column, x.Length = r.Filename, r.Start.Line, r.Start.Column, 1
			if r.End.Line == r.Start.Line {
				x.Length = max(1, r.End.Column-r.Start.Column)
			}
			x.Snippet = line(sources[r.Filename], r.Start.Line)
			cut := []rune(x.Snippet)
			if len(cut) > 200 || x.Column > 200 {
				x.Snippet = "" // too long to be useful
			} else if x.Column-1+x.Length > len(cut) {
				x.Length = max(1, len(cut)-x.Column+1)
			}
		}
		if len(x.Detail) > 2000 {
			x.Detail = x.Detail[:2000] + "..."
		}
		if !seen[x] {
			seen[x] = true
			out = append(out, x)
		}
	}
	sort.SliceStable(out, func(a, b int) bool {
		x, y := out[a], out[b]
		if x.File != y.File {
			return x.File < y.File
		}
		if x.Line != y.Line {
			return x.Line < y.Line
		}
		return x.Column < y.Column
	})
	if n := len(out); n > diagnosticsMax {
		out = append(out[:diagnosticsMax], Diagnostic{Summary: fmt.Sprintf("There are %d more problems", n-diagnosticsMax)})
	}
	return out
}

// line returns the n-th line of src with tabs replaced by single spaces, so that the caret is in the right column.
func line(src []byte, n int) string {
	for ; n > 1; n-- {
		i := bytes.IndexByte(src, '\n')
		if i < 0 {
			return ""
		}
		src = src[i+1:]
	}
	if i := bytes.IndexByte(src, '\n'); i >= 0 {
		src = src[:i]
	}
	if len(src) > 1000 {
		return ""
	}
	return strings.TrimRight(strings.ReplaceAll(string(src), "\t", " "), "\r")
}

func problem(r *hcl.Range, summary, format string, args ...any) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: fmt.Sprintf(format, args...), Subject: r}
}
