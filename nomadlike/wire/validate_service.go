package wire

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/structs"
)

// Limits of checks.
const (
	checkLeast   = time.Second // of interval and timeout
	checksMax    = 16          // of one service
	checkBodyMax = 8 << 10     // bytes
)

func interpolated(s string) bool { return strings.Contains(s, "${") }

// registers reports whether the servers keep the service.
func (s *Service) registers() bool { return s.Provider == structs.ServiceProvider }

// services checks the services of a group (task is "") or of one of its tasks.
func (v *validator) services(w string, g *TaskGroup, task string, list []*Service) {
	seen := map[string]bool{}
	for _, s := range list {
		if s == nil {
			continue
		}
		v.service(w, g, task, s)
		if k := s.Name + "\x00" + s.PortLabel; seen[k] && s.registers() {
			v.errorf(fmt.Sprintf("%s, service %q", w, s.Name), "there are two services with this name and port; one of them must differ")
		} else {
			seen[k] = true
		}
	}
}

// servicesOfGroup checks the services of a group and its tasks together.
func (v *validator) servicesOfGroup(w string, g *TaskGroup) {
	n := len(g.Services)
	for _, t := range g.Tasks {
		if t != nil {
			n += len(t.Services)
		}
	}
	if n > structs.ServicesAllocMax {
		v.errorf(w, "%d services of the group and its tasks; want at most %d", n, structs.ServicesAllocMax)
	}
}

func portLabels(g *TaskGroup) (labels []string) {
	for _, n := range g.Networks {
		if n != nil {
			for _, p := range slices.Concat(n.ReservedPorts, n.DynamicPorts) {
				labels = append(labels, p.Label)
			}
		}
	}
	return labels
}

// portLabel checks the name or number of a port.
func (v *validator) portLabel(w string, g *TaskGroup, port string) {
	if port == "" || interpolated(port) {
		return
	}
	if n, err := strconv.Atoi(port); err == nil {
		if n < 1 || n > 65535 {
			v.errorf(w, "%d is not a port: want 1 to 65535", n)
		}
		return
	}
	if labels := portLabels(g); !slices.Contains(labels, port) {
		v.errorf(w, "the group's network has no port %q%s", port, suggest.DidYouMean(port, labels))
	}
}

func (v *validator) service(w string, g *TaskGroup, task string, s *Service) {
	w = fmt.Sprintf("%s, service %q", w, s.Name)
	v.oneOf(w+".provider", s.Provider, "Service.Provider")
	v.portLabel(w+".port", g, s.PortLabel)
	if !s.registers() {
		return
	}
	if !interpolated(s.Name) && !structs.ValidServiceName(s.Name) {
		v.errorf(w+".name", "want at most %d letters, digits and hyphens, with no hyphen at an end, so that it can be part of a host's name", structs.ServiceNameMax)
	}
	if s.AddressMode != "driver" { // mode driver has been refused with its own reason
		v.oneOf(w+".address_mode", s.AddressMode, "Service.AddressMode")
	}
	v.onUpdate(w, s.OnUpdate)
	v.meta(w, s.Meta)
	if len(s.Tags) > structs.ServiceTagsMax || len(s.Meta) > structs.ServiceTagsMax {
		v.errorf(w, "%d tags and %d entries of meta; want at most %d of each", len(s.Tags), len(s.Meta), structs.ServiceTagsMax)
	}
	for _, t := range append([]string{s.Address}, s.Tags...) {
		if len(t) > structs.ServiceTextMax || hasControl(t) {
			v.errorf(w, "a tag or address is longer than %d bytes or holds a control character", structs.ServiceTextMax)
		}
	}
	v.taskOf(w, g, s.TaskName)
	if len(s.Checks) > checksMax {
		v.errorf(w, "%d checks; want at most %d", len(s.Checks), checksMax)
	}
	names := map[string]bool{}
	for i := range s.Checks {
		c := &s.Checks[i]
		if names[c.Name] {
			v.errorf(fmt.Sprintf("%s, check %q", w, c.Name), "there are two checks with this name; names must differ")
		}
		names[c.Name] = true
		v.check(fmt.Sprintf("%s, check %q", w, c.Name), g, task, s, c)
	}
}

func (v *validator) onUpdate(w, s string) {
	v.oneOf(w+".on_update", s, "Service.OnUpdate")
}

// taskOf checks the name of the task that a service or check refers to.
func (v *validator) taskOf(w string, g *TaskGroup, name string) {
	if name == "" {
		return
	}
	var names []string
	for _, t := range g.Tasks {
		if t != nil {
			names = append(names, t.Name)
		}
	}
	if !slices.Contains(names, name) {
		v.errorf(w+".task", "the group has no task %q%s", name, suggest.DidYouMean(name, names))
	}
}

func (v *validator) check(w string, g *TaskGroup, task string, s *Service, c *ServiceCheck) {
	switch c.Type {
	case "http":
		u, err := url.Parse(c.Path)
		switch {
		case c.Path == "":
			v.errorf(w+".path", "an http check needs a path, such as \"/health\"")
		case !interpolated(c.Path) && (err != nil || u.IsAbs() || u.Host != "" || hasControl(c.Path)):
			v.errorf(w+".path", "%.80q is not a path on the service: want something like \"/health\"", c.Path)
		}
		v.oneOfOrNone(w+".protocol", c.Protocol, "Check.Protocol")
		if !httpToken(c.Method) {
			v.errorf(w+".method", "%.40q is not a method of HTTP", c.Method)
		}
		if len(c.Body) > checkBodyMax {
			v.errorf(w+".body", "%d bytes; want at most %d", len(c.Body), checkBodyMax)
		}
		v.count(w+".header", len(c.Header))
		for _, k := range sortedKeys(c.Header) {
			if !httpToken(k) || slices.ContainsFunc(c.Header[k], hasControl) {
				v.errorf(w+".header", "%.80q is not a header of HTTP, or one of its values holds a control character", k)
			}
		}
	case "tcp":
	case "script":
		v.scriptCheck(w, s, c, task)
	case "grpc":
		v.errorf(w+".type", "grpc checks are not supported by this build: want http, tcp or script")
	default:
		v.errorf(w+".type", "%.40q checks do not exist: want http, tcp or script", c.Type)
	}
	if c.Type != "script" && (c.Command != "" || len(c.Args) > 0) {
		v.errorf(w+".command", "only script checks run a command; this one is of type %.40q", c.Type)
	}
	for _, d := range []struct {
		name string
		span Duration
	}{{"interval", c.Interval}, {"timeout", c.Timeout}} {
		if span := d.span; v.duration(w+"."+d.name, &span) && span.D() < checkLeast {
			v.errorf(w+"."+d.name, "%s is too short; want at least %s", span, checkLeast)
		}
	}
	if c.PortLabel == "" && s.PortLabel == "" && c.Type != "script" {
		v.errorf(w+".port", "neither the check nor its service names a port")
	}
	v.portLabel(w+".port", g, c.PortLabel)
	v.oneOfOrNone(w+".initial_status", c.InitialStatus, "Check.InitialStatus")
	v.oneOfOrNone(w+".address_mode", c.AddressMode, "Service.AddressMode")
	v.onUpdate(w, c.OnUpdate)
	v.taskOf(w, g, c.TaskName)
	if r := c.CheckRestart; r != nil {
		if r.Limit < 0 {
			v.errorf(w+", check_restart.limit", "%d is negative; want 0 (never) or more", r.Limit)
		}
		v.duration(w+", check_restart.grace", r.Grace)
	}
}

// scriptCheck checks a check that runs in a task. task is the one that declares the service, or "".
func (v *validator) scriptCheck(w string, s *Service, c *ServiceCheck, task string) {
	if c.Command == "" {
		v.errorf(w+".command", "a script check needs a command")
	}
	v.count(w+".args", len(c.Args))
	if c.TaskName == "" && s.TaskName == "" && task == "" {
		v.errorf(w+".task", "a script check of a group's service needs the task to run its command in")
	}
	for _, word := range append([]string{c.Command}, c.Args...) {
		if strings.IndexByte(word, 0) >= 0 || len(word) > checkBodyMax {
			v.errorf(w+".command", "a word holds a zero byte or is longer than %d bytes", checkBodyMax)
		}
	}
	if c.Path != "" || c.Protocol != "" || c.Body != "" || len(c.Header) > 0 {
		v.errorf(w, "path, protocol, header and body belong to http checks; this one is a script")
	}
}

// httpToken reports whether a text can be a method or a header name.
func httpToken(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}
