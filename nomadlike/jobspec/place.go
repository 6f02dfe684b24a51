package jobspec

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// File finds the lines of a job file that messages about its job mean.
type File struct {
	name string
	src  []byte
	body *hclsyntax.Body // or nil: JSON, or not readable
}

// NewFile reads a job file for Explain. src has been parsed without errors.
func NewFile(name string, src []byte) *File {
	f := &File{name: name, src: src}
	if trimmed := bytes.TrimLeft(src, " \t\r\n\ufeff"); len(trimmed) > 0 && trimmed[0] == '{' || gate(name, src, SizeMaxCLI) != nil {
		return f
	}
	file, _ := hclsyntax.ParseConfig(bytes.TrimPrefix(src, []byte("\ufeff")), name, hcl.InitialPos)
	for _, b := range file.Body.(*hclsyntax.Body).Blocks {
		if b.Type == "job" {
			f.body = b.Body
		}
	}
	return f
}

// Explain makes diagnostics of messages about the file's job. A message begins with the place that it is about, such as
// `group "g", task "t", config.command: `, or names it in its words. What has no place in the file has no line.
func (f *File) Explain(warning bool, messages []string) Diagnostics {
	sources := map[string][]byte{f.name: f.src}
	var found hcl.Diagnostics
	for _, m := range messages {
		where, what, ok := cutPlace(m)
		d := &hcl.Diagnostic{Severity: hcl.DiagError, Summary: where, Detail: what, Subject: f.find(where)}
		if !ok {
			d.Summary, d.Detail = m, ""
		}
		if warning {
			d.Severity = hcl.DiagWarning
		}
		found = append(found, d)
	}
	return finish(found, sources)
}

// wordsMax bounds the words of a message that are looked up.
const wordsMax = 40

// A place is words, each with a label in quotes or a number, divided by commas, dots or blanks.
var placeWord = regexp.MustCompile(`([A-Za-z_][A-Za-z0-9_-]*)(?: "((?:[^"\\]|\\.)*)"| ([0-9]+)\b|\[([0-9]+)\])?`)

// cutPlace divides a message at the first ": " outside of quotes: the default name of a check has one inside.
func cutPlace(m string) (where, what string, ok bool) {
	quoted := false
	for i := 0; i < len(m); i++ {
		switch {
		case quoted && m[i] == '\\':
			i++
		case m[i] == '"':
			quoted = !quoted
		case !quoted && strings.HasPrefix(m[i:], ": "):
			return m[:i], m[i+2:], true
		}
	}
	return strings.Cut(m, ": ")
}

// find returns the smallest part of the file that a place leads to, or nil. Words that are not in the file are skipped:
// a block may be made by a dynamic one or stand for another, and servers put the place into a sentence.
func (f *File) find(where string) (at *hcl.Range) {
	body := f.body
	words := placeWord.FindAllStringSubmatch(where, wordsMax)
	for i := 0; i < len(words) && body != nil; i++ {
		w := words[i]
		name, label, nth := w[1], w[2], 0
		if n := w[3] + w[4]; n != "" {
			if nth, _ = strconv.Atoi(n); w[4] != "" {
				nth++ // an index begins at 0, a number at 1
			}
		}
		if i+1 < len(words) && name+" "+words[i+1][1] == "node pool" {
			name = "node_pool"
		}
		if a := body.Attributes[name]; a != nil {
			r := a.Expr.Range()
			if name == "config" || r.Start.Line != r.End.Line {
				r = a.NameRange
			}
			return inside(a.Expr, words[i+1:], &r)
		}
		if b := block(body, name, label, nth); b != nil {
			r := b.DefRange()
			at, body = &r, b.Body
		}
	}
	return at
}

// inside follows the remaining words of a place into an object.
func inside(e hclsyntax.Expression, words [][]string, at *hcl.Range) *hcl.Range {
	obj, ok := e.(*hclsyntax.ObjectConsExpr)
	if !ok || len(words) == 0 {
		return at
	}
	for _, item := range obj.Items {
		if key := hcl.ExprAsKeyword(item.KeyExpr); key == words[0][1] {
			r := item.KeyExpr.Range()
			return inside(item.ValueExpr, words[1:], &r)
		}
	}
	return at
}

// block returns the block that a word means: by its label, or the nth of its kind, from 1; 0 is the first.
func block(body *hclsyntax.Body, name, label string, nth int) *hclsyntax.Block {
	if unquoted, err := strconv.Unquote(`"` + label + `"`); err == nil {
		label = unquoted
	}
	for _, b := range body.Blocks {
		switch {
		case b.Type != name:
		case label != "" && !named(b, label):
		case nth > 1:
			nth--
		default:
			return b
		}
	}
	return nil
}

// named reports whether a block has a name: by its label, or by its attribute. A block without either has the name that the server gives it.
func named(b *hclsyntax.Block, name string) bool {
	if len(b.Labels) > 0 {
		return len(b.Labels) == 1 && b.Labels[0] == name
	}
	a := b.Body.Attributes["name"]
	if a == nil {
		return true
	}
	v, diags := a.Expr.Value(nil)
	return diags.HasErrors() || v.Type() == cty.String && !v.IsNull() && v.AsString() == name
}
