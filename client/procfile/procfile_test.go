package procfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, text := range []string{"", "0", strings.Repeat("x", 511), strings.Repeat("y", 512), strings.Repeat("z", 100_000), "short again"} {
		if err := Write(path, text); err != nil {
			t.Fatal(err)
		}
		if b, err := Read(path); err != nil || string(b) != text {
			t.Errorf("%d bytes read (%v), want %d", len(b), err, len(text))
		}
	}
	if _, err := Read(path + "x"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := Write(filepath.Join(path, "x"), ""); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a file below a file: %v", err)
	}
	a, err := Of(os.Getpid(), "cmdline")
	b, oerr := os.ReadFile("/proc/self/cmdline")
	if err != nil || oerr != nil || string(a) != string(b) {
		t.Errorf("%q (%v), want %q (%v)", a, err, b, oerr)
	}
}
