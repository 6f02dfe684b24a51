package endpoint

import (
	"context"
	"iter"
	"slices"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/structs"
)

// pageMax bounds the objects in one page of a list. NextToken continues the list.
const pageMax = 5000

// lister describes a list of one kind of object.
type lister[T any] struct {
	kind string // for Config.Filter
	key  func(*T) string
	keep func(*T) bool // whether the caller may see the object and asked for it; nil: all
}

// list returns one page: filtered, from NextToken on, in the order of seq or reversed.
func list[T any](s *Set, q *methods.Query, l lister[T], seq iter.Seq[*T]) (page []*T, next string, err error) {
	match, err := s.filter(l.kind, q.Filter)
	if err != nil {
		return nil, "", err
	}
	if q.PerPage < 0 {
		return nil, "", structs.Errorf(structs.CodeInvalid, "per_page is %d; want 0 or more", q.PerPage)
	}
	size := q.PerPage
	if size == 0 || size > pageMax {
		size = pageMax
	}
	if q.Reverse {
		all := slices.Collect(seq)
		slices.Reverse(all)
		seq = slices.Values(all)
	}
	for x := range seq {
		if q.NextToken != "" {
			if k := l.key(x); !q.Reverse && k < q.NextToken || q.Reverse && k > q.NextToken {
				continue
			}
		}
		if l.keep != nil && !l.keep(x) {
			continue
		}
		if match != nil {
			ok, err := match(x)
			if err != nil {
				return nil, "", err
			}
			if !ok {
				continue
			}
		}
		if len(page) == size {
			return page, l.key(x), nil
		}
		page = append(page, x)
	}
	return page, "", nil
}

// filter compiles a filter expression. nil matches all.
func (s *Set) filter(kind, expr string) (func(any) (bool, error), error) {
	if expr == "" {
		return nil, nil
	}
	if len(expr) > 16<<10 {
		return nil, structs.Errorf(structs.CodeInvalid, "a filter of %d bytes is over the limit of %d", len(expr), 16<<10)
	}
	if s.env.Filter == nil {
		return nil, structs.Errorf(structs.CodeUnsupported, "this server does not support filters")
	}
	match, err := s.env.Filter(kind, expr)
	if err != nil {
		if structs.CodeOf(err) == structs.CodeInternal {
			return nil, structs.Errorf(structs.CodeInvalid, "failed to read filter expression: %v", err)
		}
		return nil, err
	}
	return func(x any) (bool, error) {
		ok, err := match(x)
		if err != nil && structs.CodeOf(err) == structs.CodeInternal {
			err = structs.Errorf(structs.CodeInvalid, "failed to evaluate filter expression: %v", err)
		}
		return ok, err
	}, nil
}

// visible returns which objects the caller may see, for a call in namespace ns ("*": all namespaces).
func visible(ctx context.Context, ns, capability string) func(objectNamespace string) bool {
	id := auth.Who(ctx)
	return func(object string) bool {
		return (ns == "*" || ns == object) && id.ACL.AllowNamespaceOp(object, capability)
	}
}
