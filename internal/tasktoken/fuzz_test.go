package tasktoken

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// FuzzParse checks that a token is accepted only if it says what was signed.
func FuzzParse(f *testing.F) {
	secret, alloc, now := structs.SecretID{1}, structs.AllocID{2}, time.Unix(1_700_000_000, 0)
	good := []string{New(secret, alloc, "", now), New(secret, alloc, "main", now)}
	for _, s := range append(good, "", "task.", "task...", "task.a.b.c.d") {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		tok, ok := Parse(s)
		if !ok || !tok.Valid(secret, now) {
			return
		}
		for _, g := range good {
			if want, _ := Parse(g); tok.Alloc == want.Alloc && tok.Task == want.Task && tok.until == want.until {
				return
			}
		}
		t.Fatalf("accepted %q", s)
	})
}

// FuzzRoundTrip checks that a token names the allocation and task that it was made for, with any name of a task.
func FuzzRoundTrip(f *testing.F) {
	f.Add("main")
	f.Add("a.b\x00c")
	secret, alloc, now := structs.SecretID{1}, structs.AllocID{2}, time.Unix(1_700_000_000, 0)
	f.Fuzz(func(t *testing.T, task string) {
		tok, ok := Parse(New(secret, alloc, task, now))
		if !ok || tok.Task != task || tok.Alloc != alloc || !tok.Valid(secret, now) || tok.Valid(structs.SecretID{3}, now) || tok.Valid(secret, now.Add(TTL)) {
			t.Fatalf("task %q: %+v, %v", task, tok, ok)
		}
		if strings.ContainsAny(New(secret, alloc, task, now), " \n\x00") {
			t.Fatalf("the token of task %q does not fit into a header", task)
		}
	})
}
