package boltfile

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// FuzzCheck checks what Check is for: bbolt reads a file that passes, to the last key, without a fault. The file is
// given as the places that differ from a good one, because its pages have checksums of their own only in part.
func FuzzCheck(f *testing.F) {
	path := filepath.Join(f.TempDir(), "seed")
	db, err := bolt.Open(path, 0o600, &bolt.Options{PageSize: 1024})
	if err != nil {
		f.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range []string{"a", "b"} {
			b, err := tx.CreateBucket([]byte(name))
			if err != nil {
				return err
			}
			for i := range 60 * int(name[0]-'a') {
				if err := b.Put([]byte{byte(i)}, make([]byte, 30)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		f.Fatal(err)
	}
	if err := db.Close(); err != nil {
		f.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	file := filepath.Join(f.TempDir(), "db")
	f.Add(uint32(0), []byte(nil))
	f.Add(uint32(2*1024+8), []byte{2})
	f.Add(uint32(3*1024), []byte{1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, at uint32, change []byte) {
		b := bytes.Clone(good)
		copy(b[int(at)%len(b):], change)
		if Check(bytes.NewReader(b), int64(len(b))) != nil {
			return
		}
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := bolt.Open(file, 0o600, &bolt.Options{ReadOnly: true})
		if err != nil {
			return // bbolt is stricter about its meta pages
		}
		defer db.Close()
		_ = db.View(func(tx *bolt.Tx) error {
			return tx.ForEach(func(_ []byte, b *bolt.Bucket) error {
				return b.ForEach(func(k, v []byte) error { _ = string(k) + string(v); return nil })
			})
		})
	})
}
