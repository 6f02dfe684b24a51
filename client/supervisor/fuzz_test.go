package supervisor

import (
	"bytes"
	"encoding/gob"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/client/supervisor/launch"
)

// FuzzTaskFile reads any bytes as the file of a task. What is read is the task of that name, and an appended line is
// read after a line that a crash has torn.
func FuzzTaskFile(f *testing.F) {
	for _, l := range []line{{Memory: &memory{ID: "task", PID: 7}}, {Result: &Exit{Code: 3}}} {
		b, err := l.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(make([]byte, launch.RecordSize), b...))
	}
	f.Add([]byte(`{"Memory":{"ID":"oth`))
	path := filepath.Join(f.TempDir(), "task")
	f.Fuzz(func(t *testing.T, b []byte) {
		launch.ParseRecord(b)
		if len(b) > fileMax/2 {
			return
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if m, _, err := load(path); err == nil && m.ID != "task" {
			t.Fatalf("task %q was read from the file of another", m.ID)
		}
		if len(b) < launch.RecordSize {
			return // the file begins with the record
		}
		next := line{Memory: &memory{ID: "task", PID: 7}, Result: &Exit{Code: 3}}
		text, err := next.encode()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(b, text...), 0o600); err != nil {
			t.Fatal(err)
		}
		if m, r, err := load(path); err != nil || m.PID != 7 || r == nil || r.Code != 3 {
			t.Fatalf("an appended line was not read: %+v %+v %v", m, r, err)
		}
	})
}

// FuzzSpec decodes any bytes as the argument of a Start call. A specification that passes Check has a legal name and
// absolute paths without zero bytes, and a program for the launcher can be built from it.
func FuzzSpec(f *testing.F) {
	add := func(s Spec) {
		var b bytes.Buffer
		if err := gob.NewEncoder(&b).Encode(s); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	add(Spec{ID: "a", Path: "/bin/true", Argv: []string{"true"}, Dir: "/"})
	add(Spec{ID: "a", Path: "/bin/true", Argv: []string{"true"}, Dir: "/", Env: []string{"A=b"}, User: &Credential{UID: 1, GID: 1, Groups: []uint32{2}},
		Isolate: &Isolation{TmpDir: "/t", AllocRoot: "/a", Volumes: []Volume{{Source: "/v", Stage: "/a/v", Target: "/w", Make: true}}, Files: []File{{Source: "/a/f", Target: "/f"}}},
		Stdout:  Log{Base: "/l", MaxFiles: 1, MaxSize: 1}, Posture: Posture{Rlimits: []Rlimit{{1, 2, 3}}}, Lease: &Lease{Group: "g", Limit: 1}})
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Spec
		if gob.NewDecoder(bytes.NewReader(b)).Decode(&s) != nil || s.Check() != nil {
			return
		}
		if strings.ContainsAny(s.ID, "/\x00") || s.ID[0] == '.' || !filepath.IsAbs(s.Path) || strings.ContainsRune(strings.Join(s.Env, ""), 0) {
			t.Fatalf("accepted: %+v", s)
		}
		if s.Isolate == nil && s.NetNS == "" {
			s.program(cgroup.Group{})
		}
	})
}
