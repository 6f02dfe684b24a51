package main

import (
	"context"
	"errors"
	"net/url"

	"github.com/spf13/cobra"
)

type monitorCmdOptions struct {
	*env
	level, nodeID, serverID string
	json                    bool
}

func newMonitor(e *env) *cobra.Command {
	o := &monitorCmdOptions{env: e}
	c := e.verb("monitor [options]", "Follow the log of an agent", "Follow the log of the agent that answers, of a node's agent, or of another server. Ctrl-C ends it.", `
muster monitor
muster monitor -log-level DEBUG -node-id 46f1c6c4
muster monitor -server-id server-2.global -json`, 0, 0, o.run)
	f := c.Flags()
	f.StringVar(&o.level, "log-level", "INFO", "from which level on: TRACE, DEBUG, INFO, WARN or ERROR")
	f.StringVar(&o.nodeID, "node-id", "", "the agent of this node")
	f.StringVar(&o.serverID, "server-id", "", "the agent of this server, by name; leader for the leader")
	f.BoolVar(&o.json, "json", false, "lines as JSON")
	return c
}

func (o *monitorCmdOptions) run(ctx context.Context, _ []string) error {
	if o.nodeID != "" && o.serverID != "" {
		return errors.New("-node-id and -server-id exclude each other: choose one")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	q := url.Values{"log_level": {o.level}}
	if o.serverID != "" {
		q.Set("server_id", o.serverID)
	}
	if o.nodeID != "" {
		n, err := a.nodeStub(ctx, o.nodeID)
		if err != nil {
			return err
		}
		q.Set("node_id", n.ID)
	}
	queryFlag(q, "log_json", o.json)
	q.Set("origin", "end")
	err = o.copyFrames(ctx, a, "/v1/agent/monitor", q, o.out, 0, false, nil)
	if ctx.Err() != nil {
		return nil
	}
	return err
}
