package client

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/tasktoken"
	"github.com/muster-sched/muster/structs"
)

// Limits of waiting for changes of variables and services.
const (
	variableWait  = 2 * time.Minute  // how long a server holds a request
	variableWaits = 400              // concurrent waits of a node: a session has room for 1,024 calls of all kinds
	variableLook  = 20 * time.Second // shortest interval between reads once the limit is reached; the longest is twice that
)

// variables implements runner.Variables over the agent's connection. Each request names the task that it is for, so
// that servers decide what may be read.
type variables struct{ c *Client }

func (v variables) header(alloc structs.AllocID, task, namespace string) rpc.Header {
	return rpc.Header{Namespace: namespace, Token: v.c.TaskToken(alloc, task)}
}

// TaskToken returns a token that says that a request comes from a task on this node.
func (c *Client) TaskToken(alloc structs.AllocID, task string) string {
	return tasktoken.New(c.Auth().Secret, alloc, task, c.clock.now())
}

// changed makes a call that may wait for something newer than after. The first read is confirmed by the leader. Waits
// are held by the connected server, so that they do not gather at the leader. When too many wait, on the node or the
// server, the variable is read at intervals instead.
func changed[T any](ctx context.Context, c *Client, after structs.Index, call func(q methods.Query) (T, error)) (T, error) {
	if after == 0 {
		return call(methods.Query{})
	}
	select {
	case c.variableWaits <- struct{}{}:
		out, err := call(methods.Query{Stale: true, MinIndex: after, MaxWait: variableWait})
		<-c.variableWaits
		if structs.CodeOf(err) != structs.CodeBusy {
			return out, err
		}
	default:
	}
	if !pause(ctx, variableLook+rand.N(variableLook)) {
		var none T
		return none, ctx.Err()
	}
	return call(methods.Query{Stale: true})
}

// Variable implements runner.Variables.
func (v variables) Variable(ctx context.Context, alloc structs.AllocID, task, namespace, path string, after structs.Index) (*methods.Variable, structs.Index, error) {
	resp, err := changed(ctx, v.c, after, func(q methods.Query) (*methods.VariableGetResponse, error) {
		return rpc.Invoke(ctx, v.c.conn, methods.VariableGet, v.header(alloc, task, namespace), &methods.VariableGetRequest{Path: path, Query: q})
	})
	if err != nil {
		return nil, 0, err
	}
	return resp.Variable, resp.Index, nil
}

// Variables implements runner.Variables.
func (v variables) Variables(ctx context.Context, alloc structs.AllocID, task, namespace, prefix string, after structs.Index) ([]methods.VariableMeta, structs.Index, error) {
	var all []methods.VariableMeta
	next := ""
	for {
		resp, err := changed(ctx, v.c, after, func(q methods.Query) (*methods.VariableListResponse, error) {
			q.Prefix, q.NextToken = prefix, next
			return rpc.Invoke(ctx, v.c.conn, methods.VariableList, v.header(alloc, task, namespace), &methods.ListRequest{Query: q})
		})
		if err != nil {
			return nil, 0, err
		}
		all = append(all, resp.Variables...)
		if resp.NextToken == "" {
			return all, resp.Index, nil
		}
		next, after = resp.NextToken, 0
	}
}

// signIdentity implements runner.Identity.
func (c *Client) signIdentity(ctx context.Context, alloc structs.AllocID, task, name string) (*methods.NodeIdentityResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	return rpc.Invoke(ctx, c.conn, methods.NodeIdentity, c.header(), &methods.NodeIdentityRequest{NodeAuth: c.Auth(), AllocID: alloc, Task: task, Identity: name})
}

// Service implements runner.Variables.
func (v variables) Service(ctx context.Context, alloc structs.AllocID, task, namespace, name string, n int, key string, after structs.Index) ([]*structs.ServiceRegistration, structs.Index, error) {
	resp, err := changed(ctx, v.c, after, func(q methods.Query) (*methods.ServiceGetResponse, error) {
		return rpc.Invoke(ctx, v.c.conn, methods.ServiceGet, v.header(alloc, task, namespace), &methods.ServiceGetRequest{Service: name, Choose: n, Key: key, Query: q})
	})
	if err != nil {
		return nil, 0, err
	}
	return resp.Services, resp.Index, nil
}

// Services implements runner.Variables.
func (v variables) Services(ctx context.Context, alloc structs.AllocID, task, namespace string, after structs.Index) ([]methods.ServiceName, structs.Index, error) {
	resp, err := changed(ctx, v.c, after, func(q methods.Query) (*methods.ServiceListResponse, error) {
		return rpc.Invoke(ctx, v.c.conn, methods.ServiceList, v.header(alloc, task, namespace), &methods.ListRequest{Query: q})
	})
	if err != nil {
		return nil, 0, err
	}
	return resp.Services, resp.Index, nil
}
