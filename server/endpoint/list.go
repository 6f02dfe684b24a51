package endpoint

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/structs"
)

// jobToken returns the token of a list of jobs that begins with j. It sorts like the list, because '!' is smaller than any
// character of a namespace's name.
func jobToken(j *structs.Job) string { return j.Namespace + "!" + j.ID }

// newest returns a page of the rows of one job or node for which the filter holds, the newest first. It changes rows. The
// token of a page names the first row by the index and ID of its creation, so that rows that come or go do not move others
// across pages. kind is for Config.Filter.
func newest[T any](s *Set, q *methods.Query, kind string, rows []*T, created func(*T) (structs.Index, [16]byte)) (page []*T, next string, err error) {
	match, err := s.filter(kind, q.Filter)
	if err != nil {
		return nil, "", err
	}
	size, err := pageSize(q)
	if err != nil {
		return nil, "", err
	}
	if match != nil {
		rows = slices.DeleteFunc(rows, func(x *T) bool {
			ok, failed := match(x)
			err = cmp.Or(err, failed)
			return !ok
		})
		if err != nil {
			return nil, "", err
		}
	}
	slices.SortFunc(rows, func(a, b *T) int {
		ai, aid := created(a)
		bi, bid := created(b)
		return cmp.Or(cmp.Compare(bi, ai), slices.Compare(aid[:], bid[:]))
	})
	if q.NextToken != "" {
		var at structs.Index
		var id []byte
		if n, err := fmt.Sscanf(q.NextToken, "%d.%x", &at, &id); n != 2 {
			return nil, "", structs.Errorf(structs.CodeInvalid, "next_token %q is not from this list: %v", q.NextToken, err)
		}
		from := slices.IndexFunc(rows, func(x *T) bool {
			xi, xid := created(x)
			return xi < at || xi == at && slices.Compare(xid[:], id) >= 0
		})
		if from < 0 {
			return nil, "", nil
		}
		rows = rows[from:]
	}
	if len(rows) <= size {
		return rows, "", nil
	}
	at, id := created(rows[size])
	return rows[:size], fmt.Sprintf("%d.%x", at, id), nil
}

// newestAllocs returns a page of the allocations of one job or node, the newest first.
func (s *Set) newestAllocs(q *methods.Query, as []*structs.Allocation) ([]*structs.Allocation, string, error) {
	return newest(s, q, "alloc", as, func(a *structs.Allocation) (structs.Index, [16]byte) { return a.CreateIndex, a.ID })
}

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
	size, err := pageSize(q)
	if err != nil {
		return nil, "", err
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
