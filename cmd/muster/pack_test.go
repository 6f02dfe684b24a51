package main

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// tree makes a directory of files: a name ends with /, or is followed by -> and the target of a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		at := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		switch target, link := strings.CutPrefix(content, "-> "); {
		case err != nil:
		case link:
			err = os.Symlink(target, at)
		default:
			err = os.WriteFile(at, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// entries lists what is in a bundle.
func (p *packed) entries(t *testing.T) (names []string) {
	t.Helper()
	z, err := gzip.NewReader(io.NewSectionReader(p.f, 0, p.size))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Linkname != "" {
			h.Name += " -> " + h.Linkname
		}
		names = append(names, h.Name)
	}
}

func TestPack(t *testing.T) {
	for _, c := range []struct {
		what  string
		files map[string]string
		want  []string // entries, or one that begins with ! and is part of the error
		left  []string
	}{
		{"files, directories and links", map[string]string{"a.py": "1", "pkg/b.py": "2", "pkg/c": "-> b.py", "pkg/up": "-> ../a.py"}, []string{"a.py", "pkg/", "pkg/b.py", "pkg/c -> b.py", "pkg/up -> ../a.py"}, nil},
		{"what is made again, and secrets", map[string]string{"a.py": "1", ".git/HEAD": "x", "pkg/__pycache__/b.pyc": "x", ".venv/bin/python": "x", ".env": "TOKEN=1", "conf/tls-key.pem": "x", ".config": "y"},
			[]string{".config", "a.py", "conf/", "pkg/"}, []string{".env", "conf/tls-key.pem"}},
		{".gitignore, in each directory", map[string]string{".gitignore": "*.pt\n/data/\n# no\n\n!keep.pt\n", "a.pt": "x", "sub/keep.pt": "k", "data/x": "x", "sub/data/y": "y", "sub/.gitignore": "y\n"},
			[]string{".gitignore", "sub/", "sub/.gitignore", "sub/data/", "sub/keep.pt"}, nil},
		{".musterignore instead of them", map[string]string{".musterignore": "b\n!.env\n", ".gitignore": "a\n", "a": "1", "b": "2", ".env": "X=1"}, []string{".env", ".gitignore", ".musterignore", "a"}, nil},
		{"a link that leads out", map[string]string{"a": "1", "data": "-> /shared/data"}, []string{"!data is a link to /shared/data, which is outside the directory"}, nil},
		{"a link that leads up", map[string]string{"a": "1", "sub/x": "-> ../../y"}, []string{"!sub/x is a link to ../../y, which is outside"}, nil},
		{"nothing", map[string]string{".git/HEAD": "x"}, []string{"!has no files to send"}, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			p, err := pack(tree(t, c.files), structs.BundleMax)
			if bad, ok := strings.CutPrefix(c.want[0], "!"); ok {
				if err == nil || !strings.Contains(err.Error(), bad) {
					t.Errorf("%v, want %q", err, bad)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer p.f.Close()
			got := p.entries(t)
			slices.Sort(got)
			if !slices.Equal(got, c.want) || !slices.Equal(p.left, c.left) {
				t.Errorf("packed %q, left out %q", got, p.left)
			}
		})
	}

	// The same files have the same name, wherever they are and whenever they were written; other content has another.
	files := map[string]string{"a.py": "1", "pkg/b.py": "2"}
	dir := tree(t, files)
	sum := func(dir string) string {
		t.Helper()
		p, err := pack(dir, structs.BundleMax)
		if err != nil {
			t.Fatal(err)
		}
		p.f.Close()
		return p.sum
	}
	first := sum(dir)
	old := time.Unix(1_000_000_000, 0)
	if err := os.Chtimes(filepath.Join(dir, "a.py"), old, old); err != nil {
		t.Fatal(err)
	}
	if again, elsewhere := sum(dir), sum(tree(t, files)); again != first || elsewhere != first {
		t.Errorf("%s, then %s, and elsewhere %s", first, again, elsewhere)
	}
	if err := os.Chmod(filepath.Join(dir, "a.py"), 0o755); err != nil {
		t.Fatal(err)
	}
	if sum(dir) == first {
		t.Error("a file that became executable changes nothing")
	}

	_, err := pack(tree(t, map[string]string{"small": "1", "models/big.pt": strings.Repeat("0123456789abcdef", 1000)}), 100)
	if err == nil || !strings.Contains(err.Error(), "largest: models 15.6 KiB, small 1 B") || !strings.Contains(err.Error(), ".musterignore") {
		t.Errorf("too large: %v", err)
	}
}

// TestRunPack: the directory is sent before the job, unless the servers have it, and the job fetches it and begins in it.
func TestRunPack(t *testing.T) {
	dir := tree(t, map[string]string{"train.py": "print(1)"})
	p, err := pack(dir, structs.BundleMax)
	if err != nil {
		t.Fatal(err)
	}
	p.f.Close()
	at := "/v1/bundle/" + p.sum
	agent := newAgentFake(t)
	agent.whole = true
	sent := func(line string) (bodies []string) {
		for _, r := range agent.requests {
			if body, ok := strings.CutPrefix(r, line+" "); ok {
				bodies = append(bodies, body)
			}
		}
		return bodies
	}
	agent.answers["GET /v1/nodes"] = runNodes("exec raw_exec")
	agent.answers["GET "+at] = failure{http.StatusNotFound, "no server keeps it"}
	agent.answers["PUT "+at] = map[string]any{"Size": p.size, "Copies": 3}
	r := agent.run(t, "", "run", "-output", "-pack", "-dir", dir, "-no-env", "--", "python3", "train.py")
	name := filepath.Base(dir)
	for _, want := range []string{`driver   = "exec"`, `work_dir = "${NOMAD_TASK_DIR}/` + name + `"`, `source      = "muster://bundle/` + p.sum + `"`, `destination = "local/` + name + `"`} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %s in\n%s%s", want, r.out, r.errOut)
		}
	}
	if got := sent("PUT " + at); r.code != 0 || len(got) != 1 || int64(len(got[0])) != p.size {
		t.Errorf("exit %d, sent %d times: %s", r.code, len(got), r.errOut)
	}
	agent.answers["GET "+at] = map[string]any{"Size": p.size}
	if r := agent.run(t, "", "run", "-output", "-pack", "-dir", dir, "--", "python3", "train.py"); r.code != 0 || len(sent("PUT "+at)) != 1 || !strings.Contains(r.errOut, "already") {
		t.Errorf("exit %d, sent %d times: %s", r.code, len(sent("PUT "+at)), r.errOut)
	}
	agent.answers["GET "+at] = failure{http.StatusForbidden, "Permission denied"}
	if r := agent.run(t, "", "run", "-pack", "-dir", dir, "--", "python3", "train.py"); r.code != 1 || !strings.Contains(r.errOut, "Permission denied") || len(sent("PUT /v1/jobs")) != 0 {
		t.Errorf("exit %d: %s", r.code, r.errOut)
	}
}
