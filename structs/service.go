package structs

import (
	"slices"
	"strings"
)

// Limits of what one allocation registers. A report beyond one is refused.
const (
	ServicesAllocMax  = 64       // registrations of an allocation
	ServiceNameMax    = 63       // bytes of a service's name: it is a label in host names
	ServiceTagsMax    = 64       // tags of a registration
	ServiceTextMax    = 512      // bytes of an ID, a tag, an address, a key or value of its meta
	ServicesReportMax = 64 << 10 // bytes of all texts of an allocation's registrations
)

// Provider of the services that servers register. Services of other providers are stored and have no effect.
const ServiceProvider = "nomad"

// ServiceHealth is the combined result of the checks of a registration.
type ServiceHealth string

// A registration without checks has HealthNone.
const (
	HealthNone    ServiceHealth = ""
	HealthPending ServiceHealth = "pending" // a check has no result yet
	HealthPassing ServiceHealth = "passing" // all checks pass
	HealthFailing ServiceHealth = "failing" // at least one check fails
)

// ServiceRegistration is one allocation offering a service at an address. It exists while its allocation should run,
// runs, and reports it. ID, Service, Tags, Meta, Address, Port and Health come from the agent; the rest is set by
// Apply.
type ServiceRegistration struct {
	ID         string // the same in each report of the same service of an allocation
	Service    string // its name
	Namespace  string
	NodeID     NodeID
	Datacenter string
	JobID      string
	AllocID    AllocID
	Tags       []string
	Meta       map[string]string
	Address    string
	Port       int
	Health     ServiceHealth

	CreateIndex Index
	ModifyIndex Index
}

// ServiceKey identifies a registration.
type ServiceKey struct{ Namespace, Service, ID string }

// Less orders registrations by namespace, service, ID.
func (k ServiceKey) Less(o ServiceKey) bool {
	if k.Namespace != o.Namespace {
		return k.Namespace < o.Namespace
	}
	if k.Service != o.Service {
		return k.Service < o.Service
	}
	return k.ID < o.ID
}

// Key returns the registration's key.
func (r *ServiceRegistration) Key() ServiceKey { return ServiceKey{r.Namespace, r.Service, r.ID} }

// Same reports whether two registrations are equal except for their indexes.
func (r *ServiceRegistration) Same(o *ServiceRegistration) bool {
	if len(r.Meta) != len(o.Meta) {
		return false
	}
	for k, v := range r.Meta { // one difference is enough: the order does not matter
		if w, ok := o.Meta[k]; !ok || v != w {
			return false
		}
	}
	return r.ID == o.ID && r.Service == o.Service && r.Namespace == o.Namespace && r.NodeID == o.NodeID && r.Datacenter == o.Datacenter &&
		r.JobID == o.JobID && r.AllocID == o.AllocID && slices.Equal(r.Tags, o.Tags) && r.Address == o.Address && r.Port == o.Port && r.Health == o.Health
}

// Serves reports whether the allocation may have registrations: it should run, and runs.
func (a *Allocation) Serves() bool { return a.Desired == DesiredRun && a.Client == ClientRunning }

// ValidServiceName reports whether a service may have the name: letters, digits and hyphens, not beginning or ending
// with a hyphen.
func ValidServiceName(name string) bool {
	if name == "" || len(name) > ServiceNameMax || name[0] == '-' || name[len(name)-1] == '-' {
		return false
	}
	for _, c := range []byte(name) {
		if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

// CheckServices returns an error if an agent's report of an allocation's services is invalid.
func CheckServices(alloc AllocID, list []ServiceRegistration) *Error {
	if len(list) > ServicesAllocMax {
		return Errorf(CodeInvalid, "allocation %s registers %d services and may register %d", alloc, len(list), ServicesAllocMax)
	}
	bytes := 0
	seen := make(map[ServiceKey]bool, len(list))
	for i := range list {
		r := &list[i]
		texts := append([]string{r.ID, r.Address}, r.Tags...)
		for k, v := range r.Meta { // the sum does not depend on the order
			texts = append(texts, k, v)
		}
		for _, t := range texts {
			bytes += len(t)
			if len(t) > ServiceTextMax || strings.ContainsRune(t, 0) {
				return Errorf(CodeInvalid, "allocation %s: a text of service %q has %d bytes, or a zero in it; it may have %d", alloc, r.Service, len(t), ServiceTextMax)
			}
		}
		switch {
		case !ValidServiceName(r.Service):
			return Errorf(CodeInvalid, "allocation %s: %.80q cannot be the name of a service", alloc, r.Service)
		case r.ID == "":
			return Errorf(CodeInvalid, "allocation %s: service %q is registered without an ID", alloc, r.Service)
		case len(r.Tags) > ServiceTagsMax || len(r.Meta) > ServiceTagsMax:
			return Errorf(CodeInvalid, "allocation %s: service %q has more than %d tags, or entries of its meta", alloc, r.Service, ServiceTagsMax)
		case r.Port < 0 || r.Port > 65535:
			return Errorf(CodeInvalid, "allocation %s: service %q is at %d, which is no port", alloc, r.Service, r.Port)
		case r.Health != HealthNone && r.Health != HealthPending && r.Health != HealthPassing && r.Health != HealthFailing:
			return Errorf(CodeInvalid, "allocation %s: %.40q is no health of a service", alloc, r.Health)
		}
		if k := (ServiceKey{Service: r.Service, ID: r.ID}); seen[k] {
			return Errorf(CodeInvalid, "allocation %s registers service %q as %q twice", alloc, r.Service, r.ID)
		} else {
			seen[k] = true
		}
	}
	if bytes > ServicesReportMax {
		return Errorf(CodeInvalid, "allocation %s: its services have %d bytes of text and may have %d", alloc, bytes, ServicesReportMax)
	}
	return nil
}

// HealthByChecks is the health_check of an update that waits for the checks of services.
const HealthByChecks = "checks"

// Checked reports whether service checks decide if an allocation of the group is healthy.
func (g *Group) Checked() bool {
	if g == nil {
		return false
	}
	checked := func(s Service) bool { return s.Checked }
	if slices.ContainsFunc(g.Services, checked) {
		return true
	}
	return slices.ContainsFunc(g.Tasks, func(t *Task) bool { return slices.ContainsFunc(t.Services, checked) })
}
