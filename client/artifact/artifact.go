// Package artifact fetches files for tasks: over http and https, and with git where the node has it. Sources are
// untrusted: a child process without the agent's rights, files and secrets fetches and unpacks them, with limits on
// bytes, files and time, into a separate directory from which nothing can lead out.
package artifact

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/muster-sched/muster/client/egress"
	"github.com/muster-sched/muster/client/taskfs"
	"github.com/muster-sched/muster/structs"
)

// Limits of one artifact.
const (
	BytesMax = 100 << 30 // fetched, and unpacked
	FilesMax = 100_000
	TimeMax  = 30 * time.Minute
	IdleMax  = 2 * time.Minute // without a byte from the server
)

// Spec says what to fetch.
type Spec struct {
	Source   string            // URL, with a prefix such as git:: and options as its query
	Options  map[string]string // the same options: archive, checksum, ref, depth
	Headers  map[string]string // of http requests
	Mode     string            // "any" (or ""), "file" or "dir"
	Name     string            // of the file, for mode file; "" takes it from the source
	BytesMax int64             // 0 is BytesMax
	FilesMax int               // 0 is FilesMax
	IdleMax  time.Duration     // 0 is IdleMax
	Egress   egress.Rules      // which addresses are fetched from
	Bundle   *os.File          `json:"-"` // the bundle that Source names, which is only unpacked
}

// ErrRefused marks errors that another attempt cannot cure.
var ErrRefused = errors.New("artifact refused")

type refusal struct{ error }

func (r refusal) Unwrap() error        { return r.error }
func (r refusal) Is(target error) bool { return target == ErrRefused }

func refuse(format string, args ...any) error { return refusal{fmt.Errorf(format, args...)} }

// plan is a parsed Spec.
type plan struct {
	Kind     string // "http", "git" or "bundle"
	URL      string
	Archive  string // how to unpack: "zip", "tar", "tar.gz", "tar.bz2", "gz", "bz2"; "" not at all
	Checksum string // "sha256:..."
	Ref      string
	Name     string // of the file
	Spec     Spec
}

// archives are the file endings of archive formats, longer ones first.
var archives = []struct{ ending, kind string }{
	{".tar.gz", "tar.gz"}, {".tgz", "tar.gz"}, {".tar.bz2", "tar.bz2"}, {".tbz2", "tar.bz2"}, {".tar", "tar"}, {".zip", "zip"}, {".gz", "gz"}, {".bz2", "bz2"},
}

// Check returns an error if a specification is invalid, without fetching anything.
func (s Spec) Check() error {
	_, err := s.plan()
	return err
}

func (s Spec) plan() (*plan, error) {
	p := &plan{Kind: "http", Spec: s}
	src := strings.TrimSpace(s.Source)
	if sum, ok := structs.BundleSum(src); ok {
		switch err := structs.CheckBundleSum(sum); {
		case err != nil:
			return nil, refuse("artifact source %q: %v", hide(s.Source), err)
		case s.Mode == "file":
			return nil, refuse("artifact source %q is a directory, so it cannot become a file (mode file)", hide(s.Source))
		case len(s.Options)+len(s.Headers) > 0:
			return nil, refuse("artifact source %q has neither options nor headers", hide(s.Source))
		}
		p.Kind, p.Archive = "bundle", "tar.gz"
		return p, nil
	}
	if rest, ok := strings.CutPrefix(src, "git::"); ok {
		p.Kind, src = "git", rest
	} else if i := strings.Index(src, "::"); i >= 0 && i < strings.IndexAny(src+"/", "/") {
		return nil, refuse("artifact source %q: %s is not supported; http, https and git are", hide(s.Source), src[:i])
	}
	for _, host := range []string{"github.com/", "gitlab.com/", "bitbucket.org/"} {
		if strings.HasPrefix(src, host) {
			p.Kind, src = "git", "https://"+src
		}
	}
	u, err := url.Parse(src)
	if err != nil {
		return nil, refuse("artifact source %q is not a URL", hide(s.Source))
	}
	switch {
	case u.Scheme == "file" || u.Scheme == "" && p.Kind != "git":
		return nil, refuse("artifact source %q: files of the node are not fetched; mount a host volume", hide(s.Source))
	case p.Kind == "git" && u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "ssh" && u.Scheme != "git":
		return nil, refuse("artifact source %q: git repositories are fetched over https, http, ssh and git", hide(s.Source))
	case p.Kind == "http" && u.Scheme != "http" && u.Scheme != "https":
		return nil, refuse("artifact source %q: %s is not supported; http, https and git are", hide(s.Source), u.Scheme)
	case u.Host == "":
		return nil, refuse("artifact source %q names no host", hide(s.Source))
	}
	q := u.Query()
	for k, v := range s.Options {
		q.Set(k, v)
	}
	take := func(k string) string {
		v := q.Get(k)
		q.Del(k)
		return v
	}
	p.Checksum = take("checksum")
	if p.Checksum != "" {
		if _, _, err := hasher(p.Checksum); err != nil {
			return nil, err
		}
		if p.Kind == "git" {
			return nil, refuse("artifact source %q: a repository has no checksum; name a commit as ref", hide(s.Source))
		}
	}
	p.Name = s.Name
	if p.Name == "" {
		p.Name = path.Base(u.Path)
	}
	if p.Name == "." || p.Name == "/" || p.Name == "" {
		p.Name = "artifact"
	}
	switch a := take("archive"); a {
	case "":
		for _, x := range archives {
			if strings.HasSuffix(strings.ToLower(u.Path), x.ending) {
				p.Archive = x.kind
				break
			}
		}
	case "false", "0":
	default:
		for _, x := range archives {
			if "."+a == x.ending {
				p.Archive = x.kind
			}
		}
		if p.Archive == "" {
			return nil, refuse("artifact source %q: archives of kind %.20q are not supported", hide(s.Source), a)
		}
	}
	switch s.Mode {
	case "", "any":
	case "file":
		if p.Kind == "git" {
			return nil, refuse("artifact source %q: a repository is no file; use mode any or dir", hide(s.Source))
		}
		if p.Archive != "gz" && p.Archive != "bz2" {
			p.Archive = ""
		}
	case "dir":
		if p.Kind == "http" && (p.Archive == "" || p.Archive == "gz" || p.Archive == "bz2") {
			return nil, refuse("artifact source %q is not an archive, so it cannot become a directory (mode dir)", hide(s.Source))
		}
	default:
		return nil, refuse("artifact mode %.20q: want any, file or dir", s.Mode)
	}
	if p.Kind == "git" {
		p.Ref = take("ref")
		take("depth")
		if strings.HasPrefix(p.Ref, "-") {
			return nil, refuse("artifact source %q: ref %.40q", hide(s.Source), p.Ref)
		}
		if take("sshkey") != "" {
			return nil, refuse("artifact source %q: keys are not taken from job files", hide(s.Source))
		}
	}
	u.RawQuery = q.Encode()
	p.URL = u.String()
	return p, nil
}

// hide removes user, password and option values from a URL: signed URLs have their key there.
func hide(s string) string {
	head, query, asks := strings.Cut(s, "?")
	if i := strings.Index(head, "://"); i >= 0 {
		if at := strings.LastIndex(head, "@"); at > i {
			head = head[:i+3] + "..." + head[at:]
		}
	}
	if len(head) > 200 {
		head = head[:200]
	}
	if asks && query != "" {
		head += "?..."
	}
	return head
}

// The child process is the same binary with a hidden verb and an environment variable. It reads a Spec as JSON from its
// standard input, fetches into the directory of descriptor childDir, and writes an answer.
const (
	childVerb = "fetch-artifact"
	childEnv  = "MUSTER_FETCH_CHILD"
	childDir  = 3
	childFile = 4 // the bundle
	answerMax = 64 << 10
)

type answer struct {
	Err     string
	Refused bool

	Progress  bool  // not the answer yet, but how far it is
	Got, Size int64 // bytes; Size is -1 if the server does not say
}

// answers is what a child writes: reports of progress, a line each, and then its answer.
type answers struct {
	left     int // bytes that it may still write
	line     []byte
	last     answer
	err      error // of the last line, which is no answer
	progress func(got, size int64)
}

func (s *answers) Write(p []byte) (int, error) {
	if s.left -= len(p); s.left < 0 {
		return 0, errors.New("too much output")
	}
	s.line = append(s.line, p...)
	for {
		line, rest, ok := bytes.Cut(s.line, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		s.line, s.last = rest, answer{}
		if s.err = json.Unmarshal(line, &s.last); s.err == nil && s.last.Progress {
			s.err = errors.New("no answer after a report of progress")
			if s.progress != nil {
				s.progress(s.last.Got, s.last.Size)
			}
		}
	}
}

// FetchUser is the user and group as which an agent that is root fetches.
const FetchUser = 65534

// passed are the variables of the agent's environment that the child gets.
var passed = []string{"PATH", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// Fetch fetches an artifact into dir, which must be empty; the result is untrusted. An agent that is root gives dir to
// an unprivileged user and fetches as that user. progress, or nil, is called now and then while a file is downloaded; size is
// -1 where it is unknown.
func Fetch(ctx context.Context, s Spec, dir *taskfs.Dir, progress func(got, size int64)) error {
	if err := s.Check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, TimeMax, fmt.Errorf("it takes more than %s", TimeMax))
	defer cancel()
	in, err := json.Marshal(s)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", childVerb) // works without a path to the binary that other users may traverse
	at, err := dir.File()
	if err != nil {
		return err
	}
	defer at.Close()
	cmd.Dir, cmd.ExtraFiles = "/", []*os.File{at}
	if s.Bundle != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, s.Bundle)
	}
	cmd.Env = []string{childEnv + "=1", "GOMAXPROCS=2", "GOMEMLIMIT=256MiB", "GOTRACEBACK=none", "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_NOSYSTEM=1", "GIT_ALLOW_PROTOCOL=https:http:ssh:git"}
	for _, k := range passed {
		if v, ok := os.LookupEnv(k); ok {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	cmd.Stdin = bytes.NewReader(in)
	out := &answers{left: answerMax, progress: progress, err: io.ErrUnexpectedEOF}
	cmd.Stdout = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: FetchUser, Gid: FetchUser}
		if err := dir.Own(taskfs.Owner{UID: FetchUser, GID: FetchUser}); err != nil {
			return err
		}
	}
	err = cmd.Run()
	if ctx.Err() != nil {
		return fmt.Errorf("fetch %s: %w", hide(s.Source), context.Cause(ctx))
	}
	if out.err != nil {
		return fmt.Errorf("fetch %s: the fetching process ended without an answer: %w", hide(s.Source), errors.Join(err, out.err))
	}
	a := out.last
	switch {
	case a.Err == "":
		return nil
	case a.Refused:
		return refuse("fetch %s: %s", hide(s.Source), a.Err)
	}
	return fmt.Errorf("fetch %s: %s", hide(s.Source), a.Err)
}
