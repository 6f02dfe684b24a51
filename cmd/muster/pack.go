package main

import (
	"archive/tar"
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"

	"github.com/muster-sched/muster/nomadlike"
)

// ignoreFile names what is left out of a packed directory, in the language of .gitignore. Without it the .gitignore files
// of the directory count.
const ignoreFile = ".musterignore"

// What is left out unless ignoreFile says otherwise.
var (
	madeAgain = patterns([]string{".git/", ".hg/", ".svn/", "__pycache__/", "*.pyc", ".venv/", "node_modules/", ".ipynb_checkpoints/",
		".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".DS_Store"}, nil)
	secretFiles = patterns([]string{".env", ".netrc", ".ssh/", ".aws/", "id_rsa", "id_ed25519", "*-key.pem"}, nil)
)

// packedFiles is the most files that a directory may have: nodes unpack no more.
const packedFiles = 100_000

// packed is a directory as it is sent along with a job.
type packed struct {
	dir   string
	sum   string
	size  int64
	files int
	f     *os.File // has no name any more
	left  []string // files that were left out because they look like secrets
}

var oddInNames = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// name is the name of the directory on the nodes.
func (p *packed) name() string {
	return cmp.Or(strings.Trim(oddInNames.ReplaceAllString(filepath.Base(p.dir), "-"), ".-"), "dir")
}

// pack packs a directory into at most max bytes: the same files
func pack(dir string, max int64) (p *packed, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("-pack: %w", err)
	}
	defer root.Close()
	f, err := os.CreateTemp("", "muster-pack-*")
	if err != nil {
		return nil, fmt.Errorf("-pack: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	_ = os.Remove(f.Name()) // where that works only once it is closed, the system's cleaning of temporary files removes it
	p = &packed{dir: dir, f: f}
	sum := sha256.New()
	out := &limited{w: io.MultiWriter(f, sum), left: max}
	zip, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	w := &packer{packed: p, root: root, tar: tar.NewWriter(zip), bytes: map[string]int64{}, patterns: slices.Concat(madeAgain, secretFiles)}
	if _, err := root.Stat(ignoreFile); err == nil {
		w.own = true
	}
	err = fs.WalkDir(root.FS(), ".", w.visit)
	if err == nil {
		err = errors.Join(w.tar.Close(), zip.Close())
	}
	switch {
	case errors.Is(err, errPackedSize):
		return nil, fmt.Errorf("%s has more than %d MiB when packed%s; leave out what the job does not need in %s, in the language of .gitignore, or use a directory that the nodes share (-dir)",
			dir, max>>20, w.biggest(), ignoreFile)
	case err != nil:
		return nil, fmt.Errorf("pack %s: %w", dir, err)
	case p.files == 0:
		return nil, fmt.Errorf("%s has no files to send", dir)
	}
	p.size, p.sum = max-out.left, hex.EncodeToString(sum.Sum(nil))
	return p, nil
}

// packer packs the files of one directory.
type packer struct {
	*packed
	root     *os.Root
	tar      *tar.Writer
	own      bool // it has ignoreFile
	patterns []gitignore.Pattern
	bytes    map[string]int64 // of what is directly in the directory, as packed so far
}

// patterns parses the lines of an ignore file in a directory.
func patterns(lines []string, dir []string) (ps []gitignore.Pattern) {
	for _, line := range lines {
		if line = strings.TrimSuffix(line, "\r"); strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#") {
			ps = append(ps, gitignore.ParsePattern(line, dir))
		}
	}
	return ps
}

// ignores reads the ignore file that is to be used in a directory.
func (w *packer) ignores(name string) error {
	file := path.Join(name, ".gitignore")
	if w.own {
		if name != "." {
			return nil
		}
		file = ignoreFile
	}
	f, err := w.root.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var lines []string
	for s := bufio.NewScanner(f); ; {
		if !s.Scan() {
			w.patterns = append(w.patterns, patterns(lines, segments(name))...)
			return s.Err()
		}
		lines = append(lines, s.Text())
	}
}

func segments(name string) []string {
	if name == "." {
		return nil
	}
	return strings.Split(name, "/")
}

func (w *packer) visit(name string, d fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	if name == "." {
		return w.ignores(name)
	}
	if gitignore.NewMatcher(w.patterns).Match(segments(name), d.IsDir()) {
		if gitignore.NewMatcher(secretFiles).Match(segments(name), d.IsDir()) {
			w.left = append(w.left, name)
		}
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), Format: tar.FormatPAX}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if err := w.tar.WriteHeader(h); err != nil {
			return err
		}
		return w.ignores(name)
	case info.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = w.root.Readlink(name); err != nil {
			return err
		}
		if h.Linkname = filepath.ToSlash(h.Linkname); path.IsAbs(h.Linkname) || !filepath.IsLocal(path.Join(path.Dir(name), h.Linkname)) {
			return fmt.Errorf("%s is a link to %s, which is outside the directory: put the files there, or leave the link out in %s", name, h.Linkname, ignoreFile)
		}
		return w.tar.WriteHeader(h)
	case !info.Mode().IsRegular():
		return nil // sockets, pipes and devices mean something on this machine only
	}
	if w.files++; w.files > packedFiles {
		return fmt.Errorf("it has more than %d files%s; leave out what the job does not need in %s", packedFiles, w.biggest(), ignoreFile)
	}
	f, err := w.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := w.tar.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(w.tar, io.LimitReader(f, h.Size))
	top, _, _ := strings.Cut(name, "/")
	w.bytes[top] += info.Size()
	if err == nil && n < h.Size {
		err = fmt.Errorf("%s became shorter while it was read", name)
	}
	return err
}

// biggest names the largest entries of the directory.
func (w *packer) biggest() string {
	var names []string
	for name := range w.bytes {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(w.bytes[b], w.bytes[a]), cmp.Compare(a, b)) })
	for i := range names {
		names[i] = fmt.Sprintf("%s %s", names[i], bytesText(uint64(w.bytes[names[i]])))
	}
	if len(names) == 0 {
		return ""
	}
	return " (largest: " + strings.Join(names[:min(3, len(names))], ", ") + ")"
}

var errPackedSize = errors.New("too large")

// limited is a writer with a limit.
type limited struct {
	w    io.Writer
	left int64
}

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	if int64(len(p)) > l.left {
		return 0, errPackedSize
	}
	n, err := l.w.Write(p)
	l.left -= int64(n)
	return n, err
}

// send sends the bundle, unless the servers have it.
func (p *packed) send(ctx context.Context, o *adhoc, a *api) error {
	defer p.f.Close()
	if len(p.left) > 0 {
		o.hint("Left out, because they may hold secrets: %s. Secrets belong in variables (muster var put)", strings.Join(p.left[:min(5, len(p.left))], ", "))
	}
	at, q := "/v1/bundle/"+p.sum, ns(o.namespace)
	var have nomadlike.Bundle
	_, err := a.get(ctx, at, q, &have)
	switch {
	case err == nil:
		o.hint("The servers have %s already (%s, %s)", p.dir, plural(int64(p.files), "file"), bytesText(uint64(p.size)))
		return nil
	case !notFound(err):
		return fmt.Errorf("-pack: %w", err)
	}
	o.hint("Sending %s (%s, %s)", p.dir, plural(int64(p.files), "file"), bytesText(uint64(p.size)))
	sent := &sentFile{env: o.env, r: io.NewSectionReader(p.f, 0, p.size), all: p.size, terminal: isTerminal(o.err), then: "the servers store it"}
	rc, _, err := a.stream(ctx, http.MethodPut, at, q, sent)
	sent.clear()
	if err != nil {
		return fmt.Errorf("send %s: %w", p.dir, err)
	}
	return rc.Close()
}
