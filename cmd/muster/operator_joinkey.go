package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/internal/tlsutil"
)

func newOperatorJoinKey(e *env) *cobra.Command {
	return e.group("join-key", "The key by which servers know each other", "", `muster operator join-key generate`, newJoinKeyGenerate)
}

type joinKeyOptions struct {
	*env
	form format
}

func newJoinKeyGenerate(e *env) *cobra.Command {
	o := &joinKeyOptions{env: e}
	c := e.verb("generate", "Make a new join key", "Make a new key for server { join_key = \"...\" } of the configuration, by which servers without TLS prove that they are servers. Give it to servers only. No agent is asked.", `muster operator join-key generate`, 0, 0, o.generate)
	o.form.flags(c)
	return c
}

func (o *joinKeyOptions) generate(context.Context, []string) error {
	key := tlsutil.NewJoinKey()
	if done, err := o.form.done(o.env, map[string]string{"Key": key}); done || err != nil {
		return err
	}
	o.println(key)
	return nil
}
