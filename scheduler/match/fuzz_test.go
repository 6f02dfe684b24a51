package match

import (
	"testing"

	"github.com/muster-sched/muster/structs"
)

// FuzzCondition evaluates any constraint over two texts: an operator and its opposite never agree.
func FuzzCondition(f *testing.F) {
	for _, s := range [][2]string{{"1.5", "20"}, {"20 GiB", "1TiB"}, {"v1.2.3-rc1", ">= 1.2, < 2"}, {"a,b", "b, a"}, {"abc", "^a(b|c)*$"}, {"1e999999999", "1/3"}, {"", "(((("}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, l, r string) {
		holds := func(op string) bool {
			c := compileCondition(l, r, op)
			return c.compare(l, true, r, true)
		}
		for _, pair := range [][2]string{{structs.OperandEqual, structs.OperandNotEqual}, {structs.OperandLess, structs.OperandGreaterEqual}, {structs.OperandGreater, structs.OperandLessEqual}} {
			if holds(pair[0]) == holds(pair[1]) {
				t.Fatalf("%q %s %q and %s: both are %v", l, pair[0], r, pair[1], holds(pair[0]))
			}
		}
		if holds(structs.OperandSetContainsAll) && !holds(structs.OperandSetContainsAny) {
			t.Fatalf("%q contains all of %q and none of it", l, r)
		}
		for _, op := range []string{structs.OperandRegexp, structs.OperandVersion, structs.OperandSemver} {
			holds(op)
		}
		a, b := parseValue(l), parseValue(r)
		x, ok := compareValues(a, b)
		if y, ok2 := compareValues(b, a); ok != ok2 || ok && x != -y {
			t.Fatalf("%q and %q compare as %d and %d", l, r, x, y)
		}
		glob(l, r)
	})
}
