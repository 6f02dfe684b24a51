package raftlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/migrate"
)

// copyBatch is the number of bytes that a copy writes in one commit.
const copyBatch = 4 << 20

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// settle finishes or undoes what a crash interrupted. It returns the backend of the log in a raft directory, or "" if
// there is none.
func settle(dir string) (have Backend, err error) {
	for _, b := range []Backend{WAL, BoltDB} {
		path := filepath.Join(dir, string(b))
		if err := os.RemoveAll(path + ".tmp"); err != nil {
			return "", err
		}
		if exists(path) && have != "" {
			return "", fmt.Errorf("%s holds logs of both backends, %s and %s; move the one that is out of date away", dir, have, b)
		}
		if exists(path) {
			have = b
		}
	}
	for _, b := range []Backend{WAL, BoltDB} {
		path := filepath.Join(dir, string(b))
		if !exists(path + ".new") {
			continue
		}
		if have != "" { // the old log is still in place, and may have grown since
			if err := os.RemoveAll(path + ".new"); err != nil {
				return "", err
			}
			continue
		}
		if err := rename(path+".new", path); err != nil {
			return "", err
		}
		have = b
	}
	if have != "" {
		return have, nil
	}
	for _, b := range []Backend{WAL, BoltDB} {
		if path := filepath.Join(dir, string(b)); exists(path + ".backup") {
			return "", fmt.Errorf("%s holds no raft log, but %s.backup from a migration; rename it to %s to use it again, or remove it to start with an empty log", dir, path, path)
		}
	}
	return "", nil
}

// begin creates an empty log. It gets its final name when it is complete.
func begin(dir string, o Options, log hclog.Logger) error {
	path := filepath.Join(dir, string(o.Backend))
	if err := makeTmp(path, o, log); err != nil {
		return err
	}
	return rename(path+".tmp", path)
}

// makeTmp creates an empty log under its temporary name.
func makeTmp(path string, o Options, log hclog.Logger) error {
	tmp := path + ".tmp"
	err := errors.Join(os.RemoveAll(tmp), os.Mkdir(tmp, 0o700))
	if err == nil {
		err = beginRecord(tmp)
	}
	if err == nil && o.Backend == BoltDB {
		err = beginBolt(tmp, o)
	}
	if err != nil {
		return err
	}
	l, err := openBackend(tmp, o, log) // the wal backend creates its first file here
	if err != nil {
		return err
	}
	return errors.Join(l.Close(), syncDir(tmp))
}

// replace copies a log to the backend of o, verifies the copy, and puts it in the log's place. It closes the old log
// and keeps it as a backup. A crash at any point is safe: until the old log is renamed it is in use, and after that the
// complete copy takes its name at the next start.
func replace(from *Log, dir string, o Options, log hclog.Logger, progress func(done, total uint64)) error {
	path, old := filepath.Join(dir, string(o.Backend)), filepath.Join(dir, string(from.backend))
	err := makeCopy(path, from, o, log, progress)
	err = errors.Join(err, from.Close())
	if err == nil {
		err = chownLike(path+".tmp", old)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("copy the raft log in %s: %w", old, err), os.RemoveAll(path+".tmp"))
	}
	if err := os.RemoveAll(old + ".backup"); err != nil { // from an earlier migration
		return err
	}
	for _, step := range [][2]string{{path + ".tmp", path + ".new"}, {old, old + ".backup"}, {path + ".new", path}} {
		if err := rename(step[0], step[1]); err != nil {
			return err
		}
	}
	return nil
}

// makeCopy copies a log to a temporary name, opens the copy again, and compares the two.
func makeCopy(path string, from *Log, o Options, log hclog.Logger, progress func(done, total uint64)) error {
	if err := makeTmp(path, o, log); err != nil {
		return err
	}
	to, err := openBackend(path+".tmp", o, log)
	if err != nil {
		return err
	}
	for key, value := range from.rec.stable() {
		err = errors.Join(err, to.Set([]byte(key), value))
	}
	if last, errLast := from.LastIndex(); err == nil && errLast == nil && last > 0 {
		err = migrate.CopyLogs(context.Background(), reporting{to, last, progress}, from, copyBatch, nil)
	} else {
		err = errors.Join(err, errLast)
	}
	if err = errors.Join(err, to.Close(), syncDir(path+".tmp")); err != nil {
		return err
	}
	if to, err = openBackend(path+".tmp", o, log); err != nil {
		return err
	}
	return errors.Join(equal(to, from), to.Close())
}

// reporting is a log that reports the progress of a copy into it.
type reporting struct {
	*Log
	total    uint64
	progress func(done, total uint64)
}

// StoreLogs writes entries in one commit.
func (r reporting) StoreLogs(es []*raft.Log) error {
	err := r.Log.StoreLogs(es)
	if err == nil && r.progress != nil {
		r.progress(es[len(es)-1].Index, r.total)
	}
	return err
}

// equal returns an error unless two logs hold the same entries, term and vote.
func equal(a, b *Log) error {
	if !maps.EqualFunc(a.rec.stable(), b.rec.stable(), bytes.Equal) {
		return errors.New("the copy differs in term or vote")
	}
	first, last, err := a.bounds()
	first2, last2, err2 := b.bounds()
	if err = errors.Join(err, err2); err != nil {
		return err
	}
	if first != first2 || last != last2 {
		return fmt.Errorf("the copy has entries %d to %d instead of %d to %d", first, last, first2, last2)
	}
	var x, y raft.Log
	for i := first; i <= last && i > 0; i++ {
		if err := errors.Join(a.GetLog(i, &x), b.GetLog(i, &y)); err != nil {
			return fmt.Errorf("compare entry %d: %w", i, err)
		}
		if x.Index != y.Index || x.Term != y.Term || x.Type != y.Type || !bytes.Equal(x.Data, y.Data) || !bytes.Equal(x.Extensions, y.Extensions) || !x.AppendedAt.Equal(y.AppendedAt) {
			return fmt.Errorf("the copy differs in entry %d", i)
		}
	}
	return nil
}

// chownLike gives a copy the owner of the old log, so that a server that does not run as root can read what root
// converted.
func chownLike(path, old string) error {
	st, err := os.Stat(old)
	if err != nil || os.Getuid() != 0 {
		return err
	}
	owner := st.Sys().(*syscall.Stat_t)
	files, err := filepath.Glob(filepath.Join(path, "*"))
	for _, f := range slices.Concat(files, []string{path}) {
		err = errors.Join(err, os.Lchown(f, int(owner.Uid), int(owner.Gid)))
	}
	return err
}

// rename renames within a raft directory and syncs, so that it survives a crash.
func rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
