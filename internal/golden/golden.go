// Package golden compares what a build writes with files of earlier builds, in tests. The files of a format are in
// directories testdata/formats/N. Once a release has the format, its files are frozen: digests.txt has their digests, and
// nothing may write them again.
package golden

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// frozen has a line for every file that must not change: its digest and its path below the root of the module.
//
//go:embed digests.txt
var frozen string

// Raise says what to do instead of changing a frozen file.
const Raise = "a released build writes and reads this format, so it must stay as it is. " +
	"Declare a gate of the next format (internal/feature) and use it for what is new: docs/how-to/add-a-command.md"

// Digests returns the digest of every frozen file, by its path below the root of the module.
func Digests() map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(frozen) {
		if sum, path, ok := strings.Cut(strings.TrimSpace(line), "  "); ok {
			out[path] = sum
		}
	}
	return out
}

// Digest returns the digest of a file's content.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Root returns the root of the module.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			err = errors.New("no go.mod above the test")
			t.Fatal(err)
		}
	}
	t.Fatal(err)
	return ""
}

// Compare fails unless a file has the content got. With update it writes the file first, if it is not frozen.
func Compare(t testing.TB, path string, got []byte, update bool) {
	t.Helper()
	if update {
		Write(t, path, got)
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; write it with -update", err)
	}
	if !bytes.Equal(got, want) {
		if Frozen(t, path) {
			t.Errorf("%s is frozen, and this build gives something else: %s", path, Raise)
			return
		}
		t.Errorf("%s differs from what this build gives; if that is meant, write it with -update\ngot  %.200q\nwant %.200q", path, got, want)
	}
}

// Write writes a file. It fails if the file is frozen and would change.
func Write(t testing.TB, path string, b []byte) {
	t.Helper()
	if old, err := os.ReadFile(path); Frozen(t, path) {
		if err != nil || !bytes.Equal(old, b) {
			t.Fatalf("%s is frozen: %s", path, Raise)
		}
		return
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b, 0o644)); err != nil {
		t.Fatal(err)
	}
}

// Frozen reports whether a file, or its whole directory, may not change.
func Frozen(t testing.TB, path string) bool {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	rel, err := filepath.Rel(Root(t), abs)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.ToSlash(filepath.Dir(rel)) + "/"
	for name := range Digests() {
		if strings.HasPrefix(name, dir) {
			return true
		}
	}
	return false
}
