package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// member is a file of an archive.
type member struct {
	name, source string
	mode         os.FileMode
}

// members returns what an archive holds, in order.
func (d *dist) members(bin, top string) ([]member, error) {
	list := []member{
		{top + "/" + strings.TrimSuffix(filepath.Base(bin), "-static"), bin, 0o755},
		{top + "/LICENSE", filepath.Join(d.root, "LICENSE"), 0o644},
		{top + "/CHANGELOG.md", filepath.Join(d.root, "CHANGELOG.md"), 0o644},
	}
	for _, dir := range []struct{ from, to string }{{"completions", "completions"}, {"man", "man/man1"}} {
		names, err := filesBelow(filepath.Join(d.docs, dir.from))
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			list = append(list, member{top + "/" + dir.to + "/" + n, filepath.Join(d.docs, dir.from, n), 0o644})
		}
	}
	return list, nil
}

// archive writes the archive of a platform: a zip for Windows, else a gzipped tar.
func (d *dist) archive(bin, goos, goarch string) error {
	top := d.name(goos, goarch)
	list, err := d.members(bin, top)
	if err != nil {
		return err
	}
	put, ext := d.tar, ".tar.gz"
	if goos == "windows" {
		put, ext = d.zip, ".zip"
	}
	f, err := os.Create(filepath.Join(d.out, top+ext))
	if err != nil {
		return err
	}
	if err := put(f, list); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func (d *dist) tar(w io.Writer, list []member) error {
	gz, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	t := tar.NewWriter(gz)
	for _, m := range list {
		b, err := os.ReadFile(m.source)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: m.name, Mode: int64(m.mode), Size: int64(len(b)), ModTime: d.time, Typeflag: tar.TypeReg, Uname: "root", Gname: "root"}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(b); err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return err
	}
	return gz.Close()
}

func (d *dist) zip(w io.Writer, list []member) error {
	z := zip.NewWriter(w)
	for _, m := range list {
		b, err := os.ReadFile(m.source)
		if err != nil {
			return err
		}
		h := &zip.FileHeader{Name: m.name, Method: zip.Deflate, Modified: d.time}
		h.SetMode(m.mode)
		e, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := e.Write(b); err != nil {
			return err
		}
	}
	return z.Close()
}
