package gossip

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/memnet"
	"github.com/muster-sched/muster/internal/powercut"
)

var nextKey = []byte("fedcba9876543210fedcba9876543210")

func sameKeys(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }

// keeper starts a member whose configuration has key, and which keeps its keys in a file.
func keeper(t *testing.T, n *memnet.Network, file string, log hclog.Logger) (*Gossip, error) {
	t.Helper()
	tr, err := n.Host("a").Gossip(4648)
	if err != nil {
		t.Fatal(err)
	}
	return Start(Config{Name: "a", Meta: Meta{Role: RoleServer, Region: "global", ID: "a"}, Transport: tr, Key: key, KeyFile: file, Log: log})
}

// TestKeysSurviveARestart: once keys were changed, a restart has those of the file, not that of the configuration. So a
// key that was removed stays removed. Nothing that is logged holds a key.
func TestKeysSurviveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, file := memnet.New(), filepath.Join(t.TempDir(), "gossip.keyring")
		var out bytes.Buffer
		log := hclog.New(&hclog.LoggerOptions{Output: &out, Level: hclog.Trace})
		want := [][]byte{key}
		for _, step := range []struct {
			name   string
			do     func(*Gossip) error
			after  [][]byte
			warned string // by the start after it; "" for nothing
		}{
			{"nothing", func(*Gossip) error { return nil }, [][]byte{key}, ""},
			{"a key of a wrong length", func(g *Gossip) error {
				if g.InstallKey([]byte("short")) == nil {
					return errors.New("it was installed")
				}
				return nil
			}, [][]byte{key}, ""},
			{"install", func(g *Gossip) error { return g.InstallKey(nextKey) }, [][]byte{key, nextKey}, ""},
			{"use", func(g *Gossip) error { return g.UseKey(nextKey) }, [][]byte{nextKey, key}, `configured_key_accepted=true`},
			{"remove", func(g *Gossip) error { return g.RemoveKey(key) }, [][]byte{nextKey}, `configured_key_accepted=false`},
		} {
			out.Reset()
			g, err := keeper(t, n, file, log)
			if err != nil {
				t.Fatal(err)
			}
			if got := g.Keys(); !sameKeys(got, want) {
				t.Fatalf("before %s: keys %q, want %q", step.name, got, want)
			}
			if err := step.do(g); err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
			_, missing := os.Stat(file)
			if changed := len(step.after) > 1 || !sameKeys(step.after, [][]byte{key}); changed == os.IsNotExist(missing) {
				t.Errorf("after %s: the file: %v", step.name, missing)
			}
			n.PowerOff("a") // without leaving
			g.Close()
			time.Sleep(time.Minute)
			n.Revive("a")
			out.Reset()
			g, err = keeper(t, n, file, log)
			if err != nil {
				t.Fatal(err)
			}
			if got := g.Keys(); !sameKeys(got, step.after) {
				t.Errorf("after %s and a restart: keys %q, want %q", step.name, got, step.after)
			}
			if got := out.String(); step.warned == "" && strings.Contains(got, "server.encrypt") || !strings.Contains(got, step.warned) || step.warned != "" && !strings.Contains(got, file) {
				t.Errorf("after %s the start logs, want %q and the file:\n%s", step.name, step.warned, got)
			}
			for _, k := range [][]byte{key, nextKey} {
				if got := out.String(); strings.Contains(got, string(k)) || strings.Contains(got, base64.StdEncoding.EncodeToString(k)) {
					t.Errorf("a key is in the log:\n%s", got)
				}
			}
			g.Close()
			time.Sleep(time.Minute)
			want = step.after
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the file of the keys: %v, %v", info, err)
		}
	})
}

// TestKeysThatCannotBeKept: when the file cannot be written, the keys stay as they are, in memory too.
func TestKeysThatCannotBeKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := keeper(t, memnet.New(), filepath.Join(t.TempDir(), "missing", "gossip.keyring"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.InstallKey(nextKey); err == nil || !strings.Contains(err.Error(), "gossip.keyring") {
			t.Errorf("the key was installed, and a restart would lose it: %v", err)
		}
		if got := g.Keys(); !sameKeys(got, [][]byte{key}) {
			t.Errorf("keys: %q", got)
		}
		g.Close()
		time.Sleep(time.Minute)
	})
}

func TestDamagedKeyFile(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "no key": "[]", "null": "null", "cut": `["MDEyMzQ1Njc4OWFiY2RlZg==`, "no base64": `["%%%"]`, "short key": `["c2VjcmV0"]`, "another shape": `{"Keys": []}`,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "gossip.keyring")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Start(Config{Name: "a", Meta: Meta{Role: RoleServer, Region: "global"}, BindAddr: "127.0.0.1", Key: key, KeyFile: file})
			if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "copy the file from another server") || strings.Contains(err.Error(), "c2VjcmV0") {
				t.Errorf("start with %q: %v", text, err)
			}
		})
	}
}

// TestPowerCutOfKeys: a kill or a power cut at any write leaves keys of before or after the change, and those that were
// acknowledged are there.
func TestPowerCutOfKeys(t *testing.T) {
	open := func(dir string) (*Gossip, error) {
		cfg := Config{Key: key, KeyFile: filepath.Join(dir, "gossip.keyring"), Log: hclog.NewNullLogger()}
		ring, err := keyring(&cfg)
		return &Gossip{cfg: cfg, ring: ring}, err
	}
	states := [][][]byte{{key}, {key, nextKey}, {nextKey, key}, {nextKey}}
	powercut.Record(t, t.TempDir(), func(dir string) error {
		g, err := open(dir)
		if err != nil {
			return err
		}
		for i, do := range []func() error{func() error { return g.InstallKey(nextKey) }, func() error { return g.UseKey(nextKey) }, func() error { return g.RemoveKey(key) }} {
			if err := do(); err != nil {
				return err
			}
			powercut.Ack("%d", i+1)
		}
		return nil
	}).Restart(t, func(dir string, acked []string) error {
		g, err := open(dir)
		if err != nil {
			return err
		}
		done := len(acked)
		if got := g.Keys(); !sameKeys(got, states[done]) && (done+1 == len(states) || !sameKeys(got, states[done+1])) {
			return fmt.Errorf("after %d changes the keys are %q", done, got)
		}
		return nil
	})
}
