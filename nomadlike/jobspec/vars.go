package jobspec

import (
	"slices"
	"sort"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/muster-sched/muster/internal/suggest"
)

// VarFile is a file of variable values.
type VarFile struct {
	Name   string
	Source []byte
}

// envPrefixes are the prefixes of variables in the environment; the later one wins.
var envPrefixes = []string{"NOMAD_VAR_", "MUSTER_VAR_"}

type variable struct {
	name        string
	typ         cty.Type
	value       cty.Value // cty.NilVal: not set
	nullable    bool
	declared    hcl.Range
	validations []validation
}

type validation struct {
	condition, message hclsyntax.Expression
	rng                hcl.Range
}

// variables reads the variable blocks and sets each variable: from -var, else the last variable file, else the
// environment, else the default.
func (p *parser) variables(blocks []*hclsyntax.Block) {
	vars := map[string]*variable{}
	var names []string
	for _, b := range blocks {
		if len(b.Labels) != 1 {
			p.add(problem(b.DefRange().Ptr(), "Variable without a name", "Write: variable \"name\" { }."))
			continue
		}
		name := b.Labels[0]
		if !hclsyntax.ValidIdentifier(name) {
			p.add(problem(&b.LabelRanges[0], "Invalid variable name", "%q cannot be used as var.%s; a name holds letters, digits, dashes and underscores.", name, name))
			continue
		}
		if old := vars[name]; old != nil {
			p.add(problem(b.DefRange().Ptr(), "Duplicate variable", "%q is declared already at %s.", name, old.declared))
			continue
		}
		vars[name] = p.variable(name, b)
		names = append(names, name)
	}
	sort.Strings(names)
	p.variableEnv(vars)
	for _, f := range p.opts.VarFiles {
		p.variableFile(vars, names, f)
	}
	flags := make([]string, 0, len(p.opts.Vars))
	for k := range p.opts.Vars {
		flags = append(flags, k)
	}
	sort.Strings(flags)
	for _, k := range flags {
		v := vars[k]
		if v == nil {
			p.add(problem(nil, "Undeclared variable", "-var %s: the job file declares no variable %q%s", k, k, hint(k, names)))
			continue
		}
		p.fromText(v, p.opts.Vars[k], "-var "+k)
	}
	out := map[string]cty.Value{}
	for _, name := range names {
		v := vars[name]
		if v.value == cty.NilVal {
			p.add(problem(&v.declared, "Missing value", "The variable %q has no default and no value; give it one with -var '%s=...', in a -var-file, or in MUSTER_VAR_%s.", name, name, name))
			out[name] = cty.DynamicVal
			continue
		}
		if v.value.IsNull() && !v.nullable {
			p.add(problem(&v.declared, "Null is not allowed", "The variable %q has nullable = false.", name))
		}
		out[name] = v.value
	}
	p.ctx.Variables["var"] = object(out)
	for _, name := range names {
		p.validate(vars[name])
	}
}

func object(m map[string]cty.Value) cty.Value {
	if len(m) == 0 {
		return cty.EmptyObjectVal
	}
	return cty.ObjectVal(m)
}

// hint ends a sentence with the name that was probably meant, or with a full stop.
func hint(word string, candidates []string) string {
	if s := suggest.DidYouMean(word, candidates); s != "" {
		return s
	}
	return "."
}

var variableArguments = []string{"type", "default", "description", "sensitive", "nullable"}

func (p *parser) variable(name string, b *hclsyntax.Block) *variable {
	v := &variable{name: name, typ: cty.DynamicPseudoType, value: cty.NilVal, nullable: true, declared: b.DefRange()}
	for _, a := range sorted(b.Body.Attributes) {
		if !slices.Contains(variableArguments, a.Name) {
			p.add(problem(&a.NameRange, "Unsupported argument", "A variable has no argument %q%s", a.Name, hint(a.Name, variableArguments)))
		}
	}
	if a := b.Body.Attributes["type"]; a != nil {
		t, diags := typeexpr.TypeConstraint(a.Expr)
		p.add(diags...)
		if !diags.HasErrors() {
			v.typ = t
		}
	}
	if a := b.Body.Attributes["nullable"]; a != nil {
		p.expr(a.Expr, func(val cty.Value) {
			v.nullable = val.Type() != cty.Bool || !val.IsKnown() || val.IsNull() || val.True()
		})
	}
	if a := b.Body.Attributes["default"]; a != nil {
		p.expr(a.Expr, func(val cty.Value) {
			c, err := convert.Convert(val, v.typ)
			if err != nil {
				p.add(problem(a.Expr.Range().Ptr(), "Wrong type of default", "The default of %q does not fit its type: %s.", name, err))
				return
			}
			v.value = c
		})
		if v.value == cty.NilVal {
			v.value = cty.DynamicVal // broken, and reported
		}
	}
	for _, vb := range b.Body.Blocks {
		if vb.Type != "validation" {
			p.add(problem(vb.DefRange().Ptr(), "Unsupported block", "A variable has no block %q%s", vb.Type, hint(vb.Type, []string{"validation"})))
			continue
		}
		c, m := vb.Body.Attributes["condition"], vb.Body.Attributes["error_message"]
		if c == nil || m == nil {
			p.add(problem(vb.DefRange().Ptr(), "Incomplete validation", "A validation needs condition and error_message."))
			continue
		}
		v.validations = append(v.validations, validation{c.Expr, m.Expr, c.Expr.Range()})
	}
	return v
}

func (p *parser) validate(v *variable) {
	for _, c := range v.validations {
		ok, diags := c.condition.Value(p.ctx)
		p.add(diags...)
		if diags.HasErrors() || !ok.IsKnown() || ok.IsNull() {
			continue
		}
		b, err := convert.Convert(ok, cty.Bool)
		if err != nil {
			p.add(problem(&c.rng, "Invalid condition", "A condition is true or false."))
			continue
		}
		if b.True() {
			continue
		}
		text := "The value does not satisfy the condition."
		if m, diags := c.message.Value(p.ctx); !diags.HasErrors() && m.Type() == cty.String && m.IsKnown() && !m.IsNull() {
			text = m.AsString()
		}
		p.add(problem(&c.rng, "Invalid value for variable "+v.name, "%s", text))
	}
}

// fromText sets a variable from outside of HCL. text is literal if the type is simple or undeclared, else an
// expression.
func (p *parser) fromText(v *variable, text, where string) {
	val := cty.StringVal(text)
	if v.typ != cty.DynamicPseudoType && !v.typ.IsPrimitiveType() {
		name := "<" + where + ">"
		if d := gate(name, []byte(text), SizeMaxServer); d != nil {
			p.add(d)
			return
		}
		p.sources[name] = []byte(text)
		e, diags := hclsyntax.ParseExpression([]byte(text), name, hcl.InitialPos)
		p.add(diags...)
		if diags.HasErrors() {
			return
		}
		val, diags = e.Value(nil)
		p.add(diags...)
		if diags.HasErrors() {
			return
		}
	}
	c, err := convert.Convert(val, v.typ)
	if err != nil {
		p.add(problem(&v.declared, "Wrong type of value", "%s: %q is not a %s: %s.", where, text, v.typ.FriendlyName(), err))
		return
	}
	v.value = c
}

func (p *parser) variableEnv(vars map[string]*variable) {
	for _, prefix := range envPrefixes {
		for _, kv := range p.opts.Env {
			k, text, _ := strings.Cut(kv, "=")
			if name, ok := strings.CutPrefix(k, prefix); ok && vars[name] != nil {
				p.fromText(vars[name], text, k)
			}
		}
	}
}

func (p *parser) variableFile(vars map[string]*variable, names []string, f VarFile) {
	if d := gate(f.Name, f.Source, p.sizeMax()); d != nil {
		p.add(d)
		return
	}
	p.sources[f.Name] = f.Source
	file, diags := hclsyntax.ParseConfig(f.Source, f.Name, hcl.InitialPos)
	p.add(diags...)
	if diags.HasErrors() {
		return
	}
	body := file.Body.(*hclsyntax.Body)
	for _, b := range body.Blocks {
		p.add(problem(b.DefRange().Ptr(), "Unsupported block", "A variable file holds only lines such as name = \"value\"."))
	}
	for _, a := range sorted(body.Attributes) {
		v := vars[a.Name]
		if v == nil {
			p.add(problem(&a.NameRange, "Undeclared variable", "The job file declares no variable %q%s", a.Name, hint(a.Name, names)))
			continue
		}
		val, diags := a.Expr.Value(nil)
		p.add(diags...)
		if diags.HasErrors() {
			continue
		}
		c, err := convert.Convert(val, v.typ)
		if err != nil {
			p.add(problem(a.Expr.Range().Ptr(), "Wrong type of value", "The variable %q is a %s: %s.", a.Name, v.typ.FriendlyName(), err))
			continue
		}
		v.value = c
	}
}

// locals evaluates the locals blocks in the order of their references.
func (p *parser) locals(blocks []*hclsyntax.Block) {
	attrs := map[string]*hclsyntax.Attribute{}
	for _, b := range blocks {
		for _, x := range b.Body.Blocks {
			p.add(problem(x.DefRange().Ptr(), "Unsupported block", "A locals block holds only lines such as name = value."))
		}
		for _, a := range sorted(b.Body.Attributes) {
			if old := attrs[a.Name]; old != nil {
				p.add(problem(&a.NameRange, "Duplicate local", "%q is defined already at %s.", a.Name, old.NameRange))
				continue
			}
			attrs[a.Name] = a
		}
	}
	if len(attrs) > definitionsMax {
		p.add(problem(blocks[0].DefRange().Ptr(), "Too many locals", "A file may define at most %d locals.", definitionsMax))
		return
	}
	out := map[string]cty.Value{}
	state := map[string]int{} // 1: being evaluated, 2: done
	p.ctx.Variables["local"] = cty.EmptyObjectVal
	var eval func(a *hclsyntax.Attribute, depth int)
	eval = func(a *hclsyntax.Attribute, depth int) {
		state[a.Name] = 1
		for _, t := range a.Expr.Variables() {
			if t.RootName() != "local" || len(t) < 2 {
				continue
			}
			step, ok := t[1].(hcl.TraverseAttr)
			if !ok || attrs[step.Name] == nil {
				continue
			}
			switch {
			case state[step.Name] == 1:
				p.add(problem(t.SourceRange().Ptr(), "Circular reference", "local.%s refers to itself by way of local.%s.", step.Name, a.Name))
				out[step.Name] = cty.DynamicVal
			case state[step.Name] == 0 && depth < 1000:
				eval(attrs[step.Name], depth+1)
			}
		}
		p.ctx.Variables["local"] = object(out)
		out[a.Name] = cty.DynamicVal
		p.expr(a.Expr, func(v cty.Value) { out[a.Name] = v })
		state[a.Name] = 2
	}
	for _, a := range sorted(attrs) {
		if state[a.Name] == 0 {
			eval(a, 0)
		}
	}
	p.ctx.Variables["local"] = object(out)
}

// sorted lists attributes in file order.
func sorted[M ~map[string]*hclsyntax.Attribute](attrs M) []*hclsyntax.Attribute {
	out := make([]*hclsyntax.Attribute, 0, len(attrs))
	for _, a := range attrs {
		out = append(out, a)
	}
	sort.Slice(out, func(a, b int) bool {
		x, y := out[a].NameRange, out[b].NameRange
		if x.Filename != y.Filename {
			return x.Filename < y.Filename
		}
		return x.Start.Byte < y.Start.Byte
	})
	return out
}
