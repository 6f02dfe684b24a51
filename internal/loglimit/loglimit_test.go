package loglimit

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
	l := &Writer{to: &out, name: "test", now: func() time.Time { return now }}
	for i := range 1000 {
		fmt.Fprintf(l, "line %d\n", i)
	}
	if n := strings.Count(out.String(), "\n"); n != Lines {
		t.Fatalf("%d lines, want %d", n, Lines)
	}
	out.Reset()
	now = now.Add(Period)
	fmt.Fprintf(l, "later\n")
	if s := out.String(); !strings.Contains(s, fmt.Sprintf("%d lines were left out", 1000-Lines)) || !strings.HasSuffix(s, "later\n") {
		t.Fatalf("have %q", s)
	}
}
