package template

import (
	"fmt"
	"strings"
	"testing"
)

func TestMoreFunctions(t *testing.T) {
	for source, want := range map[string]string{
		`{{ range loop 3 }}{{ . }}{{ end }} {{ range loop 5 7 }}{{ . }}{{ end }}{{ range loop 3 1 }}x{{ end }}`:                                                       "012 56",
		`{{ 7 | divide 2 }} {{ modulo 4 7 }} {{ minimum 1 2 }} {{ maximum 1 2 }} {{ add 1 (len "ab") }} {{ 5 | subtract 2 }} {{ multiply 2 1.5 }} {{ divide 2 7.0 }}`: "3 3 1 2 3 3 3 3.5",
		`{{ base64URLEncode "a?>" }} {{ base64URLDecode "YT8-" }}`:                                                                                                    "YT8- a?>",
		`{{ md5sum "x" }}`:                           "9dd4e461268c8034f5c8564e155c67a6",
		`{{ parseFloat "1.5" }} {{ parseUint "7" }}`: "1.5 7",
		`{{ regexMatch "^a+$" "aaa" }} {{ "aXb" | regexReplaceAll "(a)X(b)" "$2$1" }}`:                               "true ba",
		`{{ indent 2 "a\n\nb" }} {{ toTitle "one two" }} {{ toTitle "été ǆ" }}`:                                      "  a\n\n  b One Two Été ǅ",
		`{{ parseJSON "{\"a\": [1, \"x\"]}" | toYAML }}`:                                                             "a:\n    - 1\n    - x",
		`{{ parseJSON "{\"a\": 1}" | toJSONPretty }}`:                                                                "{\n  \"a\": 1\n}",
		`{{ in (split "," "a,b") "b" }} {{ in "text" "ex" }} {{ in (parseJSON "[\"x\"]") "x" }} {{ in "text" "y" }}`: "true true true false",
	} {
		t.Run(fmt.Sprintf("%.50s", source), func(t *testing.T) {
			if got, err := Render(input(source)); err != nil || string(got) != want {
				t.Errorf("%s: %q %v, want %q", source, got, err, want)
			}
		})
	}
	big := `{{ $x := "aaaaaaaaaaaaaaaa" }}` + strings.Repeat(`{{ $x = printf "%s%s" $x $x }}`, 16)
	for source, want := range map[string]string{
		`{{ divide 0 1 }}`: "by 0", `{{ modulo 0 1 }}`: "by 0", `{{ add 1 "x" }}`: "want numbers", `{{ loop 100001 }}`: "more than 100000 elements", `{{ loop }}`: "one or two numbers",
		`{{ loop -9223372036854775808 9223372036854775807 }}`: "more than 100000 elements", `{{ regexMatch "(" "" }}`: "error parsing regexp",
		`{{ indent 1001 "x" }}`: "more than", `{{ in 5 "x" }}`: "want a text or a list",
		big + `{{ regexReplaceAll "a" $x $x }}`: "more than", big + `{{ regexReplaceAll ".*" "$0$0$0$0" $x }}`: "more than",
		// Variables that hold a lot of much are too much, too.
		big + strings.Repeat(`{{ $y := toUpper $x }}`, 100): "more than 67108864 bytes in all",
		big + strings.Repeat(`{{ $y := split "" $x }}`, 10): "more than 67108864 bytes in all",
	} {
		t.Run(source, func(t *testing.T) {
			if _, err := Render(input(source)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%.60s: %v, want %q", source, err, want)
			}
		})
	}
}
