package keystore

import (
	"bytes"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// A sealed value is valid only for its own name.
func TestSealBindsTheName(t *testing.T) {
	key := bytes.Repeat([]byte{7}, keyBytes)
	b, err := Seal(key, "default", "a", map[string]string{"k": "v"})
	if err != nil {
		t.Fatal(err)
	}
	if items, err := Unseal(key, &structs.Variable{Namespace: "default", Path: "a", Sealed: b}); err != nil || items["k"] != "v" {
		t.Fatal(items, err)
	}
	other := bytes.Clone(b)
	other[len(other)-1] ^= 1
	for what, v := range map[string]*structs.Variable{
		"another path": {Namespace: "default", Path: "b", Sealed: b}, "another namespace": {Namespace: "x", Path: "a", Sealed: b},
		"another text": {Namespace: "default", Path: "a", Sealed: other}, "cut": {Namespace: "default", Path: "a", Sealed: b[:9]}, "nothing": {Namespace: "default", Path: "a"},
	} {
		t.Run(what, func(t *testing.T) {
			if items, err := Unseal(key, v); err == nil {
				t.Errorf("%s: opened as %v", what, items)
			}
		})
	}
	if _, err := Unseal(bytes.Repeat([]byte{8}, keyBytes), &structs.Variable{Namespace: "default", Path: "a", Sealed: b}); err == nil {
		t.Error("another key opens it")
	}
}
