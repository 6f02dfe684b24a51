package replica

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/fsync"
	"github.com/muster-sched/muster/internal/powercut"
)

func cutSnapshots(dir string) (*snapshots, error) {
	dir = filepath.Join(dir, "raft")
	if err := fsync.MkdirAll(dir); err != nil {
		return nil, err
	}
	return openSnapshots(dir, hclog.NewNullLogger(), func(string) {})
}

func cutContent(index uint64) string { return strings.Repeat(fmt.Sprint("state ", index, "\n"), 2000) }

// TestPowerCutOfASnapshot: a kill or a power cut at any write of a snapshot, and while an older one is removed, leaves a
// whole snapshot that is at least as new as the last one that was acknowledged.
func TestPowerCutOfASnapshot(t *testing.T) {
	powercut.Record(t, t.TempDir(), func(dir string) error {
		s, err := cutSnapshots(dir)
		if err != nil {
			return err
		}
		_, trans := raft.NewInmemTransport("")
		for index := uint64(1); index <= 4; index++ {
			sink, err := s.Create(raft.SnapshotVersionMax, index, 1, raft.Configuration{}, 1, trans)
			if err != nil {
				return err
			}
			var content io.Reader = strings.NewReader(cutContent(index))
			if index%2 == 0 { // as one that another server sent
				file, err := s.create(raft.SnapshotVersionMax, index, 1, raft.Configuration{}, 1, trans)
				if err != nil {
					return err
				}
				if _, err := io.Copy(file, content); err != nil {
					return err
				}
				if err := s.sync(file); err != nil {
					return err
				}
				content = &received{sink: file, size: int64(len(cutContent(index)))}
			}
			if _, err := io.Copy(sink, content); err != nil {
				return err
			}
			if err := sink.Close(); err != nil {
				return err
			}
			powercut.Ack("%d", index)
		}
		return nil
	}).Restart(t, func(dir string, acked []string) error {
		s, err := cutSnapshots(dir)
		if err != nil {
			return err
		}
		log := raft.NewInmemStore() // as raft keeps it: from the last snapshot on
		if err := log.StoreLog(&raft.Log{Index: uint64(len(acked)) + 1}); err != nil {
			return err
		}
		if err := s.check(log); err != nil {
			return err
		}
		list, err := s.List()
		if err != nil || len(list) == 0 {
			if len(acked) > 0 {
				return fmt.Errorf("%d snapshots were acknowledged and none is left: %v", len(acked), err)
			}
			return err
		}
		if list[0].Index < uint64(len(acked)) {
			return fmt.Errorf("the newest snapshot is %d, and %d was acknowledged", list[0].Index, len(acked))
		}
		_, content, err := s.Open(list[0].ID)
		if err != nil {
			return err
		}
		defer content.Close()
		if b, err := io.ReadAll(content); err != nil || string(b) != cutContent(list[0].Index) {
			return fmt.Errorf("snapshot %d has %d bytes, %v", list[0].Index, len(b), err)
		}
		return nil
	})
}

// TestPowerCutOfTheFormat: the note of the format in force is whole after a kill or a power cut.
func TestPowerCutOfTheFormat(t *testing.T) {
	at := func(dir string) *Replica {
		r := &Replica{log: hclog.NewNullLogger()}
		r.machine = &machine{r: r}
		r.cfg.DataDir = dir
		return r
	}
	powercut.Record(t, t.TempDir(), func(dir string) error {
		r := at(dir)
		if err := fsync.MkdirAll(r.raftDir()); err != nil {
			return err
		}
		for _, by := range []string{"one", "two"} {
			if err := writeFormat(r.raftDir(), formatNote{Format: 1, By: by}); err != nil {
				return err
			}
			powercut.Ack("%s", by)
		}
		return nil
	}).Restart(t, func(dir string, _ []string) error { return at(dir).checkFormat() })
}
