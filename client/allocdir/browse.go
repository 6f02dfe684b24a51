package allocdir

import (
	"errors"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// listMax limits the entries of a directory that are shown.
const listMax = 10_000

// Info describes a file of an allocation.
type Info struct {
	fs.FileInfo
	ContentType string // of a regular file, else ""
}

// rel validates a path from a user and makes it relative to the allocation.
func rel(p string) (string, error) {
	if len(p) > 4096 || strings.ContainsRune(p, 0) {
		return "", structs.Errorf(structs.CodeInvalid, "not a path below the allocation's directory")
	}
	clean := path.Clean("/" + p)[1:]
	// Nomad's clients expect an error for a path that climbs out, not the file that it would become when cut off.
	if c := path.Clean(strings.TrimLeft(p, "/")); c == ".." || strings.HasPrefix(c, "../") {
		return "", structs.Errorf(structs.CodeInvalid, "Path escapes the alloc directory")
	}
	if clean == "" {
		clean = "."
	}
	if hidden(clean) {
		return "", structs.Errorf(structs.CodeDenied, "Reading secret file prohibited: %s", clean)
	}
	return clean, nil
}

// root opens the allocation's directory so that nothing opened through it, links included, lies outside.
func (d *Dir) root() (*os.Root, error) {
	r, err := os.OpenRoot(d.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, structs.Errorf(structs.CodeNotFound, "the allocation's directory %s is gone from this node", filepath.Base(d.Root))
	}
	return r, err
}

func wrap(p string, err error) error {
	var pe *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return structs.Errorf(structs.CodeNotFound, "no file %q in the allocation's directory", p)
	case errors.Is(err, fs.ErrPermission):
		return structs.Errorf(structs.CodeDenied, "the agent may not read %q", p)
	case errors.As(err, &pe):
		return structs.Errorf(structs.CodeInvalid, "%q: %v", p, pe.Err)
	}
	return err
}

// List returns the entries of a directory, sorted by name.
func (d *Dir) List(p string) ([]Info, error) {
	f, info, err := d.open(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if !info.IsDir() {
		return nil, structs.Errorf(structs.CodeInvalid, "%q is not a directory", p)
	}
	entries, err := f.ReadDir(listMax)
	if err != nil && err != io.EOF {
		return nil, wrap(p, err)
	}
	out := make([]Info, 0, len(entries))
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			out = append(out, Info{FileInfo: info})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name() < out[j].Name() })
	return out, nil
}

// Stat describes one file.
func (d *Dir) Stat(p string) (Info, error) {
	f, info, err := d.open(p)
	if err != nil {
		return Info{}, err
	}
	defer f.Close()
	out := Info{FileInfo: info}
	if info.Mode().IsRegular() {
		out.ContentType = contentType(info.Name(), f)
	}
	return out, nil
}

// Open opens a regular file for reading.
func (d *Dir) Open(p string) (*os.File, error) {
	f, info, err := d.open(p)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		f.Close()
		if info.IsDir() {
			return nil, structs.Errorf(structs.CodeInvalid, "file %q is a directory", p)
		}
		return nil, structs.Errorf(structs.CodeInvalid, "%q is not a regular file", p)
	}
	return f, nil
}

// open opens a path without waiting for a peer if it is a pipe.
func (d *Dir) open(p string) (*os.File, fs.FileInfo, error) {
	name, err := rel(p)
	if err != nil {
		return nil, nil, err
	}
	r, err := d.root()
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	// Stat first: opening a device or a pipe has side effects.
	if info, err := r.Stat(name); err != nil {
		return nil, nil, wrap(p, err)
	} else if !info.Mode().IsRegular() && !info.IsDir() {
		return nil, nil, structs.Errorf(structs.CodeInvalid, "%q is neither a file nor a directory", p)
	}
	f, err := r.OpenFile(name, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, nil, wrap(p, err)
	}
	if err := d.notSecret(f); err != nil {
		f.Close()
		return nil, nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, nil, wrap(p, err)
	}
	return f, info, nil
}

// notSecret refuses a file that a link inside the allocation has led to, if it is a secret.
func (d *Dir) notSecret(f *os.File) error {
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return nil // not a system with /proc
	}
	top, err := filepath.EvalSymlinks(d.Root)
	if err != nil {
		return wrap(".", err)
	}
	if name, err := filepath.Rel(top, real); err == nil && hidden(name) {
		return structs.Errorf(structs.CodeDenied, "Reading secret file prohibited: %s", name)
	}
	return nil
}

// contentType guesses the type from the name, then from the first bytes.
func contentType(name string, f *os.File) string {
	if t := mime.TypeByExtension(path.Ext(name)); t != "" {
		return t
	}
	var b [512]byte
	n, _ := f.ReadAt(b[:], 0)
	return http.DetectContentType(b[:n])
}

// Readable opens the allocation's directory for reading the regular file p below it, and returns the relative name of
// the file.
func (d *Dir) Readable(p string) (*os.Root, string, error) {
	f, err := d.Open(p)
	if err != nil {
		return nil, "", err
	}
	f.Close()
	name, err := rel(p)
	if err != nil {
		return nil, "", err
	}
	r, err := d.root()
	return r, name, err
}
