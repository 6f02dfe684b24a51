package feature

import (
	"strings"
	"testing"
)

// TestGates wants every format after Oldest to have a gate, and every gate to be a format that this build speaks.
func TestGates(t *testing.T) {
	names := map[string]bool{}
	formats := map[uint64]bool{}
	for _, g := range Gates {
		if g.Format <= Oldest || g.Format > Newest {
			t.Errorf("gate %q needs format %d; gates are of formats %d to %d. Remove the gate of a format that every cluster has", g.Name, g.Format, Oldest+1, Newest)
		}
		if g.Name == "" || g.Allows == "" || names[g.Name] {
			t.Errorf("gate %q: a gate has a name of its own and says what it allows", g.Name)
		}
		names[g.Name], formats[uint64(g.Format)] = true, true
	}
	for f := Oldest + 1; f <= Newest; f++ {
		if !formats[uint64(f)] {
			t.Errorf("format %d has no gate; declare what it adds in Gates", f)
		}
	}
}

func TestCheck(t *testing.T) {
	if err := Check("it", Newest, ""); err != nil {
		t.Error(err)
	}
	for text, err := range map[string]error{
		"upgrade finish` cannot be undone; run Muster 9.9 or later": Check("the snapshot", Newest+1, "9.9"),
		"the release that wrote it":                                 Check("the snapshot", Newest+1, ""),
		"then start this release":                                   Check("the snapshot", Oldest-1, ""),
	} {
		if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v does not say %q in one sentence", err, text)
		}
	}
}

func TestCheckCalls(t *testing.T) {
	for theirs := range uint64(RPC + 4) {
		far := max(theirs, 1) > RPC+1 || max(theirs, 1)+1 < RPC
		if err := CheckCalls("the agent", theirs); (err != nil) != far {
			t.Errorf("version %d, here %d: %v", theirs, RPC, err)
		}
	}
}
