package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/keystore"
	"github.com/muster-sched/muster/structs"
)

func keyList(t *testing.T, s *Server) []methods.SealKeyInfo {
	t.Helper()
	return call(t, s, methods.SealKeyList, rpc.Header{}, &methods.ListRequest{}).Keys
}

func rotate(t *testing.T, s *Server, full bool) string {
	t.Helper()
	r := call(t, s, methods.SealKeyRotate, rpc.Header{}, &methods.SealKeyRotateRequest{Full: full})
	if r.Key.State != keystore.StateActive || r.Key.CreateTime == 0 || r.Index == 0 || s.Published().Snapshot.ActiveSealKey() != r.Key.ID {
		t.Fatalf("rotated: %+v", r)
	}
	return r.Key.ID
}

// A rotation on one server: which variables are sealed with which key, which keys may be removed, and what a restart
// and an older snapshot find.
func TestRotateKey(t *testing.T) {
	dir := t.TempDir()
	s, stop := diskServer(t, dir, nil)
	defer func() { stop() }()
	if got := keyList(t, s); len(got) != 0 {
		t.Errorf("keys before the first variable: %+v", got)
	}
	a := setVariable(t, s, "", "a", map[string]string{"k": "one"})
	first := s.Published().Snapshot.ActiveSealKey()
	archive := saveArchive(t, s)
	second := rotate(t, s, false)
	setVariable(t, s, "", "b", map[string]string{"k": "two"})
	remove := func(id string) error {
		_, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.SealKeyDelete, rpc.Header{}, &methods.NameRequest{Name: id})
		return err
	}
	want := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, k := range keyList(t, s) {
			name := map[string]string{first: "first", second: "second"}[k.ID]
			got = append(got, fmt.Sprintf("%s %s %d", name, k.State, k.Variables))
		}
		if strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("%s: keys are %q, want %q", when, got, want)
		}
	}
	want("after a rotation", "first inactive 1", "second active 1")
	for id, code := range map[string]structs.ErrorCode{first: structs.CodeConflict, second: structs.CodeConflict, "nope": structs.CodeNotFound} {
		if err := remove(id); structs.CodeOf(err) != code {
			t.Errorf("removing %s: %v", id, err)
		}
	}
	third := rotate(t, s, true)
	moved := func() bool { return keyList(t, s)[2].Variables == 2 }
	waitFor(t, 20*time.Second, "variables to be sealed anew", moved)
	want("after a full rotation", "first inactive 0", "second inactive 0", " active 2")
	if got := getVariable(t, s, "", "a"); got.Items["k"] != "one" || got.VariableMeta != a.VariableMeta {
		t.Errorf("sealed anew: %+v, written as %+v", got, a)
	}
	if err := remove(second); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "keystore", second+".key")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file of a removed key: %v", err)
	}
	stop()
	s, stop = diskServer(t, dir, nil)
	if got := getVariable(t, s, "", "b"); got.Items["k"] != "two" || s.Published().Snapshot.ActiveSealKey() != third {
		t.Errorf("after a restart: %+v", got)
	}
	want("after a restart", "first inactive 0", " active 2")
	// In a snapshot from before the rotation, the first key is active.
	if err := restoreArchive(t, s, archive); err != nil {
		t.Fatal(err)
	}
	want("after a restore", "first active 1")
	if got := getVariable(t, s, "", "a"); got.Items["k"] != "one" {
		t.Errorf("after a restore: %+v", got)
	}
	setVariable(t, s, "", "c", map[string]string{"k": "three"})
	// A key that no server has: its variables wait, and are resealed once its file is back.
	file := filepath.Join(dir, "keystore", first+".key")
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	stop()
	s, stop = diskServer(t, dir, nil)
	last := rotate(t, s, true)
	setVariable(t, s, "", "c", map[string]string{"k": "four"})
	want("without its file", "first rekeying 1", " active 1")
	if err := os.Rename(file+".away", file); err != nil {
		t.Fatal(err)
	}
	if got := getVariable(t, s, "", "a"); got.Items["k"] != "one" {
		t.Errorf("with its file back: %+v", got)
	}
	stop() // a new leader looks at once; this one would within half a minute
	s, stop = diskServer(t, dir, nil)
	waitFor(t, 20*time.Second, "the rest to be sealed anew", func() bool {
		v := s.Published().Snapshot.Variable("default", "a")
		return v != nil && v.KeyID == last
	})
}

// A full rotation continues under another leader and over a restart of all servers. It is refused while a server lacks
// the key, and what is written meanwhile is sealed with the new key.
func TestRotateKeyOutlivesTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(_ int, cfg *Config) { cfg.InMemory, cfg.DataDir = false, t.TempDir() })
		const n = 60
		big := strings.Repeat("x", structs.VariableSizeMax-100) // so that a few of them fill a batch
		set := func(i int, path, value string) {
			t.Helper()
			if err := c.call(i, func(ctx context.Context, to rpc.Caller) error {
				_, err := rpc.Invoke(ctx, to, methods.VariableSet, rpc.Header{}, &methods.VariableSetRequest{Path: path, Items: map[string]string{"k": value, "big": big}})
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		name := func(i int) string { return fmt.Sprintf("app/v%02d", i) }
		lead := c.leader()
		for i := range n {
			set(lead, name(i), fmt.Sprint(i))
		}
		rotate := func(i int) error {
			return c.call(i, func(ctx context.Context, to rpc.Caller) error {
				_, err := rpc.Invoke(ctx, to, methods.SealKeyRotate, rpc.Header{}, &methods.SealKeyRotateRequest{Full: true})
				return err
			})
		}
		first := c.servers[lead].Published().Snapshot.ActiveSealKey()
		away := (lead + 1) % 3
		c.net.Isolate(hostName(away))
		if err := rotate(lead); structs.CodeOf(err) != structs.CodeUnavailable {
			t.Errorf("rotated with a server away: %v", err)
		}
		if got := c.servers[lead].Published().Snapshot.ActiveSealKey(); got != first {
			t.Errorf("a refused rotation changed the key from %s to %s", first, got)
		}
		for i, s := range c.servers {
			if files, err := os.ReadDir(filepath.Join(s.cfg.DataDir, "keystore")); err != nil || i != away && len(files) != 1 {
				t.Errorf("server %d has the files %v after a refused rotation: %v", i, files, err)
			}
		}
		c.net.Heal()
		time.Sleep(time.Minute)
		c.converge()
		lead = c.leader()
		c.net.SetDelay(5 * time.Millisecond) // every batch takes time, so that the leader ends between two
		if err := rotate(lead); err != nil {
			t.Fatal(err)
		}
		active := c.servers[lead].Published().Snapshot.ActiveSealKey()
		for i, s := range c.servers {
			if key, err := s.keys.Get(active); key == nil || err != nil {
				t.Errorf("server %d lacks the key that is used: %v", i, err)
			}
		}
		left := func(i int) (old int) {
			for v := range c.servers[i].Published().Snapshot.Variables("*", "") {
				if v.KeyID != active {
					old++
				}
			}
			return old
		}
		next := (lead + 1) % 3
		for left(next) == n {
			time.Sleep(time.Millisecond)
		}
		c.net.Kill(hostName(lead))
		at := left(next) // the next leader may have sealed all by the time that this one has stopped
		c.stops[lead]()
		if at == 0 {
			t.Error("the leader died after all was done: the test shows nothing")
		} else {
			t.Logf("%d of %d variables were left when the leader died", at, n)
		}
		next = c.leader(lead)
		set(next, name(0), "again")
		for _, i := range []int{0, 1, 2} { // all servers restart
			if i != lead {
				c.net.Kill(hostName(i))
				c.stops[i]()
			}
		}
		for i := range c.servers {
			c.net.Revive(hostName(i))
			c.start(i)
		}
		next = c.leader()
		end := time.Now().Add(2 * time.Minute)
		for left(next) > 0 && time.Now().Before(end) {
			time.Sleep(100 * time.Millisecond)
		}
		c.converge()
		for i := range c.servers {
			if got := left(i); got != 0 {
				t.Errorf("server %d has %d variables under the old key", i, got)
			}
		}
		for i := range n {
			want := fmt.Sprint(i)
			if i == 0 {
				want = "again"
			}
			if err := c.call(i%3, func(ctx context.Context, to rpc.Caller) error {
				r, err := rpc.Invoke(ctx, to, methods.VariableGet, rpc.Header{}, &methods.VariableGetRequest{Path: name(i)})
				if err == nil && (r.Variable == nil || r.Variable.Items["k"] != want || r.Variable.Items["big"] != big) {
					t.Errorf("%s is not as it was written", name(i))
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.call(next, func(ctx context.Context, to rpc.Caller) error {
			_, err := rpc.Invoke(ctx, to, methods.SealKeyDelete, rpc.Header{}, &methods.NameRequest{Name: first})
			return err
		}); err != nil {
			t.Errorf("removing the old key: %v", err)
		}
		c.converge()
		for i, s := range c.servers {
			if key, _ := s.keys.Get(first); key != nil {
				t.Errorf("server %d still has the removed key", i)
			}
		}
	})
}

// The list of keys names the servers that lack the file of a key, though they have it in memory, and those that did not
// answer.
func TestMissingKeyFilesAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(_ int, cfg *Config) { cfg.InMemory, cfg.DataDir = false, t.TempDir() })
		lead := c.leader()
		other, third := (lead+1)%3, (lead+2)%3
		setVariable(t, c.servers[lead], "", "a", map[string]string{"k": "v"})
		id := c.servers[lead].Published().Snapshot.ActiveSealKey()
		want := func(what string, missing, unknown []string) {
			t.Helper()
			keys := keyList(t, c.servers[lead])
			if len(keys) != 1 || !slices.Equal(keys[0].Missing, missing) || !slices.Equal(keys[0].Unknown, unknown) {
				t.Errorf("%s: %+v, want missing on %v, unknown of %v", what, keys, missing, unknown)
			}
		}
		file := func(i int) string { return filepath.Join(c.cfgs[i].DataDir, "keystore", id+".key") }
		want("every server has the file", nil, nil)
		text, err := os.ReadFile(file(other))
		if err != nil {
			t.Fatal(err)
		}
		write := func(i int, b []byte) {
			t.Helper()
			if err := os.WriteFile(file(i), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(os.Remove(file(other)), os.Remove(file(lead))); err != nil {
			t.Fatal(err)
		}
		both := []string{hostName(lead), hostName(other)}
		slices.Sort(both)
		want("two files are deleted", both, nil)
		write(lead, text)
		write(other, []byte("damaged"))
		want("a file is damaged", []string{hostName(other)}, nil)
		write(other, text)
		want("the files are back", nil, nil)
		c.net.Isolate(hostName(third))
		want("a server does not answer", nil, []string{hostName(third)})
	})
}
