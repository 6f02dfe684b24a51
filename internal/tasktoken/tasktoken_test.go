package tasktoken

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

func TestToken(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	secret, alloc := structs.SecretID{1}, structs.AllocID{2}
	text := New(secret, alloc, "", now)
	tok, ok := Parse(text)
	if !ok || !Is(text) || tok.Alloc != alloc || !tok.Valid(secret, now) {
		t.Fatalf("%q is not taken", text)
	}
	if tok.Valid(structs.SecretID{9}, now) || tok.Valid(structs.SecretID{}, now) {
		t.Error("another node's secret is taken")
	}
	if tok.Valid(secret, now.Add(TTL)) || tok.Valid(secret, now.Add(-2*TTL)) {
		t.Error("the time does not end")
	}
	other := strings.Replace(text, alloc.String(), structs.AllocID{3}.String(), 1)
	if tok, ok := Parse(other); !ok || tok.Valid(secret, now) {
		t.Error("it holds for another allocation")
	}
	for _, bad := range []string{"", "task.", "task.x.y.z", text + "x", text + ".1", strings.TrimPrefix(text, prefix)} {
		if tok, ok := Parse(bad); ok && tok.Valid(secret, now) {
			t.Errorf("%q is taken", bad)
		}
	}
	named := New(secret, alloc, "a.b", now)
	if tok, ok := Parse(named); !ok || tok.Task != "a.b" || !tok.Valid(secret, now) {
		t.Errorf("%q is not taken", named)
	}
	for _, forged := range []string{strings.Replace(named, ".612e62.", ".612e63.", 1), strings.Replace(named, ".612e62.", ".", 1), strings.Replace(text, alloc.String()+".", alloc.String()+".", 1) + "00"} {
		if tok, ok := Parse(forged); ok && tok.Valid(secret, now) {
			t.Errorf("%q is taken", forged)
		}
	}
}
