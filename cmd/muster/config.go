package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/internal/agentconfig"
)

func newConfig(e *env) *cobra.Command {
	return e.group("config", "Check agents' configuration", "", `muster config validate /etc/muster.d`, newConfigValidate)
}

type configValidateOptions struct{ *env }

func newConfigValidate(e *env) *cobra.Command {
	o := &configValidateOptions{env: e}
	return e.verb("validate FILE|DIR...", "Check configuration files without starting an agent",
		"Read configuration files as `muster agent -config` would, the later over the earlier, and print their errors with file, line and column.\nNothing is started, bound or written. Exits with 1 when an agent would not start. Whether the operator's commands (client.hooks) are there is checked by each agent when it starts: this machine may be a different one.",
		`muster config validate /etc/muster.d`, 1, -1, o.run)
}

func (o *configValidateOptions) run(_ context.Context, args []string) error {
	c, err := agentconfig.Load(agentconfig.Options{Paths: args})
	if err != nil {
		return fmt.Errorf("the configuration is not usable:\n%w", err)
	}
	for _, w := range c.Warnings {
		o.println("Warning: " + w)
	}
	o.println("The configuration is valid.")
	return nil
}
