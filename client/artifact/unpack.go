package artifact

import (
	"archive/tar"
	"archive/zip"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// unpacker writes files below root and counts them. No name, and no link that an archive creates, leads out.
type unpacker struct {
	root  *os.Root
	bytes int64 // how many may still be written
	files int
}

func (u *unpacker) unpack(f *os.File, kind, name string) error {
	bad := func(err error) error {
		if err == nil || errors.Is(err, ErrRefused) || errors.Is(err, fs.ErrPermission) {
			return err
		}
		return refuse("unpack: %v", err)
	}
	switch kind {
	case "zip":
		st, err := f.Stat()
		if err != nil {
			return err
		}
		z, err := zip.NewReader(f, st.Size())
		if err != nil {
			return bad(err)
		}
		return bad(u.zip(z))
	case "tar":
		return bad(u.tar(f))
	case "tar.bz2":
		return bad(u.tar(bzip2.NewReader(f)))
	case "bz2":
		return bad(u.file(strings.TrimSuffix(name, ".bz2"), 0o644, bzip2.NewReader(f)))
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return bad(err)
	}
	if kind == "tar.gz" {
		return bad(u.tar(z))
	}
	return bad(u.file(strings.TrimSuffix(name, ".gz"), 0o644, z))
}

// place checks the name of an entry.
func (u *unpacker) place(name string) (string, error) {
	clean := path.Clean(strings.ReplaceAll(name, "\\", "/"))
	if !filepath.IsLocal(clean) {
		return "", refuse("the archive holds %.200q, which leads out of it", name)
	}
	if u.files--; u.files < 0 {
		return "", refuse("the archive holds too many files")
	}
	if dir := path.Dir(clean); dir != "." {
		if err := u.root.MkdirAll(dir, 0o755); err != nil {
			return "", fmt.Errorf("%.200q: %w", name, err)
		}
	}
	return clean, nil
}

func (u *unpacker) file(name string, mode fs.FileMode, r io.Reader) error {
	clean, err := u.place(name)
	if err != nil {
		return err
	}
	if err := u.root.Remove(clean); err != nil && !errors.Is(err, fs.ErrNotExist) { // never write through a link
		return err
	}
	f, err := u.root.OpenFile(clean, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode.Perm()|0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(r, u.bytes+1))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if u.bytes -= n; u.bytes < 0 && err == nil {
		return refuse("unpacked, it has more bytes than it may have")
	}
	return err
}

func (u *unpacker) dir(name string) error {
	clean, err := u.place(name)
	if err != nil || clean == "." {
		return err
	}
	return u.root.MkdirAll(clean, 0o755)
}

func (u *unpacker) link(name, target string) error {
	clean, err := u.place(name)
	if err != nil {
		return err
	}
	if filepath.IsAbs(target) || !filepath.IsLocal(path.Join(path.Dir(clean), target)) {
		return refuse("the archive holds the link %.200q to %.200q, which leads out of it", name, target)
	}
	if err := u.root.Remove(clean); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return u.root.Symlink(target, clean)
}

func (u *unpacker) tar(r io.Reader) error {
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeReg:
			err = u.file(h.Name, fs.FileMode(h.Mode), t)
		case tar.TypeDir:
			err = u.dir(h.Name)
		case tar.TypeSymlink:
			err = u.link(h.Name, h.Linkname)
		case tar.TypeLink:
			err = u.hard(h.Name, h.Linkname)
		case tar.TypeXGlobalHeader, tar.TypeXHeader:
		default:
			err = refuse("the archive holds %.200q, which is neither file, directory nor link", h.Name)
		}
		if err != nil {
			return err
		}
	}
}

func (u *unpacker) hard(name, target string) error {
	clean, err := u.place(name)
	if err != nil {
		return err
	}
	old := path.Clean(target)
	if !filepath.IsLocal(old) {
		return refuse("the archive holds the link %.200q to %.200q, which leads out of it", name, target)
	}
	if st, err := u.root.Lstat(old); err != nil || !st.Mode().IsRegular() {
		return refuse("the archive holds the link %.200q to %.200q, which is no file", name, target)
	}
	return u.root.Link(old, clean)
}

func (u *unpacker) zip(z *zip.Reader) error {
	for _, e := range z.File {
		if err := u.zipped(e); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) zipped(e *zip.File) error {
	mode := e.Mode()
	if mode.IsDir() {
		return u.dir(e.Name)
	}
	if mode&fs.ModeSymlink == 0 && !mode.IsRegular() {
		return refuse("the archive holds %.200q, which is neither file, directory nor link", e.Name)
	}
	r, err := e.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	if mode&fs.ModeSymlink != 0 {
		target, err := io.ReadAll(io.LimitReader(r, 4096))
		if err != nil {
			return err
		}
		return u.link(e.Name, string(target))
	}
	return u.file(e.Name, mode, r)
}

// check walks over a tree that another program has written: its links must stay inside, and it must not be too large.
func (u *unpacker) check() error {
	return fs.WalkDir(u.root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if u.files--; u.files < 0 {
			return refuse("it holds too many files")
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		switch {
		case info.Mode().IsRegular():
			if u.bytes -= info.Size(); u.bytes < 0 {
				return refuse("it has more bytes than it may have")
			}
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := u.root.Readlink(name)
			if err != nil {
				return err
			}
			if filepath.IsAbs(target) || !filepath.IsLocal(path.Join(path.Dir(name), target)) {
				return refuse("it holds the link %.200q to %.200q, which leads out of it", name, target)
			}
		}
		return nil
	})
}
