package harness

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// Number returns the environment variable that sets how much a suite does: def if it is not set. Anything but a positive
// number fails the test, which would otherwise run the short form and say nothing.
func Number(t *testing.T, name string, def int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q; want a number of 1 or more", name, s)
	}
	return n
}

// Period is Number for a duration.
func Period(t *testing.T, name string, def time.Duration) time.Duration {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		t.Fatalf("%s=%q; want a duration such as 90s or 2h", name, s)
	}
	return d
}
