package script

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	text := "# about\necho a=1 b=\"x y\" c\nin 1\nin 2\n----\necho [{a 1 true} {b x y true} {c  false}]\nin 1\nin 2\n\nblank\n----\n----\none\n\ntwo\n----\n----\n\nnone\n----\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n := 0
	answer := func(t *testing.T, c *Case) string {
		n++
		switch c.Cmd {
		case "echo":
			var b strings.Builder
			b.WriteString("echo [")
			for i, a := range c.Args {
				if i > 0 {
					b.WriteString(" ")
				}
				b.WriteString("{" + a.Key + " " + a.Value + map[bool]string{true: " true", false: " false"}[a.HasValue] + "}")
			}
			return b.String() + "]\n" + c.Input
		case "blank":
			return "one\n\ntwo"
		}
		return ""
	}
	Run(t, path, answer)
	if n != 3 {
		t.Fatalf("ran %d commands, want 3", n)
	}
	// Rewriting a script that is right changes nothing.
	*rewrite = true
	defer func() { *rewrite = false }()
	Run(t, path, answer)
	if got, _ := os.ReadFile(path); string(got) != text {
		t.Errorf("rewriting changed a right script:\n%s", got)
	}
	// A wrong one is put right.
	Run(t, path, func(t *testing.T, c *Case) string { return "other" })
	if got, _ := os.ReadFile(path); strings.Count(string(got), "other\n") != 3 {
		t.Errorf("rewriting did not replace the answers:\n%s", got)
	}
}

func TestParseErrors(t *testing.T) {
	for _, lines := range [][]string{{"cmd", "no dashes"}, {"cmd", "----", "----", "no end"}, {`cmd "open`, "----"}} {
		if _, _, err := parse("f", lines, 0); err == nil {
			t.Errorf("%q: want an error", lines)
		}
	}
}
