package artifact

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzSource checks any source of an artifact. What is accepted is a URL of a scheme that is fetched, with a host, and
// no part of it looks like an option of git; errors do not show what may be a secret.
func FuzzSource(f *testing.F) {
	for _, s := range []string{"https://h/a.tar.gz?checksum=md5:00", "git::https://h/r?ref=main", "github.com/a/b", "git::ssh://git@h/r", "s3::https://h/x", "file:///etc/passwd", "http://u:SECRET@h/x?archive=zip", "git::-x"} {
		f.Add(s, "any")
	}
	f.Fuzz(func(t *testing.T, source, mode string) {
		p, err := Spec{Source: source, Mode: mode}.plan()
		if err != nil {
			if i := strings.Index(source, "?"); i >= 0 && len(source)-i > 12 && strings.Contains(err.Error(), source[i:]) {
				t.Fatalf("%q: the error shows the options: %v", source, err)
			}
			return
		}
		u, err := url.Parse(p.URL)
		if err != nil || u.Host == "" || strings.HasPrefix(p.URL, "-") || strings.HasPrefix(p.Ref, "-") || strings.HasPrefix(u.Host, "-") {
			t.Fatalf("%q was accepted as %+v, %v", source, p, err)
		}
		if !filepath.IsLocal(p.Name) || strings.Contains(p.Name, "/") {
			t.Fatalf("%q: the file would be named %q", source, p.Name)
		}
	})
}

// FuzzUnpack unpacks any archive. Nothing is written outside, no link leads out, and the limits hold.
func FuzzUnpack(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "d/l", Typeflag: tar.TypeSymlink, Linkname: "../x"}, {Name: "../y", Typeflag: tar.TypeReg}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "x"}} {
		if err := w.WriteHeader(&h); err != nil {
			f.Fatal(err)
		}
	}
	w.Close()
	f.Add(b.Bytes(), uint8(0))
	var zb bytes.Buffer
	z := zip.NewWriter(&zb)
	for _, name := range []string{"a", "b/c", "../x"} {
		if e, err := z.Create(name); err == nil {
			e.Write([]byte("content"))
		}
	}
	z.Close()
	f.Add(zb.Bytes(), uint8(1))
	top := f.TempDir()
	if err := os.WriteFile(filepath.Join(top, "victim"), []byte("whole"), 0o600); err != nil {
		f.Fatal(err)
	}
	kinds := []string{"tar", "zip", "tar.gz", "gz", "bz2", "tar.bz2"}
	f.Fuzz(func(t *testing.T, archive []byte, kind uint8) {
		dir, err := os.MkdirTemp(top, "in")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		in := filepath.Join(top, "archive")
		if err := os.WriteFile(in, archive, 0o600); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		file, err := os.Open(in)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		const bytesMax, filesMax = 1 << 16, 16
		_ = (&unpacker{root: root, bytes: bytesMax, files: filesMax}).unpack(file, kinds[int(kind)%len(kinds)], "name")
		size := int64(0)
		err = fs.WalkDir(root.FS(), ".", func(_ string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if i, err := e.Info(); err == nil && i.Mode().IsRegular() {
				size += i.Size()
			}
			return nil
		})
		if err != nil || size > bytesMax+1 {
			t.Fatalf("%d bytes were written; %v", size, err)
		}
		if v, err := os.ReadFile(filepath.Join(top, "victim")); err != nil || string(v) != "whole" {
			t.Fatalf("a file outside has %q, %v", v, err)
		}
		if list, err := os.ReadDir(top); err != nil || len(list) != 3 {
			t.Fatalf("files appeared outside: %v, %v", list, err)
		}
		if err := (&unpacker{root: root, bytes: bytesMax * 2, files: filesMax * 64}).check(); err != nil {
			t.Fatalf("the tree that was unpacked is refused: %v", err)
		}
	})
}
