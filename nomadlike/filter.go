package nomadlike

import (
	"reflect"
	"strings"

	"github.com/hashicorp/go-bexpr"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// filterStepsMax limits the parser's steps over an expression; a comparison takes some hundred.
const filterStepsMax = 1 << 16

// Filter compiles a go-bexpr expression over the wire shape of a kind of object ("job", "alloc", "eval",
// "node", "pool", "namespace", "token", "policy", "role"). The server runs the result on every object
// of a list before it cuts pages, so that filters see Nomad's field names without the server knowing them.
func Filter(kind, expr string) (func(obj any) (bool, error), error) {
	shape, sample := shapeOf(kind)
	if shape == nil {
		return nil, structs.Errorf(structs.CodeInvalid, "lists of %s cannot be filtered", kind)
	}
	eval, err := bexpr.CreateEvaluator(expr, bexpr.WithMaxExpressions(filterStepsMax), bexpr.WithTagName("bexpr"))
	if err != nil {
		return nil, structs.Errorf(structs.CodeInvalid, "Failed to read filter expression: %v", err)
	}
	// A selector that no object can have is an error even if the list is empty.
	if _, err := evaluate(eval, filled(sample)); err != nil {
		return nil, structs.Errorf(structs.CodeInvalid, "Failed to read filter expression: %v", err)
	}
	return func(obj any) (bool, error) {
		v := shape(obj)
		if v == nil || reflect.ValueOf(v).IsNil() {
			return false, nil
		}
		ok, err := evaluate(eval, v)
		if err != nil {
			return false, structs.Errorf(structs.CodeInvalid, "filter expression: %v", err)
		}
		return ok, nil
	}, nil
}

// evaluate reports whether an expression holds for a value. A selector that this value lacks (a nil pointer on the way
// to it, a list that is too short) matches nothing; a selector that its type lacks is an error. go-bexpr panics when it
// matches a regular expression against a nil pointer: that counts as lacking, too.
func evaluate(eval *bexpr.Evaluator, v any) (ok bool, err error) {
	defer func() {
		if recover() != nil {
			ok, err = false, nil
		}
	}()
	ok, err = eval.Evaluate(v)
	if err != nil && isAbsent(err.Error()) {
		return false, nil
	}
	return ok, err
}

// filled sets the nil pointers of a struct to new values, so that evaluation reaches their types.
func filled(p any) any {
	v := reflect.ValueOf(p).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Pointer && f.IsNil() && f.CanSet() {
			f.Set(reflect.New(f.Type().Elem()))
		}
	}
	return p
}

// isAbsent recognizes go-bexpr's errors about absent values by their text; they have no types.
func isAbsent(msg string) bool {
	if strings.Contains(msg, "struct field with name") {
		return false
	}
	for _, s := range []string{"couldn't find key", "out of range", "invalid value kind: invalid", "primitive comparison function", "on type invalid"} {
		if strings.Contains(msg, s) {
			return true
		}
	}
	return false
}

func shapeOf(kind string) (shape func(any) any, sample any) {
	switch kind {
	case "job":
		return func(o any) any { return wire.JobFromStructs(o.(*structs.Job)) }, &wire.Job{}
	case "alloc", "allocation":
		return func(o any) any { return wire.AllocFromStructs(o.(*structs.Allocation), nil) }, &wire.Allocation{}
	case "eval", "evaluation":
		return func(o any) any { return wire.EvalFromStructs(o.(*structs.Evaluation), "", nil) }, &wire.Evaluation{}
	case "deployment":
		return func(o any) any { return wire.DeploymentFrom(o.(*methods.Deployment)) }, &wire.Deployment{}
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
	case "variable":
		return func(o any) any { return wire.VariableMetadataFromStructs(o.(*structs.Variable)) }, &wire.VariableMetadata{}
	case "service":
		return func(o any) any { return wire.ServiceFromStructs(o.(*structs.ServiceRegistration)) }, &wire.ServiceRegistration{}
	case "role", "acl-role":
		return func(o any) any { return wire.RoleFromStructs(o.(*structs.ACLRole)) }, &wire.ACLRole{}
	}
	return nil, nil
}
