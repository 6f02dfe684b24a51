package rotate

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRotation(t *testing.T) {
	dir := t.TempDir()
	r, err := Open(Options{Path: dir + "/sub/", Name: "muster.log", MaxBytes: 100, MaxAge: time.Hour, Keep: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	now := time.Unix(1000, 0)
	r.now = func() time.Time { return now }
	r.opened = now
	line := []byte(strings.Repeat("x", 39) + "\n")
	for range 10 {
		now = now.Add(time.Second)
		if _, err := r.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	names := func() []string {
		l, _ := filepath.Glob(dir + "/sub/*")
		return l
	}
	if got := names(); len(got) != 3 { // the present one and two older, of two lines each
		t.Error(got)
	}
	for _, n := range names() {
		if st, _ := os.Stat(n); st.Size() > 100 {
			t.Errorf("%s has %d bytes", n, st.Size())
		}
	}
	before := names()
	now = now.Add(2 * time.Hour)
	if _, err := r.Write(line); err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Stat(dir + "/sub/muster.log"); st.Size() != 40 || slices.Equal(before, names()) {
		t.Error("a file too old is continued", names())
	}
}
