package artifact

import (
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/egress"
	"github.com/muster-sched/muster/internal/nodump"
)

// MaybeRunChild fetches and ends the process if it was started for that.
func MaybeRunChild() {
	if os.Getenv(childEnv) == "" || len(os.Args) != 2 || os.Args[1] != childVerb {
		return
	}
	var a answer
	if err := child(); err != nil {
		a.Err, a.Refused = err.Error(), errors.Is(err, ErrRefused) || errors.Is(err, egress.ErrRefused)
	}
	_ = json.NewEncoder(os.Stdout).Encode(a)
	os.Exit(0)
}

func child() error {
	var s Spec
	if err := json.NewDecoder(os.Stdin).Decode(&s); err != nil {
		return err
	}
	if s.BytesMax <= 0 || s.BytesMax > BytesMax {
		s.BytesMax = BytesMax
	}
	if s.FilesMax <= 0 || s.FilesMax > FilesMax {
		s.FilesMax = FilesMax
	}
	if s.IdleMax <= 0 || s.IdleMax > TimeMax {
		s.IdleMax = IdleMax
	}
	if err := nodump.Set(); err != nil { // it knows the headers of the request
		return err
	}
	unix.Umask(0o022)
	for what, n := range map[int]uint64{unix.RLIMIT_NOFILE: 256, unix.RLIMIT_FSIZE: uint64(s.BytesMax) + 1<<20, unix.RLIMIT_CORE: 0} {
		if err := unix.Setrlimit(what, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("set a limit: %w", err)
		}
	}
	p, err := s.plan()
	if err != nil {
		return err
	}
	if err := enter(); err != nil {
		return err
	}
	root, err := os.OpenRoot(".")
	if err != nil {
		return err
	}
	defer root.Close()
	if p.Kind == "bundle" {
		f := os.NewFile(childFile, "bundle")
		defer f.Close()
		u := unpacker{root: root, bytes: s.BytesMax, files: s.FilesMax}
		return u.unpack(f, p.Archive, p.Name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), TimeMax)
	defer cancel()
	filter, err := egress.New(s.Egress)
	if err != nil {
		return err
	}
	if p.Kind == "git" {
		return p.clone(ctx, root, filter)
	}
	return p.download(ctx, root, filter)
}

// enter makes the directory to fetch into the working directory, and that of programs that want a place for files.
func enter() error {
	if err := unix.Fchdir(childDir); err != nil {
		return fmt.Errorf("enter the directory to fetch into: %w", err)
	}
	unix.CloseOnExec(childDir)
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	return errors.Join(os.Setenv("HOME", dir), os.Setenv("TMPDIR", dir))
}

// progressFirst is the delay of the first report of progress. Later ones come less and less often: a task keeps ten events.
const progressFirst = 3 * time.Second

// Seldom passes on reports of progress, the first after 3 s, and later ones at intervals that double.
func Seldom(report func(got, size int64)) func(got, size int64) {
	wait := progressFirst
	next := time.Now().Add(wait)
	return func(got, size int64) {
		if time.Now().After(next) {
			wait *= 2
			next = time.Now().Add(wait)
			report(got, size)
		}
	}
}

// download fetches over http, checks and unpacks.
func (p *plan) download(ctx context.Context, root *os.Root, filter *egress.Filter) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(p.Spec.IdleMax, func() { cancel(fmt.Errorf("the server has sent nothing for %s", p.Spec.IdleMax)) })
	defer idle.Stop()
	why := func(err error) error { // without the URL, which may contain secrets
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		var u *url.Error
		if errors.As(err, &u) {
			return u.Err
		}
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, nil)
	if err != nil {
		return refuse("%v", err)
	}
	for k, v := range p.Spec.Headers {
		req.Header.Set(k, v)
	}
	c := &http.Client{Transport: filter.Transport(true), CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) >= 10 || req.URL.Scheme != "http" && req.URL.Scheme != "https" || via[0].URL.Scheme == "https" && req.URL.Scheme == "http" {
			return refuse("redirected to %s", hide(req.URL.String()))
		}
		return nil
	}}
	resp, err := c.Do(req)
	if err != nil {
		return why(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		err := fmt.Errorf("the server answers %s", resp.Status)
		if resp.StatusCode >= 400 && resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusRequestTimeout {
			return refusal{err}
		}
		return err
	}
	if resp.ContentLength > p.Spec.BytesMax {
		return refuse("it has %d bytes; at most %d are fetched", resp.ContentLength, p.Spec.BytesMax)
	}
	const packed = ".muster-download"
	f, err := root.OpenFile(packed, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	var sum hash.Hash
	var want []byte
	out := io.Writer(f)
	if p.Checksum != "" {
		if sum, want, err = hasher(p.Checksum); err != nil {
			return err
		}
		out = io.MultiWriter(f, sum)
	}
	got := int64(0)
	report := Seldom(func(got, size int64) {
		_ = json.NewEncoder(os.Stdout).Encode(answer{Progress: true, Got: got, Size: size}) // the agent has ended otherwise
	})
	n, err := io.Copy(out, io.LimitReader(watched{resp.Body, func(n int) {
		idle.Reset(p.Spec.IdleMax)
		got += int64(n)
		report(got, resp.ContentLength)
	}}, p.Spec.BytesMax+1))
	if err != nil {
		return why(err)
	}
	idle.Stop()
	if n > p.Spec.BytesMax {
		return refuse("it has more than the %d bytes that are fetched at most", p.Spec.BytesMax)
	}
	if sum != nil && string(sum.Sum(nil)) != string(want) {
		return refuse("its checksum is %s, not %s", hex.EncodeToString(sum.Sum(nil)), hex.EncodeToString(want))
	}
	if p.Archive == "" {
		if err := f.Close(); err != nil { // network file systems report lost writes here
			return err
		}
		return root.Rename(packed, p.Name)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	u := unpacker{root: root, bytes: p.Spec.BytesMax, files: p.Spec.FilesMax}
	if err := u.unpack(f, p.Archive, p.Name); err != nil {
		return err
	}
	return root.Remove(packed)
}

// watched reports each successful read.
type watched struct {
	r    io.Reader
	read func(n int)
}

// Read implements io.Reader.
func (w watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if n > 0 {
		w.read(n)
	}
	return n, err
}

// hasher parses "sha256:..." or a bare sum, whose length determines the algorithm.
func hasher(s string) (hash.Hash, []byte, error) {
	kind, sum, ok := strings.Cut(s, ":")
	if !ok {
		sum = s
		kind = map[int]string{32: "md5", 40: "sha1", 64: "sha256", 128: "sha512"}[len(s)]
	}
	want, err := hex.DecodeString(sum)
	var h hash.Hash
	switch kind {
	case "md5":
		h = md5.New()
	case "sha1":
		h = sha1.New()
	case "sha256":
		h = sha256.New()
	case "sha512":
		h = sha512.New()
	default:
		return nil, nil, refuse("checksum %.80q: want md5, sha1, sha256 or sha512, a colon, and the sum in hexadecimal", s)
	}
	if err != nil || len(want) != h.Size() {
		return nil, nil, refuse("checksum %.150q is not a %s sum in hexadecimal", s, kind)
	}
	return h, want, nil
}
