package bundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/structs"
)

func TestStore(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, partial+"1"), []byte("left by a crash"), 0o600); err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	s, err := Open(dir, 100, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	key := func(ns, content string) Key {
		sum := sha256.Sum256([]byte(content))
		return Key{ns, hex.EncodeToString(sum[:])}
	}
	put := func(k Key, size int, content string) error { return s.Put(k, int64(size), strings.NewReader(content)) }
	refused := func(what string, err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	one, two := strings.Repeat("1", 60), strings.Repeat("2", 50)
	a, b := key("default", one), key("ml", two)
	refused("a sum that is none", put(Key{"default", "../../x"}, 3, "abc"), "does not name a bundle")
	refused("in capitals", put(Key{"default", strings.ToUpper(a.Sum)}, 60, one), "lower case")
	refused("other bytes", put(a, 50, two), "has the sum "+b.Sum)
	refused("fewer bytes", put(a, 61, one), "announced with 61 bytes and has 60")
	refused("more bytes", put(a, 59, one), "has more")
	refused("none", put(a, 0, ""), "with its size")
	refused("too many", put(a, structs.BundleMax+1, one), "at most 268435456 bytes")
	broken := s.Put(a, 60, io.MultiReader(strings.NewReader("11"), errReader{}))
	refused("cut off", broken, "the network")
	if _, ok := s.Has(a); ok {
		t.Error("a refused bundle is there")
	}
	if err := put(a, 60, one); err != nil {
		t.Fatal(err)
	}
	refused("over the limit of all", put(b, 50, two), "server.bundles_max_mb")
	if _, ok := s.Has(Key{"ml", a.Sum}); ok {
		t.Error("another namespace has it")
	}
	f, err := s.Open(a)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, []byte(one)) {
		t.Errorf("%q, %v", got, err)
	}
	names, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(names) != 0 {
		t.Errorf("files that are not complete stay: %v, %v", names, err)
	}

	// The last use counts, and an open bundle is read to its end.
	hour := func(Key) time.Duration { return time.Hour }
	now = now.Add(50 * time.Minute)
	if size, ok := s.Has(a); !ok || size != 60 {
		t.Errorf("size %d, %v", size, ok)
	}
	now = now.Add(50 * time.Minute)
	if err := s.Sweep(hour); err != nil {
		t.Fatal(err)
	}
	g, err := s.Open(a)
	if err != nil {
		t.Fatalf("used 50 minutes ago: %v", err)
	}
	defer g.Close()
	now = now.Add(61 * time.Minute)
	if err := s.Sweep(hour); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(a); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("61 minutes after its last use: %v", err)
	}
	if got, err := io.ReadAll(g); err != nil || string(got) != one {
		t.Errorf("a bundle that was open: %q, %v", got, err)
	}
	if err := put(b, 50, two); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// TestFetch: what many ask for at once is got once; its failure is theirs, too, unless only the one that was getting it left.
func TestFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(t.TempDir(), 1<<20, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		sum := sha256.Sum256([]byte("x"))
		k := Key{"default", hex.EncodeToString(sum[:])}
		gets, fails := 0, true
		fetch := func(ctx context.Context) error {
			f, err := s.Fetch(ctx, k, func() error {
				gets++
				select {
				case <-ctx.Done():
					return errors.New("gone") // as errors come from elsewhere, without their cause
				case <-time.After(time.Minute):
				}
				if fails {
					return errors.New("no server")
				}
				return s.Put(k, 1, strings.NewReader("x"))
			})
			if err == nil {
				f.Close()
			}
			return err
		}
		ask := func(n int, first context.Context) (errs []error) {
			errs = make([]error, n)
			var wg sync.WaitGroup
			for i := range errs {
				ctx := t.Context()
				if i == 0 {
					ctx = first
				}
				wg.Add(1)
				go func() { defer wg.Done(); errs[i] = fetch(ctx) }()
				synctest.Wait() // the first one gets it
			}
			wg.Wait()
			return errs
		}
		for _, err := range ask(5, t.Context()) {
			if err == nil || err.Error() != "no server" {
				t.Errorf("a failure: %v", err)
			}
		}
		if gets != 1 {
			t.Errorf("five callers got it %d times", gets)
		}
		fails, gets = false, 0
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		errs := ask(5, ctx)
		if errs[0] == nil || errors.Join(errs[1:]...) != nil || gets != 2 {
			t.Errorf("after the first caller left: %v, got %d times", errs, gets)
		}
		if err := fetch(t.Context()); err != nil || gets != 2 {
			t.Errorf("what is there: %v, got %d times", err, gets)
		}
	})
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("the network") }

// TestShare: one namespace does not fill a server, however much it sends, and the next one finds room.
func TestShare(t *testing.T) {
	s, err := Open(t.TempDir(), 8000, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	fill := func(ns string, put func(Key, int64, io.Reader) error) (n int64, err error) {
		for i := range 100 {
			content := fmt.Sprintf("%-100d", i)
			sum := sha256.Sum256([]byte(content))
			if err = put(Key{ns, hex.EncodeToString(sum[:])}, 100, strings.NewReader(content)); err != nil {
				return n, err
			}
			n += 100
		}
		return n, nil
	}
	for i, want := range []int64{6000, 1500, 300, 100, 0} { // three quarters of what the ones before left
		ns := fmt.Sprintf("ns-%d", i)
		n, err := fill(ns, s.PutShare)
		if n != want || structs.CodeOf(err) != structs.CodeBusy || !strings.Contains(err.Error(), `namespace "`+ns+`" take`) {
			t.Errorf("%s has %d bytes, want %d: %v", ns, n, want, err)
		}
	}
	if n, err := fill("copies", s.Put); n != 100 || !strings.Contains(err.Error(), "bundles take") {
		t.Errorf("%d bytes for jobs, want 100: %v", n, err)
	}
}
