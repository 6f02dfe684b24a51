package agentconfig

import (
	"regexp"
	"sort"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// operatorsMax limits the operators of a file: the parser recurses on them, and settings need none.
const operatorsMax = 256

// parseHCL reads a file in HCL's native syntax. Values are literals: there are no variables and no functions.
func parseHCL(src *source, errs *problems) *node {
	h := &hclReader{src: src, errs: errs}
	if !h.gate() {
		return nil
	}
	f, diags := hclsyntax.ParseConfig(src.text, src.name, hcl.InitialPos)
	if diags.HasErrors() && yaml.Match(src.text) {
		errs.add(src.at(0), "this is YAML; settings are HCL or JSON:  data_dir = \"/var/lib/muster\"  and, for a group of them,  server { enabled = true }")
		return nil
	}
	if diags.HasErrors() {
		h.diags(diags)
		return nil
	}
	return h.body(f.Body.(*hclsyntax.Body), src.at(0))
}

// yaml matches a file whose first setting ends in a colon.
var yaml = regexp.MustCompile(`^(?:\s|#[^\n]*\n|---\n)*[a-z_]+:(?:\s|$)`)

type hclReader struct {
	src  *source
	errs *problems
}

// gate refuses files that would make the parser recurse too deeply.
func (h *hclReader) gate() bool {
	tokens, _ := hclsyntax.LexConfig(h.src.text, h.src.name, hcl.InitialPos) // the parser reports syntax errors
	depth, operators := 0, 0
	for _, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl, hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc:
			depth++
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenTemplateSeqEnd, hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc:
			depth--
		case hclsyntax.TokenBang, hclsyntax.TokenMinus, hclsyntax.TokenQuestion:
			operators++
		}
		if depth > depthMax {
			h.errs.add(h.src.at(t.Range.Start.Byte), "nested more than %d deep; no setting needs that", depthMax)
			return false
		}
		if operators > operatorsMax {
			h.errs.add(h.src.at(t.Range.Start.Byte), "more than %d operators; settings are plain values", operatorsMax)
			return false
		}
	}
	return true
}

func (h *hclReader) diags(diags hcl.Diagnostics) {
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		at := h.src.at(0)
		if d.Subject != nil {
			at = h.src.at(d.Subject.Start.Byte)
		}
		msg := d.Summary
		if d.Detail != "" {
			msg += ": " + d.Detail
		}
		if d.Summary == "Invalid argument name" {
			msg += ` A map whose keys have quotes is written with an equals sign: options = { "driver.raw_exec.enable" = "1" }`
		}
		h.errs.add(at, "%s", msg)
	}
}

func (h *hclReader) body(b *hclsyntax.Body, at pos) *node {
	out := newObject(at)
	attrs := make([]*hclsyntax.Attribute, 0, len(b.Attributes))
	for _, a := range b.Attributes {
		attrs = append(attrs, a)
	}
	sort.Slice(attrs, func(i, j int) bool { return attrs[i].NameRange.Start.Byte < attrs[j].NameRange.Start.Byte })
	for _, a := range attrs {
		if v := h.expr(a.Expr); v != nil {
			v.pos = h.src.at(a.NameRange.Start.Byte)
			out.set(a.Name, v)
		}
	}
	for _, blk := range b.Blocks {
		at := h.src.at(blk.TypeRange.Start.Byte)
		v := h.body(blk.Body, at)
		path := append([]string{blk.Type}, blk.Labels...)
		if old := out.put(path, v); old != nil {
			h.errs.add(at, "%s is given twice; first at line %d. Put both into one block", quotePath(path), old.pos.line)
		}
	}
	return out
}

func quotePath(path []string) string {
	s := path[0]
	for _, p := range path[1:] {
		s += ` "` + p + `"`
	}
	return s
}

func (h *hclReader) expr(e hclsyntax.Expression) *node {
	at := h.src.at(e.Range().Start.Byte)
	switch e := e.(type) {
	case *hclsyntax.ObjectConsExpr:
		out := newObject(at)
		for _, item := range e.Items {
			at := h.src.at(item.KeyExpr.Range().Start.Byte)
			k, diags := item.KeyExpr.Value(nil)
			if diags.HasErrors() {
				h.diags(diags)
				continue
			}
			if k.IsNull() || !k.IsKnown() || k.Type() != cty.String {
				h.errs.add(at, "a key must be text")
				continue
			}
			v := h.expr(item.ValueExpr)
			if v == nil {
				continue
			}
			v.pos = at
			if old := out.fields[k.AsString()]; old != nil {
				h.errs.add(at, "%s is set twice; first at line %d", k.AsString(), old.pos.line)
				continue
			}
			out.set(k.AsString(), v)
		}
		return out
	case *hclsyntax.TupleConsExpr:
		out := &node{kind: list, pos: at}
		for _, x := range e.Exprs {
			if v := h.expr(x); v != nil {
				out.items = append(out.items, v)
			}
		}
		return out
	}
	v, diags := e.Value(nil)
	if diags.HasErrors() {
		h.diags(diags)
		return nil
	}
	return h.value(v, at)
}

func (h *hclReader) value(v cty.Value, at pos) *node {
	switch {
	case v.IsNull():
		return &node{kind: null, pos: at}
	case !v.IsWhollyKnown():
	case v.Type() == cty.String:
		return &node{kind: text, pos: at, str: v.AsString()}
	case v.Type() == cty.Bool:
		return &node{kind: boolean, pos: at, bool: v.True()}
	case v.Type() == cty.Number:
		return numberOf(v.AsBigFloat(), at, h.errs)
	}
	h.errs.add(at, "want a plain value: text, a number, true or false, a list or a block")
	return nil
}
