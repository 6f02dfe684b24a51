package jobspec

import (
	"math"
	"math/big"
	"reflect"
	"sort"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// assign converts a value into a field and reports whether it could. null leaves the field unchanged.
func (p *parser) assign(v cty.Value, target reflect.Value, rng hcl.Range) bool {
	wrong := func(want string) bool {
		p.add(problem(&rng, "Wrong type", "Want %s, not %s.", want, describe(v)))
		return false
	}
	if v.IsNull() {
		return true
	}
	if target.Kind() == reflect.Pointer {
		e := reflect.New(target.Type().Elem())
		if !p.assign(v, e.Elem(), rng) {
			return false
		}
		target.Set(e)
		return true
	}
	if target.Type() == reflect.TypeFor[wire.Duration]() {
		if v.Type() != cty.String {
			return wrong("a duration with its unit, such as \"30s\"")
		}
		d, err := wire.ParseDuration(v.AsString())
		if err != nil {
			p.add(problem(&rng, "Invalid duration", "%s.", err))
			return false
		}
		target.SetInt(int64(d))
		return true
	}
	switch target.Kind() {
	case reflect.String:
		c, err := convert.Convert(v, cty.String)
		if err != nil {
			return wrong("text")
		}
		target.SetString(c.AsString())
	case reflect.Bool:
		c, err := convert.Convert(v, cty.Bool)
		if err != nil {
			return wrong("true or false")
		}
		target.SetBool(c.True())
	case reflect.Int, reflect.Int8, reflect.Int64, reflect.Uint8, reflect.Uint64:
		c, err := convert.Convert(v, cty.Number)
		if err != nil {
			return wrong("a number")
		}
		n, acc := c.AsBigFloat().Int64()
		if acc != big.Exact {
			return wrong("a whole number that fits into 64 bits")
		}
		least, most := int64(math.MinInt64), int64(math.MaxInt64)
		switch target.Kind() {
		case reflect.Int8:
			least, most = math.MinInt8, math.MaxInt8
		case reflect.Uint8:
			least, most = 0, math.MaxUint8
		case reflect.Uint64:
			least = 0
		}
		if n < least || n > most {
			p.add(problem(&rng, "Out of range", "%d is out of range: want %d to %d.", n, least, most))
			return false
		}
		if target.CanInt() {
			target.SetInt(n)
		} else {
			target.SetUint(uint64(n))
		}
	case reflect.Slice:
		if !v.CanIterateElements() || v.Type().IsObjectType() || v.Type().IsMapType() {
			if target.Type().Elem().Kind() == reflect.String {
				return wrong("a list such as [\"a\", \"b\"]")
			}
			return wrong("a list")
		}
		out := reflect.MakeSlice(target.Type(), 0, v.LengthInt())
		for it := v.ElementIterator(); it.Next(); {
			_, x := it.Element()
			e := reflect.New(target.Type().Elem()).Elem()
			if x.IsNull() {
				p.add(problem(&rng, "Null in a list", "An element of the list is null."))
				return false
			}
			if !p.assign(x, e, rng) {
				return false
			}
			out = reflect.Append(out, e)
		}
		target.Set(out)
	case reflect.Map:
		if !v.Type().IsObjectType() && !v.Type().IsMapType() {
			if list := v.Type().IsTupleType() || v.Type().IsListType(); list && v.LengthInt() == 1 { // the form in which JSON writes a block
				return p.assign(v.Index(cty.NumberIntVal(0)), target, rng)
			}
			return wrong("a block or an object such as { a = \"b\" }")
		}
		if target.Type() == reflect.TypeFor[map[string]any]() {
			target.Set(reflect.ValueOf(toAny(v)))
			return true
		}
		out := reflect.MakeMap(target.Type())
		for it := v.ElementIterator(); it.Next(); {
			k, x := it.Element()
			e := reflect.New(target.Type().Elem()).Elem()
			if !p.assign(x, e, rng) {
				return false
			}
			out.SetMapIndex(reflect.ValueOf(k.AsString()), e)
		}
		target.Set(out)
	case reflect.Struct:
		return p.assignStruct(v, target, rng)
	default:
		return wrong("something else")
	}
	return true
}

// assignStruct fills a struct from an object that is the result of an expression, not a literal.
func (p *parser) assignStruct(v cty.Value, target reflect.Value, rng hcl.Range) bool {
	if !v.Type().IsObjectType() && !v.Type().IsMapType() {
		p.add(problem(&rng, "Wrong type", "Want a block or an object, not %s.", describe(v)))
		return false
	}
	s := schemaOf(target.Type())
	ok := true
	m := v.AsValueMap()
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		f, known := s.fields[k]
		if !known {
			p.add(problem(&rng, "Unsupported argument", "There is no argument %q here%s", k, hint(k, s.names)))
			ok = false
			continue
		}
		ok = p.assign(m[k], target.Field(f.index), rng) && ok
	}
	if n, is := target.Addr().Interface().(*wire.NetworkResource); is {
		splitPorts(n)
	}
	return ok
}

func describe(v cty.Value) string {
	switch {
	case v.Type() == cty.String:
		s := v.AsString()
		if len(s) > 40 {
			s = s[:40] + "..."
		}
		return "the text \"" + s + "\""
	case v.Type() == cty.Number:
		return "the number " + v.AsBigFloat().Text('g', 20)
	case v.Type() == cty.Bool && v.True():
		return "true"
	case v.Type() == cty.Bool:
		return "false"
	case v.Type().IsTupleType() || v.Type().IsListType() || v.Type().IsSetType():
		return "a list"
	}
	return "an object"
}

// toAny converts to what encoding/json makes of the same value, but keeps integers exact.
func toAny(v cty.Value) any {
	if v.IsNull() || !v.IsKnown() {
		return nil
	}
	t := v.Type()
	switch {
	case t == cty.String:
		return v.AsString()
	case t == cty.Bool:
		return v.True()
	case t == cty.Number:
		if n, acc := v.AsBigFloat().Int64(); acc == big.Exact {
			return n
		}
		f, _ := v.AsBigFloat().Float64()
		if math.IsInf(f, 0) {
			return v.AsBigFloat().Text('g', 20)
		}
		return f
	case t.IsTupleType() || t.IsListType() || t.IsSetType():
		out := []any{}
		for it := v.ElementIterator(); it.Next(); {
			_, x := it.Element()
			out = append(out, toAny(x))
		}
		return out
	case t.IsObjectType() || t.IsMapType():
		out := map[string]any{}
		for it := v.ElementIterator(); it.Next(); {
			k, x := it.Element()
			out[k.AsString()] = toAny(x)
		}
		return out
	}
	return nil
}
