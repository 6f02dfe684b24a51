package wire

import (
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// ServiceRegistration is one allocation offering a service at an address.
type ServiceRegistration struct {
	ID          string
	ServiceName string
	Namespace   string
	NodeID      string
	Datacenter  string
	JobID       string
	AllocID     string
	Tags        []string
	Address     string
	Port        int
	CreateIndex uint64
	ModifyIndex uint64

	Meta   map[string]string `json:",omitempty"` // Muster's own
	Health string            `json:",omitempty"` // Muster's own: pending, passing or failing; none without checks
}

// ServicesOfNamespace lists the services of one namespace.
type ServicesOfNamespace struct {
	Namespace string
	Services  []*ServiceStub
}

// ServiceStub is a service with the tags of all its registrations.
type ServiceStub struct {
	ServiceName string
	Tags        []string
}

// ServiceFromStructs converts a registration.
func ServiceFromStructs(r *structs.ServiceRegistration) *ServiceRegistration {
	return &ServiceRegistration{
		ID: r.ID, ServiceName: r.Service, Namespace: r.Namespace, NodeID: r.NodeID.String(), Datacenter: r.Datacenter, JobID: r.JobID,
		AllocID: r.AllocID.String(), Tags: append([]string{}, r.Tags...), Address: r.Address, Port: r.Port, Meta: r.Meta, Health: string(r.Health),
		CreateIndex: uint64(r.CreateIndex), ModifyIndex: uint64(r.ModifyIndex),
	}
}

// ServicesFrom groups services by namespace; they are ordered by it.
func ServicesFrom(list []methods.ServiceName) []*ServicesOfNamespace {
	out := []*ServicesOfNamespace{}
	for _, s := range list {
		if n := len(out); n == 0 || out[n-1].Namespace != s.Namespace {
			out = append(out, &ServicesOfNamespace{Namespace: s.Namespace})
		}
		last := out[len(out)-1]
		last.Services = append(last.Services, &ServiceStub{ServiceName: s.Service, Tags: append([]string{}, s.Tags...)})
	}
	return out
}
