package match

import (
	"math/big"
	"strings"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// unit is a multiple of a base unit. Attributes of different base units cannot be compared.
type unit struct {
	base string
	num  int64 // multiples of the base
	den  int64
}

var units = func() map[string]unit {
	m := make(map[string]unit)
	dec := []struct {
		prefix string
		num    int64
	}{{"", 1}, {"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"P", 1e15}, {"E", 1e18}}
	for _, d := range dec {
		m[d.prefix+"B"] = unit{"byte", d.num, 1}
		m[d.prefix+"B/s"] = unit{"byte/s", d.num, 1}
		m[d.prefix+"b/s"] = unit{"bit/s", d.num, 1}
		m[d.prefix+"Hz"] = unit{"hertz", d.num, 1}
		m[d.prefix+"W"] = unit{"watt", d.num, 1}
	}
	for i, p := range []string{"Ki", "Mi", "Gi", "Ti", "Pi", "Ei"} {
		n := int64(1) << (10 * (i + 1))
		m[p+"B"] = unit{"byte", n, 1}
		m[p+"B/s"] = unit{"byte/s", n, 1}
	}
	m["mW"] = unit{"watt", 1, 1000}
	return m
}()

// value is a typed value with a unit, for comparisons.
type value struct {
	num  *big.Rat // nil: not a number
	base string
	str  string
	flag bool
	kind byte // 'n' number, 's' text, 'b' truth
}

func valueOf(a structs.Attribute) value {
	v := value{}
	switch a.Kind {
	case "int":
		v.kind, v.num = 'n', new(big.Rat).SetInt64(a.Int)
	case "micro":
		v.kind, v.num = 'n', big.NewRat(a.Int, model.Micro)
	case "bool":
		return value{kind: 'b', flag: a.Bool}
	default:
		return value{kind: 's', str: a.Str}
	}
	v.scale(a.Unit)
	return v
}

func (v *value) scale(name string) {
	if u, ok := units[name]; ok {
		v.base = u.base
		v.num.Mul(v.num, big.NewRat(u.num, u.den))
		return
	}
	v.base = name
}

// parseValue reads a value as written in a job: "20 GiB", "20GiB", "1.5", "true", or text.
func parseValue(s string) value {
	s = strings.TrimSpace(s)
	if s == "true" || s == "false" {
		return value{kind: 'b', flag: s == "true"}
	}
	digits := 0
	for digits < len(s) && (s[digits] >= '0' && s[digits] <= '9' || s[digits] == '.' || digits == 0 && (s[0] == '-' || s[0] == '+')) {
		digits++
	}
	if n, ok := ParseDecimal(s[:digits]); ok {
		name := strings.TrimSpace(s[digits:])
		if _, known := units[name]; known || name == "" {
			v := value{kind: 'n', num: n}
			v.scale(name)
			return v
		}
	}
	return value{kind: 's', str: s}
}

// compareValues orders two values; ok is false when they cannot be compared (different kinds or base units).
func compareValues(a, b value) (int, bool) {
	if a.kind != b.kind {
		return 0, false
	}
	switch a.kind {
	case 'n':
		if a.base != b.base {
			return 0, false
		}
		return a.num.Cmp(b.num), true
	case 'b':
		switch {
		case a.flag == b.flag:
			return 0, true
		case b.flag:
			return -1, true
		}
		return 1, true
	}
	return strings.Compare(a.str, b.str), true
}

// resolveDevice returns the value of a target on a device group.
func resolveDevice(target string, g *structs.DeviceGroup) (v value, text string, found bool) {
	name, ok := interpolation(target)
	if !ok {
		return parseValue(target), target, true
	}
	str := func(s string) (value, string, bool) { return value{kind: 's', str: s}, s, true }
	switch name {
	case "device.vendor":
		return str(g.Vendor)
	case "device.type":
		return str(g.Type)
	case "device.model":
		return str(g.Name)
	}
	if key, ok := strings.CutPrefix(name, "device.attr."); ok {
		if a, ok := g.Attributes[key]; ok {
			return valueOf(a), attributeText(a), true
		}
	}
	return value{}, "", false
}

// attributeText returns an attribute as text, for text operators (regexp, version, sets).
func attributeText(a structs.Attribute) string {
	v := valueOf(structs.Attribute{Kind: a.Kind, Int: a.Int, Str: a.Str, Bool: a.Bool})
	switch v.kind {
	case 'n':
		return strings.TrimSuffix(strings.TrimRight(v.num.FloatString(6), "0"), ".")
	case 'b':
		if a.Bool {
			return "true"
		}
		return "false"
	}
	return a.Str
}

// holdsOnDevice reports whether the condition is true of a device group, with units.
func (c *Condition) holdsOnDevice(g *structs.DeviceGroup) bool {
	l, ltext, lok := resolveDevice(c.L, g)
	r, rtext, rok := resolveDevice(c.R, g)
	switch c.Op {
	case "", structs.OperandEqual, "==", "is", structs.OperandNotEqual, "not",
		structs.OperandLess, structs.OperandLessEqual, structs.OperandGreater, structs.OperandGreaterEqual:
		not := c.Op == structs.OperandNotEqual || c.Op == "not"
		if !lok || !rok {
			return not && lok != rok
		}
		// A text attribute that looks like a number is compared as text.
		if l.kind == 's' && r.kind != 's' {
			r = value{kind: 's', str: rtext}
		} else if r.kind == 's' && l.kind != 's' {
			if _, isVar := interpolation(c.L); !isVar {
				l = value{kind: 's', str: ltext}
			}
		}
		o, comparable := compareValues(l, r)
		if !comparable {
			return not
		}
		switch c.Op {
		case "", structs.OperandEqual, "==", "is":
			return o == 0
		case structs.OperandNotEqual, "not":
			return o != 0
		}
		return orderHolds(c.Op, o)
	}
	return c.compare(ltext, lok, rtext, rok)
}
