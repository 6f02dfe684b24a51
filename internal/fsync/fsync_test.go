package fsync

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
)

func TestFailed(t *testing.T) {
	full := &fs.PathError{Op: "write", Path: "f", Err: syscall.ENOSPC}
	sync := &fs.PathError{Op: "sync", Path: "f", Err: syscall.ENOSPC}
	for _, c := range []struct {
		what string
		err  error
		want bool
	}{
		{"none", nil, false}, {"a full disk", full, false}, {"another error", errors.New("sync"), false},
		{"a sync", sync, true}, {"a wrapped sync", fmt.Errorf("write f: %w", sync), true}, {"a sync behind a write", errors.Join(full, fmt.Errorf("x: %w", sync)), true},
		{"bbolt: fdatasync", Commit("f", syscall.EIO), true}, {"bbolt: a larger file", Commit("f", errors.New("file sync error: input/output error")), true},
		{"bbolt: a full disk", Commit("f", full), false}, {"bbolt: another error", Commit("f", errors.New("tx closed")), false},
		{"bbolt: none", Commit("f", nil), false}, {"a sync that succeeded", Error("f", nil), false},
	} {
		if got := Failed(c.err); got != c.want {
			t.Errorf("%s: %v counts as a failed sync: %t", c.what, c.err, got)
		}
	}
	if err := Dir(t.TempDir()); err != nil {
		t.Error(err)
	}
}
