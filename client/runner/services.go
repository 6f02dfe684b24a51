package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-sched/muster/client/taskenv"
	"github.com/muster-sched/muster/structs"
)

// serviceSpec is the part of a job's service block that the client uses.
type serviceSpec struct {
	Name, PortLabel, Address, TaskName, Provider string
	AddressMode                                  string
	Tags                                         []string
	Meta                                         map[string]string
	Checks                                       []checkSpec
}

// checkSpec is the part of a job's check block that the client uses.
type checkSpec struct {
	Name, Type, Path, Protocol, PortLabel, Method, Body string
	Command                                             string   // of a script check
	Args                                                []string // of a script check
	TaskName, InitialStatus, OnUpdate, TLSServerName    string
	AddressMode                                         string
	Interval, Timeout                                   time.Duration
	Header                                              map[string][]string
	TLSSkipVerify                                       bool
	CheckRestart                                        *struct {
		Limit int
		Grace *time.Duration
	}
}

// offer is a service that the allocation registers while it runs.
type offer struct {
	reg    structs.ServiceRegistration
	task   string // the task that declares it; "" for the group
	checks []*checkPlan
}

// checkPlan is a check with its variables expanded and its address resolved.
type checkPlan struct {
	id      string
	spec    checkSpec
	service string
	task    string   // "" for the group's
	restart []string // tasks that check_restart restarts; none: all main tasks
	address string   // host:port that is checked
}

// services holds what an allocation offers and the results of its checks.
type services struct {
	mu sync.Mutex // locked before Runner.mu and task.mu

	alloc       *structs.Allocation // the offers were made from this version
	node        *structs.Node       // and this node
	offers      []*offer
	lastProblem string // the last problem that was logged
	runs        map[string]*checkRun
}

// make computes what the allocation offers: the job's services with ${...} expanded and ports resolved.
func (v *services) make(r *Runner, a *structs.Allocation, node *structs.Node) {
	if v.alloc == a && v.node == node {
		return
	}
	v.alloc, v.node, v.offers = a, node, nil
	g := a.Job.Group(a.Group)
	if g == nil || node == nil {
		return
	}
	var wrong []string
	at := r.address()
	add := func(task *structs.Task, list []structs.Service) {
		if len(list) == 0 {
			return
		}
		env := taskenv.New(taskenv.Input{Node: node, Region: r.cfg.Servers.Region, Alloc: a, Task: task, Inherit: []string{}, Network: at})
		for i := range list {
			o, err := newOffer(site{a, node, at}, env, task.Name, &list[i])
			if err == nil && o != nil {
				err = asError(structs.CheckServices(a.ID, []structs.ServiceRegistration{o.reg}))
			}
			if err != nil {
				wrong = append(wrong, err.Error())
			} else if o != nil && !slices.ContainsFunc(v.offers, func(x *offer) bool { return x.reg.ID == o.reg.ID }) {
				v.offers = append(v.offers, o)
			}
		}
	}
	add(&structs.Task{}, g.Services)
	for _, t := range g.Tasks {
		add(t, t.Services)
	}
	if text := strings.Join(wrong, "; "); text != v.lastProblem {
		if v.lastProblem = text; text != "" {
			r.log().Warn("services cannot be registered", "error", text)
			first := r.tasks[0]
			r.cfg.Agent.Go(func() { first.note(context.Background(), event(EventServices, "Services cannot be registered: "+text)) })
		}
	}
}

func asError(e *structs.Error) error {
	if e == nil {
		return nil
	}
	return e
}

// newOffer reads one service. It returns nil if the service has another provider.
func newOffer(on site, env *taskenv.Env, task string, s *structs.Service) (*offer, error) {
	a := on.alloc
	var spec serviceSpec
	if err := json.Unmarshal(s.Raw, &spec); err != nil {
		return nil, fmt.Errorf("service %q: %w", s.Name, err)
	}
	if spec.Provider != structs.ServiceProvider {
		return nil, nil
	}
	name := env.Replace(s.Name)
	label := env.Replace(s.PortLabel)
	host, port, err := on.place(label, spec.AddressMode)
	if err != nil {
		return nil, fmt.Errorf("service %q: %w", name, err)
	}
	owner := task
	if task == "" {
		owner = "group-" + string(a.Group)
	}
	o := &offer{task: task, reg: structs.ServiceRegistration{
		ID: strings.Join([]string{"_nomad-task", a.ID.String(), owner, name, label}, "-"), Service: name, Address: host, Port: port,
	}}
	if spec.Address != "" {
		o.reg.Address = env.Replace(spec.Address)
	}
	for _, t := range spec.Tags {
		o.reg.Tags = append(o.reg.Tags, env.Replace(t))
	}
	for k, v := range spec.Meta {
		if o.reg.Meta == nil {
			o.reg.Meta = map[string]string{}
		}
		o.reg.Meta[k] = env.Replace(v)
	}
	for i := range spec.Checks {
		c := &spec.Checks[i]
		p, err := newCheckPlan(on, env, o, &spec, c, label)
		if err != nil {
			return nil, fmt.Errorf("service %q, check %q: %w", name, c.Name, err)
		}
		o.checks = append(o.checks, p)
	}
	return o, nil
}

// site holds where an allocation is reached.
type site struct {
	alloc *structs.Allocation
	node  *structs.Node
	own   *taskenv.Network // nil: tasks use the network of the node
}

// place returns where a port is reached: on the node, or with mode "alloc" in the allocation's own network.
func (s site) place(label, mode string) (host string, port int, err error) {
	a, node := s.alloc, s.node
	if mode == "alloc" && s.own != nil {
		for _, p := range a.Ports {
			if p.Label == label {
				if p.To > 0 {
					return s.own.IP, p.To, nil
				}
				return s.own.IP, p.Value, nil
			}
		}
		node = &structs.Node{Resources: structs.NodeResources{Networks: []structs.NodeNetwork{{IP: s.own.IP}}}}
	}
	if n := node.Resources.Networks; len(n) > 0 {
		host = n[0].IP
	}
	if label == "" {
		return host, 0, nil
	}
	for _, p := range a.Ports {
		if p.Label == label {
			if p.HostIP != "" && !net.ParseIP(p.HostIP).IsUnspecified() {
				host = p.HostIP
			}
			return host, p.Value, nil
		}
	}
	if port, err = strconv.Atoi(label); err != nil || port < 1 || port > 65535 {
		return "", 0, fmt.Errorf("the allocation was given no port %q", label)
	}
	return host, port, nil
}

func newCheckPlan(on site, env *taskenv.Env, o *offer, s *serviceSpec, c *checkSpec, label string) (*checkPlan, error) {
	if c.PortLabel != "" {
		label = env.Replace(c.PortLabel)
	}
	mode := s.AddressMode
	if c.AddressMode != "" {
		mode = c.AddressMode
	}
	host, port, err := on.place(label, mode)
	if err != nil && c.Type != "script" { // script checks need no port
		return nil, err
	}
	spec := *c
	if spec.Command = env.Replace(c.Command); len(c.Args) > 0 {
		spec.Args = make([]string, len(c.Args))
		for i, w := range c.Args {
			spec.Args[i] = env.Replace(w)
		}
	}
	spec.Path, spec.Body = env.Replace(c.Path), env.Replace(c.Body)
	spec.Header = make(map[string][]string, len(c.Header))
	for k, list := range c.Header {
		for _, v := range list {
			spec.Header[k] = append(spec.Header[k], env.Replace(v))
		}
	}
	p := &checkPlan{id: checkID(o.reg.ID, c.Name), spec: spec, service: o.reg.Service, task: o.task, address: net.JoinHostPort(host, strconv.Itoa(port))}
	for _, t := range []string{c.TaskName, s.TaskName, o.task} {
		if t != "" {
			p.restart = []string{t}
			break
		}
	}
	return p, nil
}

// serving returns the services that the allocation offers now and since when all of its checks pass. It runs the checks
// of exactly these services. A task's service is offered while the task runs; the group's, while all main tasks run and
// its poststart tasks have succeeded. Nothing is offered once the allocation is about to end, or while it is suspended:
// a client would wait. The caller holds v.mu.
func (v *services) serving(r *Runner) (list []structs.ServiceRegistration, since structs.LogTime) {
	r.mu.Lock()
	a, again, ctx, live := r.alloc, r.again != nil, r.ctx, r.state != created && r.final == nil
	r.mu.Unlock()
	if g := a.Job.Group(a.Group); g == nil || v.runs == nil && !hasServices(g) {
		return nil, 0
	}
	v.make(r, a, r.cfg.Host.Node())
	var up []*offer
	if live && !again && r.stopReason() == nil && !r.suspended() {
		group, tasks := r.upNow()
		for _, o := range v.offers {
			if o.task == "" && group || o.task != "" && tasks[o.task] {
				up = append(up, o)
			}
		}
	}
	v.sync(ctx, r, string(a.Group), up)
	well := len(up) == len(v.offers)
	for _, o := range up {
		reg := o.reg
		reg.Health = structs.HealthNone
		for _, c := range o.checks {
			status, passed := v.runs[c.id].standing()
			if c.spec.OnUpdate != "ignore" {
				reg.Health = worse(reg.Health, status)
				well = well && status == structs.HealthPassing
				since = max(since, passed)
			}
		}
		list = append(list, reg)
	}
	if !well {
		since = 0
	}
	return list, since
}

func hasServices(g *structs.Group) bool {
	return len(g.Services) > 0 || slices.ContainsFunc(g.Tasks, func(t *structs.Task) bool { return len(t.Services) > 0 })
}

// worse returns the worse of two check results.
func worse(a, b structs.ServiceHealth) structs.ServiceHealth {
	order := []structs.ServiceHealth{structs.HealthNone, structs.HealthPassing, structs.HealthPending, structs.HealthFailing}
	if slices.Index(order, a) > slices.Index(order, b) {
		return a
	}
	return b
}

// upNow reports whether the group serves, and which of its tasks do.
func (r *Runner) upNow() (group bool, tasks map[string]bool) {
	tasks = map[string]bool{}
	group = true
	main := false
	for _, m := range r.members() {
		up := m.st.State == stateRunning && m.wanted().kind == wishNone
		tasks[m.name] = up
		well := m.dead() && !m.st.Failed
		switch m.role {
		case roleMain:
			group = group && (up || well)
			main = main || up
		case rolePreSide, rolePostSide:
			group = group && (up || well)
		case rolePost:
			group = group && well
		}
	}
	return group && main, tasks
}
