package methods

import "github.com/muster-sched/muster/structs"

// Requests and responses about registered services. The namespace is the header's; in lists "*" means all.
type (
	// ServiceName is a service with the tags of all its registrations.
	ServiceName struct {
		Namespace, Service string
		Tags               []string // sorted, each once
	}
	// ServiceListResponse lists the services that the caller may see, by namespace and name.
	ServiceListResponse struct {
		Meta
		Services []ServiceName
	}
	// ServiceGetRequest asks for the registrations of a service. With Choose it asks for that many of them, chosen by
	// Key: the same key gives the same registrations as long as they exist.
	ServiceGetRequest struct {
		Query
		Service string
		Choose  int // 0: all
		Key     string
	}
	// ServiceGetResponse has registrations sorted by ID, or with Choose by how well they match Key.
	ServiceGetResponse struct {
		Meta
		Services []*structs.ServiceRegistration
	}
	// ServiceDeleteRequest removes a registration.
	ServiceDeleteRequest struct{ Service, ID string }
)

// Methods of services.
var (
	ServiceList   = method[ListRequest, ServiceListResponse]("Service.List", SideServer, KindRead, ns("read-job"))
	ServiceGet    = method[ServiceGetRequest, ServiceGetResponse]("Service.Get", SideServer, KindRead, ns("read-job"))
	ServiceDelete = method[ServiceDeleteRequest, WriteResponse]("Service.Delete", SideServer, AtLeader, ns("submit-job"))
	// the handler checks the namespace after the lookup
	ServiceAlloc = method[AllocGetRequest, ServiceGetResponse]("Service.Allocation", SideServer, KindRead, ns("read-job"))
	ServiceJob   = method[JobGetRequest, ServiceGetResponse]("Service.Job", SideServer, KindRead, ns("read-job"))
)
