package gpu

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestPageNamesXIDs compares the numbers of errors on the page about GPUs with the defaults.
func TestPageNamesXIDs(t *testing.T) {
	page, err := os.ReadFile("../../docs/gpu.md")
	if err != nil {
		t.Fatal(err)
	}
	numbers := map[XIDAction][]string{}
	for _, n := range slices.Sorted(maps.Keys(xidActions)) {
		if n != recoveryXID {
			numbers[xidActions[n]] = append(numbers[xidActions[n]], fmt.Sprint(n))
		}
	}
	degrade := numbers[XIDDegrade]
	last := len(degrade) - 1
	var fails []string
	for _, n := range slices.Sorted(maps.Keys(xidFailures)) {
		if act := xidActions[n]; act != XIDQuarantine {
			t.Errorf("XID %d counts as a loss of the node, and does not quarantine", n)
		}
		fails = append(fails, fmt.Sprint(n))
	}
	for _, want := range []string{
		"(XID " + strings.Join(numbers[XIDProgram], ", ") + ")",
		"(" + strings.Join(degrade[:last], ", ") + " and " + degrade[last] + " degrade;",
		"reports XID " + strings.Join(fails[:len(fails)-1], ", ") + " or " + fails[len(fails)-1] + ",",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("docs/gpu.md does not say %q", want)
		}
	}
}
