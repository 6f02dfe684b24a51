package template

import "testing"

// FuzzRender renders any template. The result is bounded, and the same for the same input.
func FuzzRender(f *testing.F) {
	for _, s := range []string{
		`{{ env "A" }}`, `{{ range split "," (env "A") }}{{ . }}{{ end }}`, `{{ with parseJSON (env "J") }}{{ .name }}{{ end }}`, `{{ range loop 3 }}{{ . }}{{ end }}`,
		`{{ "aXb" | regexReplaceAll "(a)X(b)" "$2$1" }}`, `{{ define "x" }}{{ template "x" }}{{ end }}{{ template "x" }}`, `{{ indent 2 "a\nb" }}{{ file "f" }}`, `${node.unique.name}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, source string) {
		if len(source) > 2048 {
			return
		}
		out, err := Render(input(source))
		if len(out) > ResultMax {
			t.Fatalf("%d bytes", len(out))
		}
		if again, err2 := Render(input(source)); string(again) != string(out) || (err == nil) != (err2 == nil) {
			t.Fatalf("two results of %q: %q, %q; %v, %v", source, out, again, err, err2)
		}
	})
}
