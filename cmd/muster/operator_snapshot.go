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
	"time"

	"github.com/hashicorp/raft"
	"github.com/spf13/cobra"

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
	c := e.verb("restore [options] FILE", "Put the state of a snapshot in place of the cluster's", "Put the state of a snapshot in place of the cluster's. Everything written since it was saved is lost.", `
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
	start := time.Now()
	rc, _, err := a.stream(ctx, http.MethodPut, "/v1/operator/snapshot", nil, f)
	if err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	rc.Close()
	o.printf("Snapshot restored in %s\n", time.Since(start).Round(time.Millisecond))
	return nil
}
