package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/template"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// Variables reads the cluster's variables and registered services with the rights of an allocation's task. With after,
// a call returns when there is something newer than that index, or after some minutes.
type Variables interface {
	// Variable returns a variable, or nil, and the index to wait after.
	Variable(ctx context.Context, alloc structs.AllocID, task, namespace, path string, after structs.Index) (*methods.Variable, structs.Index, error)
	// Variables lists the variables whose path begins with prefix, as far as the task may read them.
	Variables(ctx context.Context, alloc structs.AllocID, task, namespace, prefix string, after structs.Index) ([]methods.VariableMeta, structs.Index, error)
	// Service returns the registrations of a service; with n, the n that rendezvous hashing of key selects.
	Service(ctx context.Context, alloc structs.AllocID, task, namespace, name string, n int, key string, after structs.Index) ([]*structs.ServiceRegistration, structs.Index, error)
	// Services lists the services of a namespace.
	Services(ctx context.Context, alloc structs.AllocID, task, namespace string, after structs.Index) ([]methods.ServiceName, structs.Index, error)
}

// Bounds of what the templates of a task look up.
const (
	lookupsMax     = 128              // names of variables, prefixes and services of one task
	lookupPatience = 10 * time.Second // until a first answer
	lookupRestMin  = time.Second      // pause after a failed look; it doubles up to lookupRestMax
	lookupRestMax  = 30 * time.Second
)

// errUnread marks a variable or service that could not be read now. A retry may succeed.
var errUnread = errors.New("variables and services cannot be read now")

// lookups caches what the templates of a task look up. The first look asks a server. From then on a goroutine for each
// name waits for changes, and looks are answered from the cache, also while no server is reachable. It lives from the
// first rendered template until the task has ended, across restarts.
type lookups struct {
	t    *task
	ctx  context.Context
	stop context.CancelFunc
	wake chan struct{} // something has changed

	mu    sync.Mutex
	known map[lookupKey]*lookup
}

type lookupKey struct {
	kind            lookupKind
	namespace, path string
	n               int    // of a service: the number of registrations, 0 for all
	key             string // of a service: the key that selects them
}

type lookupKind uint8

const (
	ofVariable lookupKind = iota
	ofPrefix
	ofService
	ofServices
)

func (k lookupKey) String() string {
	return [...]string{"variable", "variables", "service", "services"}[k.kind] + fmt.Sprintf(" %q", k.path)
}

type lookup struct {
	index structs.Index
	items template.VarItems // nil: there is none
	list  []template.VarMeta
	offer []template.Service
	names []template.ServiceName
}

// lookupsIn returns the task's lookups, and creates them on the first call. ctx is the agent's.
func (t *task) lookupsIn(ctx context.Context) *lookups {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.looks == nil {
		l := &lookups{t: t, wake: make(chan struct{}, 1), known: map[lookupKey]*lookup{}}
		l.ctx, l.stop = context.WithCancel(ctx)
		t.looks = l
	}
	return t.looks
}

// during returns the lookups for one rendering. A first answer is awaited no longer than ctx.
func (l *lookups) during(ctx context.Context) template.Variables {
	if l.t.r.cfg.Servers.Variables == nil {
		return nil
	}
	return view{l, ctx}
}

type view struct {
	l   *lookups
	ctx context.Context
}

// split reads PATH or PATH@NAMESPACE or PATH@NAMESPACE.REGION.
func (v view) split(path string) (namespace, rest string, err error) {
	rest, at, named := strings.Cut(path, "@")
	a := v.l.t.r.Alloc()
	if !named {
		return a.Namespace, rest, nil
	}
	namespace, region, named := strings.Cut(at, ".")
	if named && region != v.l.t.r.cfg.Servers.Region {
		return "", "", driver.Permanent(fmt.Errorf("variable %q: variables of another region cannot be read", path))
	}
	return namespace, rest, nil
}

// Name implements template.Variables.
func (v view) Name(path string) string {
	ns, rest, err := v.split(path)
	if err != nil {
		return path
	}
	return rest + "@" + ns + "." + v.l.t.r.cfg.Servers.Region
}

// Variable implements template.Variables.
func (v view) Variable(path string) (template.VarItems, error) {
	ns, rest, err := v.split(path)
	if err != nil {
		return nil, err
	}
	x, err := v.l.look(v.ctx, lookupKey{kind: ofVariable, namespace: ns, path: rest})
	return x.items, err
}

// Variables implements template.Variables.
func (v view) Variables(prefix string) ([]template.VarMeta, error) {
	ns, rest, err := v.split(prefix)
	if err != nil {
		return nil, err
	}
	x, err := v.l.look(v.ctx, lookupKey{kind: ofPrefix, namespace: ns, path: rest})
	return x.list, err
}

// servicesIn returns v as a source of services, or nil if it is none.
func servicesIn(v template.Variables) template.Services {
	s, _ := v.(template.Services)
	return s
}

// Service implements template.Services.
func (v view) Service(name string, n int, key string) ([]template.Service, error) {
	x, err := v.l.look(v.ctx, lookupKey{kind: ofService, namespace: v.l.t.r.Alloc().Namespace, path: name, n: n, key: key})
	return x.offer, err
}

// Services implements template.Services.
func (v view) Services() ([]template.ServiceName, error) {
	x, err := v.l.look(v.ctx, lookupKey{kind: ofServices, namespace: v.l.t.r.Alloc().Namespace})
	return x.names, err
}

// look answers from the cache, or asks a server the first time.
func (l *lookups) look(ctx context.Context, k lookupKey) (lookup, error) {
	l.mu.Lock()
	x, n := l.known[k], len(l.known)
	l.mu.Unlock()
	if x != nil {
		return *x, nil
	}
	if n >= lookupsMax {
		return lookup{}, driver.Permanent(fmt.Errorf("the templates of the task look up more than %d variables and services", lookupsMax))
	}
	ctx, cancel := context.WithTimeout(ctx, lookupPatience)
	defer cancel()
	first, err := l.ask(ctx, k, 0)
	switch code := structs.CodeOf(err); {
	case err == nil:
	case code == structs.CodeDenied && k.kind >= ofService:
		return lookup{}, driver.Permanent(fmt.Errorf("%s of namespace %q may not be looked up by this task", k, k.namespace))
	case code == structs.CodeDenied:
		return lookup{}, driver.Permanent(fmt.Errorf("variable %q of namespace %q may not be read by this task; it may read those of its job, below nomad/jobs", k.path, k.namespace))
	case code == structs.CodeInvalid:
		return lookup{}, driver.Permanent(fmt.Errorf("%s: %w", k, err))
	default:
		return lookup{}, fmt.Errorf("%w: %w", errUnread, err)
	}
	l.mu.Lock()
	l.known[k] = &first
	l.mu.Unlock()
	l.t.r.cfg.Agent.Go(func() { l.follow(k, first.index) })
	return first, nil
}

func (l *lookups) ask(ctx context.Context, k lookupKey, after structs.Index) (lookup, error) {
	from, id := l.t.r.cfg.Servers.Variables, l.t.r.id
	meta := func(m *methods.VariableMeta) template.VarMeta {
		return template.VarMeta{Namespace: m.Namespace, Path: m.Path, CreateTime: int64(m.CreateTime), ModifyTime: int64(m.ModifyTime), CreateIndex: uint64(m.CreateIndex), ModifyIndex: uint64(m.ModifyIndex)}
	}
	switch k.kind {
	case ofService:
		list, index, err := from.Service(ctx, id, l.t.name, k.namespace, k.path, k.n, k.key, after)
		x := lookup{index: index}
		for _, r := range list {
			x.offer = append(x.offer, template.Service{
				ID: r.ID, Name: r.Service, Namespace: r.Namespace, Datacenter: r.Datacenter, Node: r.NodeID.String(), JobID: r.JobID, AllocID: r.AllocID.String(),
				Address: r.Address, Port: r.Port, Tags: r.Tags, Meta: r.Meta, Health: string(r.Health),
			})
		}
		return x, err
	case ofServices:
		list, index, err := from.Services(ctx, id, l.t.name, k.namespace, after)
		x := lookup{index: index}
		for _, s := range list {
			x.names = append(x.names, template.ServiceName{Name: s.Service, Tags: s.Tags})
		}
		return x, err
	case ofPrefix:
		list, index, err := from.Variables(ctx, id, l.t.name, k.namespace, k.path, after)
		x := lookup{index: index}
		for i := range list {
			x.list = append(x.list, meta(&list[i]))
		}
		return x, err
	}
	v, index, err := from.Variable(ctx, id, l.t.name, k.namespace, k.path, after)
	x := lookup{index: index}
	if v != nil {
		x.items = template.NewVarItems(meta(&v.VariableMeta), v.Items)
	}
	return x, err
}

// follow keeps the cache entry of a name up to date until the task has ended.
func (l *lookups) follow(k lookupKey, index structs.Index) {
	bo := backoff{min: lookupRestMin, max: lookupRestMax}
	for l.ctx.Err() == nil {
		x, err := l.ask(l.ctx, k, index)
		if err != nil {
			l.t.r.log().Debug("what a template looks up cannot be looked at", "task", l.t.name, "what", k.String(), "error", err)
			if !sleep(l.ctx, bo.next()) {
				return
			}
			continue
		}
		bo.reset()
		if x.index == index {
			continue // no change for some minutes
		}
		if x.index < index {
			// A follower is behind, or the cluster was restored from a snapshot: ask the leader.
			if x, err = l.ask(l.ctx, k, 0); err != nil {
				continue
			}
		}
		index = x.index
		l.mu.Lock()
		l.known[k] = &x
		l.mu.Unlock()
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// wait returns when something has changed or d is over. It returns false if ctx has ended.
func (l *lookups) wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-l.wake:
	case <-timer.C:
	}
	return true
}
