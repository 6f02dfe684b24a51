package template

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// known is variables in memory.
type known map[string]map[string]string

func (k known) Name(path string) string { return path + "@default.global" }

func (k known) Variable(path string) (VarItems, error) {
	if path == "secret" {
		return nil, errors.New("may not be read")
	}
	if k[path] == nil {
		return nil, nil
	}
	return NewVarItems(VarMeta{Namespace: "default", Path: path, ModifyIndex: 7}, k[path]), nil
}

func (k known) Variables(prefix string) (list []VarMeta, err error) {
	for path := range k {
		if strings.HasPrefix(path, prefix) {
			list = append(list, VarMeta{Path: path})
		}
	}
	slices.SortFunc(list, func(a, b VarMeta) int { return strings.Compare(a.Path, b.Path) })
	return list, nil
}

func TestVariables(t *testing.T) {
	vars := known{"app/db": {"user": "me", "password": "p"}, "app/x": {"k": "v"}}
	for source, want := range map[string]string{
		`{{ with nomadVar "app/db" }}{{ .user }}:{{ .password }}{{ end }}`:                                "me:p",
		`{{ range $k, $v := nomadVar "app/db" }}{{ $k }}={{ $v }};{{ end }}`:                              "password=p;user=me;",
		`{{ range (nomadVar "app/db").Tuples }}{{ .K }}={{ .V }} {{ end }}`:                               "password=p user=me ",
		`{{ with nomadVar "app/db" }}{{ join "," .Keys }} {{ .Metadata.ModifyIndex }}{{ end }}`:           "password,user 7",
		`{{ (nomadVar "app/db").user.Value | toUpper }}`:                                                  "ME",
		`{{ range nomadVarList "app" }}{{ . }} {{ .Path }},{{ end }}`:                                     "app/db app/db,app/x app/x,",
		`{{ range nomadVarList }}x{{ end }}{{ range nomadVarList "no" }}y{{ end }}`:                       "xx",
		`{{ if nomadVarExists "app/db" }}yes{{ end }}{{ if nomadVarExists "app/no" }}{{ else }}no{{end}}`: "yesno",
		`{{ (nomadVar "app/db").password.Metadata.Path }}`:                                                "app/db",
	} {
		t.Run(fmt.Sprintf("%.50s", source), func(t *testing.T) {
			in := input(source)
			in.Vars = vars
			got, err := Render(in)
			if err != nil || string(got) != want {
				t.Errorf("%s: %q %v, want %q", source, got, err, want)
			}
		})
	}
	// All missing variables are reported at once, even if the template does nothing with them.
	for source, want := range map[string]string{
		`{{ with nomadVar "b" }}{{ .x }}{{ end }}{{ with nomadVar "a" }}{{ end }}{{ nomadVar "b" }}`: "Missing: nomad.var.block(a@default.global), nomad.var.block(b@default.global)",
		`{{ (nomadVar "a").x.Value | toUpper }}`:                                                     "Missing: nomad.var.block(a@default.global)",
		`{{ range nomadVarListSafe "no" }}{{ end }}`:                                                 "Missing: nomad.var.list(no@default.global)",
	} {
		in := input(source)
		in.Vars, in.MissingErr = vars, true
		_, err := Render(in)
		var lack *MissingError
		if !errors.As(err, &lack) || err.Error() != want || errors.Is(err, ErrBad) {
			t.Errorf("%s: %v, want %q", source, err, want)
		}
	}
	in := input(`{{ nomadVar "secret" }}`)
	in.Vars = vars
	if _, err := Render(in); err == nil || !strings.Contains(err.Error(), "may not be read") {
		t.Error(err)
	}
}
