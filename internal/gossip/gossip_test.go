package gossip

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/muster-sched/muster/internal/memnet"
)

var key = []byte("0123456789abcdef")

func member(t *testing.T, n *memnet.Network, name string, key []byte) *Gossip {
	t.Helper()
	tr, err := n.Host(name).Gossip(4648)
	if err != nil {
		t.Fatal(err)
	}
	g, err := Start(Config{Name: name, Meta: Meta{Role: RoleServer, Region: "global", ID: name, RPC: name + ":4647", Expect: 3, Version: "1.0"},
		Transport: tr, Key: key, AllowPlain: key == nil})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close(); time.Sleep(time.Minute) })
	return g
}

func statuses(g *Gossip) string {
	var out []string
	for _, m := range g.Members() {
		out = append(out, m.Name+"="+string(m.Status))
	}
	return strings.Join(out, " ")
}

func TestJoinFailLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		a, b, c := member(t, n, "a", key), member(t, n, "b", key), member(t, n, "c", key)
		at := n.Host("a").IP().String() + ":4648"
		for _, g := range []*Gossip{b, c} {
			if k, err := g.Join([]string{at}); k != 1 {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Second)
		if got := statuses(a); got != "a=alive b=alive c=alive" {
			t.Fatalf("members: %s", got)
		}
		if m := a.Members()[1]; m.RPC != "b:4647" || m.Expect != 3 || m.RaftAddr() != "b:4647" || m.Version != "1.0" {
			t.Fatalf("member: %+v", m)
		}
		n.PowerOff("b")
		if err := c.Leave(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(40 * time.Second)
		if got := statuses(a); got != "a=alive b=failed c=left" {
			t.Fatalf("members: %s", got)
		}
		if !a.Forget("b") || a.Forget("a") {
			t.Error("a failed member can be forgotten, a live one cannot")
		}
	})
}

func TestWrongKeyJoinsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		a := member(t, n, "a", key)
		at := n.Host("a").IP().String() + ":4648"
		for name, k := range map[string][]byte{"b": []byte("another key 16by"), "c": nil} {
			if got, _ := member(t, n, name, k).Join([]string{at}); got != 0 {
				t.Errorf("%s joined with the wrong key or none", name)
			}
		}
		time.Sleep(5 * time.Second)
		if got := statuses(a); got != "a=alive" {
			t.Errorf("members: %s", got)
		}
	})
}

func TestKeyIsMandatory(t *testing.T) {
	if _, err := Start(Config{Name: "x", Meta: Meta{Role: RoleServer, Region: "global"}, BindAddr: "0.0.0.0"}); err == nil || !strings.Contains(err.Error(), "encryption key") {
		t.Errorf("gossip without a key on every address: %v", err)
	}
	if _, err := Start(Config{Name: strings.Repeat("x", 600), Meta: Meta{Role: RoleServer, Region: "global", Version: strings.Repeat("v", 600)}, BindAddr: "127.0.0.1"}); err == nil {
		t.Error("more than 512 bytes about itself were accepted")
	}
	if _, err := Start(Config{Name: "x", Meta: Meta{Role: RoleServer, Region: "global"}, Key: []byte("short"), BindAddr: "127.0.0.1"}); err == nil {
		t.Error("a key of 5 bytes was accepted")
	}
}

func TestFilterRefuses(t *testing.T) {
	compound := func(parts ...[]byte) []byte {
		b := []byte{msgCompound, byte(len(parts))}
		for _, p := range parts {
			b = binary.BigEndian.AppendUint16(b, uint16(len(p)))
		}
		for _, p := range parts {
			b = append(b, p...)
		}
		return b
	}
	alive := []byte{msgAlive, 0x80}
	f := &filter{}
	for name, b := range map[string][]byte{
		"empty": nil, "compressed": {msgCompress, 1, 2}, "push/pull in a packet": {msgPushPull, 0}, "unknown type": {99}, "label": {244, 1, 'x'},
		"truncated compound": {msgCompound}, "lying compound": {msgCompound, 200, 0, 1}, "part too long": {msgCompound, 1, 0xff, 0xff, msgAlive},
		"compressed in a compound": compound(alive, []byte{msgCompress, 1}), "nested compounds": compound(compound(compound(alive))),
		"empty part": compound(alive, nil), "short checksum": {msgCRC, 1, 2}, "checksum twice": append([]byte{msgCRC, 0, 0, 0, 0}, append([]byte{msgCRC, 0, 0, 0, 0}, alive...)...),
		"too long": bytes.Repeat([]byte{msgUser}, packetMax+1),
	} {
		t.Run(name, func(t *testing.T) {
			if err := f.checkPacket(b); err == nil {
				t.Errorf("%s was let through", name)
			}
		})
	}
	for name, b := range map[string][]byte{
		"alive": alive, "ping": {msgPing, 0x80}, "compound": compound(alive, alive), "checksum": append([]byte{msgCRC, 0, 0, 0, 0}, alive...),
		"checksum and compound": append([]byte{msgCRC, 0, 0, 0, 0}, compound(alive, alive)...),
	} {
		t.Run(name, func(t *testing.T) {
			if err := f.checkPacket(b); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	ring, err := memberlist.NewKeyring(nil, key)
	if err != nil {
		t.Fatal(err)
	}
	f.ring = ring
	for name, b := range map[string][]byte{"plaintext": alive, "random": bytes.Repeat([]byte{1}, 100), "version 0 garbage": make([]byte, 100)} {
		if err := f.checkPacket(b); err == nil {
			t.Errorf("%s was let through although a key is set", name)
		}
	}
}

func FuzzCheckMessage(f *testing.F) {
	f.Add([]byte{msgCompound, 1, 0, 1, msgAlive})
	f.Fuzz(func(t *testing.T, b []byte) { _ = checkMessage(b, 0) })
}
