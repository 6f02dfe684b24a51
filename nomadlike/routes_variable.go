package nomadlike

import (
	"encoding/json"
	"net/http"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

func variableRoutes() []route {
	return []route{
		{methods: "GET", pattern: "/v1/vars", rpc: methods.VariableList.Name, handle: variableList},
		{methods: "GET", pattern: "/v1/var/{path}", rpc: methods.VariableGet.Name, handle: variableGet},
		{methods: "PUT,POST", pattern: "/v1/var/{path}", rpc: methods.VariableSet.Name, handle: variableSet},
		{methods: "DELETE", pattern: "/v1/var/{path}", rpc: methods.VariableDelete.Name, handle: variableDelete},
	}
}

func variableList(c *call) (any, error) {
	return invokeList(c, methods.VariableList, &methods.ListRequest{}, func(resp *methods.VariableListResponse) []*wire.VariableMetadata {
		out := make([]*wire.VariableMetadata, 0, len(resp.Variables))
		for i := range resp.Variables {
			out = append(out, wire.VariableMetadataFrom(&resp.Variables[i]))
		}
		return out
	})
}

func variableGet(c *call) (any, error) {
	resp, err := invoke(c, methods.VariableGet, &methods.VariableGetRequest{Path: c.params["path"]})
	if err != nil {
		return nil, err
	}
	if resp.Variable == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "variable not found")
	}
	return wire.VariableFrom(resp.Variable), nil
}

func variableSet(c *call) (any, error) {
	for _, lock := range []string{"lock-acquire", "lock-renew", "lock-release"} {
		if c.r.URL.Query().Has(lock) {
			return nil, structs.Errorf(structs.CodeUnsupported, "locks of variables are not supported by this build of Muster; use check-and-set (?cas=)")
		}
	}
	var body wire.Variable
	if err := c.body(&body); err != nil {
		return nil, err
	}
	if body.Lock != nil {
		return nil, structs.Errorf(structs.CodeUnsupported, "locks of variables are not supported by this build of Muster; use check-and-set (?cas=)")
	}
	if body.Path != "" && body.Path != c.params["path"] {
		return nil, structs.Errorf(structs.CodeInvalid, "the path names variable %q, the body %q", clip(c.params["path"], 140), clip(body.Path, 140))
	}
	if body.Namespace != "" {
		if ns := c.r.URL.Query().Get("namespace"); ns != "" && ns != "*" && ns != body.Namespace {
			return nil, structs.Errorf(structs.CodeInvalid, "the query names namespace %q, the body %q", clip(ns, 140), clip(body.Namespace, 140))
		}
		c.hdr.Namespace = body.Namespace
	}
	cas, checked, err := c.uint("cas")
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.VariableSet, &methods.VariableSetRequest{Path: c.params["path"], Items: body.Items, CAS: checked, CASIndex: structs.Index(cas)})
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	if !resp.Updated {
		return nil, c.conflict(resp.Variable)
	}
	return wire.VariableFrom(resp.Variable), nil
}

// conflict answers a failed check-and-set with the current variable.
func (c *call) conflict(v *methods.Variable) error {
	b, err := json.Marshal(wire.VariableFrom(v))
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(http.StatusConflict)
	_, _ = c.w.Write(b) // a client that has gone needs no answer
	return errWritten
}

func variableDelete(c *call) (any, error) {
	cas, checked, err := c.uint("cas")
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.VariableDelete, &methods.VariableDeleteRequest{Path: c.params["path"], CAS: checked, CASIndex: structs.Index(cas)})
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	if !resp.Updated {
		return nil, c.conflict(resp.Variable)
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil, errWritten
}
