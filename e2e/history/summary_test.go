//go:build e2e

package history

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

// summary remembers the first failure of a round. A failed round prints hundreds of lines, of which a reader of CI may see
// only the last.
type summary struct {
	testing.TB
	seed uint64

	mu    sync.Mutex
	stage string // what the round was doing
	first string // "": none
}

// failure is what TestMain prints last; "": nothing failed. Written by the goroutine of TestHistory.
var failure string

func TestMain(m *testing.M) {
	rc := m.Run()
	if failure != "" {
		fmt.Println(failure)
	}
	os.Exit(rc)
}

// at notes what the round does from now on.
func (s *summary) at(stage string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stage = stage
}

// note remembers a failure if it is the first: where it happened, and its first line.
func (s *summary) note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first == "" {
		line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
		s.first = fmt.Sprintf("%s: %.600s", s.stage, line)
	}
}

// publish makes the summary the last line of the program.
func (s *summary) publish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Failed() {
		failure = fmt.Sprintf("TestHistory failed with seed %d while %s\nrepeat it with: make e2e-history SEED=%d (its faults are the same; the times of calls are not)", s.seed, s.first, s.seed)
	}
}

func (s *summary) Error(args ...any) { s.Helper(); s.note(fmt.Sprint(args...)); s.TB.Error(args...) }
func (s *summary) Errorf(format string, args ...any) {
	s.Helper()
	s.note(fmt.Sprintf(format, args...))
	s.TB.Errorf(format, args...)
}
func (s *summary) Fatal(args ...any) { s.Helper(); s.note(fmt.Sprint(args...)); s.TB.Fatal(args...) }
func (s *summary) Fatalf(format string, args ...any) {
	s.Helper()
	s.note(fmt.Sprintf(format, args...))
	s.TB.Fatalf(format, args...)
}
