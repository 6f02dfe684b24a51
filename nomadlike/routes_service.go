package nomadlike

import (
	"strconv"
	"strings"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

func serviceRoutes() []route {
	return []route{
		{methods: "GET", pattern: "/v1/services", rpc: methods.ServiceList.Name, handle: serviceList},
		{methods: "GET", pattern: "/v1/service/{name}", rpc: methods.ServiceGet.Name, handle: serviceGet},
		{methods: "DELETE", pattern: "/v1/service/{name}/{id}", rpc: methods.ServiceDelete.Name, handle: serviceDelete},
	}
}

func serviceList(c *call) (any, error) {
	resp, err := invoke(c, methods.ServiceList, &methods.ListRequest{})
	if err != nil {
		return nil, err
	}
	return wire.ServicesFrom(resp.Services), nil
}

// parseChoose reads choose=N|KEY.
func parseChoose(text string) (n int, key string, err error) {
	count, key, ok := strings.Cut(text, "|")
	n, bad := strconv.Atoi(count)
	if !ok || bad != nil || n < 1 || key == "" {
		return 0, "", structs.Errorf(structs.CodeInvalid, "choose %q: want a number of at least 1, a bar and a key, such as 2|%s", clip(text, 80), "a1b2")
	}
	return n, key, nil
}

func serviceGet(c *call) (any, error) {
	req := &methods.ServiceGetRequest{Service: c.params["name"]}
	if text := c.r.URL.Query().Get("choose"); text != "" {
		var err error
		if req.Choose, req.Key, err = parseChoose(text); err != nil {
			return nil, err
		}
	}
	return invokeList(c, methods.ServiceGet, req, registrations)
}

func registrations(resp *methods.ServiceGetResponse) []*wire.ServiceRegistration {
	return each(resp.Services, wire.ServiceFromStructs)
}

func serviceDelete(c *call) (any, error) {
	return c.written(invoke(c, methods.ServiceDelete, &methods.ServiceDeleteRequest{Service: c.params["name"], ID: c.params["id"]}))
}

func allocServices(c *call) (any, error) {
	id, err := pathID[structs.AllocID](c, "alloc")
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.ServiceAlloc, &methods.AllocGetRequest{AllocID: id})
	if err != nil {
		return nil, err
	}
	return registrations(resp), nil
}

func jobServices(c *call) (any, error) {
	resp, err := invoke(c, methods.ServiceJob, &methods.JobGetRequest{JobID: c.params["id"]})
	if err != nil {
		return nil, err
	}
	return registrations(resp), nil
}
