package wire

import (
	"strings"
	"testing"
	"time"
)

// TestInertFieldsAreNamed: a field of Nomad's job that does nothing here is refused, or warned about, by its name.
// internal/lint/testdata/witnesses.txt has the rows of all fields.
func TestInertFieldsAreNamed(t *testing.T) {
	g := func(j *Job) *TaskGroup { return j.TaskGroups[0] }
	k := func(j *Job) *Task { return j.TaskGroups[0].Tasks[0] }
	update := func(u UpdateStrategy) func(*Job) { return func(j *Job) { j.Update = &u } }
	network := func(n NetworkResource) func(*Job) {
		return func(j *Job) { g(j).Networks = []*NetworkResource{&n} }
	}
	service := func(change func(s *Service, c *ServiceCheck)) func(*Job) {
		return func(j *Job) {
			x := Service{Name: "s", PortLabel: "80", Checks: []ServiceCheck{{Type: "tcp", Interval: Duration(10 * time.Second), Timeout: Duration(time.Second)}}}
			change(&x, &x.Checks[0])
			g(j).Services = []*Service{&x}
		}
	}
	for name, c := range map[string]struct {
		set     func(*Job)
		warning string // else it is an error
		refusal string
	}{
		"Update.Canary":           {set: update(UpdateStrategy{Canary: ptr(1)}), refusal: "update, canary: canaries are not supported"},
		"Update.AutoPromote":      {set: update(UpdateStrategy{AutoPromote: ptr(true)}), refusal: "update, auto_promote: canaries are not supported"},
		"Restart.RenderTemplates": {set: func(j *Job) { g(j).RestartPolicy = &RestartPolicy{RenderTemplates: ptr(true)} }, warning: "restart, render_templates: without effect"},
		"EphemeralDisk.Migrate":   {set: func(j *Job) { g(j).EphemeralDisk = &EphemeralDisk{Migrate: ptr(true)} }, warning: "ephemeral_disk, migrate: without effect"},
		"Network.MBits":           {set: network(NetworkResource{MBits: ptr(9)}), warning: "network, mbits: without effect"},
		"Port.HostNetwork":        {set: network(NetworkResource{DynamicPorts: []Port{{Label: "p", HostNetwork: "public"}}}), refusal: "host_network: nodes have one network"},
		"Task.Kind":               {set: func(j *Job) { k(j).Kind = "connect-proxy:x" }, refusal: "kind: service mesh tasks are not supported"},
		"Task.ScalingPolicies":    {set: func(j *Job) { k(j).ScalingPolicies = []*ScalingPolicy{{Type: "vertical_cpu", Max: ptr(int64(9))}} }, warning: "nothing scales the resources of a task"},
		"Task.Actions":            {set: func(j *Job) { k(j).Actions = []*Action{{Name: "a", Command: "/bin/true"}} }, warning: "action: kept and listed, but actions are not run"},

		"Update.HealthCheck=manual":        {set: update(UpdateStrategy{HealthCheck: ptr("manual")}), warning: "update, health_check: without effect"},
		"Service.Provider=consul":          {set: service(func(s *Service, _ *ServiceCheck) { s.Provider = "consul" }), warning: "there is no Consul integration"},
		"Service.OnUpdate=ignore_warnings": {set: service(func(s *Service, _ *ServiceCheck) { s.OnUpdate = "ignore_warnings" }), warning: "on_update: without effect: a check passes or fails"},
		"Check.OnUpdate=ignore_warnings":   {set: service(func(_ *Service, c *ServiceCheck) { c.OnUpdate = "ignore_warnings" }), warning: "on_update: without effect: a check passes or fails"},
		"Check.InitialStatus=warning":      {set: service(func(_ *Service, c *ServiceCheck) { c.InitialStatus = "warning" }), warning: "initial_status: without effect"},
		"Check.InitialStatus=critical":     {set: service(func(_ *Service, c *ServiceCheck) { c.InitialStatus = "critical" }), warning: "initial_status: without effect"},
		"CheckRestart.IgnoreWarnings":      {set: service(func(_ *Service, c *ServiceCheck) { c.CheckRestart = &CheckRestart{IgnoreWarnings: true} }), warning: "ignore_warnings: without effect"},
	} {
		t.Run(name, func(t *testing.T) {
			j := small("service")
			if _, p := Prepare(j); p.Err() != nil || len(p.Warnings) > 0 {
				t.Fatalf("without it: %v, %q", p.Err(), p.Warnings)
			}
			j = small("service")
			c.set(j)
			_, p := Prepare(j)
			said, want := p.Errors, c.refusal
			if c.warning != "" {
				said, want = p.Warnings, c.warning
				if p.Err() != nil {
					t.Errorf("it is refused: %v", p.Err())
				}
			}
			if len(said) != 1 || !strings.Contains(said[0], want) {
				t.Errorf("errors %q, warnings %q; want one that says %q", p.Errors, p.Warnings, want)
			}
		})
	}
}

// TestPortsOfTasks: the ports of the deprecated network block in the resources of a task become the group's.
func TestPortsOfTasks(t *testing.T) {
	j := small("service")
	j.TaskGroups[0].Tasks[0].Resources = &Resources{Networks: []*NetworkResource{{DynamicPorts: []Port{{Label: "http"}}}}}
	out, p := Prepare(j)
	if p.Err() != nil {
		t.Fatal(p.Err())
	}
	if n := out.Groups[0].Networks; len(n) != 1 || len(n[0].DynamicPorts) != 1 || n[0].DynamicPorts[0].Label != "http" {
		t.Errorf("the group has %+v", n)
	}
}
