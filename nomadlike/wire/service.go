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

// ServicesFrom groups services by namespace. The input is sorted by it.
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

// CheckStatus is the latest result of a check.
type CheckStatus struct {
	ID         string
	Check      string
	Group      string
	Mode       string // healthiness, or readiness: it does not count for the health of the allocation
	Output     string
	Service    string
	Task       string
	Status     string // success, failure or pending
	StatusCode int
	Timestamp  int64 // Unix seconds
}

// ChecksFrom converts the checks of an allocation, by ID.
func ChecksFrom(list []methods.CheckStatus) map[string]*CheckStatus {
	status := map[structs.ServiceHealth]string{structs.HealthPassing: "success", structs.HealthFailing: "failure", structs.HealthPending: "pending"}
	out := make(map[string]*CheckStatus, len(list))
	for i := range list {
		c := &list[i]
		w := &CheckStatus{
			ID: c.ID, Check: c.Check, Group: c.Group, Mode: "healthiness", Output: c.Output, Service: c.Service, Task: c.Task,
			Status: status[c.Status], StatusCode: c.Code, Timestamp: c.Time.Time().Unix(),
		}
		if c.Readiness {
			w.Mode = "readiness"
		}
		out[c.ID] = w
	}
	return out
}
