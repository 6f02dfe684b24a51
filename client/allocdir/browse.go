package allocdir

import (
	"errors"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path"
	"sort"
	"strings"

	"github.com/muster-sched/muster/client/taskfs"
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
	clean := Clean(p)
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

// Clean returns a path as its frames name it, relative to the allocation.
func Clean(p string) string { return path.Clean("/" + p)[1:] }

// wrap translates an error for the user who has named the path.
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
	n, err := d.find(p)
	if err != nil {
		return nil, err
	}
	defer n.Close()
	if !n.IsDir() {
		return nil, structs.Errorf(structs.CodeInvalid, "%q is not a directory", p)
	}
	dir, err := n.Dir()
	if err != nil {
		return nil, wrap(p, err)
	}
	defer dir.Close()
	names, err := dir.Names(listMax)
	if err != nil {
		return nil, wrap(p, err)
	}
	sort.Strings(names)
	out := make([]Info, 0, len(names))
	for _, name := range names {
		if info, err := dir.Stat(name); err == nil {
			out = append(out, Info{FileInfo: info})
		}
	}
	return out, nil
}

// Stat describes one file.
func (d *Dir) Stat(p string) (Info, error) {
	n, err := d.find(p)
	if err != nil {
		return Info{}, err
	}
	defer n.Close()
	out := Info{FileInfo: n.Info}
	if n.IsDir() {
		return out, nil
	}
	f, err := n.Open(os.O_RDONLY)
	if err != nil {
		return Info{}, wrap(p, err)
	}
	defer f.Close()
	out.ContentType = contentType(n.Name(), f)
	return out, nil
}

// OpenFile opens a regular file for reading.
func (d *Dir) OpenFile(p string) (*os.File, error) {
	n, err := d.find(p)
	if err != nil {
		return nil, err
	}
	defer n.Close()
	if n.IsDir() {
		return nil, structs.Errorf(structs.CodeInvalid, "file %q is a directory", p)
	}
	f, err := n.Open(os.O_RDONLY)
	return f, wrap(p, err)
}

// Leads reports whether a path leads to the file that OpenFile has opened. If that is unknown, it does.
func (d *Dir) Leads(p string, f *os.File) bool {
	n, err := d.find(p)
	if err != nil {
		return structs.CodeOf(err) != structs.CodeNotFound
	}
	defer n.Close()
	return n.Is(f)
}

// find holds the file or directory that a path leads to, through links that stay in the allocation. Secrets are
// refused: those in memory because no name is looked up through a mount, others by what was found.
func (d *Dir) find(p string) (*taskfs.Node, error) {
	name, err := rel(p)
	if err != nil {
		return nil, err
	}
	root, err := d.Open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	n, err := root.Follow(name)
	if err != nil {
		return nil, wrap(p, err)
	}
	switch at := n.Beneath(root); {
	case hidden(at):
		err = structs.Errorf(structs.CodeDenied, "Reading secret file prohibited: %s", at)
	case !n.Mode().IsRegular() && !n.IsDir():
		err = structs.Errorf(structs.CodeInvalid, "%q is neither a file nor a directory", p)
	default:
		return n, nil
	}
	n.Close()
	return nil, err
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
