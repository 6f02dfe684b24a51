package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type jobHistoryOptions struct {
	*env
	form                          format
	diffs, full                   bool
	version, diffVersion, diffTag string
}

func newJobHistory(e *env) *cobra.Command {
	o := &jobHistoryOptions{env: e}
	c := e.verb("history [options] JOB", "List the versions of a job", "List the versions of a job that are kept, newest first.", `
muster job history example
muster job history -p example                 # with what changed
muster job history -version 3 -full example`, 1, 1, o.run)
	o.form.flags(c)
	f := c.Flags()
	f.BoolVarP(&o.diffs, "diffs", "p", false, "show what each version changed")
	f.BoolVar(&o.full, "full", false, "show the whole job of each version as JSON")
	f.StringVar(&o.version, "version", "", "only this version")
	f.StringVar(&o.diffVersion, "diff-version", "", "compare with this version instead of the one before")
	f.StringVar(&o.diffTag, "diff-tag", "", "compare with the version of this tag instead of the one before")
	return c
}

func (o *jobHistoryOptions) run(ctx context.Context, args []string) error {
	if o.diffVersion != "" && o.diffTag != "" {
		return errors.New("-diff-version and -diff-tag exclude each other: choose one version to compare with")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	q := ns(stub.Namespace)
	queryFlag(q, "diffs", o.diffs || o.diffVersion != "" || o.diffTag != "")
	if err := setUint(q, "diff_version", "-diff-version", o.diffVersion); err != nil {
		return err
	}
	if o.diffTag != "" {
		q.Set("diff_tag", o.diffTag)
	}
	var resp wire.JobVersionsResponse
	if _, err := a.get(ctx, jobPath(stub.ID, "/versions"), q, &resp); err != nil {
		return err
	}
	if o.version != "" {
		want, err := strconv.ParseUint(o.version, 10, 64)
		if err != nil {
			return fmt.Errorf("-version %q is not a whole number", o.version)
		}
		found := wire.JobVersionsResponse{}
		for i, j := range resp.Versions {
			if val(j.Version) == want {
				found.Versions = append(found.Versions, j)
				if i < len(resp.Diffs) {
					found.Diffs = append(found.Diffs, resp.Diffs[i])
				}
			}
		}
		if len(found.Versions) == 0 {
			return fmt.Errorf("job %q has no version %d; muster job history %s lists them", stub.ID, want, stub.ID)
		}
		resp = found
	}
	if done, err := o.form.done(o.env, resp.Versions); done || err != nil {
		return err
	}
	for i, j := range resp.Versions {
		if i > 0 {
			o.println()
		}
		rows := [][2]string{{"Version", strconv.FormatUint(val(j.Version), 10)}, {"Stable", strconv.FormatBool(val(j.Stable))}, {"Submit Date", date(time.Unix(0, val(j.SubmitTime)))}}
		if why := val(j.StatusDescription); why != "" {
			rows = append(rows, [2]string{"Description", why})
		}
		if t := j.VersionTag; t != nil {
			rows = append(rows, [2]string{"Tag Name", t.Name})
			if t.Description != "" {
				rows = append(rows, [2]string{"Tag Description", t.Description})
			}
		}
		if s := j.Submitter; s != nil && s.Name != "" {
			rows = append(rows, [2]string{"Submitter", s.Name})
		}
		o.kv(rows)
		if i < len(resp.Diffs) && resp.Diffs[i] != nil {
			o.println(o.bold("Diff") + " =")
			if resp.Diffs[i].Type == "None" {
				o.println("no change")
			} else {
				differ{o.env, o.full}.job(resp.Diffs[i], nil)
			}
		}
		if o.full {
			if err := o.json(j); err != nil {
				return err
			}
		}
	}
	return nil
}

// setUint adds a number to a query if it was set.
func setUint(q url.Values, name, flag, value string) error {
	if value == "" {
		return nil
	}
	if _, err := strconv.ParseUint(value, 10, 64); err != nil {
		return fmt.Errorf("%s %q is not a whole number", flag, value)
	}
	q.Set(name, value)
	return nil
}
