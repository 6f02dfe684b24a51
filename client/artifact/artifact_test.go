package artifact

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/taskfs"
)

func TestMain(m *testing.M) {
	MaybeRunChild()
	os.Exit(m.Run())
}

func tarOf(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	for _, h := range entries {
		body := []byte(nil)
		if h.Typeflag == tar.TypeReg {
			body = []byte(h.Uname)
			h.Uname, h.Size = "", int64(len(body))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write(body)
	}
	w.Close()
	z.Close()
	return buf.Bytes()
}

func zipOf(t *testing.T, name, body string, mode os.FileMode) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	h := &zip.FileHeader{Name: name, Method: zip.Deflate}
	h.SetMode(mode)
	f, err := w.CreateHeader(h)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(f, body)
	w.Close()
	return buf.Bytes()
}

func zipped(b []byte) []byte {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	_, _ = z.Write(b)
	z.Close()
	return buf.Bytes()
}

// dirFor is an empty directory that a user without rights can reach.
func dirFor(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "artifact")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// fetchInto is Fetch into a directory by its path.
func fetchInto(ctx context.Context, s Spec, dir string) error {
	d, err := taskfs.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return Fetch(ctx, s, d, nil)
}

func TestFetch(t *testing.T) {
	plain := []byte("plain text\n")
	sum := sha256.Sum256(plain)
	good := hex.EncodeToString(sum[:])
	files := map[string][]byte{
		"/plain": plain,
		"/a.tar.gz": tarOf(t, tar.Header{Name: "d/", Typeflag: tar.TypeDir}, tar.Header{Name: "d/run.sh", Typeflag: tar.TypeReg, Uname: "hi", Mode: 0o4755},
			tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "d/run.sh"}, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "d/run.sh"}),
		"/a.zip":         zipOf(t, "x/y", "zipped", 0o755),
		"/t.gz":          zipped(plain),
		"/up.tar.gz":     tarOf(t, tar.Header{Name: "../up", Typeflag: tar.TypeReg, Uname: "x"}),
		"/abs.tar.gz":    tarOf(t, tar.Header{Name: "/etc/x", Typeflag: tar.TypeReg, Uname: "x"}),
		"/link.tar.gz":   tarOf(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../../etc"}),
		"/through.tgz":   tarOf(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, tar.Header{Name: "l/x", Typeflag: tar.TypeReg, Uname: "x"}),
		"/hard.tgz":      tarOf(t, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "../../etc/passwd"}),
		"/dev.tgz":       tarOf(t, tar.Header{Name: "n", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}),
		"/slip.zip":      zipOf(t, "../../x", "x", 0o644),
		"/linked.zip":    zipOf(t, "l", "/etc/passwd", os.ModeSymlink|0o777),
		"/bomb.tar.gz":   zipped(bombTar(t)),
		"/bomb.gz":       zipped(make([]byte, 8<<20)),
		"/broken.tar.gz": []byte("not packed"),
		"/many.tar.gz":   manyTar(t),
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/secret" && r.Header.Get("X-Token") != "t":
			w.WriteHeader(http.StatusForbidden)
		case r.URL.Path == "/secret":
			fmt.Fprint(w, r.URL.RawQuery)
		case r.URL.Path == "/away":
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		case r.URL.Path == "/down":
			w.WriteHeader(http.StatusBadGateway)
		case files[r.URL.Path] != nil:
			_, _ = w.Write(files[r.URL.Path])
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer srv.Close()
	for _, c := range []struct {
		spec Spec
		want string // files and their content
	}{
		{Spec{Source: "/plain"}, "plain=plain text\n"},
		{Spec{Source: "/plain?checksum=sha256:" + good}, "plain=plain text\n"},
		{Spec{Source: "/plain", Mode: "file", Name: "renamed", Options: map[string]string{"checksum": good}}, "renamed=plain text\n"},
		{Spec{Source: "/a.tar.gz"}, "d/run.sh=hi h=hi l->d/run.sh"},
		{Spec{Source: "/a.zip", Mode: "dir"}, "x/y=zipped"},
		{Spec{Source: "/t.gz", Mode: "file"}, "t=plain text\n"},
		{Spec{Source: "/a.zip?archive=false"}, "a.zip=" + string(files["/a.zip"])},
		{Spec{Source: "/secret?a=b", Headers: map[string]string{"X-Token": "t"}}, "secret=a=b"},
	} {
		t.Run(c.spec.Source+" "+c.spec.Mode, func(t *testing.T) {
			dir := dirFor(t)
			c.spec.Source = srv.URL + c.spec.Source
			if err := fetch(t.Context(), c.spec, dir); err != nil {
				t.Errorf("%+v: %v", c.spec, err)
				return
			}
			if got := content(t, dir); got != c.want {
				t.Errorf("%s: %q, want %q", c.spec.Source, got, c.want)
			}
			if st, err := os.Stat(filepath.Join(dir, "d/run.sh")); err == nil && (st.Mode()&os.ModeSetuid != 0 || st.Mode().Perm() != 0o755) {
				t.Errorf("mode %s", st.Mode())
			}
		})
	}
	for _, c := range []struct {
		spec    Spec
		want    string
		refused bool
	}{
		{Spec{Source: "/nothing"}, "404", true},
		{Spec{Source: "/secret"}, "403", true},
		{Spec{Source: "/down"}, "502", false},
		{Spec{Source: "/away"}, "redirected to file:", true},
		{Spec{Source: "/plain?checksum=sha256:" + strings.Repeat("0", 64)}, "its checksum is " + good, true},
		{Spec{Source: "/plain?checksum=crc:12"}, "want md5, sha1", true},
		{Spec{Source: "/plain", Mode: "dir"}, "is not an archive", true},
		{Spec{Source: "/plain", Mode: "tree"}, "want any, file or dir", true},
		{Spec{Source: "/plain?archive=rar"}, "archives of kind", true},
		{Spec{Source: "/up.tar.gz"}, "leads out of it", true},
		{Spec{Source: "/abs.tar.gz"}, "leads out of it", true},
		{Spec{Source: "/link.tar.gz"}, "leads out of it", true},
		{Spec{Source: "/through.tgz"}, "leads out of it", true},
		{Spec{Source: "/hard.tgz"}, "leads out of it", true},
		{Spec{Source: "/dev.tgz"}, "neither file", true},
		{Spec{Source: "/slip.zip"}, "leads out of it", true},
		{Spec{Source: "/linked.zip"}, "leads out of it", true},
		{Spec{Source: "/broken.tar.gz"}, "unpack", true},
		{Spec{Source: "/bomb.tar.gz", BytesMax: 1 << 20}, "more bytes than it may have", true},
		{Spec{Source: "/bomb.gz", BytesMax: 1 << 20}, "more bytes than it may have", true},
		{Spec{Source: "/bomb.gz?archive=false", BytesMax: 1 << 10}, "at most", true},
		{Spec{Source: "/many.tar.gz", FilesMax: 10}, "too many files", true},
	} {
		t.Run(c.spec.Source+" "+c.spec.Mode, func(t *testing.T) {
			dir := dirFor(t)
			c.spec.Source = srv.URL + c.spec.Source
			err := fetch(t.Context(), c.spec, dir)
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrRefused) != c.refused {
				t.Errorf("%s: %v (refused %t), want %q (%t)", c.spec.Source, err, errors.Is(err, ErrRefused), c.want, c.refused)
			}
		})
	}
	for src, want := range map[string]string{
		"file:///etc/passwd": "files of the node", "/etc/passwd": "files of the node", "git::file:///x": "files of the node", "git::ext::sh -c x": "not a URL|over https",
		"s3::https://x/y": "s3 is not supported", "ftp://x/y": "ftp is not supported", "https:///x": "names no host", "git::https://h/r?ref=-x": "ref", "git::https://h/r?sshkey=x": "keys are not taken",
	} {
		t.Run(src, func(t *testing.T) {
			err := Spec{Source: src}.Check()
			ok := false
			for _, w := range strings.Split(want, "|") {
				ok = ok || err != nil && strings.Contains(err.Error(), w)
			}
			if !ok || !errors.Is(err, ErrRefused) {
				t.Errorf("%s: %v, want %q", src, err, want)
			}
		})
	}
	if got := hide("https://user:pass@host/x?token=key@x"); got != "https://...@host/x?..." {
		t.Error(got)
	}
}

func bombTar(t *testing.T) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Name: "zeros", Mode: 0o644, Size: 8 << 20}); err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(make([]byte, 8<<20))
	w.Close()
	return buf.Bytes()
}

func manyTar(t *testing.T) []byte {
	t.Helper()
	var list []tar.Header
	for i := range 20 {
		list = append(list, tar.Header{Name: fmt.Sprint("f", i), Typeflag: tar.TypeReg})
	}
	return tarOf(t, list...)
}

func content(t *testing.T, dir string) string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			if e != nil && e.Name() == ".git" {
				return filepath.SkipDir
			}
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		if l, err := os.Readlink(p); err == nil {
			out = append(out, rel+"->"+l)
			return nil
		}
		b, err := os.ReadFile(p)
		out = append(out, rel+"="+string(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, " ")
}

func TestFetchEndsWithItsContext(t *testing.T) {
	gone := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(gone)
	}))
	defer srv.Close()
	ctx, cancel := contextFor(t, 300*time.Millisecond)
	defer cancel()
	if err := fetch(ctx, Spec{Source: srv.URL + "/x"}, dirFor(t)); err == nil {
		t.Fatal("it came to an end")
	}
	select {
	case <-gone:
	case <-time.After(30 * time.Second):
		t.Error("the fetching process goes on")
	}
}

func TestFetchFromServersThatHang(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begun" {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("x"))
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
	}))
	defer srv.Close()
	for _, path := range []string{"/silent", "/begun"} {
		err := fetch(t.Context(), Spec{Source: srv.URL + path, IdleMax: 200 * time.Millisecond}, dirFor(t))
		if err == nil || !strings.Contains(err.Error(), "has sent nothing for 200ms") || errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Errors go to events and logs, where neither passwords nor signed URLs belong.
// TestFetchReportsProgress downloads from a server that continues until progress was reported.
func TestFetchReportsProgress(t *testing.T) {
	reported := make(chan struct{})
	const size = 100 << 20
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(size))
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			if _, err := w.Write(make([]byte, 1000)); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			select {
			case <-reported:
				return // the rest is missing
			case <-r.Context().Done():
				return
			case <-tick.C:
			}
		}
	}))
	defer srv.Close()
	d, err := taskfs.Open(dirFor(t))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var got, of int64
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	spec := Spec{Source: srv.URL + "/file"}
	spec.Egress.Loopback = true
	err = Fetch(ctx, spec, d, func(n, size int64) {
		got, of = n, size
		close(reported)
	})
	if err == nil || !strings.Contains(err.Error(), "unexpected EOF") || got < 1000 || of != size {
		t.Errorf("reported %d of %d; the end: %v", got, of, err)
	}
}

// TestAnswers reads what children may write.
func TestAnswers(t *testing.T) {
	reports := 0
	s := &answers{left: 200, progress: func(int64, int64) { reports++ }}
	for _, part := range []string{`{"Progress":true,"Got":1,`, `"Size":2}` + "\n" + `{"Err":"no`, `"}` + "\n"} {
		if _, err := s.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if s.err != nil || s.last.Err != "no" || reports != 1 {
		t.Errorf("%v, %+v, %d reports", s.err, s.last, reports)
	}
	for text, want := range map[string]bool{"x\n": true, `{"Progress":true}` + "\n": true, `{"Err":"e"}` + "\n": false} {
		s := &answers{left: 200}
		if _, _ = s.Write([]byte(text)); (s.err != nil) != want {
			t.Errorf("%q: %v", text, s.err)
		}
	}
	if _, err := s.Write(make([]byte, 200)); err == nil {
		t.Error("a child may write without a limit")
	}
}

func TestErrorsHideSecrets(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close() // no listener any more
	for _, src := range []string{"http://user:s3cret@" + addr + "/x?sig=s3cret", "git::http://user:s3cret@" + addr + "/x?sig=s3cret"} {
		if err := fetch(t.Context(), Spec{Source: src}, dirFor(t)); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v", err)
		}
	}
}

func TestClone(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("does not apply here: there is no git")
	}
	repo := dirFor(t)
	run := func(args ...string) {
		t.Helper()
		cmd := exec.Command(git, append([]string{"-C", repo, "-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v %s", args, err, out)
		}
	}
	run("init", "-q", "-b", "main")
	if err := os.WriteFile(filepath.Join(repo, "f"), []byte("one"), 0o644); err != nil {
		t.Fatal(err)
	}
	run("add", ".")
	run("commit", "-q", "-m", "one")
	run("tag", "v1")
	if err := os.WriteFile(filepath.Join(repo, "f"), []byte("two"), 0o644); err != nil {
		t.Fatal(err)
	}
	run("commit", "-q", "-am", "two")
	run("update-server-info")
	srv := httptest.NewServer(gitHandler(git, repo))
	defer srv.Close()
	for ref, want := range map[string]string{"": "f=two", "?ref=v1": "f=one"} {
		dir := dirFor(t)
		if err := fetch(t.Context(), Spec{Source: "git::" + srv.URL + "/.git" + ref}, dir); err != nil {
			t.Errorf("%q: %v", ref, err)
		} else if got := content(t, dir); got != want {
			t.Errorf("%q: %q, want %q", ref, got, want)
		}
	}
	if err := fetch(t.Context(), Spec{Source: "git::" + srv.URL + "/.git?ref=nope"}, dirFor(t)); err == nil {
		t.Error("a ref that does not exist was fetched")
	}
}

// fetch is Fetch from servers of this machine.
func fetch(ctx context.Context, s Spec, dir string) error {
	s.Egress.Loopback = true
	return fetchInto(ctx, s, dir)
}

func contextFor(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}

// gitHandler serves a repository as git's own program for web servers does.
func gitHandler(git, repo string) http.Handler {
	return &cgi.Handler{Path: git, Args: []string{"http-backend"}, Env: []string{"GIT_PROJECT_ROOT=" + repo, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}}
}
