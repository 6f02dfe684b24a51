package jobspec

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"reflect"
	"sort"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// json reads a file that starts with a brace: the JSON of the API, or HCL written as JSON.
func (p *parser) json() *wire.Job {
	if len(p.src) > p.sizeMax() {
		p.add(problem(nil, "File too large", "%s has %d bytes; at most %d are read.", p.filename, len(p.src), p.sizeMax()))
		return nil
	}
	src := bytes.TrimPrefix(p.src, []byte("\ufeff"))
	if isAPI(src) {
		return p.apiJSON(src)
	}
	r := &jsonReader{p: p, dec: json.NewDecoder(bytes.NewReader(src))}
	r.dec.UseNumber()
	r.index()
	root, ok := r.value(0).(*hclsyntax.ObjectConsExpr)
	if !ok || p.diags.HasErrors() {
		return nil
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		p.add(problem(ptr(r.here()), "More than one value", "A file holds exactly one JSON object."))
		return nil
	}
	items := map[string]hclsyntax.Expression{}
	for _, it := range root.Items {
		if k, ok := it.KeyExpr.(*hclsyntax.LiteralValueExpr); ok {
			items[k.Val.AsString()] = it.ValueExpr
		}
	}
	if items["job"] == nil {
		p.add(problem(nil, "No job", "%s holds no job.", p.filename))
		return nil
	}
	var vars []*hclsyntax.Block
	for name, e := range items {
		switch name {
		case "job", "locals", "//":
		case "variable":
			vars = blocksOf(e)
		default:
			p.add(problem(e.Range().Ptr(), "Unsupported block", "A job file has no block %q%s", name, hint(name, []string{"job", "variable", "locals"})))
		}
	}
	p.variables(vars)
	if e := items["locals"]; e != nil {
		p.keepRuntime(e)
		p.locals([]*hclsyntax.Block{{Type: "locals", Body: bodyOf(e)}})
	}
	p.keepRuntime(items["job"])
	var jobs []*wire.Job
	p.list(field{name: "job", kind: kindBlocks}, items["job"], p.ctx, reflect.ValueOf(&jobs).Elem())
	if len(jobs) != 1 && !p.diags.HasErrors() {
		p.add(problem(items["job"].Range().Ptr(), "Not one job", "Want exactly one job: {\"job\": {\"name\": {...}}}."))
	}
	if len(jobs) != 1 {
		return nil
	}
	return jobs[0]
}

// isAPI distinguishes the API's JSON from HCL written as JSON, which has a key "job" with the job's name below it.
// Broken JSON counts as the latter, because that reader reports where it is broken.
func isAPI(src []byte) bool {
	var top map[string]json.RawMessage
	if json.Unmarshal(src, &top) != nil {
		return false
	}
	inner, ok := top["job"]
	if !ok {
		return true
	}
	var job map[string]json.RawMessage
	if json.Unmarshal(inner, &job) != nil {
		return false
	}
	_, id := job["ID"]
	_, groups := job["TaskGroups"]
	return id || groups
}

// apiJSON reads {"Job": {...}} or a bare job.
func (p *parser) apiJSON(src []byte) *wire.Job {
	var top map[string]json.RawMessage
	body := src
	if json.Unmarshal(src, &top) == nil {
		for k, v := range top {
			if strings.EqualFold(k, "job") {
				body = v
			}
		}
	}
	var j wire.Job
	unknown, err := wire.Decode(body, &j)
	if err != nil {
		p.add(problem(nil, "Invalid job", "%s: %s.", p.filename, err))
		return nil
	}
	for _, u := range unknown {
		p.add(&hcl.Diagnostic{Severity: hcl.DiagWarning, Summary: "Unknown field", Detail: u + " (it has no effect)"})
	}
	if j.ID == nil && j.Name == nil && j.TaskGroups == nil {
		p.add(problem(nil, "No job", "%s holds no job. Want {\"Job\": {\"ID\": ...}}, {\"ID\": ...} or {\"job\": {\"name\": {...}}}.", p.filename))
	}
	if j.ID == nil && j.Name != nil {
		j.ID = ptr(*j.Name)
	}
	return &j
}

// jsonReader turns JSON into the expressions that the same HCL would have, with their positions.
type jsonReader struct {
	p     *parser
	dec   *json.Decoder
	lines []int // byte offsets at which lines start
	count int
}

func (r *jsonReader) index() {
	r.lines = []int{0}
	for i, c := range r.p.src {
		if c == '\n' {
			r.lines = append(r.lines, i+1)
		}
	}
}

func (r *jsonReader) here() hcl.Range {
	off := int(r.dec.InputOffset())
	n := sort.SearchInts(r.lines, off+1) - 1
	pos := hcl.Pos{Line: n + 1, Column: off - r.lines[n] + 1, Byte: off}
	return hcl.Range{Filename: r.p.filename, Start: pos, End: pos}
}

// since returns the range from the beginning of a token, as precisely as the decoder reports it, to its end.
func (r *jsonReader) since(start hcl.Range) hcl.Range {
	end := r.here()
	src := r.p.src
	b := start.Start.Byte
	for b < len(src) && b < end.Start.Byte && strings.IndexByte(" \t\r\n,:", src[b]) >= 0 {
		b++
	}
	n := sort.SearchInts(r.lines, b+1) - 1
	return hcl.Range{Filename: r.p.filename, Start: hcl.Pos{Line: n + 1, Column: b - r.lines[n] + 1, Byte: b}, End: end.Start}
}

func (r *jsonReader) value(depth int) hclsyntax.Expression {
	start := r.here()
	tok, err := r.dec.Token()
	rng := r.since(start)
	literal := func(v cty.Value) hclsyntax.Expression { return &hclsyntax.LiteralValueExpr{Val: v, SrcRange: rng} }
	if r.count++; r.count > bracketsMax {
		r.p.add(problem(&rng, "Too many values", "A file may hold at most %d values.", bracketsMax))
		return nil
	}
	if err != nil {
		msg := err.Error()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			msg = "the file ends too early; a bracket or quote is not closed"
		}
		r.p.add(problem(&rng, "Not JSON", "%s.", msg))
		return nil
	}
	switch t := tok.(type) {
	case string:
		if d := gate(r.p.filename, []byte(t), r.p.sizeMax()); d != nil && d.Subject != nil {
			d.Subject = &rng
			r.p.add(d)
			return nil
		}
		if !strings.Contains(t, "${") && !strings.Contains(t, "%{") {
			return literal(cty.StringVal(t))
		}
		name := "<string at " + rng.String() + ">"
		e, diags := hclsyntax.ParseTemplate([]byte(t), name, hcl.InitialPos)
		if diags.HasErrors() {
			for _, d := range diags {
				d.Subject, d.Context = &rng, nil
			}
			r.p.add(diags...)
			return nil
		}
		r.p.sources[name] = []byte(t)
		return e
	case json.Number:
		f, _, err := big.ParseFloat(string(t), 10, 512, big.ToNearestEven)
		if err != nil {
			r.p.add(problem(&rng, "Invalid number", "%.40s is not a number that can be used.", string(t)))
			return nil
		}
		return literal(cty.NumberVal(f))
	case bool:
		return literal(cty.BoolVal(t))
	case nil:
		return literal(cty.NullVal(cty.DynamicPseudoType))
	case json.Delim:
		if depth++; depth > depthMax {
			r.p.add(problem(&rng, "Nested too deep", "Brackets may stand at most %d deep inside of each other.", depthMax))
			return nil
		}
		if t == '[' {
			out := &hclsyntax.TupleConsExpr{SrcRange: rng, OpenRange: rng}
			for r.dec.More() {
				e := r.value(depth)
				if e == nil {
					return nil
				}
				out.Exprs = append(out.Exprs, e)
			}
			if !r.closing(start) {
				return nil
			}
			return out
		}
		out := &hclsyntax.ObjectConsExpr{SrcRange: rng, OpenRange: rng}
		for r.dec.More() {
			ks := r.here()
			key, err := r.dec.Token()
			text, ok := key.(string)
			kr := r.since(ks)
			if err != nil || !ok {
				r.p.add(problem(&kr, "Not JSON", "Want a key in quotes."))
				return nil
			}
			e := r.value(depth)
			if e == nil {
				return nil
			}
			out.Items = append(out.Items, hclsyntax.ObjectConsItem{KeyExpr: &hclsyntax.LiteralValueExpr{Val: cty.StringVal(text), SrcRange: kr}, ValueExpr: e})
		}
		if !r.closing(start) {
			return nil
		}
		return out
	}
	return nil
}

func (r *jsonReader) closing(start hcl.Range) bool {
	if _, err := r.dec.Token(); err != nil {
		rng := r.since(start)
		r.p.add(problem(&rng, "Not JSON", "The bracket that opens here is not closed, or there is a mistake before its end: %s.", err))
		return false
	}
	return true
}

// bodyOf and blocksOf return the blocks that HCL would have for a JSON object: {"name": {argument: value}}.
func bodyOf(e hclsyntax.Expression) *hclsyntax.Body {
	body := &hclsyntax.Body{Attributes: hclsyntax.Attributes{}, SrcRange: e.Range()}
	if obj, ok := e.(*hclsyntax.ObjectConsExpr); ok {
		for _, it := range obj.Items {
			k := it.KeyExpr.(*hclsyntax.LiteralValueExpr)
			name := k.Val.AsString()
			x := it.ValueExpr
			if name == "type" { // a type is an expression, which JSON writes as text
				if l, ok := x.(*hclsyntax.LiteralValueExpr); ok && l.Val.Type() == cty.String {
					if t, diags := hclsyntax.ParseExpression([]byte(l.Val.AsString()), "<type>", hcl.InitialPos); !diags.HasErrors() {
						x = t
					}
				}
			}
			body.Attributes[name] = &hclsyntax.Attribute{Name: name, Expr: x, NameRange: k.SrcRange, SrcRange: k.SrcRange}
		}
	}
	return body
}

func blocksOf(e hclsyntax.Expression) []*hclsyntax.Block {
	var out []*hclsyntax.Block
	if obj, ok := e.(*hclsyntax.ObjectConsExpr); ok {
		for _, it := range obj.Items {
			k := it.KeyExpr.(*hclsyntax.LiteralValueExpr)
			out = append(out, &hclsyntax.Block{Type: "variable", Labels: []string{k.Val.AsString()}, LabelRanges: []hcl.Range{k.SrcRange}, TypeRange: k.SrcRange, Body: bodyOf(it.ValueExpr)})
		}
	}
	return out
}
