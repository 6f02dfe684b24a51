package keystore

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/powercut"
)

func cutStore(dir string) (*Keystore, error) {
	return Open(Environment{DataDir: dir, Log: hclog.NewNullLogger(), Exit: func(string) {}})
}

// TestPowerCut: a kill or a power cut at any write of a key loses none that was stored, and no file holds half of one.
func TestPowerCut(t *testing.T) {
	key := func(n int) []byte { return bytes.Repeat([]byte{byte(n)}, keyBytes) }
	powercut.Record(t, t.TempDir(), func(dir string) error {
		k, err := cutStore(dir)
		for n := 0; n < 3 && err == nil; n++ {
			if err = k.put(keyID(key(n)), key(n)); err == nil {
				powercut.Ack("%s", keyID(key(n)))
			}
		}
		return err
	}).Restart(t, func(dir string, acked []string) error {
		k, err := cutStore(dir)
		if err != nil {
			return err
		}
		for n := range 3 {
			id := keyID(key(n))
			got, err := k.Get(id)
			if err == nil && got == nil && n < len(acked) && strings.TrimSpace(acked[n]) == id {
				err = errors.New("it is lost")
			}
			if err != nil {
				return fmt.Errorf("key %d of %d that were stored: %w", n, len(acked), err)
			}
		}
		return nil
	})
}
