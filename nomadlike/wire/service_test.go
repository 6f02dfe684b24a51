package wire

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// withService is a job whose group offers one service at its own port.
func withService(change func(*Service)) *Job {
	j := small("service")
	j.TaskGroups[0].Networks = []*NetworkResource{{DynamicPorts: []Port{{Label: "http"}}}}
	s := &Service{Name: "api", PortLabel: "http", Checks: []ServiceCheck{{Name: "alive", Type: "http", Path: "/health", Interval: Duration(10 * time.Second), Timeout: Duration(2 * time.Second)}}}
	change(s)
	j.TaskGroups[0].Services = []*Service{s}
	return j
}

func TestServicesAreChecked(t *testing.T) {
	check := func(change func(*ServiceCheck)) func(*Service) {
		return func(s *Service) { change(&s.Checks[0]) }
	}
	task := withService(func(*Service) {}).TaskGroups[0].Tasks[0].Name
	script := func(change func(*Service)) func(*Service) {
		return func(s *Service) {
			c := &s.Checks[0]
			c.Type, c.Path, c.Command, c.TaskName = "script", "", "/bin/true", task
			change(s)
		}
	}
	for _, c := range []struct {
		name   string
		change func(*Service)
		want   string // "" for a job that is right
	}{
		{"right", func(*Service) {}, ""},
		{"number for a port", func(s *Service) { s.PortLabel = "8080" }, ""},
		{"name from the node", func(s *Service) { s.Name = "x_${node.unique.name}" }, ""},
		{"of the job", func(s *Service) { s.Name = "${JOB}-${TASKGROUP}-api" }, ""},
		{"underscore", func(s *Service) { s.Name = "my_api" }, "letters, digits and hyphens"},
		{"long", func(s *Service) { s.Name = strings.Repeat("a", 64) }, "at most 63"},
		{"hyphen", func(s *Service) { s.Name = "api-" }, "no hyphen at an end"},
		{"port label", func(s *Service) { s.PortLabel = "htp" }, `did you mean "http"?`},
		{"port", func(s *Service) { s.PortLabel = "70000" }, "70000 is not a port"},
		{"provider", func(s *Service) { s.Provider = "etcd" }, "want nomad, consul"},
		{"driver", func(s *Service) { s.AddressMode = "driver" }, "addresses that a driver gives are not registered"},
		{"mode", func(s *Service) { s.AddressMode = "alloc_ipv9" }, "want auto, host, alloc"},
		{"task", func(s *Service) { s.TaskName = "nobody" }, `the group has no task "nobody"`},
		{"tags", func(s *Service) { s.Tags = make([]string, 65) }, "at most 64"},
		{"connect", func(s *Service) { s.Connect = map[string]any{"native": true} }, "service mesh is not supported"},
		{"interval", check(func(c *ServiceCheck) { c.Interval = Duration(time.Millisecond) }), "interval: 1ms is too short; want at least 1s"},
		{"no timeout", check(func(c *ServiceCheck) { c.Timeout = 0 }), "timeout: 0s is too short"},
		{"type", check(func(c *ServiceCheck) { c.Type = "docker" }), `"docker" checks do not exist: want http, tcp or script`},
		{"grpc", check(func(c *ServiceCheck) { c.Type = "grpc" }), `grpc checks are not supported`},
		{"command of another type", check(func(c *ServiceCheck) { c.Command = "/bin/true" }), "only script checks run a command"},
		{"script without command", script(func(s *Service) { s.Checks[0].Command = "" }), "needs a command"},
		{"script without task", script(func(s *Service) { s.Checks[0].TaskName = "" }), "needs the task to run its command in"},
		{"script with a path", script(func(s *Service) { s.Checks[0].Path = "/x" }), "belong to http checks"},
		{"script", script(func(*Service) {}), ""},
		{"script without port", script(func(s *Service) { s.PortLabel = "" }), ""},
		{"script of the service's task", script(func(s *Service) { s.TaskName, s.Checks[0].TaskName = s.Checks[0].TaskName, "" }), ""},
		{"no path", check(func(c *ServiceCheck) { c.Path = "" }), "needs a path"},
		{"elsewhere", check(func(c *ServiceCheck) { c.Path = "http://other/x" }), "is not a path on the service"},
		{"elsewhere without scheme", check(func(c *ServiceCheck) { c.Path = "//other/x" }), "is not a path on the service"},
		{"method", check(func(c *ServiceCheck) { c.Method = "GE T" }), "not a method"},
		{"header", check(func(c *ServiceCheck) { c.Header = map[string][]string{"A": {"x\r\nB: y"}} }), "not a header"},
		{"protocol", check(func(c *ServiceCheck) { c.Protocol = "gopher" }), "want http, https"},
		{"status", check(func(c *ServiceCheck) { c.InitialStatus = "good" }), "want passing, warning"},
		{"on_update", check(func(c *ServiceCheck) { c.OnUpdate = "never" }), "want require_healthy"},
		{"restart", check(func(c *ServiceCheck) { c.CheckRestart = &CheckRestart{Limit: -1} }), "-1 is negative"},
		{"check without port", func(s *Service) { s.PortLabel = "" }, "neither the check nor its service names a port"},
		{"two checks", func(s *Service) { s.Checks = append(s.Checks, s.Checks[0]) }, "two checks with this name"},
		{"for Consul, which takes more", func(s *Service) { s.Provider, s.Name, s.Checks[0].Type = "consul", "my_api", "script" }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, p := Prepare(withService(c.change))
			if c.want == "" && p.Err() != nil || c.want != "" && !slices.ContainsFunc(p.Errors, func(e string) bool { return strings.Contains(e, c.want) }) {
				t.Errorf("want %q, got %q", c.want, p.Errors)
			}
		})
	}
	two := withService(func(*Service) {})
	two.TaskGroups[0].Services = append(two.TaskGroups[0].Services, &Service{Name: "api", PortLabel: "http"})
	if _, p := Prepare(two); p.Err() == nil || !strings.Contains(p.Err().Error(), "two services with this name and port") {
		t.Errorf("the same twice: %v", p.Err())
	}
	many := withService(func(*Service) {})
	for range structs.ServicesAllocMax {
		many.TaskGroups[0].Tasks[0].Services = append(many.TaskGroups[0].Tasks[0].Services, &Service{Name: "x" + strings.Repeat("y", len(many.TaskGroups[0].Tasks[0].Services)%60), PortLabel: "http"})
	}
	if _, p := Prepare(many); p.Err() == nil || !strings.Contains(p.Err().Error(), "at most 64") {
		t.Errorf("too many: %v", p.Err())
	}
}

func TestDefaultsOfServices(t *testing.T) {
	j := withService(func(s *Service) {
		s.Name, s.Checks[0].Name = "", ""
		s.Tags = []string{"${BASE}", "${meta.rack}"}
		s.CheckRestart = &CheckRestart{Limit: 3}
	})
	out, p := Prepare(j)
	if p.Err() != nil || len(p.Warnings) != 0 {
		t.Fatal(p.Err(), p.Warnings)
	}
	g := out.Groups[0]
	s := servicesFrom(g.Services)[0]
	base := out.Name + "-" + string(g.Name)
	if s.Name != base || s.Provider != "nomad" || s.AddressMode != "auto" || !slices.Equal(s.Tags, []string{base, "${meta.rack}"}) || !g.Checked() {
		t.Errorf("%+v", s)
	}
	if c := s.Checks[0]; c.Method != "GET" || c.Name == "" || c.OnUpdate != "require_healthy" || c.CheckRestart == nil || c.CheckRestart.Limit != 3 || *c.CheckRestart.Grace != Duration(time.Second) {
		t.Errorf("%+v", c)
	}
}
