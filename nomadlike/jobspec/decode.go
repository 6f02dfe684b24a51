package jobspec

import (
	"fmt"
	"reflect"
	"sort"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// kind says how a field is written.
type kind int

const (
	kindValue    kind = iota // x = ...
	kindBlock                // x { } or x = { }, once
	kindBlocks               // x { } any number of times, or x = [{ }, { }]
	kindLabelled             // x "label" { } into a map by label
	kindStrings              // x { a = "b" } into a map of text
	kindLists                // x { a = ["b"] } into a map of lists
	kindOpaque               // x { anything }
)

type field struct {
	name  string
	index int
	kind  kind
}

type schema struct {
	fields map[string]field
	names  []string
	label  int // index of the field that takes the label, -1 for none
}

// schemaOf reads the hcl tags of a wire type.
func schemaOf(t reflect.Type) *schema {
	s := &schema{fields: map[string]field{}, label: -1}
	for i := range t.NumField() {
		name, opt, _ := strings.Cut(t.Field(i).Tag.Get("hcl"), ",")
		if name == "" {
			continue
		}
		if opt == "label" {
			s.label = i
			continue
		}
		f := field{name: name, index: i}
		switch ft := t.Field(i).Type; {
		case ft.Kind() == reflect.Pointer && ft.Elem().Kind() == reflect.Struct:
			f.kind = kindBlock
		case ft.Kind() == reflect.Slice && (ft.Elem().Kind() == reflect.Struct || ft.Elem().Kind() == reflect.Pointer):
			f.kind = kindBlocks
		case ft.Kind() == reflect.Map && ft.Elem().Kind() == reflect.Pointer:
			f.kind = kindLabelled
		case ft.Kind() == reflect.Map && ft.Elem().Kind() == reflect.String:
			f.kind = kindStrings
		case ft.Kind() == reflect.Map && ft.Elem().Kind() == reflect.Slice:
			f.kind = kindLists
		case ft.Kind() == reflect.Map:
			f.kind = kindOpaque
		}
		s.fields[name] = f
		s.names = append(s.names, name)
	}
	sort.Strings(s.names)
	return s
}

// setting is one argument or block of a body, in either spelling.
type setting struct {
	name  string
	rng   hcl.Range
	expr  hclsyntax.Expression // an argument
	block *hclsyntax.Block     // or a block
	ctx   *hcl.EvalContext
}

// settings lists the content of a body in file order, with dynamic blocks expanded.
func (p *parser) settings(body *hclsyntax.Body, ctx *hcl.EvalContext) []setting {
	var out []setting
	for _, a := range sorted(body.Attributes) {
		out = append(out, setting{name: a.Name, rng: a.NameRange, expr: a.Expr, ctx: ctx})
	}
	for _, b := range body.Blocks {
		if b.Type == "dynamic" {
			out = append(out, p.dynamic(b, ctx)...)
			continue
		}
		out = append(out, setting{name: b.Type, rng: b.TypeRange, block: b, ctx: ctx})
	}
	sort.SliceStable(out, func(a, b int) bool { return out[a].rng.Start.Byte < out[b].rng.Start.Byte })
	return out
}

var dynamicArguments = []string{"for_each", "iterator", "labels"}

// dynamic expands one dynamic block.
func (p *parser) dynamic(b *hclsyntax.Block, ctx *hcl.EvalContext) []setting {
	at := b.DefRange().Ptr()
	if len(b.Labels) != 1 {
		p.add(problem(at, "Dynamic block without a name", "Write: dynamic \"port\" { for_each = ...  content { ... } }"))
		return nil
	}
	for _, a := range sorted(b.Body.Attributes) {
		if !contains(dynamicArguments, a.Name) {
			p.add(problem(&a.NameRange, "Unsupported argument", "A dynamic block has no argument %q%s", a.Name, hint(a.Name, dynamicArguments)))
		}
	}
	each := b.Body.Attributes["for_each"]
	var content *hclsyntax.Block
	for _, c := range b.Body.Blocks {
		if c.Type != "content" || content != nil {
			p.add(problem(c.DefRange().Ptr(), "Unsupported block", "A dynamic block holds exactly one block, content."))
			continue
		}
		content = c
	}
	if each == nil || content == nil {
		p.add(problem(at, "Incomplete dynamic block", "A dynamic block needs for_each and content { }."))
		return nil
	}
	iterator := b.Labels[0]
	if a := b.Body.Attributes["iterator"]; a != nil {
		if iterator = hcl.ExprAsKeyword(a.Expr); iterator == "" {
			p.add(problem(a.Expr.Range().Ptr(), "Invalid iterator", "An iterator is a bare name."))
			return nil
		}
	}
	var out []setting
	p.exprIn(each.Expr, ctx, func(v cty.Value) {
		if !v.CanIterateElements() {
			p.add(problem(each.Expr.Range().Ptr(), "Invalid for_each", "for_each wants a list, set or map, not a %s.", v.Type().FriendlyName()))
			return
		}
		for it := v.ElementIterator(); it.Next(); {
			if p.expanded++; p.expanded > dynamicMax {
				p.add(problem(at, "Too many blocks", "Dynamic blocks may make at most %d blocks.", dynamicMax))
				return
			}
			key, value := it.Element()
			if v.Type().IsSetType() {
				key = value
			}
			child := ctx.NewChild()
			child.Variables = map[string]cty.Value{iterator: cty.ObjectVal(map[string]cty.Value{"key": key, "value": value})}
			made := &hclsyntax.Block{Type: b.Labels[0], Body: content.Body, TypeRange: b.TypeRange, OpenBraceRange: b.OpenBraceRange, CloseBraceRange: b.CloseBraceRange}
			if a := b.Body.Attributes["labels"]; a != nil {
				p.exprIn(a.Expr, child, func(l cty.Value) {
					var labels []string
					p.assign(l, reflect.ValueOf(&labels).Elem(), a.Expr.Range())
					made.Labels = labels
					for range labels {
						made.LabelRanges = append(made.LabelRanges, a.Expr.Range())
					}
				})
			}
			out = append(out, setting{name: b.Labels[0], rng: b.LabelRanges[0], block: made, ctx: child})
		}
	})
	return out
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// body decodes a body into a wire struct.
func (p *parser) body(b *hclsyntax.Body, ctx *hcl.EvalContext, target reflect.Value) {
	p.fields(p.settings(b, ctx), target)
}

// fields decodes settings into a wire struct, including what the language has in addition to the struct's fields.
func (p *parser) fields(all []setting, target reflect.Value) {
	s := schemaOf(target.Type())
	var extra reflect.Value
	var extraSchema *schema
	switch target.Interface().(type) {
	case wire.Job:
		extra = reflect.ValueOf(&jobExtras{}).Elem()
	case wire.TaskGroup:
		extra = reflect.ValueOf(&groupExtras{}).Elem()
	}
	names := s.names
	if extra.IsValid() {
		extraSchema = schemaOf(extra.Type())
		names = append(append([]string{}, names...), extraSchema.names...)
	}
	sugar := sugarOf(target)
	for name := range sugar {
		names = append(names, name)
	}
	sort.Strings(names)
	first := map[string]hcl.Range{}
	for _, x := range all {
		f, ok := s.fields[x.name]
		to := target
		if !ok && extraSchema != nil {
			if f, ok = extraSchema.fields[x.name]; ok {
				to = extra
			}
		}
		if !ok {
			if set := sugar[x.name]; set != nil && x.expr != nil {
				p.exprIn(x.expr, x.ctx, func(v cty.Value) {
					if text, err := convert.Convert(v, cty.String); err == nil && text.IsKnown() && !text.IsNull() {
						set(text.AsString())
					} else {
						p.add(problem(x.expr.Range().Ptr(), "Wrong type", "%q wants text, not a %s.", x.name, v.Type().FriendlyName()))
					}
				})
				continue
			}
			what := "argument"
			if x.block != nil {
				what = "block"
			}
			p.add(problem(&x.rng, "Unsupported "+what, "There is no %s %q here%s", what, x.name, hint(x.name, names)))
			continue
		}
		if f.kind != kindBlocks && f.kind != kindLabelled {
			if old, dup := first[x.name]; dup {
				p.add(problem(&x.rng, "Duplicate "+x.name, "%q is given already at %s.", x.name, old))
				continue
			}
			first[x.name] = x.rng
		}
		p.one(f, x, to.Field(f.index))
	}
	switch v := target.Addr().Interface().(type) {
	case *wire.Job:
		extra.Addr().Interface().(*jobExtras).apply(v)
	case *wire.TaskGroup:
		extra.Addr().Interface().(*groupExtras).apply(v)
	case *wire.NetworkResource:
		splitPorts(v)
	}
}

// one decodes a setting into its field.
func (p *parser) one(f field, x setting, target reflect.Value) {
	if x.block != nil {
		p.oneBlock(f, x, target)
		return
	}
	switch f.kind {
	case kindValue:
		if f.name == "cron" && target.Type() == reflect.TypeFor[*string]() {
			p.cron(x, target)
			return
		}
		if f.name == "priority" && target.Type() == reflect.TypeFor[*int]() {
			p.priority(x, target)
			return
		}
		if (f.name == "memory" || f.name == "memory_max") && target.Type() == reflect.TypeFor[*int]() {
			p.mib(f.name, x, target)
			return
		}
		p.exprIn(x.expr, x.ctx, func(v cty.Value) { p.assign(v, target, x.expr.Range()) })
	case kindBlock:
		e := reflect.New(target.Type().Elem())
		if p.objectExpr(x.expr, x.ctx, e.Elem()) {
			target.Set(e)
		}
	case kindBlocks, kindLabelled:
		p.list(f, x.expr, x.ctx, target)
	default:
		p.exprIn(x.expr, x.ctx, func(v cty.Value) { p.assign(v, target, x.expr.Range()) })
	}
}

// priority accepts a name instead of a number.
func (p *parser) priority(x setting, target reflect.Value) {
	p.exprIn(x.expr, x.ctx, func(v cty.Value) {
		if v.Type() == cty.String && !v.IsNull() {
			if n, known := wire.Priorities[v.AsString()]; known {
				v = cty.NumberIntVal(int64(n))
			} else if _, err := strconv.Atoi(v.AsString()); err != nil {
				p.add(problem(x.expr.Range().Ptr(), "Unknown priority", "%q is no priority; give a number, or critical (90), high (70), normal (50), low (30) or scavenger (10).", v.AsString()))
				return
			}
		}
		p.assign(v, target, x.expr.Range())
	})
}

// mib says how to write an amount of memory that has a unit.
func (p *parser) mib(name string, x setting, target reflect.Value) {
	p.exprIn(x.expr, x.ctx, func(v cty.Value) {
		if v.Type() == cty.String && !v.IsNull() {
			if n, known := wire.LikelyMiB(v.AsString()); known {
				p.add(problem(x.expr.Range().Ptr(), "Wrong type", "%s is a number of MiB, without a unit: for %q write %s = %d.", name, v.AsString(), name, n))
				return
			}
		}
		p.assign(v, target, x.expr.Range())
	})
}

// cron accepts the list that older files write as cron = [...].
func (p *parser) cron(x setting, target reflect.Value) {
	p.exprIn(x.expr, x.ctx, func(v cty.Value) {
		if v.Type().IsTupleType() || v.Type().IsListType() {
			p.add(problem(x.expr.Range().Ptr(), "Wrong type", "cron is one expression; write crons = [...] for several."))
			return
		}
		p.assign(v, target, x.expr.Range())
	})
}

// list decodes x = [{...}, {...}], x = {...} and, for blocks with labels, x = {label = {...}}.
func (p *parser) list(f field, e hclsyntax.Expression, ctx *hcl.EvalContext, target reflect.Value) {
	elem := target.Type().Elem()
	if elem.Kind() == reflect.Pointer {
		elem = elem.Elem()
	}
	label := schemaOf(elem).label
	switch elem {
	case reflect.TypeFor[wire.ScalingPolicy]():
		label = scalingLabel
	case reflect.TypeFor[wire.Job]():
		label = jobLabel
	}
	switch x := e.(type) {
	case *hclsyntax.TupleConsExpr:
		for _, item := range x.Exprs {
			p.list(f, item, ctx, target)
		}
		return
	case *hclsyntax.ObjectConsExpr:
		if label == -1 {
			v := reflect.New(elem).Elem()
			if p.objectExpr(x, ctx, v) {
				appendTo(target, v)
			}
			return
		}
		for _, item := range x.Items {
			p.exprIn(item.KeyExpr, ctx, func(k cty.Value) {
				text, err := convert.Convert(k, cty.String)
				if err != nil || text.IsNull() {
					return
				}
				inner := []hclsyntax.Expression{item.ValueExpr}
				if t, ok := item.ValueExpr.(*hclsyntax.TupleConsExpr); ok {
					inner = t.Exprs
				}
				for _, ie := range inner {
					v := reflect.New(elem).Elem()
					setLabel(v, label, text.AsString())
					if p.objectExpr(ie, ctx, v) {
						appendTo(target, v)
					}
				}
			})
		}
		return
	}
	p.exprIn(e, ctx, func(v cty.Value) {
		if v.IsNull() {
			return
		}
		p.add(problem(e.Range().Ptr(), "Wrong type", "%q is a block: write %s { ... }, or a list of objects in brackets.", f.name, f.name))
	})
}

// Labels without a field: of a task's scaling block, where the label says what is scaled, and of a job.
const (
	scalingLabel = -2
	jobLabel     = -3
)

func setLabel(v reflect.Value, label int, text string) {
	switch {
	case label == scalingLabel:
		v.FieldByName("Type").SetString("vertical_" + text)
	case label == jobLabel:
		v.FieldByName("ID").Set(reflect.ValueOf(&text))
		v.FieldByName("Name").Set(reflect.ValueOf(ptr(text)))
	case v.Field(label).Kind() == reflect.Pointer:
		v.Field(label).Set(reflect.ValueOf(&text))
	default:
		v.Field(label).SetString(text)
	}
}

// appendTo adds a decoded struct to a slice or, by its label, to a map.
func appendTo(target, v reflect.Value) {
	if target.Kind() == reflect.Map {
		if target.IsNil() {
			target.Set(reflect.MakeMap(target.Type()))
		}
		target.SetMapIndex(v.Field(schemaOf(v.Type()).label), v.Addr())
		return
	}
	if target.Type().Elem().Kind() == reflect.Pointer {
		v = v.Addr()
	}
	target.Set(reflect.Append(target, v))
}

// objectExpr decodes x = { ... } into a struct.
func (p *parser) objectExpr(e hclsyntax.Expression, ctx *hcl.EvalContext, target reflect.Value) bool {
	obj, ok := e.(*hclsyntax.ObjectConsExpr)
	if !ok {
		if t, isTuple := e.(*hclsyntax.TupleConsExpr); isTuple && len(t.Exprs) == 1 { // as JSON writes a block
			return p.objectExpr(t.Exprs[0], ctx, target)
		}
		done := false
		p.exprIn(e, ctx, func(v cty.Value) {
			switch {
			case v.IsNull():
			case v.Type().IsObjectType() || v.Type().IsMapType():
				done = p.assign(v, target, e.Range())
			default:
				p.add(problem(e.Range().Ptr(), "Wrong type", "Want a block or an object such as %s, not a %s.", objectLike(v, target.Type()), v.Type().FriendlyName()))
			}
		})
		return done
	}
	var all []setting
	for _, item := range obj.Items {
		p.exprIn(item.KeyExpr, ctx, func(k cty.Value) {
			if text, err := convert.Convert(k, cty.String); err == nil && !text.IsNull() && text.AsString() != "//" {
				all = append(all, setting{name: text.AsString(), rng: item.KeyExpr.Range(), expr: item.ValueExpr, ctx: ctx})
			}
		})
	}
	p.fields(all, target)
	return true
}

// objectLike returns an example of an object that fits a block, with v as the value of its first field if that could be
// meant.
func objectLike(v cty.Value, t reflect.Type) string {
	name := "name"
	if t.Kind() == reflect.Struct {
		first := t.NumField()
		for n, f := range schemaOf(t).fields {
			if f.kind == kindValue && f.index < first {
				name, first = n, f.index
			}
		}
	}
	if v.IsKnown() && v.Type() == cty.Number {
		return fmt.Sprintf("{ %s = %s }", name, v.AsBigFloat().Text('g', 12))
	}
	return fmt.Sprintf("{ %s = ... }", name)
}

func (p *parser) oneBlock(f field, x setting, target reflect.Value) {
	b := x.block
	want, elem := 0, target.Type()
	switch f.kind {
	case kindValue:
		p.add(problem(&x.rng, "Not a block", "%q is an argument: write %s = ...", f.name, f.name))
		return
	case kindBlock:
		elem = elem.Elem()
	case kindBlocks, kindLabelled:
		if elem = elem.Elem(); elem.Kind() == reflect.Pointer {
			elem = elem.Elem()
		}
	}
	label := -1
	if elem.Kind() == reflect.Struct {
		if label = schemaOf(elem).label; f.kind == kindBlocks && elem == reflect.TypeFor[wire.ScalingPolicy]() {
			label = scalingLabel
		}
		if label != -1 {
			want = 1
		}
	}
	if len(b.Labels) != want {
		at := b.DefRange()
		if want == 0 {
			p.add(problem(&at, "Unexpected label", "A %s block has no label: write %s { ... }", f.name, f.name))
		} else {
			p.add(problem(&at, "Wrong number of labels", "A %s block has one label: write %s \"name\" { ... }", f.name, f.name))
		}
		return
	}
	switch f.kind {
	case kindBlock:
		e := reflect.New(elem)
		p.body(b.Body, x.ctx, e.Elem())
		target.Set(e)
	case kindBlocks, kindLabelled:
		e := reflect.New(elem).Elem()
		if want == 1 {
			setLabel(e, label, b.Labels[0])
		}
		p.body(b.Body, x.ctx, e)
		if f.kind == kindLabelled {
			if old := target.MapIndex(reflect.ValueOf(b.Labels[0])); target.Len() > 0 && old.IsValid() {
				p.add(problem(&x.rng, "Duplicate "+f.name, "There is another %s %q in this block.", f.name, b.Labels[0]))
			}
		}
		appendTo(target, e)
	case kindOpaque:
		target.Set(reflect.ValueOf(p.opaque(b.Body, x.ctx)))
	default:
		m := map[string]cty.Value{}
		for _, s := range p.settings(b.Body, x.ctx) {
			if s.block != nil {
				p.add(problem(&s.rng, "Unsupported block", "%q holds only lines such as name = \"value\".", f.name))
				continue
			}
			p.exprIn(s.expr, s.ctx, func(v cty.Value) { m[s.name] = v })
		}
		p.assign(object(m), target, x.rng)
	}
}

// opaque decodes a block that a driver interprets: nested blocks become lists of objects, labels further objects.
func (p *parser) opaque(b *hclsyntax.Body, ctx *hcl.EvalContext) map[string]any {
	out := map[string]any{}
	for _, s := range p.settings(b, ctx) {
		if s.expr != nil {
			p.exprIn(s.expr, s.ctx, func(v cty.Value) { out[s.name] = toAny(v) })
			continue
		}
		inner := p.opaque(s.block.Body, s.ctx)
		for i := len(s.block.Labels) - 1; i >= 0; i-- {
			inner = map[string]any{s.block.Labels[i]: []any{inner}}
		}
		list, _ := out[s.name].([]any)
		out[s.name] = append(list, any(inner))
	}
	return out
}

// sugarOf returns the arguments that set more than one field: constraint { distinct_hosts = true }.
func sugarOf(target reflect.Value) map[string]func(string) {
	operators := []string{"regexp", "version", "semver", "set_contains", "set_contains_all", "set_contains_any"}
	out := map[string]func(string){}
	switch c := target.Addr().Interface().(type) {
	case *wire.Constraint:
		for _, op := range operators {
			out[op] = func(v string) { c.Operand, c.RTarget = op, v }
		}
		for _, op := range []string{"is_set", "is_not_set", "distinct_hosts"} {
			out[op] = func(v string) {
				if v == "true" {
					c.Operand = op
				} else {
					c.Operand, c.RTarget = op, v
				}
			}
		}
		out["distinct_property"] = func(v string) { c.Operand, c.LTarget = "distinct_property", v }
	case *wire.Affinity:
		for _, op := range operators {
			out[op] = func(v string) { c.Operand, c.RTarget = op, v }
		}
	default:
		return nil
	}
	return out
}

// splitPorts moves ports with a static value to the field where the API has them.
func splitPorts(n *wire.NetworkResource) {
	var dynamic []wire.Port
	for _, port := range n.DynamicPorts {
		if port.Value != 0 {
			n.ReservedPorts = append(n.ReservedPorts, port)
		} else {
			dynamic = append(dynamic, port)
		}
	}
	n.DynamicPorts = dynamic
}

// expr evaluates in the file's context.
func (p *parser) expr(e hclsyntax.Expression, use func(cty.Value)) { p.exprIn(e, p.ctx, use) }

// exprIn evaluates an expression and passes its value to use, unless the expression, or something that it depends on,
// is broken.
func (p *parser) exprIn(e hclsyntax.Expression, ctx *hcl.EvalContext, use func(cty.Value)) {
	for _, t := range e.Variables() {
		if root := t.RootName(); runtimeRoot(root) && !defined(ctx, root) {
			r := t.SourceRange()
			text := string(r.SliceBytes(p.sources[r.Filename]))
			p.add(problem(&r, "Known on the node only", "%s has no value before the job runs. In a string it is kept for the node: write \"${%s}\" alone, without operators or functions around it.", text, text))
			return
		}
	}
	v, diags := e.Value(ctx)
	p.add(diags...)
	if diags.HasErrors() || !v.IsWhollyKnown() {
		return
	}
	v, _ = v.UnmarkDeep()
	use(v)
}

func defined(ctx *hcl.EvalContext, root string) bool {
	for ; ctx != nil; ctx = ctx.Parent() {
		if _, ok := ctx.Variables[root]; ok {
			return true
		}
	}
	return false
}

// runtimeRoot reports whether a name is resolved on the node: Nomad's objects, or a variable of the environment.
func runtimeRoot(root string) bool {
	switch root {
	case "attr", "meta", "node", "env", "device", "unique":
		return true
	}
	if root == "" || root[0] >= '0' && root[0] <= '9' {
		return false
	}
	if strings.HasPrefix(root, "NOMAD_") || strings.HasPrefix(root, "MUSTER_") {
		return true
	}
	return strings.Trim(root, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == ""
}

// keepRuntime replaces references that only a node can resolve by their own text, where they are alone in a string.
func (p *parser) keepRuntime(n hclsyntax.Node) {
	keep := func(e hclsyntax.Expression) hclsyntax.Expression {
		t, ok := e.(*hclsyntax.ScopeTraversalExpr)
		if !ok || !runtimeRoot(t.Traversal.RootName()) {
			return e
		}
		text := fmt.Sprintf("${%s}", t.SrcRange.SliceBytes(p.sources[t.SrcRange.Filename]))
		return &hclsyntax.LiteralValueExpr{Val: cty.StringVal(text), SrcRange: t.SrcRange}
	}
	_ = hclsyntax.VisitAll(n, func(n hclsyntax.Node) hcl.Diagnostics {
		switch x := n.(type) {
		case *hclsyntax.TemplateExpr:
			for i, part := range x.Parts {
				x.Parts[i] = keep(part)
			}
		case *hclsyntax.TemplateWrapExpr:
			x.Wrapped = keep(x.Wrapped)
		}
		return nil
	})
}
