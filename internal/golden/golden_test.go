package golden

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var freeze = flag.String("freeze", "", "freeze the files of this format, such as 2: a release has it")

// TestFrozenFiles wants every frozen file to be as it was when its format was released.
func TestFrozenFiles(t *testing.T) {
	root := Root(t)
	if *freeze != "" {
		writeDigests(t, root, *freeze)
	}
	for path, want := range Digests() {
		b, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Errorf("%v: %s", err, Raise)
		} else if Digest(b) != want {
			t.Errorf("%s has changed: %s", path, Raise)
		}
	}
}

// writeDigests adds the files of a format to digests.txt. Run the test again to check them.
func writeDigests(t *testing.T, root, format string) {
	lines := strings.Split(strings.TrimSpace(frozen), "\n")
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if rel, _ := filepath.Rel(root, path); !d.IsDir() && strings.Contains(filepath.ToSlash(rel), "/testdata/formats/"+format+"/") {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			lines = append(lines, fmt.Sprintf("%s  %s", Digest(b), filepath.ToSlash(rel)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(lines, func(a, b string) int {
		return strings.Compare(a[strings.Index(a, " ")+1:], b[strings.Index(b, " ")+1:])
	})
	if err := os.WriteFile("digests.txt", []byte(strings.TrimSpace(strings.Join(slices.Compact(lines), "\n"))+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}
