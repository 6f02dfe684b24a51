package structs

import (
	"slices"
	"testing"
)

func TestQueuePath(t *testing.T) {
	for _, c := range []struct {
		path, parent QueuePath
		base         string
		lineage      []QueuePath
	}{
		{"a/b/c", "a/b", "c", []QueuePath{"a/b/c", "a/b", "a", QueueRoot}},
		{"a", QueueRoot, "a", []QueuePath{"a", QueueRoot}},
		{QueueRoot, "", "root", []QueuePath{QueueRoot}},
		{"", "", "", nil},
	} {
		if got := c.path.Parent(); got != c.parent {
			t.Errorf("the parent of %q is %q, want %q", c.path, got, c.parent)
		}
		if got := c.path.Base(); got != c.base {
			t.Errorf("the base of %q is %q, want %q", c.path, got, c.base)
		}
		if got := slices.Collect(c.path.Lineage()); !slices.Equal(got, c.lineage) {
			t.Errorf("the lineage of %q is %q, want %q", c.path, got, c.lineage)
		}
		if got := slices.Collect(c.path.Ancestors()); len(c.lineage) > 0 && !slices.Equal(got, c.lineage[1:]) {
			t.Errorf("the ancestors of %q are %q, want %q", c.path, got, c.lineage[1:])
		}
		for q := range c.path.Lineage() {
			if !q.Contains(c.path) || q != c.path && c.path.Contains(q) {
				t.Errorf("%q contains %q: %v; the other way %v", q, c.path, q.Contains(c.path), c.path.Contains(q))
			}
		}
	}
	for _, c := range [][2]QueuePath{{"a", "ab"}, {"a/b", "a/bc"}, {"a/b", "a"}, {"b", "a/b"}} {
		if c[0].Contains(c[1]) {
			t.Errorf("%q contains %q", c[0], c[1])
		}
	}
	for range QueuePath("a/b").Lineage() {
		break // stops without a panic
	}
	if name, ok := UseNamespace("prod").Namespace(); name != "prod" || !ok || QueuePath("prod").IsNamespace() {
		t.Errorf("the namespace of the row of prod is %q, %v", name, ok)
	}
}
