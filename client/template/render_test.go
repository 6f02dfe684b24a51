package template

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func input(source string) Input {
	env := map[string]string{"A": "x,y", "J": `{"list": [1, 2], "name": "n"}`, "NOMAD_META_team": "red"}
	return Input{
		Source: source, Env: func(n string) string { return env[n] }, Replace: func(s string) string { return strings.ReplaceAll(s, "${node.unique.name}", "one") },
		File: func(n string) (string, error) {
			if n != "f" {
				return "", os.ErrNotExist
			}
			return "content", nil
		},
	}
}

func TestRender(t *testing.T) {
	for source, want := range map[string]string{
		"plain":         "plain",
		`{{ env "A" }}`: "x,y",
		`{{env "NOMAD_META_team" | toUpper}} {{ envOrDefault "B" "d" }}`:                       "RED d",
		`{{ range $i, $v := split "," (env "A") }}{{ $i }}={{ $v }};{{ end }}`:                 "0=x;1=y;",
		`{{ range split "," "" }}[{{ . }}]{{ else }}none{{ end }}`:                             "[]",
		`{{ with parseJSON (env "J") }}{{ .name }}{{ range .list }} {{ . }}{{ end }}{{ end }}`: "n 1 2",
		`{{ file "f" }} {{ interpolate "${node.unique.name}" }}`:                               "content one",
		`{{ if eq (env "A") "x,y" }}yes{{ end }}{{/* no */}}`:                                  "yes",
		`{{ printf "%s-%03d" (env "A") 7 | base64Encode }}`:                                    "eCx5LTAwNw==",
		`{{ "a" | sha256Hex | toJSON }}`:                                                       `"ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"`,
		`{{ range .nothing }}x{{ else }}empty{{ end }}`:                                        "empty",
		"": "",
	} {
		t.Run(fmt.Sprintf("%q", source), func(t *testing.T) {
			got, err := Render(input(source))
			if err != nil || string(got) != want {
				t.Errorf("%s: %q %v, want %q", source, got, err, want)
			}
		})
	}
	in := input(`<< env "A" >>{{ no }}`)
	in.Left, in.Right = "<<", ">>"
	if got, err := Render(in); err != nil || string(got) != "x,y{{ no }}" {
		t.Errorf(`%q %v; want "x,y{{ no }}"`, got, err)
	}
}

func TestRenderRefuses(t *testing.T) {
	double := `{{ $x := "aaaaaaaaaaaaaaaa" }}` + strings.Repeat(`{{ $x = printf "%s%s" $x $x }}`, 60)
	square := `{{ $x := "aaaaaaaaaaaaaaaa" }}` + strings.Repeat(`{{ $x = replaceAll "a" $x $x }}`, 60)
	list := `{{ $l := split "" "` + strings.Repeat("a", 1000) + `" }}`
	for source, want := range map[string]string{
		`{{ env "A" `:                        "unclosed action",
		`{{ nope }}`:                         `function "nope" not defined`,
		`{{ key "x" }}`:                      "there is no key store",
		`{{ range service "x" }}{{end}}`:     "there is no Consul",
		`{{ range 1000000000000 }}{{ end }}`: "range goes over lists and maps",
		`{{ define "a" }}{{ end }}`:          "define and block",
		`{{ template "template" }}`:          "cannot use other templates",
		double:                               "it becomes more than",
		square:                               "it becomes more than",
		list + `{{ range $l }}{{ range $l }}{{ range $l }}{{ end }}{{ end }}{{ end }}`:          "its loops go over more than",
		list + `{{ range $l }}{{ range $l }}` + strings.Repeat("x", 100) + `{{ end }}{{ end }}`: "more than",
		`{{ printf "%999999999d" 1 }}`:   "too large",
		`{{ file "/etc/passwd" }}`:       "file does not exist",
		`{{ mustEnv "B" }}`:              "the variable B is not set",
		strings.Repeat("x", SourceMax+1): "at most",
	} {
		t.Run(source, func(t *testing.T) {
			begin := time.Now()
			_, err := Render(input(source))
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%.80s: %v, want %q", source, err, want)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("%.80s took %s", source, took)
			}
		})
	}
	if _, err := Render(input(`{{ nope }}`)); !errors.Is(err, ErrBad) {
		t.Error(err)
	}
	if _, err := Render(input(`{{ nomadVar "x" }}`)); !errors.Is(err, ErrBad) { // no source of variables
		t.Error(err)
	}
}

func TestMissingKey(t *testing.T) {
	in := input(`{{ with parseJSON (env "J") }}{{ .nope }}{{ end }}`)
	in.MissingErr = true
	if _, err := Render(in); err == nil {
		t.Error("a missing key was rendered")
	}
}
