package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/raft"
	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/server/archive"
)

func newOperatorSnapshot(e *env) *cobra.Command {
	return e.group("snapshot", "Save and restore the state of the cluster", "", `
muster operator snapshot save backup.snap
muster operator snapshot inspect backup.snap
muster operator snapshot restore backup.snap`, newSnapshotSave, newSnapshotInspect, newSnapshotRestore)
}

type snapshotOptions struct {
	*env
	form  format
	stale bool
	yes   bool
}

func newSnapshotSave(e *env) *cobra.Command {
	o := &snapshotOptions{env: e}
	c := e.verb("save [options] [FILE]", "Save a snapshot", "Save a snapshot of the replicated state to a file, which must not exist; muster-state-TIME.snap if none is named.", `
muster operator snapshot save backup.snap
muster operator snapshot save -stale backup.snap   # from any server, also without a leader`, 0, 1, o.save)
	c.Flags().BoolVar(&o.stale, "stale", false, "from the server that answers, even if it does not lead")
	return files(c, "snap")
}

func (o *snapshotOptions) save(ctx context.Context, args []string) error {
	name := "muster-state-" + o.now().UTC().Format("20060102-150405") + ".snap"
	if len(args) == 1 {
		name = args[0]
	}
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists already; move it away or give another name", name)
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	q := ns("")
	queryFlag(q, "stale", o.stale)
	rc, _, err := a.stream(ctx, http.MethodGet, "/v1/operator/snapshot", q, nil)
	if err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	defer rc.Close()
	// The file gets its name only when it is complete, checked and on disk.
	tmp, err := os.CreateTemp(filepath.Dir(name), ".snapshot-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // the temporary name; on success the file has its own by then
	defer tmp.Close()
	n, err := io.Copy(tmp, rc)
	if err == nil {
		err = tmp.Sync()
	}
	if err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	if _, err := tmp.Seek(0, io.SeekStart); err != nil {
		return err
	}
	meta, err := archive.Read(bufio.NewReader(tmp), io.Discard)
	if err != nil {
		return fmt.Errorf("what came is no whole snapshot: %w", err)
	}
	if err := os.Link(tmp.Name(), name); err != nil { // unlike a rename, a link never replaces a file that appeared meanwhile
		return fmt.Errorf("save snapshot: %w", err)
	}
	o.printf("State file written to %s (index %d, %s)\n", name, meta.Index, bytesText(uint64(n)))
	return nil
}

func newSnapshotInspect(e *env) *cobra.Command {
	o := &snapshotOptions{env: e}
	c := e.verb("inspect [options] FILE", "Check a snapshot file and print what it is", "Check a snapshot file and print what it is. No agent is asked.", `
muster operator snapshot inspect backup.snap
muster operator snapshot inspect -json backup.snap`, 1, 1, o.inspect)
	o.form.flags(c)
	return files(c, "snap")
}

func (o *snapshotOptions) inspect(_ context.Context, args []string) error {
	meta, err := readSnapshot(args[0])
	if err != nil {
		return err
	}
	if done, err := o.form.done(o.env, meta); done || err != nil {
		return err
	}
	o.kv([][2]string{{"ID", meta.ID}, {"Size", strconv.FormatInt(meta.Size, 10)}, {"Index", strconv.FormatUint(meta.Index, 10)}, {"Term", strconv.FormatUint(meta.Term, 10)}, {"Version", strconv.Itoa(int(meta.Version))}})
	if len(meta.Configuration.Servers) > 0 {
		o.heading("Servers")
		rows := [][]string{}
		for _, s := range meta.Configuration.Servers {
			rows = append(rows, []string{string(s.ID), string(s.Address), s.Suffrage.String()})
		}
		o.table("ID|Address|Suffrage", rows)
	}
	return nil
}

func readSnapshot(name string) (*raft.SnapshotMeta, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	meta, err := archive.Read(bufio.NewReader(f), io.Discard)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return meta, nil
}

func newSnapshotRestore(e *env) *cobra.Command {
	o := &snapshotOptions{env: e}
	c := e.verb("restore [options] FILE", "Put the state of a snapshot in place of the cluster's", "Put the state of a snapshot in place of the cluster's. Everything written since it was saved is lost. It then waits until all servers that\nare alive have the state, at most half a minute; a terminal shows how much of the file has been sent.", `
muster operator snapshot restore backup.snap
muster operator snapshot restore -yes backup.snap`, 1, 1, o.restore)
	c.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	return files(c, "snap")
}

func (o *snapshotOptions) restore(ctx context.Context, args []string) error {
	meta, err := readSnapshot(args[0])
	if err != nil {
		return err
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	if err := o.confirm(ctx, o.yes, "Replace the state of the cluster at %s by that of index %d? Everything written since is lost.", a.base, meta.Index); err != nil {
		return err
	}
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	sent := &sentFile{env: o.env, r: f, all: st.Size(), terminal: isTerminal(o.err), then: "the leader checks and restores it"}
	start := time.Now()
	rc, m, err := a.stream(ctx, http.MethodPut, "/v1/operator/snapshot", nil, sent)
	sent.clear()
	if err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	rc.Close()
	o.printf("Snapshot restored in %s\n", time.Since(start).Round(time.Millisecond))
	o.everywhere(ctx, a, m.Index)
	return nil
}

// sentFile is a file that is sent. A terminal shows how much of it has been read.
type sentFile struct {
	*env
	r         io.Reader
	all, done int64
	terminal  bool
	then      string // what happens once all is sent
	drawn     time.Time
}

func (s *sentFile) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.done += int64(n)
	if now := s.now(); s.terminal && s.all > 0 && (now.Sub(s.drawn) >= 200*time.Millisecond || err != nil) {
		s.drawn = now
		line := fmt.Sprintf("%s  %s of %s sent", bar(float64(s.done)/float64(s.all)), bytesText(uint64(s.done)), bytesText(uint64(s.all)))
		if err != nil {
			line += "; " + s.then
		}
		fmt.Fprintf(s.err, "\r\x1b[K%s", line)
	}
	return n, err
}

// Size returns how much will be sent in all.
func (s *sentFile) Size() int64 { return s.all }

func (s *sentFile) clear() {
	if !s.drawn.IsZero() {
		fmt.Fprint(s.err, "\r\x1b[K")
	}
}

const (
	restoredEvery = 500 * time.Millisecond
	restoredLimit = 30 * time.Second
)

// everywhere waits until each server has the state of an index, and says how far they are. The cluster works meanwhile: that a
// server is late, or that the servers cannot be asked, is no error.
func (o *snapshotOptions) everywhere(ctx context.Context, a *api, index uint64) {
	a.accept = http.StatusTooManyRequests // with the same body: a server is not healthy
	ctx, stop := context.WithTimeout(ctx, restoredLimit)
	defer stop()
	said := ""
	for {
		var h wire.OperatorHealthReply
		if _, err := a.get(ctx, "/v1/operator/autopilot/health", nil, &h); err != nil && ctx.Err() == nil {
			o.hint("Whether all servers have it cannot be read: %v. The tokens in force are those of the snapshot.", err)
			return
		}
		var late []string
		alive := 0
		for _, s := range h.Servers {
			if s.SerfStatus != "alive" { // it gets the state when it is back
				continue
			}
			if alive++; s.LastIndex < index {
				late = append(late, s.Name)
			}
		}
		if alive > 0 && len(late) == 0 {
			if len(h.Servers) > 1 {
				o.printf("%d of %d servers have the restored state\n", alive, len(h.Servers))
			}
			return
		}
		if line := strings.Join(late, ", "); alive > 0 && len(h.Servers) > 1 && line != said {
			said = line
			o.hint("%d of %d servers have the restored state; waiting for %s", alive-len(late), len(h.Servers), line)
		}
		if !sleepFor(ctx, restoredEvery) {
			o.hint("Not all servers are known to have it yet. Look again with:  muster operator autopilot health")
			return
		}
	}
}
