package template

import (
	"fmt"
	"slices"
	"strings"
)

// Tags are the tags of a service.
type Tags []string

// Contains reports whether the service has a tag.
func (t Tags) Contains(tag string) bool { return slices.Contains(t, tag) }

// Service is a registration in the form that templates see.
type Service struct {
	ID, Name, Namespace, Datacenter string
	Node, JobID, AllocID            string // Node: its ID
	Address                         string
	Port                            int
	Tags                            Tags
	Meta                            map[string]string
	Health                          string // passing, failing, pending; "" without checks
}

// ServiceName is a service with the tags of all its registrations.
type ServiceName struct {
	Name string
	Tags Tags
}

// Services looks up registered services of the task's namespace.
type Services interface {
	// Service returns the registrations of a service by ID; with n, the n that rendezvous hashing of key selects.
	Service(name string, n int, key string) ([]Service, error)
	// Services lists the services by name.
	Services() ([]ServiceName, error)
}

// serviceFunctions are the functions that look up services. A service without registrations is an empty list, not an
// error.
func serviceFunctions(in Input) map[string]any {
	get := func(args []any) ([]Service, error) {
		if in.Services == nil {
			return nil, bad{fmt.Errorf("services cannot be looked up here")}
		}
		name, n, key := "", 0, ""
		text := func(v any) bool {
			s, ok := v.(string)
			name = s
			return ok && s != ""
		}
		switch len(args) {
		case 1:
			if !text(args[0]) {
				return nil, bad{fmt.Errorf("want the name of a service, not %v", args[0])}
			}
		case 3:
			count, ok := args[0].(int)
			if key = fmt.Sprint(args[1]); !ok || count < 1 || key == "" || !text(args[2]) {
				return nil, bad{fmt.Errorf("want \"NAME\", or a number of at least 1, a key and \"NAME\"")}
			}
			n = count
		default:
			return nil, bad{fmt.Errorf("want \"NAME\", or a number, a key and \"NAME\"; got %d arguments", len(args))}
		}
		if strings.Contains(name, "@") {
			return nil, bad{fmt.Errorf("service %q: only services of the task's own namespace and region are looked up", name)}
		}
		return in.Services.Service(name, n, key)
	}
	return map[string]any{
		"nomadService": func(args ...any) ([]Service, error) { return get(args) },
		"musterService": func(args ...any) ([]Service, error) {
			all, err := get(args)
			var well []Service
			for _, s := range all {
				if s.Health == "" || s.Health == "passing" {
					well = append(well, s)
				}
			}
			return well, err
		},
		"nomadServices": func() ([]ServiceName, error) {
			if in.Services == nil {
				return nil, bad{fmt.Errorf("services cannot be looked up here")}
			}
			return in.Services.Services()
		},
	}
}
