package procfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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

func TestParseStat(t *testing.T) {
	const rest = " 812 4711 4700 0 -1 4194560 100 0 0 0 150 50 30 20 20 0 1 0 123456 1000000 7 18446744073709551615 1 1"
	want := Stat{State: 'S', Parent: 812, Session: 4700, CPU: 2 * time.Second, ChildCPU: 500 * time.Millisecond, Start: 123456, RSS: 7 * uint64(os.Getpagesize())}
	for _, name := range []string{"sleep", "a b", ") Z 1 (", ""} {
		want.Name = name
		if st, ok := parseStat("99 (" + name + ") S" + rest + "\n"); !ok || st != want {
			t.Errorf("%q: %+v %v", name, st, ok)
		}
	}
	for _, bad := range []string{"", "99", "99 (x", "99 ) S ( 1", "99 (x) S 1 2", "99 (x)  " + rest, "99 (x) SS" + rest, "99 (x) S x" + rest[4:]} {
		if st, ok := parseStat(bad); ok {
			t.Errorf("%q is read as %+v", bad, st)
		}
	}
	if st, err := StatOf(os.Getpid()); err != nil || st.Parent != os.Getppid() || st.State == 0 || st.RSS < 1<<20 || st.Start == 0 {
		t.Errorf("%+v %v", st, err)
	}
	if st, err := StatOf(1 << 30); err == nil {
		t.Errorf("%+v", st)
	}
}
