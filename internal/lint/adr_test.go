package lint

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	adrFile  = regexp.MustCompile(`^([0-9]{4})-[a-z0-9-]+\.md$`)
	adrParts = []string{"**Context.**", "**Decision.**", "**Alternatives.**", "**Drawbacks.**"}
)

// TestDecisionRecords wants one form for every record in docs/adr: a numbered title, then context, decision, alternatives
// and drawbacks in this order. Numbers are unique.
func TestDecisionRecords(t *testing.T) {
	files, err := os.ReadDir(filepath.Join(root, "docs/adr"))
	if err != nil || len(files) < 10 {
		t.Fatalf("%d records, error %v", len(files), err)
	}
	taken := map[string]string{}
	for _, f := range files {
		m := adrFile.FindStringSubmatch(f.Name())
		if m == nil {
			t.Errorf("docs/adr/%s: name it NNNN-what-was-decided.md", f.Name())
			continue
		}
		if other := taken[m[1]]; other != "" {
			t.Errorf("docs/adr/%s has the number of %s: take the next free one", f.Name(), other)
		}
		taken[m[1]] = f.Name()
		text, err := os.ReadFile(filepath.Join(root, "docs/adr", f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(text), "# "+m[1]+" ") {
			t.Errorf("docs/adr/%s: begin with '# %s Title'", f.Name(), m[1])
		}
		at := 0
		for _, p := range adrParts {
			i := strings.Index(string(text[at:]), "\n"+p)
			if i < 0 {
				t.Errorf("docs/adr/%s: no paragraph %s, or not in the order %s", f.Name(), p, strings.Join(adrParts, " "))
				break
			}
			at += i + 1
		}
	}
}
