package overlay

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestBuild(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"go.mod":      "module example.org/m\n\ngo 1.26\n",
		"cmd/main.go": "package main\n\nfunc main() {\n\tprintln(\"tree\")\n}\n",
		"change":      "# comment\n=== edit cmd/main.go\n--- find\n\tprintln(\"tree\")\n--- replace\n\tprintln(added())\n=== new cmd/added.go\npackage main\n\nfunc added() string { return \"{{what}}\" }\n",
		"twice":       "=== edit cmd/main.go\n--- find\nmain\n--- replace\nother\n",
		"stray":       "text\n=== edit x\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run := func(c *Change) string {
		t.Helper()
		out := filepath.Join(dir, "program")
		if err := Build(root, "./cmd", out, t.TempDir(), c); err != nil {
			t.Fatal(err)
		}
		b, err := exec.Command(out).CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	change, err := Read(filepath.Join(root, "change"), map[string]string{"what": "change"})
	if err != nil {
		t.Fatal(err)
	}
	if got := run(change) + " " + run(nil); got != "change tree" {
		t.Errorf("the programs print %q", got)
	}
	twice, err := Read(filepath.Join(root, "twice"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := twice.Write(root, dir); err == nil || !strings.Contains(err.Error(), "2 times, not once") {
		t.Errorf("an ambiguous edit gave %v", err)
	}
	if _, err := Read(filepath.Join(root, "stray"), nil); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("a stray line gave %v", err)
	}
}
