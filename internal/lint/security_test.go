package lint

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var namedTest = regexp.MustCompile("`([a-z0-9/]+)/(Test\\w+)`")

// The threat model names a test for each boundary. A test that is gone leaves the boundary without a guard: name the one
// that took its place.
func TestBoundariesHaveTests(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/operate/security.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := namedTest.FindAllStringSubmatch(string(page), -1)
	for _, m := range found {
		files, _ := filepath.Glob(filepath.Join(root, m[1], "*_test.go"))
		there := false
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			there = there || strings.Contains(string(text), "func "+m[2]+"(")
		}
		if !there {
			t.Errorf("docs/operate/security.md names %s/%s, which does not exist", m[1], m[2])
		}
	}
	if len(found) < 30 {
		t.Errorf("the threat model names only %d tests: did its layout change?", len(found))
	}
}
