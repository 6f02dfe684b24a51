package match

import (
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-version"

	"github.com/muster-sched/muster/structs"
)

// Resolve returns the value of a constraint's target on a node: of an interpolation like "${attr.kernel.name}", or
// plain text as it is. found is false when the node has no such attribute.
func Resolve(target string, n *structs.Node) (value string, found bool) {
	name, ok := interpolation(target)
	if !ok {
		return target, true
	}
	switch name {
	case "node.unique.id":
		return n.ID.String(), true
	case "node.unique.name":
		return n.Name, true
	case "node.datacenter":
		return n.Datacenter, true
	case "node.class":
		return n.Class, true
	case "node.pool":
		return string(n.Pool), true
	}
	if key, ok := strings.CutPrefix(name, "attr."); ok {
		value, found = n.Attributes[key]
		return value, found
	}
	if key, ok := strings.CutPrefix(name, "meta."); ok {
		value, found = n.Meta[key]
		return value, found
	}
	if key, ok := strings.CutPrefix(name, "driver."); ok {
		driver, attr, sub := strings.Cut(key, ".")
		d, known := n.Drivers[driver]
		switch {
		case !known:
			return "", false
		case sub:
			value, found = d.Attributes[attr]
			return value, found
		case d.Detected && d.Healthy:
			return "1", true
		}
	}
	return "", false
}

// interpolation returns x of "${x}".
func interpolation(target string) (string, bool) {
	if strings.HasPrefix(target, "${") && strings.HasSuffix(target, "}") {
		return strings.TrimSpace(target[2 : len(target)-1]), true
	}
	return "", false
}

// unique reports whether a target can differ between nodes of one class.
func unique(target string) bool {
	name, ok := interpolation(target)
	if !ok {
		return false
	}
	return strings.HasPrefix(name, "node.unique.") || strings.HasPrefix(name, "attr.unique.") ||
		strings.HasPrefix(name, "meta.unique.")
}

// Condition is one compiled constraint or affinity.
type Condition struct {
	L, R, Op string
	re       *regexp.Regexp // of a plain right side
}

func compileCondition(l, r, op string) Condition {
	c := Condition{L: l, R: r, Op: op}
	if op == structs.OperandRegexp {
		if _, isVar := interpolation(r); !isVar {
			c.re, _ = regexp.Compile(r) // a pattern that does not compile matches nothing; registration refuses it
		}
	}
	return c
}

// unique reports whether the condition must be checked per node.
func (c *Condition) unique() bool { return unique(c.L) || unique(c.R) }

// Refusal returns the refusal of nodes that do not meet the condition.
func (c *Condition) Refusal(cure structs.EventKind) Refusal {
	return Cannot(structs.DimensionConstraint, c.String(), "", cure)
}

func (c *Condition) String() string {
	switch c.Op {
	case structs.OperandIsSet, structs.OperandIsNotSet:
		return c.L + " " + c.Op
	case structs.OperandDistinctHosts:
		return c.Op
	case structs.OperandDistinctProperty:
		return c.Op + " " + c.L
	}
	return c.L + " " + c.Op + " " + c.R
}

// Holds reports whether the condition is true on a node.
func (c *Condition) Holds(n *structs.Node) bool {
	l, lok := Resolve(c.L, n)
	r, rok := Resolve(c.R, n)
	return c.compare(l, lok, r, rok)
}

func (c *Condition) compare(l string, lok bool, r string, rok bool) bool {
	switch c.Op {
	case "", structs.OperandEqual, "==", "is":
		return lok && rok && l == r
	case structs.OperandNotEqual, "not":
		return lok != rok || l != r
	case structs.OperandIsSet:
		return lok
	case structs.OperandIsNotSet:
		return !lok
	case structs.OperandDistinctHosts, structs.OperandDistinctProperty:
		return true // checked elsewhere, over allocations
	}
	if !lok || !rok {
		return false
	}
	switch c.Op {
	case structs.OperandLess, structs.OperandLessEqual, structs.OperandGreater, structs.OperandGreaterEqual:
		return orderHolds(c.Op, compareOrdered(l, r))
	case operandOtherModel:
		return !structs.IsModel(l, r)
	case structs.OperandRegexp:
		re := c.re
		if re == nil {
			var err error
			if re, err = regexp.Compile(r); err != nil {
				return false
			}
		}
		return re.MatchString(l)
	case structs.OperandVersion:
		return versionHolds(l, r)
	case structs.OperandSemver:
		return semverHolds(l, r)
	case structs.OperandSetContains, structs.OperandSetContainsAll:
		have := splitSet(l)
		for _, w := range splitSet(r) {
			if !slices.Contains(have, w) {
				return false
			}
		}
		return true
	case structs.OperandSetContainsAny:
		have := splitSet(l)
		return slices.ContainsFunc(splitSet(r), func(w string) bool { return slices.Contains(have, w) })
	}
	return false // an unknown operator, which registration refuses
}

func splitSet(s string) []string {
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

func orderHolds(op string, c int) bool {
	switch op {
	case structs.OperandLess:
		return c < 0
	case structs.OperandLessEqual:
		return c <= 0
	case structs.OperandGreater:
		return c > 0
	default:
		return c >= 0
	}
}

// compareOrdered compares as whole numbers, else as decimal numbers, else as text. The comparison of decimals is exact.
func compareOrdered(l, r string) int {
	if a, err := strconv.ParseInt(l, 10, 64); err == nil {
		if b, err := strconv.ParseInt(r, 10, 64); err == nil {
			switch {
			case a < b:
				return -1
			case a > b:
				return 1
			}
			return 0
		}
	}
	if a, ok := ParseDecimal(l); ok {
		if b, ok := ParseDecimal(r); ok {
			return a.Cmp(b)
		}
	}
	return strings.Compare(l, r)
}

// ParseDecimal reads a plain decimal number of at most 40 characters, without fractions like 1/3 or large exponents.
func ParseDecimal(s string) (*big.Rat, bool) {
	if len(s) == 0 || len(s) > 40 || strings.ContainsAny(s, "/_xXpPeE") {
		return nil, false
	}
	return new(big.Rat).SetString(s)
}

// versionHolds checks a version against constraints like ">= 1.2, < 2".
func versionHolds(l, r string) bool {
	v, err := version.NewVersion(l)
	if err != nil {
		return false
	}
	cs, err := version.NewConstraint(r)
	if err != nil {
		return false
	}
	return cs.Check(v)
}

// semverHolds checks by the order of Semantic Versioning: a prerelease counts as below its release, and satisfies
// ranges like any other version.
func semverHolds(l, r string) bool {
	v, err := version.NewSemver(l)
	if err != nil {
		return false
	}
	for part := range strings.SplitSeq(r, ",") {
		part = strings.TrimSpace(part)
		op := part[:len(part)-len(strings.TrimLeft(part, "<>=!"))]
		w, err := version.NewSemver(strings.TrimSpace(part[len(op):]))
		if err != nil {
			return false
		}
		c := v.Compare(w)
		switch op {
		case "", "=", "==":
			if c != 0 {
				return false
			}
		case "!=":
			if c == 0 {
				return false
			}
		case "<", "<=", ">", ">=":
			if !orderHolds(op, c) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// glob matches shell-style patterns with * and ?.
func glob(pattern, s string) bool {
	star, back := -1, 0
	p, i := 0, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == s[i]) && pattern[p] != '*':
			p++
			i++
		case p < len(pattern) && pattern[p] == '*':
			star, back = p, i
			p++
		case star >= 0:
			back++
			p, i = star+1, back
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}
