package methods

import (
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-sched/muster/internal/golden"
)

var update = flag.Bool("update", false, "write the file of needs")

// TestNeeds: who may call which method is a file that a person reviews. The other tests of permissions take the table for
// true, so they would not notice a row that permits too much.
func TestNeeds(t *testing.T) {
	var s strings.Builder
	for _, r := range Table {
		need := strings.ReplaceAll(fmt.Sprintf("%+v", r.Need), ":false", ":")
		fields := strings.Fields(strings.Trim(need, "{}"))
		set := ""
		for _, f := range fields {
			if !strings.HasSuffix(f, ":") {
				set += " " + f
			}
		}
		fmt.Fprintf(&s, "%s%s\n", r.Name, set)
	}
	golden.Compare(t, filepath.Join("testdata", "needs.txt"), []byte(s.String()), *update)
}
