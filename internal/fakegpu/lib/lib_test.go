package lib

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestLayouts compares the fake's structures with the header of the bindings that are pinned.
func TestLayouts(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	dir := strings.TrimSpace(string(out))
	if err != nil || dir == "" {
		t.Skipf("not run: the source of go-nvml is not at hand (%v)", err)
	}
	work := t.TempDir()
	if err := Sources(work); err != nil {
		t.Fatal(err)
	}
	err = Compile("-Wno-deprecated-declarations", "-Wno-unused-parameter", "-fsyntax-only", "-I", filepath.Join(dir, "pkg", "nvml"), filepath.Join(work, "layout_check.c"))
	if errors.Is(err, ErrNoCompiler) && os.Getenv("CI") == "" {
		t.Skip("not run: no C compiler")
	}
	if err != nil {
		t.Error(err)
	}
}
