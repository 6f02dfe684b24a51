package lint

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var mdLink = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)

// TestLinks follows every relative link of the pages.
func TestLinks(t *testing.T) {
	links := 0
	err := walk(func(name string, text []byte) error {
		if !strings.HasSuffix(name, ".md") {
			return nil
		}
		for _, m := range mdLink.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], ":") {
				continue // another site
			}
			links++
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", name, m[1])
			}
		}
		return nil
	})
	if err != nil || links < 60 {
		t.Fatalf("%d links found, error %v", links, err)
	}
}
