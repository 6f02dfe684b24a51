package archive

import (
	"bytes"
	"errors"
	"testing"

	"github.com/hashicorp/raft"
)

// limited is a buffer that refuses to become large.
type limited struct{ bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	if l.Len()+len(b) > 1<<20 {
		return 0, errors.New("full")
	}
	return l.Buffer.Write(b)
}

// FuzzArchive reads any bytes as a snapshot archive. One that is accepted is written and read again as the same.
func FuzzArchive(f *testing.F) {
	var b bytes.Buffer
	if err := Write(&b, &raft.SnapshotMeta{ID: "x", Index: 7, Size: 5}, bytes.NewReader([]byte("state"))); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, in []byte) {
		var state, again limited
		meta, err := Read(bytes.NewReader(in), &state)
		if err != nil {
			return
		}
		meta.Size = int64(state.Len())
		var out bytes.Buffer
		if err := Write(&out, meta, bytes.NewReader(state.Bytes())); err != nil {
			t.Fatal(err)
		}
		if m, err := Read(&out, &again); err != nil || m.Index != meta.Index || !bytes.Equal(again.Bytes(), state.Bytes()) {
			t.Fatalf("read back: %+v, %v", m, err)
		}
	})
}
