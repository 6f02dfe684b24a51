package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type allocFSOptions struct {
	*env
	form                      format
	job, human, machine, stat bool
	follow, tail, verbose     bool
	lines, bytes              int64
}

func newAllocFS(e *env) *cobra.Command {
	o := &allocFSOptions{env: e}
	c := e.verb("fs [options] ALLOCATION [PATH]", "List and print an allocation's files", "List a directory of an allocation, or print a file of it.", `
muster alloc fs 8ba85cef
muster alloc fs 8ba85cef alloc/logs
muster alloc fs -tail -n 20 8ba85cef alloc/logs/server.stdout.0
muster alloc fs -stat 8ba85cef server/local/config.json`, 1, 2, o.run)
	o.form.flags(c)
	f := c.Flags()
	f.BoolVarP(&o.human, "human", "H", true, "sizes and times for people (the default); -H=false is -exact")
	f.BoolVar(&o.machine, "exact", false, "sizes in bytes and exact times")
	f.BoolVar(&o.stat, "stat", false, "print the file's size, mode and time instead of its content")
	f.BoolVarP(&o.follow, "follow", "f", false, "go on with what is written from now on")
	f.BoolVar(&o.tail, "tail", false, "the end only: 10 lines, or as many as -n or -c say")
	f.Int64VarP(&o.lines, "lines", "n", 0, "with -tail: how many lines")
	f.Int64VarP(&o.bytes, "bytes", "c", 0, "with -tail: how many bytes")
	f.BoolVar(&o.verbose, "verbose", false, "exact times")
	run := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 && args[0] == "cp" {
			return fmt.Errorf("fs copies nothing; in its place:  muster alloc cp %s", strings.Join(args[1:], " "))
		}
		return run(cmd, args)
	}
	return e.ofAlloc(c, &o.job)
}

func (o *allocFSOptions) run(ctx context.Context, args []string) error {
	if o.stat && (o.follow || o.tail || o.lines > 0 || o.bytes > 0) {
		return errors.New("-stat prints no content: leave out -f, -tail, -n and -c")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	al, err := o.pickAlloc(ctx, a, args[0], o.job)
	if err != nil {
		return err
	}
	p := "/"
	if len(args) == 2 {
		p = path.Join("/", args[1])
	}
	q := func() url.Values {
		v := ns(al.Namespace)
		v.Set("path", p)
		return v
	}
	var st wire.AllocFileInfo
	if _, err := a.get(ctx, "/v1/client/fs/stat/"+al.ID, q(), &st); err != nil {
		return fmt.Errorf("look at %s of allocation %s: %w", p, shortID(al.ID, false), err)
	}
	if o.stat {
		if done, err := o.form.done(o.env, &st); done || err != nil {
			return err
		}
		o.files([]*wire.AllocFileInfo{&st})
		return nil
	}
	if st.IsDir {
		var list []*wire.AllocFileInfo
		if _, err := a.get(ctx, "/v1/client/fs/ls/"+al.ID, q(), &list); err != nil {
			return err
		}
		if done, err := o.form.done(o.env, list); done || err != nil {
			return err
		}
		o.files(list)
		return nil
	}
	if o.form.json || o.form.tmpl != "" {
		_, err := o.form.done(o.env, &st)
		return err
	}
	if !o.follow && !o.tail && o.lines == 0 && o.bytes == 0 {
		rc, _, err := a.stream(ctx, "GET", "/v1/client/fs/cat/"+al.ID, q(), nil)
		if err != nil {
			return err
		}
		defer rc.Close()
		if _, err := io.Copy(o.out, rc); err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("read %s: %w", p, err)
		}
		return nil
	}
	v := q()
	lines := int64(0)
	v.Set("origin", "start")
	v.Set("offset", "0")
	if o.tail || o.lines > 0 || o.bytes > 0 {
		lines = o.lines
		if lines == 0 && o.bytes == 0 {
			lines = tailLines
		}
		offset := o.bytes
		if lines > 0 {
			offset = min(max(lines*bytesPerLine, defaultTailKB<<10), tailBytesMax)
		}
		v.Set("origin", "end")
		v.Set("offset", strconv.FormatInt(min(offset, st.Size), 10))
	}
	v.Set("follow", strconv.FormatBool(o.follow))
	err = o.copyFrames(ctx, a, "/v1/client/fs/stream/"+al.ID, v, o.out, lines, false, nil)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (o *allocFSOptions) files(list []*wire.AllocFileInfo) {
	rows := [][]string{}
	for _, f := range list {
		exact := o.machine || !o.human
		size, when := bytesText(uint64(max(f.Size, 0))), o.age(f.ModTime, exact || o.verbose)
		if exact {
			size = strconv.FormatInt(f.Size, 10)
		}
		if f.IsDir {
			f.Name += "/"
		}
		rows = append(rows, []string{f.FileMode, size, when, f.Name})
	}
	o.table("Mode|Size|Modified Time|Name", rows)
}
