package powercut

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestFindsWhatIsNotSynced: of ways to replace a file, the trace finds what is wrong with each.
func TestFindsWhatIsNotSynced(t *testing.T) {
	replace := func(dir string, data, rename, names bool) error {
		path := filepath.Join(dir, "f")
		next := path
		if rename {
			next += ".new"
		}
		f, err := os.Create(next)
		if err != nil {
			return err
		}
		_, err = f.WriteString("new")
		if data {
			err = errors.Join(err, f.Sync())
		}
		if err = errors.Join(err, f.Close()); err == nil && rename {
			err = os.Rename(next, path)
		}
		if names && err == nil {
			d, derr := os.Open(dir)
			if derr != nil {
				return derr
			}
			err = errors.Join(d.Sync(), d.Close())
		}
		Ack("done")
		return err
	}
	for _, c := range []struct {
		name                string
		data, rename, names bool
		want                []string // part of each complaint
	}{
		{"whole", true, true, true, nil},
		{"in place", true, false, true, []string{"torn"}},
		{"content not synced", false, true, true, []string{"torn"}},
		{"name not synced", true, true, false, []string{"lost"}},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "f"), []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			trace := Record(t, dir, func(dir string) error { return replace(dir, c.data, c.rename, c.names) })
			found := map[string]bool{}
			for _, p := range trace.Points(1) {
				for _, l := range p.Images {
					switch got := string(l.Data["f"]); {
					case got != "old" && got != "new":
						found["torn"] = true
					case got == "old" && len(p.Acked) > 0:
						found["lost"] = true
					}
				}
			}
			if len(found) != len(c.want) {
				t.Errorf("found %v, want %v", found, c.want)
			}
			for _, w := range c.want {
				if !found[w] {
					t.Errorf("found %v, want %v", found, c.want)
				}
			}
		})
	}
}

// TestRestartReports: an error and a panic of a restart name the instant.
func TestRestartReports(t *testing.T) {
	err := restartFrom(Image{"d/": nil, "d/f": []byte("x")}, nil, func(dir string, _ []string) error {
		b, err := os.ReadFile(filepath.Join(dir, "d", "f"))
		if err != nil || string(b) != "x" {
			return fmt.Errorf("the file has %q, %w", b, err)
		}
		panic("broken")
	})
	if err == nil || !strings.Contains(err.Error(), "panic: broken") {
		t.Errorf("a panic gave %v", err)
	}
}
