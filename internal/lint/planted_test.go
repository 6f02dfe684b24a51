package lint

import (
	"path/filepath"
	"testing"

	"github.com/muster-sched/muster/e2e/overlay"
)

// plantedMin is how many planted bugs there are at least. It may only rise.
const plantedMin = 46

// TestPlantedBugsApply: the text that each planted bug replaces is still there. `make planted` runs the bugs, and the tests
// of e2e/planted type-check them; this is the check that takes milliseconds.
func TestPlantedBugsApply(t *testing.T) {
	files, err := filepath.Glob("../../e2e/planted/bugs/*.bug")
	if err != nil || len(files) < plantedMin {
		t.Fatalf("%d planted bugs, %v; want %d or more", len(files), err, plantedMin)
	}
	for _, f := range files {
		c, err := overlay.Read(f, nil)
		if err == nil {
			_, err = c.Texts("../..")
		}
		if err != nil {
			t.Errorf("planted bug %s: %v. Adapt the bug to the code that has changed; it must break the same thing (e2e/planted/DESIGN.md)", filepath.Base(f), err)
		}
	}
}
