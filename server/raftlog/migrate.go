package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
)

// Migration is the result of Migrate.
type Migration struct {
	Dir     string  // the raft directory
	From    Backend // equal to the requested backend: there was nothing to do
	Entries uint64
	Backup  string // where the old log is; "" if there was nothing to do
}

// Migrate converts the log of a stopped server to the backend of o. dataDir is the agent's data_dir or its raft
// directory. progress receives the index of the last entry copied and of the last entry; it may be nil.
func Migrate(dataDir string, o Options, log hclog.Logger, progress func(done, total uint64)) (m Migration, err error) {
	if err := o.setDefaults(); err != nil {
		return m, err
	}
	if m.Dir, err = findDir(dataDir); err != nil {
		return m, err
	}
	lock, err := lockDir(m.Dir)
	if err != nil {
		return m, err
	}
	defer lock.Close()
	if m.From, err = settle(m.Dir); err != nil || m.From == o.Backend {
		return m, err
	}
	if m.From == "" {
		return m, fmt.Errorf("%s holds no raft log", m.Dir)
	}
	old := filepath.Join(m.Dir, string(m.From))
	l, err := openBackend(old, Options{Backend: m.From, SegmentBytes: SegmentBytes}, log)
	if err != nil {
		return m, err
	}
	first, last, err := l.bounds()
	if err != nil {
		return m, errors.Join(err, l.Close())
	}
	if last > 0 {
		m.Entries = last - first + 1
	}
	m.Backup = old + ".backup"
	return m, replace(l, m.Dir, o, log, progress)
}

// findDir finds the raft directory of a server.
func findDir(dataDir string) (string, error) {
	for _, dir := range []string{dataDir, filepath.Join(dataDir, "raft"), filepath.Join(dataDir, "server", "raft")} {
		st, err := os.Stat(filepath.Join(dir, "lock"))
		if err == nil && st.Mode().IsRegular() {
			return dir, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // most likely a missing permission
			return "", err
		}
	}
	return "", fmt.Errorf("there is no raft log in %s; name the data_dir of a server", dataDir)
}
