package nomadlike

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// table lists all routes, in the order of the documentation.
func table() []route {
	var out []route
	for _, part := range [][]route{jobRoutes(), acctRoutes(), allocRoutes(), deploymentRoutes(), clientRoutes(), nodeRoutes(), agentRoutes(), operatorRoutes(), aclRoutes(), queueRoutes(), variableRoutes(), serviceRoutes(), topRoutes(), bundleRoutes()} {
		out = append(out, part...)
	}
	return out
}

// Permissions of the routes that this agent answers alone; the authorisation test reads them.
const (
	needAgentRead  = "agent:read"
	needAgentWrite = "agent:write"
)

func agentRoutes() []route {
	return []route{
		{methods: "GET", pattern: "/v1/agent/self", rpc: needAgentRead, handle: agentSelf},
		{methods: "GET", pattern: "/v1/agent/members", rpc: "node:read", handle: agentMembers},
		{methods: "PUT,POST", pattern: "/v1/agent/join", rpc: needAgentWrite, handle: agentJoin},
		{methods: "PUT,POST", pattern: "/v1/agent/force-leave", rpc: needAgentWrite, handle: agentForceLeave},
		{methods: "GET", pattern: "/v1/agent/servers", rpc: needAgentRead, handle: agentServers},
		{methods: "PUT,POST", pattern: "/v1/agent/servers", rpc: needAgentWrite, handle: agentSetServers},
		{methods: "GET", pattern: "/v1/agent/schedulers", rpc: needAgentRead, handle: agentSchedulers},
		{methods: "GET,PUT,POST", pattern: "/v1/agent/schedulers/config", rpc: needAgentRead, handle: agentSchedulersConfig},
		{methods: "GET,PUT,POST", pattern: "/v1/agent/keyring/{op}", rpc: needAgentWrite, handle: agentKeyring},
		{methods: "GET", pattern: "/v1/agent/health", rpc: "", handle: agentHealth},
		{methods: "GET", pattern: "/v1/agent/host", rpc: needAgentRead, handle: agentHost},
		{methods: "PUT,POST", pattern: "/v1/agent/reload", rpc: needAgentWrite, handle: agentReload},
		{methods: "GET", pattern: "/v1/agent/monitor", rpc: needAgentRead, handle: agentMonitor},
		{methods: "GET", pattern: "/v1/agent/pprof/{name}", rpc: needAgentWrite, handle: agentPprof},
		{methods: "GET", pattern: "/v1/metrics", rpc: needAgentRead, handle: metrics},
	}
}

// allow authorises a route that this agent answers alone.
func (c *call) allow(need string) error {
	what, level, _ := strings.Cut(need, ":")
	ctx, cancel := context.WithTimeout(c.r.Context(), 10*time.Second)
	defer cancel()
	return c.cfg.Agent.Authorize(ctx, c.hdr.Token, what, level)
}

// allowedLook is how often a stream that this agent answers alone asks whether its caller is still allowed to.
const allowedLook = 3 * time.Second

// whileAllowed returns a context that ends when the caller may no longer use a route that this agent answers alone. While
// no server answers, it continues. Call done in the end.
func (c *call) whileAllowed(need string) (ctx context.Context, done func()) {
	ctx, done = context.WithCancel(c.r.Context())
	go func() {
		t := time.NewTicker(allowedLook)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				if structs.CodeOf(c.allow(need)) == structs.CodeDenied {
					done()
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, done
}

func memberOf(m Member) wire.AgentMember {
	return wire.AgentMember{
		Name: m.Name, Addr: m.Addr, Port: m.Port, Tags: m.Tags, Status: m.Status,
		ProtocolMin: 1, ProtocolMax: 5, ProtocolCur: 2, DelegateMin: 2, DelegateMax: 5, DelegateCur: 4,
	}
}

func agentSelf(c *call) (any, error) {
	if err := c.allow(needAgentRead); err != nil {
		return nil, err
	}
	conf, stats, m := c.cfg.Agent.Self()
	return &wire.AgentSelf{Config: conf, Stats: stats, Member: memberOf(m)}, nil
}

func agentMembers(c *call) (any, error) {
	if err := c.allow("node:read"); err != nil {
		return nil, err
	}
	_, _, self := c.cfg.Agent.Self()
	out := &wire.ServerMembers{ServerName: self.Name, ServerRegion: self.Tags["region"], ServerDC: self.Tags["dc"], Members: []*wire.AgentMember{}}
	for _, m := range c.cfg.Agent.Members() {
		if m.Tags["role"] != "nomad" {
			continue // clients gossip too; Nomad's clients expect servers here
		}
		w := memberOf(m)
		out.Members = append(out.Members, &w)
	}
	return out, nil
}

func agentJoin(c *call) (any, error) {
	if err := c.allow(needAgentWrite); err != nil {
		return nil, err
	}
	addrs := c.r.URL.Query()["address"]
	if len(addrs) == 0 {
		return nil, structs.Errorf(structs.CodeInvalid, "missing address to join: add ?address=HOST:PORT")
	}
	n, err := c.cfg.Agent.Join(addrs)
	out := &wire.JoinResponse{NumJoined: n}
	if err != nil {
		out.Error = err.Error()
	}
	return out, nil
}

func agentForceLeave(c *call) (any, error) {
	if err := c.allow(needAgentWrite); err != nil {
		return nil, err
	}
	name := c.r.URL.Query().Get("node")
	if name == "" {
		return nil, structs.Errorf(structs.CodeInvalid, "missing node name to force leave: add ?node=NAME")
	}
	prune, err := c.flag("prune")
	if err != nil {
		return nil, err
	}
	return nil, c.cfg.Agent.ForceLeave(name, prune)
}

func agentServers(c *call) (any, error) {
	if err := c.allow(needAgentRead); err != nil {
		return nil, err
	}
	return append([]string{}, c.cfg.Agent.Servers()...), nil
}

func agentSetServers(c *call) (any, error) {
	if err := c.allow(needAgentWrite); err != nil {
		return nil, err
	}
	addrs := c.r.URL.Query()["address"]
	if len(addrs) == 0 {
		return nil, structs.Errorf(structs.CodeInvalid, "missing server address: add ?address=HOST:PORT")
	}
	return nil, c.cfg.Agent.SetServers(addrs)
}

func agentSchedulers(c *call) (any, error) {
	if err := c.allow(needAgentRead); err != nil {
		return nil, err
	}
	out := &wire.AgentSchedulerWorkersInfo{ServerID: c.cfg.Agent.LocalServer(), Schedulers: []wire.AgentSchedulerWorkerInfo{}}
	for _, w := range c.cfg.Agent.Workers() {
		str := func(k string) string { s, _ := w[k].(string); return s }
		out.Schedulers = append(out.Schedulers, wire.AgentSchedulerWorkerInfo{
			ID: str("id"), EnabledSchedulers: allSchedulers, Started: str("started"), Status: str("status"), WorkloadStatus: str("workload_status"),
		})
	}
	return out, nil
}

var allSchedulers = []string{"service", "batch", "system", "sysbatch", "_core"}

// agentSchedulersConfig reports how many passes may run at once. The number follows from the node pools, so writing it
// changes nothing, and the answer says so.
func agentSchedulersConfig(c *call) (any, error) {
	need := needAgentRead
	if c.r.Method != http.MethodGet {
		need = needAgentWrite
	}
	if err := c.allow(need); err != nil {
		return nil, err
	}
	if c.r.Method != http.MethodGet {
		var body wire.AgentSchedulerWorkerConfig
		if err := c.body(&body); err != nil {
			return nil, err
		}
		if body.NumSchedulers < 0 || len(body.EnabledSchedulers) == 0 {
			return nil, structs.Errorf(structs.CodeInvalid, "Invalid request")
		}
		for _, s := range body.EnabledSchedulers {
			if !slices.Contains(allSchedulers, s) {
				return nil, structs.Errorf(structs.CodeInvalid, "Invalid request")
			}
		}
		return nil, structs.Errorf(structs.CodeUnsupported, "the number of schedulers cannot be set: one pass runs per node pool")
	}
	return &wire.AgentSchedulerWorkerConfig{ServerID: c.cfg.Agent.LocalServer(), NumSchedulers: max(1, len(c.cfg.Agent.Workers())), EnabledSchedulers: allSchedulers}, nil
}

func agentKeyring(c *call) (any, error) {
	if err := c.allow(needAgentWrite); err != nil {
		return nil, err
	}
	op := c.params["op"]
	var body wire.KeyringRequest
	switch op {
	case "list":
	case "install", "use", "remove":
		if err := c.body(&body); err != nil {
			return nil, err
		}
	default:
		return nil, structs.Errorf(structs.CodeNotFound, "no keyring operation %q: want list, install, use or remove", clip(op, 40))
	}
	keys, primary, n, err := c.cfg.Agent.Keyring(op, body.Key)
	if err != nil {
		return nil, err
	}
	return &wire.KeyringResponse{Messages: map[string]string{}, Keys: keys, NumNodes: n, PrimaryKeys: primary}, nil
}

func agentHealth(c *call) (any, error) {
	server, client, hasServer, hasClient := c.cfg.Agent.Health()
	q := c.r.URL.Query()["type"]
	want := func(t string, has bool) bool {
		if len(q) == 0 {
			return has
		}
		for _, v := range q {
			if v == t {
				return true
			}
		}
		return false
	}
	one := func(has bool, msg string) *wire.AgentHealth {
		switch {
		case !has:
			return &wire.AgentHealth{Ok: false, Message: "not enabled"}
		case msg != "":
			return &wire.AgentHealth{Ok: false, Message: msg}
		}
		return &wire.AgentHealth{Ok: true, Message: "ok"}
	}
	out := &wire.AgentHealthResponse{}
	ok := true
	if want("server", hasServer) {
		out.Server = one(hasServer, server)
		ok = ok && out.Server.Ok
	}
	if want("client", hasClient) {
		out.Client = one(hasClient, client)
		ok = ok && out.Client.Ok
	}
	if !ok {
		c.w.Header().Set("Content-Type", "application/json")
		c.w.WriteHeader(http.StatusInternalServerError)
		return nil, newLines(c.w).send2(out)
	}
	return out, nil
}

func agentHost(c *call) (any, error) {
	if err := c.allow(needAgentRead); err != nil {
		return nil, err
	}
	return map[string]any{"AgentID": c.cfg.Agent.LocalServer(), "HostData": c.cfg.Agent.Host()}, nil
}

func agentReload(c *call) (any, error) {
	if err := c.allow(needAgentWrite); err != nil {
		return nil, err
	}
	return nil, c.cfg.Agent.Reload()
}

// agentMonitor follows the log of this agent, of a node, or of another server.
func agentMonitor(c *call) (any, error) {
	q := c.r.URL.Query()
	level := q.Get("log_level")
	if level == "" {
		level = "INFO"
	}
	plain, err := c.flag("plain")
	if err != nil {
		return nil, err
	}
	asJSON, err := c.flag("log_json")
	if err != nil {
		return nil, err
	}
	if plain && asJSON {
		return nil, structs.Errorf(structs.CodeInvalid, "log_json and plain cannot be combined: choose one")
	}
	switch strings.ToUpper(level) {
	case "TRACE", "DEBUG", "INFO", "WARN", "ERROR":
	default:
		return nil, structs.Errorf(structs.CodeInvalid, "Unknown log level: %s; want TRACE, DEBUG, INFO, WARN or ERROR", clip(level, 40))
	}
	req := &methods.MonitorRequest{Level: level, JSON: asJSON, ServerName: q.Get("server_id")}
	if s := q.Get("node_id"); s != "" {
		if req.ServerName != "" {
			return nil, structs.Errorf(structs.CodeInvalid, "Cannot target node and server simultaneously")
		}
		if req.NodeID, err = structs.ParseID[structs.NodeID](s); err != nil {
			return nil, err
		}
		st, err := rpc.OpenStream(c.r.Context(), c.cfg.Backend, methods.ClientMonitor, c.hdr, req)
		if err != nil {
			return nil, err
		}
		return nil, c.frames(st, plain, nil)
	}
	if req.ServerName != "" && req.ServerName != c.cfg.Agent.LocalServer() {
		st, err := rpc.OpenStream(c.r.Context(), c.cfg.Backend, methods.AgentMonitor, c.hdr, req)
		if err != nil {
			return nil, err
		}
		return nil, c.frames(st, plain, nil)
	}
	if err := c.allow(needAgentRead); err != nil {
		return nil, err
	}
	c.w.Header().Set("Content-Type", "application/json")
	if plain {
		c.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	out := newLines(c.w)
	ctx, done := c.whileAllowed(needAgentRead)
	defer done()
	_ = c.cfg.Agent.Monitor(ctx, level, asJSON, func(b []byte) error {
		if b == nil {
			c.w.WriteHeader(http.StatusOK)
			return out.rc.Flush()
		}
		if plain {
			_ = out.rc.SetWriteDeadline(time.Now().Add(streamWriteTime))
			if _, err := c.w.Write(b); err != nil {
				return err
			}
			return out.rc.Flush()
		}
		return out.send(wire.StreamFrame{Data: b})
	})
	return nil, errWritten
}

// agentPprof returns a profile of this agent at Nomad's path, to tokens that may write to agents.
func agentPprof(c *call) (any, error) {
	if err := c.allow(needAgentWrite); err != nil {
		return nil, err
	}
	q := c.r.URL.Query()
	if id := q.Get("server_id"); id != "" && id != c.cfg.Agent.LocalServer() {
		for _, m := range c.cfg.Agent.Members() {
			if m.Name == id || m.Tags["id"] == id {
				return nil, structs.Errorf(structs.CodeUnsupported, "profiles are taken by the agent that is asked; ask %s itself", m.Name)
			}
		}
		return nil, structs.Errorf(structs.CodeInternal, "unknown Nomad server %s", clip(id, 80))
	}
	if id := q.Get("node_id"); id != "" && id != c.cfg.Agent.LocalNode().String() {
		return nil, structs.Errorf(structs.CodeUnsupported, "profiles are taken by the agent that is asked; ask the agent of node %s itself", clip(id, 80))
	}
	// Only profiles of a time take seconds. Nomad's client sends them for others, too, where net/http/pprof refuses them
	// together with debug.
	if name := c.params["name"]; q.Get("seconds") == "0" || name != "profile" && name != "trace" {
		q.Del("seconds")
	}
	r := c.r.Clone(c.r.Context())
	r.URL.Path, r.URL.RawQuery, r.Form = "/debug/pprof/"+c.params["name"], q.Encode(), nil
	open := *c.Server
	open.cfg.Debug = true
	open.pprof(c.w, r)
	return nil, errWritten
}

func metrics(c *call) (any, error) {
	format := c.r.URL.Query().Get("format")
	if format != "" && format != "prometheus" {
		return nil, structs.Errorf(structs.CodeInvalid, "unknown metrics format %q: want prometheus, or none for JSON", clip(format, 40))
	}
	if err := c.cfg.Agent.MayReadMetrics(c.r.Context(), c.hdr.Token); err != nil {
		return nil, err
	}
	ctype, body, err := c.cfg.Agent.Metrics(format)
	if err != nil {
		return nil, err
	}
	return rawAnswer{ctype, body}, nil
}
