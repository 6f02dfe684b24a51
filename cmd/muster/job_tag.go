package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func newJobTag(e *env) *cobra.Command {
	return e.group("tag", "Name versions of a job", "Name versions of a job. A tagged version is kept when older ones are collected.", `
muster job tag apply -name known-good -version 3 example
muster job tag unset -name known-good example`, newJobTagApply, newJobTagUnset)
}

type jobTagOptions struct {
	*env
	form                       format
	name, description, version string
	unset                      bool
}

func newJobTagApply(e *env) *cobra.Command {
	o := &jobTagOptions{env: e}
	c := e.verb("apply [options] JOB", "Name a version of a job", "", `
muster job tag apply -name known-good example
muster job tag apply -name v1 -version 3 -description "before the rewrite" example`, 1, 1, o.run)
	o.form.flags(c)
	c.Flags().StringVar(&o.name, "name", "", "the name")
	c.Flags().StringVar(&o.description, "description", "", "what it stands for")
	c.Flags().StringVar(&o.version, "version", "", "the version; the newest if left out")
	return c
}

func newJobTagUnset(e *env) *cobra.Command {
	o := &jobTagOptions{env: e, unset: true}
	c := e.verb("unset [options] JOB", "Take a name from a version of a job", "", `muster job tag unset -name known-good example`, 1, 1, o.run)
	o.form.flags(c)
	c.Flags().StringVar(&o.name, "name", "", "the name")
	return c
}

func (o *jobTagOptions) run(ctx context.Context, args []string) error {
	if o.name == "" {
		return fmt.Errorf("a tag needs a name: give -name")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	path := jobPath(stub.ID, "/versions/", url.PathEscape(o.name), "/tag")
	var resp any
	if o.unset {
		_, err = a.delete(ctx, path, ns(stub.Namespace), &resp)
	} else {
		req := wire.TagVersionRequest{Latest: o.version == "", Description: o.description}
		if o.version != "" {
			if req.Version, err = strconv.ParseUint(o.version, 10, 64); err != nil {
				return fmt.Errorf("-version %q is not a whole number", o.version)
			}
		}
		_, err = a.put(ctx, path, ns(stub.Namespace), req, &resp)
	}
	if err != nil {
		return fmt.Errorf("tag %q of job %q: %w", o.name, stub.ID, err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	verb := "applied to"
	if o.unset {
		verb = "removed from"
	}
	o.printf("Tag %q %s job %q\n", o.name, verb, stub.ID)
	return nil
}
