package nomadlike

import (
	"strconv"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// rootKeys lists the keys that seal variables.
func rootKeys(c *call) (any, error) {
	resp, err := invoke(c, methods.SealKeyList, &methods.ListRequest{})
	if err != nil {
		return nil, err
	}
	out := make([]*wire.RootKeyMeta, 0, len(resp.Keys))
	for i := range resp.Keys {
		out = append(out, wire.RootKeyMetaFrom(&resp.Keys[i]))
	}
	return out, nil
}

func rootKeyRotate(c *call) (any, error) {
	q := c.r.URL.Query()
	if a := q.Get("algo"); a != "" && a != wire.RootKeyAlgorithm {
		return nil, structs.Errorf(structs.CodeInvalid, "no algorithm %q for variables: want %s", clip(a, 40), wire.RootKeyAlgorithm)
	}
	if p := q.Get("publish_time"); p != "" && p != "0" {
		return nil, structs.Errorf(structs.CodeUnsupported, "publish_time is not supported by this build of Muster: every server has a key before it is used")
	}
	req := &methods.SealKeyRotateRequest{}
	if f := q.Get("full"); f != "" {
		var err error
		if req.Full, err = strconv.ParseBool(f); err != nil {
			return nil, structs.Errorf(structs.CodeInvalid, "full is %q: want true or false", clip(f, 40))
		}
	}
	resp, err := invoke(c, methods.SealKeyRotate, req)
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	key := wire.RootKeyMetaFrom(&resp.Key)
	key.CreateIndex, key.ModifyIndex = 0, 0 // as in Nomad, whose clients list the keys after this index and would wait
	return &wire.RotateResponse{Key: key, Index: uint64(resp.Index)}, nil
}

// rootKeyDelete deletes a key that is not in use; force does not change that.
func rootKeyDelete(c *call) (any, error) {
	return c.written(invoke(c, methods.SealKeyDelete, &methods.NameRequest{Name: c.params["id"]}))
}
