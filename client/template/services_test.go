package template

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// offered is services in memory.
type offered []Service

func (o offered) Service(name string, n int, key string) (out []Service, err error) {
	for _, s := range o {
		if s.Name == name && (n == 0 || len(out) < n) {
			s.Meta = map[string]string{"key": key}
			out = append(out, s)
		}
	}
	return out, nil
}

func (o offered) Services() ([]ServiceName, error) {
	return []ServiceName{{Name: "api", Tags: Tags{"gpu", "v1"}}}, nil
}

func TestServices(t *testing.T) {
	all := offered{
		{Name: "api", Address: "10.0.0.1", Port: 8000, Tags: Tags{"gpu", "v1"}, Health: "passing", AllocID: "a1"},
		{Name: "api", Address: "10.0.0.2", Port: 8001, Tags: Tags{"cpu"}, Health: "failing"},
		{Name: "api", Address: "10.0.0.3", Port: 8002},
	}
	for source, want := range map[string]string{
		`{{ range nomadService "api" }}{{ .Address }}:{{ .Port }} {{ end }}`:                                     "10.0.0.1:8000 10.0.0.2:8001 10.0.0.3:8002 ",
		`{{ range musterService "api" }}{{ .Address }} {{ end }}`:                                                "10.0.0.1 10.0.0.3 ",
		`{{ range nomadService 2 (env "NO") "api" }}x{{ end }}`:                                                  "",
		`{{ range nomadService 2 "k" "api" }}{{ .Port }}{{ .Meta.key }} {{ end }}`:                               "8000k 8001k ",
		`{{ range nomadService "api" }}{{ if .Tags.Contains "gpu" }}{{ .AllocID }}{{ end }}{{ end }}`:            "a1",
		`{{ with nomadService "api" }}{{ with index . 0 }}{{ .Address }} {{ join "," .Tags }}{{ end }}{{ end }}`: "10.0.0.1 gpu,v1",
		`{{ range nomadServices }}{{ .Name }}={{ .Tags }}{{ end }}`:                                              "api=[gpu v1]",
		`{{ range nomadService "nobody" }}x{{ else }}none{{ end }}`:                                              "none",
	} {
		t.Run(fmt.Sprintf("%.50s", source), func(t *testing.T) {
			in := input(source)
			in.Services = all
			got, err := Render(in)
			if want == "" {
				if !errors.Is(err, ErrBad) {
					t.Errorf("%s: %q %v, want an error", source, got, err)
				}
				return
			}
			if err != nil || string(got) != want {
				t.Errorf("%s: %q %v, want %q", source, got, err, want)
			}
		})
	}
	for _, args := range []string{`1`, `"a" "b"`, `0 "k" "api"`, `"1" "k" "api"`, `"api@other"`, ``} {
		for _, services := range []Services{all, nil} {
			in := input(fmt.Sprintf(`{{ nomadService %s }}`, args))
			in.Services = services
			if _, err := Render(in); !errors.Is(err, ErrBad) || strings.Contains(err.Error(), "\n") {
				t.Errorf("nomadService %s: %v", args, err)
			}
		}
	}
}
