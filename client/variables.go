package client

import (
	"context"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/tasktoken"
	"github.com/muster-sched/muster/structs"
)

// variableWait is how long a server keeps a request for a change of a variable.
const variableWait = 2 * time.Minute

// variables is a runner.Variables over the agent's way to the servers. Each request carries the agent's word for the task
// that it is for, so that servers decide what may be read.
type variables struct{ c *Client }

func (v variables) header(alloc structs.AllocID, task, namespace string) rpc.Header {
	return rpc.Header{Namespace: namespace, Token: tasktoken.New(v.c.auth().Secret, alloc, task, time.Now())}
}

// Variable implements runner.Variables.
func (v variables) Variable(ctx context.Context, alloc structs.AllocID, task, namespace, path string, after structs.Index) (*methods.Variable, structs.Index, error) {
	resp, err := rpc.Invoke(ctx, v.c.conn, methods.VariableGet, v.header(alloc, task, namespace), &methods.VariableGetRequest{Path: path, Query: methods.Query{MinIndex: after, MaxWait: variableWait}})
	if err != nil {
		return nil, 0, err
	}
	return resp.Variable, resp.Index, nil
}

// Variables implements runner.Variables.
func (v variables) Variables(ctx context.Context, alloc structs.AllocID, task, namespace, prefix string, after structs.Index) ([]methods.VariableMeta, structs.Index, error) {
	var all []methods.VariableMeta
	req := &methods.ListRequest{Query: methods.Query{MinIndex: after, MaxWait: variableWait, Prefix: prefix}}
	for {
		resp, err := rpc.Invoke(ctx, v.c.conn, methods.VariableList, v.header(alloc, task, namespace), req)
		if err != nil {
			return nil, 0, err
		}
		all = append(all, resp.Variables...)
		if resp.NextToken == "" {
			return all, resp.Index, nil
		}
		req.NextToken, req.MinIndex = resp.NextToken, 0
	}
}
