package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

const payloadMax = 16 << 10 // bytes of a dispatch payload

type jobDispatchOptions struct {
	*env
	form             format
	monitor          monitorOptions
	meta             []string
	idempotencyToken string
	idPrefix         string
	priority         int
}

func newJobDispatch(e *env) *cobra.Command {
	o := &jobDispatchOptions{env: e}
	c := e.verb("dispatch [options] JOB [FILE]", "Launch a parameterized job", "Launch a parameterized job with metadata and a payload; the file \"-\" is standard input.", `
muster job dispatch -meta lr=0.1 sweep
muster job dispatch -detach render scene.json
echo hello | muster job dispatch greet -`, 1, 2, o.run)
	o.form.flags(c)
	f := c.Flags()
	f.BoolVar(&o.monitor.detach, "detach", false, "only launch it; print ids and end")
	f.BoolVar(&o.monitor.verbose, "verbose", false, "long ids")
	f.StringArrayVar(&o.meta, "meta", nil, "metadata as key=value; may be repeated")
	f.StringVar(&o.idempotencyToken, "idempotency-token", "", "launch only once for this token")
	f.StringVar(&o.idPrefix, "id-prefix-template", "", "prefix for the child's id")
	f.IntVar(&o.priority, "priority", 0, "priority instead of the job's")
	return c
}

func (o *jobDispatchOptions) run(ctx context.Context, args []string) error {
	metaMap, err := varMap("-meta", o.meta)
	if err != nil {
		return err
	}
	req := wire.JobDispatchRequest{Meta: metaMap, IdPrefixTemplate: o.idPrefix, Priority: o.priority}
	if len(args) == 2 {
		r := o.in
		if args[1] != "-" {
			f, err := os.Open(args[1])
			if err != nil {
				return fmt.Errorf("read the payload: %w", err)
			}
			defer f.Close()
			r = f
		}
		if req.Payload, err = io.ReadAll(io.LimitReader(r, payloadMax+1)); err != nil {
			return fmt.Errorf("read the payload: %w", err)
		}
		if len(req.Payload) > payloadMax {
			return fmt.Errorf("the payload is larger than %d bytes", payloadMax)
		}
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
	if o.idempotencyToken != "" {
		q.Set("idempotency_token", o.idempotencyToken)
	}
	req.JobID = stub.ID
	var resp wire.JobDispatchResponse
	if _, err := a.put(ctx, jobPath(stub.ID, "/dispatch"), q, req, &resp); err != nil {
		return fmt.Errorf("dispatch job %q: %w", stub.ID, err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	rows := [][2]string{{"Dispatched Job ID", resp.DispatchedJobID}}
	if resp.EvalID != "" {
		rows = append(rows, [2]string{"Evaluation ID", shortID(resp.EvalID, o.monitor.verbose)})
	}
	o.kv(rows)
	if resp.EvalID == "" || o.monitor.detach {
		return nil
	}
	o.println()
	return o.follow(ctx, a, o.monitor, stub.Namespace, resp.DispatchedJobID, resp.EvalID, func(p *progress) { p.follow = true })
}
