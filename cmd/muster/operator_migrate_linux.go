package main

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/server/raftlog"
)

type raftMigrateOptions struct {
	*env
	to        string
	segmentMB int
	force     bool
}

func newRaftMigrate(e *env) *cobra.Command {
	o := &raftMigrateOptions{env: e}
	c := e.verb("migrate-backend [options] DATA_DIR", "Convert the raft log of a stopped server to another backend",
		"Convert the raft log of a stopped server to another backend. No agent is asked. The copy is compared with the log entry by entry before it takes its place; "+
			"the old log is kept as a backup. An interrupted conversion loses nothing: repeat the command.", `
muster operator raft migrate-backend -to wal /var/lib/muster
muster operator raft migrate-backend -to boltdb -force /var/lib/muster`, 1, 1, o.run)
	c.Flags().StringVar(&o.to, "to", string(raftlog.Default), "the backend to convert to: wal or boltdb")
	c.Flags().IntVar(&o.segmentMB, "wal-segment-size", raftlog.SegmentBytes>>20, "size of the files of the wal backend in MiB, as in wal.segment_size_mb")
	c.Flags().BoolVar(&o.force, "force", false, "do not ask")
	return c
}

func (o *raftMigrateOptions) run(ctx context.Context, args []string) error {
	if o.segmentMB < 1 || o.segmentMB > 1024 {
		return fmt.Errorf("-wal-segment-size is %d; want 1 to 1024", o.segmentMB)
	}
	if err := o.ask(ctx, o.force, "Convert the raft log in %s to backend %s?", args[0], o.to); err != nil {
		return err
	}
	var reported time.Time
	progress := func(done, total uint64) {
		if o.now().Sub(reported) >= 2*time.Second {
			reported = o.now()
			o.hint("Copied up to entry %d of %d.", done, total)
		}
	}
	m, err := raftlog.Migrate(args[0], raftlog.Options{Backend: raftlog.Backend(o.to), SegmentBytes: o.segmentMB << 20}, hclog.NewNullLogger(), progress)
	if err != nil {
		return fmt.Errorf("migrate the raft log: %w", err)
	}
	if m.Backup == "" {
		o.printf("%s holds a log of backend %s already\n", m.Dir, m.From)
		return nil
	}
	o.printf("Converted %d entries from %s to %s in %s\nThe old log is kept in %s\n", m.Entries, m.From, o.to, m.Dir, m.Backup)
	o.hint("Set server.raft_logstore.backend to %q, then start the server. Remove the old log when it runs well.", o.to)
	return nil
}
