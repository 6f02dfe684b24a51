package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// atHome runs command lines as a user with an empty configuration directory, in an environment without settings.
type atHome struct {
	t   *testing.T
	dir string
}

func newAtHome(t *testing.T) *atHome {
	t.Helper()
	h := &atHome{t, t.TempDir()}
	t.Setenv("XDG_CONFIG_HOME", h.dir)
	for _, o := range contextOptions {
		t.Setenv("MUSTER_"+o.env, "")
		t.Setenv("NOMAD_"+o.env, "")
	}
	return h
}

func (h *atHome) run(stdin, line string) result {
	h.t.Helper()
	var out, errOut bytes.Buffer
	e := &env{in: strings.NewReader(stdin), out: &out, err: &errOut, now: func() time.Time { return fixedNow }}
	code := e.main(h.t.Context(), append([]string{"muster"}, strings.Fields(line)...))
	return result{code, out.String(), errOut.String()}
}

// want runs a command line that must succeed and returns what it prints.
func (h *atHome) want(line string) string {
	h.t.Helper()
	r := h.run("", line)
	if r.code != 0 {
		h.t.Fatalf("%s: exit status %d: %s", line, r.code, r.errOut)
	}
	return r.out
}

// tokens lists the files of tokens that are kept.
func (h *atHome) tokens() []string {
	h.t.Helper()
	files, err := filepath.Glob(filepath.Join(h.dir, "muster/tokens/*"))
	if err != nil {
		h.t.Fatal(err)
	}
	return files
}

// TestContextChanges: changes at the same time are all kept, a change that fails leaves the old context with its own token, and no token is
// left without a context.
func TestContextChanges(t *testing.T) {
	h := newAtHome(t)
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			if r := h.run("", fmt.Sprintf("context add c%d -address http://127.0.0.1:1 -token T%d", i, i)); r.code != 0 {
				t.Errorf("c%d: %s", i, r.errOut)
			}
		})
	}
	all.Wait()
	if out := h.want("context list -q"); strings.Count(out, "\n") != 12 || len(h.tokens()) != 12 {
		t.Fatalf("12 were added; there are %d tokens and\n%s", len(h.tokens()), out)
	}
	h.want("context add c0 -replace -address http://127.0.0.1:2 -token T99")
	h.want("context remove c1")
	if n := len(h.tokens()); n != 11 {
		t.Errorf("%d tokens of 11 contexts", n)
	}
	// The book cannot be written: its new version has a directory's name.
	if err := os.MkdirAll(filepath.Join(h.dir, "muster/contexts.json.new/x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if r := h.run("", "context add c0 -replace -address http://127.0.0.1:3 -token OTHER"); r.code == 0 {
		t.Error("a change that was not written succeeded")
	}
	if r := h.run("", "context remove c0"); r.code == 0 {
		t.Error("a removal that was not written succeeded")
	}
	kept := ""
	for _, f := range h.tokens() {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		kept += string(b)
	}
	if !strings.Contains(kept, "T99\n") || strings.Contains(kept, "OTHER") {
		t.Errorf("after changes that failed the tokens are %q", kept)
	}
	for _, line := range []string{"context add x -address http://u:p@h:1", "context add x -address http://h:1 -token=a\x01b", "context add x -address http://h:1 -region a\x1b]0;b"} {
		if r := h.run("", line); r.code == 0 {
			t.Errorf("%q was accepted", line)
		}
	}
}

// TestContextsOutOfReach: where the user's directory cannot be looked into, as in services and under sudo, there are no contexts, and
// where an address is given they are not needed.
func TestContextsOutOfReach(t *testing.T) {
	h, f := newAtHome(t), newAgentFake(t)
	f.answers["GET /v1/jobs"] = func(*http.Request) any { return []*wire.JobListStub{} }
	file := filepath.Join(h.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CONFIG_HOME", file)
	if r := h.run("", "job status"); strings.Contains(r.errOut, "contexts") {
		t.Errorf("a directory that is none: %s", r.errOut)
	}
	t.Setenv("XDG_CONFIG_HOME", h.dir)
	h.want("context add prod -use -address http://127.0.0.1:1")
	if err := os.WriteFile(filepath.Join(h.dir, "muster/contexts.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := h.run("", "job status"); r.code == 0 || !strings.Contains(r.errOut, `-context ""`) {
		t.Errorf("a broken file: %s", r.errOut)
	}
	h.want("job status -address " + f.URL)
}

// TestContextPrecedence: the value of an option is that of the flag, of MUSTER_x, of the context, of NOMAD_x, and the default,
// in this order, as a request shows.
func TestContextPrecedence(t *testing.T) {
	h, f, other := newAtHome(t), newAgentFake(t), newAgentFake(t)
	var got *http.Request
	for _, f := range []*agentFake{f, other} {
		f.answers["GET /v1/jobs"] = func(r *http.Request) any { got = r; return []*wire.JobListStub{{ID: "x"}} }
	}
	h.want("context add prod -use -token from-context -namespace of-context -region r-context -address " + f.URL)
	h.want("context add bare -address " + f.URL)
	for _, c := range []struct {
		set                      map[string]string
		line                     string
		token, namespace, region string
	}{
		{nil, "", "from-context", "of-context", "r-context"},
		{map[string]string{"NOMAD_ADDR": "http://127.0.0.1:1", "NOMAD_TOKEN": "n", "NOMAD_NAMESPACE": "nn", "NOMAD_REGION": "nr"}, "", "from-context", "of-context", "r-context"},
		{map[string]string{"MUSTER_TOKEN": "m", "MUSTER_NAMESPACE": "mm", "MUSTER_REGION": "mr"}, "", "m", "mm", "mr"},
		{map[string]string{"MUSTER_TOKEN": "m", "MUSTER_NAMESPACE": "mm"}, "-token f -namespace fn -region fr", "f", "fn", "fr"},
		{map[string]string{"NOMAD_TOKEN": "n", "NOMAD_NAMESPACE": "nn", "NOMAD_REGION": "nr"}, "-context bare", "", "", ""}, // NOMAD_ADDR is for another cluster
		{map[string]string{"MUSTER_CONTEXT": "bare"}, "", "", "", ""},
		{map[string]string{"MUSTER_CONTEXT": "bare"}, "-context prod", "from-context", "of-context", "r-context"},
		{map[string]string{"MUSTER_ADDR": f.URL}, "", "from-context", "of-context", "r-context"}, // the context's own address
		{map[string]string{"NOMAD_ADDR": f.URL, "NOMAD_TOKEN": "n"}, "-context=", "n", "", ""},   // no context
		// Another cluster's address sets the current context aside: its token is not sent there.
		{map[string]string{"MUSTER_ADDR": other.URL}, "", "", "", ""},
		{nil, "-address " + other.URL, "", "", ""},
		{map[string]string{"MUSTER_CONTEXT": "prod"}, "-address " + other.URL, "", "", ""},
		{nil, "-context prod -address " + other.URL, "from-context", "of-context", "r-context"}, // both are named
		{map[string]string{"MUSTER_ADDR": f.URL + "/"}, "", "from-context", "of-context", "r-context"},
		// -context goes to that context's cluster, and what is for another one stays here.
		{map[string]string{"MUSTER_ADDR": other.URL, "MUSTER_TOKEN": "m", "MUSTER_NAMESPACE": "mm"}, "-context prod", "from-context", "of-context", "r-context"},
	} {
		t.Run("", func(t *testing.T) {
			got = nil
			for k, v := range c.set {
				t.Setenv(k, v)
			}
			r := h.run("", "job status "+c.line)
			if r.code != 0 || got == nil {
				t.Fatalf("%v %q: exit status %d: %s", c.set, c.line, r.code, r.errOut)
			}
			q := got.URL.Query()
			if got.Header.Get("X-Nomad-Token") != c.token || q.Get("namespace") != c.namespace || q.Get("region") != c.region {
				t.Errorf("%v %q: token %q, namespace %q, region %q; want %q, %q, %q", c.set, c.line, got.Header.Get("X-Nomad-Token"), q.Get("namespace"), q.Get("region"), c.token, c.namespace, c.region)
			}
		})
	}
}

// TestContextFilesArePrivate: what contexts keep is for their user only, and what others may read is refused with the cure. A
// command that asks no agent works all the same.
func TestContextFilesArePrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("not run: files have no mode")
	}
	h, f := newAtHome(t), newAgentFake(t)
	h.want("context add -use -token secret-1 prod -address " + f.URL)
	book, token := filepath.Join(h.dir, "muster/contexts.json"), h.tokens()[0]
	for path, mode := range map[string]fs.FileMode{book: 0o600, token: 0o600, filepath.Dir(book): 0o700, filepath.Dir(token): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want mode %o", path, info.Mode(), err, mode)
		}
	}
	if b, _ := os.ReadFile(book); strings.Contains(string(b), "secret-1") {
		t.Errorf("the token is in the file of contexts: %s", b)
	}
	for _, path := range []string{book, token} {
		for _, mode := range []fs.FileMode{0o640, 0o604, 0o620} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			r := h.run("", "job status")
			if r.code != exitError || !strings.Contains(r.errOut, "chmod 600 "+path) || f.log() != "" {
				t.Errorf("%s with mode %o: exit status %d, %q, asked %q", path, mode, r.code, r.errOut, f.log())
			}
			h.want("version")
			h.want("job status -context= -address " + f.URL)
			f.mu.Lock()
			f.requests = nil
			f.mu.Unlock()
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.want("job status")

	named := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(named, []byte("secret-2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := h.run("", "context add other -address http://h:1 -token-file "+named); r.code != exitError || !strings.Contains(r.errOut, "chmod 600 "+named) {
		t.Errorf("a token file that others read: exit status %d, %q", r.code, r.errOut)
	}
}

// TestContextCommands follows a user through the commands.
func TestContextCommands(t *testing.T) {
	h := newAtHome(t)
	if out := h.want("context list"); !strings.HasPrefix(out, "No contexts") {
		t.Error(out)
	}
	if r := h.run("", "job status"); strings.Contains(r.errOut, "(context") {
		t.Errorf("without a context one is named: %s", r.errOut)
	}
	r := h.run("secret-3\n", "context add prod -address http://127.0.0.1:1 -namespace ml -ca-cert ca.pem -token-file -")
	if r.code != 0 || !strings.Contains(r.errOut, "muster context use prod") {
		t.Fatal(r)
	}
	h.want("context add lab -address unix:///run/muster.sock -tls-skip-verify")
	if out := h.want("context show -q"); out != "" {
		t.Errorf("no context is current, and a prompt shows %q", out)
	}
	h.want("context use prod")
	if out := h.want("context show -q"); out != "prod\n" {
		t.Errorf("a prompt shows %q", out)
	}
	list := h.want("context list")
	for _, line := range []string{"*  prod  http://127.0.0.1:1       ml", "   lab   unix:///run/muster.sock"} {
		if !strings.Contains(list, line) {
			t.Errorf("no line %q in\n%s", line, list)
		}
	}
	show := h.want("context show -region eu")
	for _, line := range []string{`http://127.0.0.1:1  (context "prod")`, `(set)  (context "prod")`, "eu  (-region)"} {
		if !strings.Contains(show, line) {
			t.Errorf("no %q in\n%s", line, show)
		}
	}
	abs, _ := filepath.Abs("ca.pem")
	if out := h.want("context show prod"); !strings.Contains(out, abs) {
		t.Errorf("a relative file is not made absolute:\n%s", out)
	}
	for _, line := range []string{"context list -json", "context list -o wide", "context show -json", "context show prod", "context show prod -json"} {
		if out := h.want(line); strings.Contains(out, "secret-3") {
			t.Errorf("%s prints the token:\n%s", line, out)
		}
	}
	if r := h.run("", "job status -ca-cert ../../go.mod -address http://127.0.0.1:1"); r.code != exitError || !strings.Contains(r.errOut, `http://127.0.0.1:1 (context "prod")`) {
		t.Errorf("the context of an agent that does not answer is not named: %q", r.errOut)
	}
	for line, want := range map[string]string{
		"context use prdo":                                         `there is no context "prdo"; did you mean "prod"?`,
		"job status -context nope":                                 `there is no context "nope"`,
		"context use":                                              "name a context",
		"context use -none lab":                                    "name a context",
		"context add prod -address http://h:1":                     "-replace",
		"context add x":                                            "give -address",
		"context add x -address ftp://h":                           "is not usable",
		"context add ../x -address http://h:1":                     "is no name of a context",
		"context add x -address http://h:1 -token a -token-file b": "exclude each other",
		"context remove nope":                                      `there is no context "nope"`,
	} {
		if r := h.run("", line); r.code != exitError || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: exit status %d, %q; want %q", line, r.code, r.errOut, want)
		}
	}
	if got := inNamespace("ml"); got != "" {
		t.Errorf("an option that the context gives: %q", got)
	}
	for _, args := range [][]string{{"context", "use", ""}, {"job", "status", "-context", ""}} {
		var out bytes.Buffer
		e := &env{in: strings.NewReader(""), out: &out, err: new(bytes.Buffer), now: time.Now}
		if code := e.main(t.Context(), append([]string{"muster", "__complete"}, args...)); code != 0 || !strings.HasPrefix(out.String(), "lab\nprod\n") {
			t.Errorf("completion of %q offers %q", args, out.String())
		}
	}
	h.want("context add prod -replace -address http://127.0.0.1:2")
	if _, err := os.Stat(filepath.Join(h.dir, "muster/tokens/prod")); err == nil {
		t.Error("the token of a context that was replaced is still there")
	}
	if out := h.want("context show prod"); strings.Contains(out, "ml") || !strings.Contains(out, "127.0.0.1:2") {
		t.Errorf("a context that was replaced:\n%s", out)
	}
	h.want("context use -none")
	if out := h.want("context show -q"); out != "" {
		t.Errorf("no context is current any more, and a prompt shows %q", out)
	}
	h.want("context use lab")
	if r := h.run("", "context remove lab"); r.code != 0 || !strings.Contains(r.errOut, "now there is none") {
		t.Error(r)
	}
	if out := h.want("context list -q"); out != "prod\n" {
		t.Errorf("left are %q", out)
	}
	if err := os.WriteFile(filepath.Join(h.dir, "muster/contexts.json"), []byte(`{"Contexts":{"a":{"adress":"x"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := h.run("", "context list"); r.code != exitError || !strings.Contains(r.errOut, `unknown setting "adress"`) {
		t.Errorf("a setting that does not exist: %q", r.errOut)
	}
}
