package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

type nodeTaintOptions struct {
	*env
	form format
}

func newNodeTaint(e *env) *cobra.Command {
	o := &nodeTaintOptions{env: e}
	c := e.verb("taint [options] NODE KEY[=VALUE]:EFFECT... KEY[:EFFECT]-...", "Keep jobs off a node, or move what runs there", `Set taints on a node, and take off those that end with "-". A job that does not tolerate a taint is not placed there (no-schedule),
only where there is no other node (prefer-no-schedule), or what runs there is moved, too (no-execute).`, `
muster node taint 46f1c6c4 team=nlp:no-schedule
muster node taint 46f1c6c4 broken:no-execute
muster node taint 46f1c6c4 team- broken:no-execute-`, 2, -1, o.run)
	o.form.flags(c)
	return c
}

func (o *nodeTaintOptions) run(ctx context.Context, args []string) error {
	var body struct{ Add, Remove []wire.Taint }
	for _, text := range args[1:] {
		text, off := strings.CutSuffix(text, "-")
		rest, effect, _ := strings.Cut(text, ":")
		key, value, _ := strings.Cut(rest, "=")
		if off {
			body.Remove = append(body.Remove, wire.Taint{Key: key, Effect: effect})
			continue
		}
		t := structs.Taint{Key: key, Value: value, Effect: effect}
		if err := t.Check(); err != nil {
			return fmt.Errorf("%q: %w (want KEY=VALUE:EFFECT, or KEY- to take it off)", text, err)
		}
		body.Add = append(body.Add, wire.Taint{Key: key, Value: value, Effect: effect})
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	n, err := a.node(ctx, args[0], false)
	if err != nil {
		return err
	}
	var resp wire.NodeUpdateResponse
	if _, err := a.put(ctx, "/v1/node/"+n.ID+"/taints", nil, &body, &resp); err != nil {
		return fmt.Errorf("taint node %q: %w", n.Name, err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	o.printf("Node %q: %d set, %d taken off\n", n.Name, len(body.Add), len(body.Remove))
	return nil
}
