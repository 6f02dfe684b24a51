package hclgate

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for name, src := range map[string]string{
		"parens": "a = " + strings.Repeat("(", 137<<10), "blocks": strings.Repeat("a {\n", 1000), "unary": "a = " + strings.Repeat("-", 200) + "1",
		"operators": "a = 1" + strings.Repeat("+1", 30_000), "index": "a = x" + strings.Repeat("[0]", 30_000), "zero": "\x00",
		"large": strings.Repeat("#\n", 1<<20), "json": strings.Repeat(`{"a":`, 200),
	} {
		t.Run(name, func(t *testing.T) {
			if Check(name, []byte(src), 1<<20) == nil {
				t.Errorf("%s passed", name)
			}
		})
	}
	for name, src := range map[string]string{
		"empty": "", "nested": "a = " + strings.Repeat("(", 90) + "1" + strings.Repeat(")", 90), "long list": "a = [" + strings.Repeat("-1, ", 5000) + "]",
		"heredoc": "a = <<E\n" + strings.Repeat("{{ (( [[ \n", 5000) + "E\n",
	} {
		if d := Check(name, []byte(src), 1<<20); d != nil {
			t.Errorf("%s was refused: %v", name, d)
		}
	}
}
