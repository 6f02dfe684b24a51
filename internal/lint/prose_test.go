package lint

import (
	"regexp"
	"strings"
	"testing"
)

// prose counts turns of phrase in comments that a native engineer would not write, with the most that may be left. A
// change that rewrites comments lowers its number; none may rise.
var prose = []struct {
	phrase string // a regular expression, in lower case
	use    string
	left   int
}{
	{`\b(?:tells?|told)\b`, "say, report, notify", 13},
	{`\bwhatever\b`, "name the cases", 2},
	{`\b(?:nobody|somebody|whoever)\b`, "no one, a user, the caller", 7},
	{`\banew\b`, "again", 0},
	{`\bbeside\b`, "next to, in addition to, with", 0},
	{`\bstands? still\b|\bstanding still\b`, "is frozen", 0},
	{`\b(?:has|have) yet to\b`, "has not ... yet", 0},
	{`\bgoes? on\b`, "continues", 0},
	{`\bof its own\b`, "its own", 10},
	{`\bin earnest\b`, "really", 0},
	{`\bforetell\w*|\bforetold\b`, "predict", 0},
	{`\bpromise[sd]?\b`, "reservation, reserved", 1},
}

// TestProse is a ratchet over the comments of all Go files.
func TestProse(t *testing.T) {
	var text strings.Builder
	for _, s := range sources(t) {
		if s.dir == "internal/lint" {
			continue
		}
		for _, g := range s.file.Comments {
			text.WriteString(strings.ToLower(g.Text()))
		}
	}
	all := strings.ReplaceAll(text.String(), "\n", " ")
	for _, p := range prose {
		n := len(regexp.MustCompile(p.phrase).FindAllString(all, -1))
		switch {
		case n > p.left:
			t.Errorf("comments say %q %d times, %d more than before. Write instead: %s (CONTRIBUTING.md, code)", p.phrase, n, n-p.left, p.use)
		case n < p.left-10:
			t.Errorf("comments say %q only %d times: lower the number in internal/lint/prose_test.go from %d, so that it stays so", p.phrase, n, p.left)
		}
	}
}
