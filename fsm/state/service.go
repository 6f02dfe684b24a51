package state

import (
	"iter"

	"github.com/tidwall/btree"

	"github.com/muster-sched/muster/structs"
)

// allocService indexes a registration by its allocation.
type allocService struct {
	alloc structs.AllocID
	key   structs.ServiceKey
	val   *structs.ServiceRegistration
}

func lessAllocService(a, b allocService) bool {
	if a.alloc != b.alloc {
		return lessID(a.alloc, b.alloc)
	}
	return a.key.Less(b.key)
}

func (s *Store) serviceChanged(before, after *structs.ServiceRegistration) {
	if before != nil && (after == nil || after.AllocID != before.AllocID) {
		s.index.allocService.Delete(allocService{alloc: before.AllocID, key: before.Key()})
	}
	if after != nil {
		s.index.allocService.Set(allocService{after.AllocID, after.Key(), after})
	}
}

// dropServices removes the registrations of an allocation that no longer serves.
func (s *Store) dropServices(a structs.AllocID) {
	if Services.Len(s) == 0 {
		return
	}
	for _, r := range s.ServicesByAlloc(a) {
		Services.Delete(s, r.Key())
	}
}

// DeleteAlloc removes an allocation and its service registrations.
func (s *Store) DeleteAlloc(id structs.AllocID) {
	s.dropServices(id)
	Allocs.Delete(s, id)
}

// ServicesByAlloc lists the registrations of an allocation by service and ID.
func (s *Store) ServicesByAlloc(id structs.AllocID) []*structs.ServiceRegistration {
	return collectServices(s.index.allocService, id)
}

func collectServices(t *btree.BTreeG[allocService], id structs.AllocID) (out []*structs.ServiceRegistration) {
	t.Ascend(allocService{alloc: id}, func(it allocService) bool {
		if it.alloc != id {
			return false
		}
		out = append(out, it.val)
		return true
	})
	return out
}

// ServicesByAlloc lists the registrations of an allocation by service and ID.
func (s *Snapshot) ServicesByAlloc(id structs.AllocID) []*structs.ServiceRegistration {
	return collectServices(s.allocService, id)
}

// ServicesOf lists the registrations of a service of a namespace by ID.
func (s *Snapshot) ServicesOf(namespace, service string) iter.Seq[*structs.ServiceRegistration] {
	return while(Services.from(s, structs.ServiceKey{Namespace: namespace, Service: service}), func(r *structs.ServiceRegistration) bool {
		return r.Namespace == namespace && r.Service == service
	})
}

// Services lists the registrations of a namespace ("*": of all), by namespace, service and ID.
func (s *Snapshot) Services(namespace string) iter.Seq[*structs.ServiceRegistration] {
	if namespace == "*" {
		return Services.All(s)
	}
	return while(Services.from(s, structs.ServiceKey{Namespace: namespace}), func(r *structs.ServiceRegistration) bool { return r.Namespace == namespace })
}

// Service returns a registration, or nil.
func (s *Snapshot) Service(k structs.ServiceKey) *structs.ServiceRegistration {
	return Services.Get(s, k)
}
