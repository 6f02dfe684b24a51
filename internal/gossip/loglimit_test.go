package gossip

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestLogLimit(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1, 0)
	l := &logLimit{to: &out, now: func() time.Time { return now }}
	for i := range 1000 {
		fmt.Fprintf(l, "line %d\n", i)
	}
	if n := strings.Count(out.String(), "\n"); n != logLines {
		t.Fatalf("%d lines, want %d", n, logLines)
	}
	out.Reset()
	now = now.Add(logPeriod)
	fmt.Fprintf(l, "later\n")
	if s := out.String(); !strings.Contains(s, fmt.Sprintf("%d lines were left out", 1000-logLines)) || !strings.HasSuffix(s, "later\n") {
		t.Fatalf("have %q", s)
	}
}
