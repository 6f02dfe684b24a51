package structs

import (
	"path/filepath"
	"strings"
	"testing"
)

// FuzzNames checks the names that users choose. A name that is accepted is what its place needs: one component of a
// path, a host's name, a path without empty parts; and no refusal repeats a long name.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"main", ".fetch", "..", "a/b", "nomad/jobs/x/y/z", "research/nlp", "logs/%4t.out", "1024:unlimited", "0027", "node-1.example", "ünïcode", "a\x00b", "00000000-0000-0000-0000-000000000001"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if CheckTaskName(s) == nil && (filepath.Base(s) != s || !filepath.IsLocal(s) || s[0] == '.' || strings.ContainsRune(s, 0)) {
			t.Fatalf("task %q is no file's name", s)
		}
		if err := CheckVariablePath(s); err == nil && (strings.Contains("/"+s+"/", "//") || len(s) > VariablePathMax) {
			t.Fatalf("variable %q", s)
		}
		if CheckQueuePath(QueuePath(s)) == nil && (strings.Contains("/"+s+"/", "//") || strings.ContainsAny(s, ".\\ \x00")) {
			t.Fatalf("queue %q", s)
		}
		if CheckHostname(s) == nil && (strings.Contains("."+s+".", "..") || strings.Contains("."+s+".", ".-") || strings.ContainsAny(s, "/_ \x00")) {
			t.Fatalf("host %q", s)
		}
		if err := CheckHostname(s); err != nil && len(err.Error()) > 1024 {
			t.Fatalf("a refusal of %d bytes", len(err.Error()))
		}
		if CheckLogPath(s) == nil {
			if out, err := ExpandPath(s, func(byte) (string, bool) { return "7", true }); err != nil || len(out) > 10*len(s) {
				t.Fatalf("log path %q becomes %d bytes, %v", s, len(out), err)
			}
		}
		if soft, hard, err := ParseUlimit("nofile", s); err == nil && soft > hard {
			t.Fatalf("limit %q is %d:%d", s, soft, hard)
		}
		if n, err := ParseUmask(s); err == nil && n > 0o777 {
			t.Fatalf("umask %q is %o", s, n)
		}
		if id, err := ParseID[AllocID](s); err == nil && id != (AllocID{}) {
			if again, err := ParseID[AllocID](id.String()); err != nil || again != id || !strings.EqualFold(id.String(), s) {
				t.Fatalf("id %q is %s, and that is %s, %v", s, id, again, err)
			}
		}
	})
}
