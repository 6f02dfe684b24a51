package harness

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Life is the time between the first and the last sign of life of an allocation.
type Life struct {
	Alloc       string
	First, Last time.Time
}

// SignOfLife is a shell script that writes its allocation and the time to a file, every 20 ms.
func SignOfLife(file string) string {
	return fmt.Sprintf("while :; do echo $NOMAD_ALLOC_ID $(date +%%s%%N) >> %s; sleep 0.02; done", file)
}

// Lives reads what tasks wrote with SignOfLife, the oldest allocation first.
func Lives(t testing.TB, file string) (out []Life) {
	t.Helper()
	b, _ := os.ReadFile(file)
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 2 || !strings.HasSuffix(line, "\n") {
			continue
		}
		ns, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			t.Fatalf("%s: %q: %v", file, line, err)
		}
		at := time.Unix(0, ns)
		i := slices.IndexFunc(out, func(l Life) bool { return l.Alloc == f[0] })
		if i < 0 {
			out = append(out, Life{Alloc: f[0], First: at, Last: at})
			continue
		}
		out[i].Last = at
	}
	return out
}
