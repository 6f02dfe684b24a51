package nomadlike

import (
	"reflect"

	"github.com/hashicorp/go-bexpr"

	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// filterStepsMax bounds the parser's steps over an expression; a comparison takes some hundred.
const filterStepsMax = 1 << 16

// Filter compiles a go-bexpr expression over the wire shape of a kind of object ("job", "alloc", "eval",
// "node", "pool", "namespace", "token", "policy", "role"). The server runs the result on every object
// of a list before it cuts pages, so that filters see Nomad's field names without the server knowing them.
func Filter(kind, expr string) (func(obj any) (bool, error), error) {
	shape, sample := shapeOf(kind)
	if shape == nil {
		return nil, structs.Errorf(structs.CodeInvalid, "lists of %s cannot be filtered", kind)
	}
	eval, err := bexpr.CreateEvaluator(expr, bexpr.WithMaxExpressions(filterStepsMax), bexpr.WithTagName("bexpr"), bexpr.WithUnknownValue(nil))
	if err != nil {
		return nil, structs.Errorf(structs.CodeInvalid, "Failed to read filter expression: %v", err)
	}
	// A selector that no object can have is an error even when the list is empty.
	if _, err := eval.Evaluate(sample); err != nil {
		return nil, structs.Errorf(structs.CodeInvalid, "Failed to read filter expression: %v", err)
	}
	return func(obj any) (bool, error) {
		v := shape(obj)
		if v == nil || reflect.ValueOf(v).IsNil() {
			return false, nil
		}
		ok, err := eval.Evaluate(v)
		if err != nil {
			return false, structs.Errorf(structs.CodeInvalid, "filter expression: %v", err)
		}
		return ok, nil
	}, nil
}

func shapeOf(kind string) (shape func(any) any, sample any) {
	switch kind {
	case "job":
		return func(o any) any { return wire.JobFromStructs(o.(*structs.Job)) }, &wire.Job{}
	case "alloc", "allocation":
		return func(o any) any { return wire.AllocFromStructs(o.(*structs.Allocation), nil) }, &wire.Allocation{}
	case "eval", "evaluation":
		return func(o any) any { return wire.EvalFromStructs(o.(*structs.Evaluation), "", nil) }, &wire.Evaluation{}
	case "node":
		return func(o any) any { return wire.NodeFromStructs(o.(*structs.Node)) }, &wire.Node{}
	case "pool", "node-pool":
		return func(o any) any { return wire.PoolFromStructs(o.(*structs.NodePool)) }, &wire.NodePool{}
	case "namespace":
		return func(o any) any { return wire.NamespaceFromStructs(o.(*structs.Namespace)) }, &wire.Namespace{}
	case "token", "acl-token":
		return func(o any) any { return wire.TokenStubFromStructs(o.(*structs.ACLToken)) }, &wire.ACLTokenListStub{}
	case "policy", "acl-policy":
		return func(o any) any { return wire.PolicyStubFromStructs(o.(*structs.ACLPolicy)) }, &wire.ACLPolicyListStub{}
	case "role", "acl-role":
		return func(o any) any { return wire.RoleFromStructs(o.(*structs.ACLRole)) }, &wire.ACLRole{}
	}
	return nil, nil
}
