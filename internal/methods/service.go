package methods

import "github.com/muster-sched/muster/structs"

// Registered services. The namespace is that of the header, "*" for all in lists.
type (
	// ServiceName is a service with the tags of all its registrations.
	ServiceName struct {
		Namespace, Service string
		Tags               []string // each once, in order
	}
	// ServiceListResponse lists the services that the caller may see, by namespace and name.
	ServiceListResponse struct {
		Meta
		Services []ServiceName
	}
	// ServiceGetRequest asks for the registrations of a service; with Choose, for that many of them, chosen by Key: the
	// same key gives the same registrations as long as they exist.
	ServiceGetRequest struct {
		Query
		Service string
		Choose  int // 0: all
		Key     string
	}
	// ServiceGetResponse has registrations by ID; with Choose, by how well they match Key.
	ServiceGetResponse struct {
		Meta
		Services []*structs.ServiceRegistration
	}
	// ServiceDeleteRequest removes a registration.
	ServiceDeleteRequest struct{ Service, ID string }
)

// Their methods.
var (
	ServiceList   = method[ListRequest, ServiceListResponse]("Service.List", SideServer, KindRead, ns("read-job"))
	ServiceGet    = method[ServiceGetRequest, ServiceGetResponse]("Service.Get", SideServer, KindRead, ns("read-job"))
	ServiceDelete = method[ServiceDeleteRequest, WriteResponse]("Service.Delete", SideServer, AtLeader, ns("submit-job"))
	ServiceAlloc  = method[AllocGetRequest, ServiceGetResponse]("Service.Allocation", SideServer, KindRead, ns("read-job")) // checked after the lookup
	ServiceJob    = method[JobGetRequest, ServiceGetResponse]("Service.Job", SideServer, KindRead, ns("read-job"))
)
