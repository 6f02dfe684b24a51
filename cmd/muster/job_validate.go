package main

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type jobValidateOptions struct {
	*env
	file jobFile
	form format
}

func newJobValidate(e *env) *cobra.Command {
	o := &jobValidateOptions{env: e}
	c := e.verb("validate [options] FILE", "Check a job file",
		"Check a job file. The servers check it too when an agent answers; else only this program does, and says so.", `
muster job validate example.muster.hcl
muster job validate -var version=2 web.hcl
cat web.hcl | muster job validate -`, 1, 1, o.run)
	o.form.template(c)
	o.file.flags(c)
	return c
}

func (o *jobValidateOptions) run(ctx context.Context, args []string) error {
	job, _, err := o.file.read(ctx, o.env, args[0])
	if err != nil {
		return err
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	var resp wire.JobValidateResponse
	_, err = a.put(ctx, "/v1/validate/job", nil, wire.JobValidateRequest{Job: job}, &resp)
	var status *apiError
	switch {
	case err != nil && (!errors.As(err, &status) || status.Status >= http.StatusInternalServerError):
		o.hint("No agent checked the job (%v): checked by this program alone.", err)
		_, p := wire.Prepare(job)
		resp = wire.JobValidateResponse{ValidationErrors: p.Errors, Warnings: p.WarningText()}
		if e := p.Err(); e != nil {
			resp.Error = e.Error()
		}
	case err != nil:
		return err
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	o.file.warn(o.env, resp.Warnings)
	if resp.Error != "" || len(resp.ValidationErrors) > 0 {
		o.hint("%s", o.paint("31", "The job is not valid:"))
		if len(resp.ValidationErrors) > 0 {
			o.hint("%s", o.file.source.Explain(false, resp.ValidationErrors))
		} else {
			o.hint("%s", strings.TrimSpace(resp.Error))
		}
		return exitCode(exitError)
	}
	o.println(o.paint("32", "The job is valid."))
	return nil
}
