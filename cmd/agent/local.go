package agent

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"net"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/gossip"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/version"
	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/structs"
)

// The methods that nomadlike needs from the process itself.
var _ nomadlike.Agent = (*Agent)(nil)

// Authorize asks the servers whether a token may use an endpoint that this agent answers alone. While no leader answers, a
// server decides about reading by its own state, so that operators can see what is wrong.
func (a *Agent) Authorize(ctx context.Context, token, what, level string) error {
	h := rpc.Header{Token: token, Region: a.cfg.Region, Namespace: structs.NamespaceDefault}
	if ns, ok := strings.CutPrefix(what, "namespace:"); ok {
		what, h.Namespace = "namespace", ns
	}
	req := &methods.ACLAuthorizeRequest{What: what, Level: level}
	_, err := rpc.Invoke(ctx, a.back, methods.ACLAuthorize, h, req)
	if structs.CodeOf(err) == structs.CodeNoLeader && level == "read" {
		req.Stale = true
		_, err = rpc.Invoke(ctx, a.back, methods.ACLAuthorize, h, req)
	}
	return err
}

// Self describes this agent.
func (a *Agent) Self() (map[string]any, map[string]map[string]string, nomadlike.Member) {
	conf := map[string]any{}
	for k, v := range a.cfg.Effective {
		conf[k] = v
	}
	conf["Name"], conf["Region"], conf["Datacenter"], conf["DataDir"] = a.cfg.Name, a.cfg.Region, a.cfg.Datacenter, a.cfg.DataDir
	conf["DevMode"] = a.cfg.Dev
	conf["UI"] = map[string]any{"Enabled": false, "ShowCLIHints": false} // Nomad's client would print links to pages that do not exist
	conf["Version"] = map[string]any{"Version": version.NomadCompat, "VersionPrerelease": "", "VersionMetadata": "muster", "Revision": version.Commit, "Muster": version.Version}
	conf["ACL"] = map[string]any{"Enabled": a.cfg.ACL}
	conf["Server"] = map[string]any{"Enabled": a.server != nil}
	conf["Client"] = map[string]any{"Enabled": a.client != nil}
	conf["TLSConfig"] = map[string]any{"EnableHTTP": a.cfg.TLSHTTP, "EnableRPC": a.cfg.TLSRPC}
	return conf, a.stats(), a.self()
}

func (a *Agent) self() nomadlike.Member {
	for _, m := range a.Members() {
		if m.Name == a.cfg.Name+"."+a.cfg.Region {
			return m
		}
	}
	host, port, _ := net.SplitHostPort(a.listener.Addr().String())
	p, _ := strconv.Atoi(port)
	m := nomadlike.Member{Name: a.cfg.Name, Addr: host, Port: uint16(p), Status: "alive", Tags: map[string]string{"region": a.cfg.Region, "dc": a.cfg.Datacenter, "build": version.NomadCompat}}
	if a.server != nil {
		m.Name += "." + a.cfg.Region
		m.Tags["role"] = "nomad"
		m.Tags["id"] = a.server.ID()
	}
	return m
}

// Members lists the gossip pool; without gossip, this agent only.
func (a *Agent) Members() []nomadlike.Member {
	var list []gossip.Member
	switch {
	case a.server != nil:
		list = a.server.Members()
	case a.gossip.current() != nil:
		list = a.gossip.current().Members()
	}
	out := []nomadlike.Member{}
	for _, m := range list {
		out = append(out, member(m))
	}
	if len(out) == 0 && a.server != nil {
		host, port, _ := splitPort(a.server.Addr())
		here := feature.Here()
		out = append(out, nomadlike.Member{Name: a.cfg.Name + "." + a.cfg.Region, Addr: host, Port: uint16(port), Status: "alive", Tags: serverTags(gossip.Meta{
			Role: gossip.RoleServer, Region: a.cfg.Region, Datacenter: a.cfg.Datacenter, ID: a.server.ID(), RPC: a.server.Addr(), Version: version.Version, Build: version.NomadCompat,
			Oldest: here.Oldest, Newest: here.Newest, Calls: here.RPC,
		})})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

func member(m gossip.Member) nomadlike.Member {
	host, port, _ := splitPort(m.Addr)
	name := m.Name
	if !strings.HasSuffix(name, "."+m.Region) {
		name += "." + m.Region
	}
	tags := serverTags(m.Meta)
	if m.Role != gossip.RoleServer {
		tags["role"] = "client"
	}
	return nomadlike.Member{Name: name, Addr: host, Port: uint16(port), Status: string(m.Status), Tags: tags}
}

// serverTags returns the tags that Nomad's clients read.
func serverTags(m gossip.Meta) map[string]string {
	host, port, _ := net.SplitHostPort(m.RPC)
	t := map[string]string{
		"role": "nomad", "region": m.Region, "dc": m.Datacenter, "id": m.ID, "rpc_addr": host, "port": port, "build": version.NomadCompat,
		"raft_vsn": "3", "vsn": "1", "muster": m.Version,
	}
	if m.Newest > 0 {
		t["formats"], t["rpc_vsn"] = m.Speaks().Formats(), strconv.FormatUint(m.Calls, 10)
	}
	if m.Expect > 0 {
		t["expect"] = strconv.Itoa(m.Expect)
	}
	return t
}

// Join makes gossip contact addresses.
func (a *Agent) Join(addrs []string) (int, error) {
	switch {
	case a.server != nil:
		return a.server.Join(addrs)
	case a.gossip.current() != nil:
		return a.gossip.current().Join(addrs)
	}
	return 0, structs.Errorf(structs.CodeUnprocessable, "this agent does not gossip")
}

func (a *Agent) ring() (*gossip.Gossip, error) {
	g := a.gossip.current()
	if a.server != nil {
		g = a.server.Gossip()
	}
	if g == nil {
		return nil, structs.Errorf(structs.CodeUnprocessable, "this agent does not gossip")
	}
	return g, nil
}

// ForceLeave removes a member that failed or left. An unknown name succeeds.
func (a *Agent) ForceLeave(name string, _ bool) error {
	g, err := a.ring()
	if err != nil {
		return err
	}
	for _, m := range a.Members() {
		if (m.Name == name || strings.TrimSuffix(m.Name, "."+m.Tags["region"]) == name) && m.Status == "alive" {
			return structs.Errorf(structs.CodeUnprocessable, "member %q is alive; stop its agent, or wait until it counts as failed", name)
		}
	}
	g.Forget(name)
	g.Forget(strings.TrimSuffix(name, "."+a.cfg.Region)) // members are listed with their region
	return nil
}

// Keyring manages the gossip keys of all servers. Clients that gossip have theirs in their configuration.
func (a *Agent) Keyring(op, key string) (keys, primary map[string]int, members int, err error) {
	if a.server == nil {
		return nil, nil, 0, structs.Errorf(structs.CodeUnprocessable, "this agent is no server; ask one about gossip keys")
	}
	var raw []byte
	if op != "list" {
		raw, err = base64.StdEncoding.DecodeString(key)
		if err != nil || (len(raw) != 16 && len(raw) != 24 && len(raw) != 32) {
			return nil, nil, 0, structs.Errorf(structs.CodeInvalid, "a gossip key is 16, 24 or 32 bytes in base64; make one with `muster operator gossip keyring generate`")
		}
	}
	return a.server.Keyring(context.Background(), op, raw)
}

// Health reports whether the parts work.
func (a *Agent) Health() (srv, cl string, hasServer, hasClient bool) {
	hasServer, hasClient = a.server != nil, a.client != nil
	if hasServer {
		srv = a.server.Problem(context.Background())
	}
	if hasClient {
		select {
		case <-a.client.Joined():
		default:
			cl = "not registered with any server yet"
		}
	}
	return srv, cl, hasServer, hasClient
}

// Drivers returns the task drivers of the client part, by name; none without one.
func (a *Agent) Drivers() map[string]*structs.DriverInfo {
	if a.client == nil {
		return nil
	}
	return a.client.Node().Drivers
}

// Servers returns the RPC addresses that the client part uses.
func (a *Agent) Servers() []string {
	if a.server != nil {
		return []string{a.server.Addr()}
	}
	return a.cfg.Client.Servers
}

// SetServers replaces them.
func (a *Agent) SetServers(addrs []string) error {
	if a.client == nil {
		return structs.Errorf(structs.CodeUnprocessable, "this agent runs no client")
	}
	if s, ok := a.client.Servers().(interface{ SetServers([]string) }); ok {
		s.SetServers(addrs)
	}
	return nil
}

// Monitor copies log lines until ctx ends. A slow reader loses lines and gets their number.
func (a *Agent) Monitor(ctx context.Context, level string, asJSON bool, out func([]byte) error) error {
	lines := make(chan []byte, 512)
	w := &monitorWriter{lines: lines}
	sink := hclog.NewSinkAdapter(&hclog.LoggerOptions{Level: hclog.LevelFromString(level), JSONFormat: asJSON, Output: w})
	a.log.RegisterSink(sink)
	defer a.log.DeregisterSink(sink)
	if err := out(nil); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-lines:
			if n := w.lost(); n > 0 {
				b = append([]byte("[...] "+strconv.FormatInt(n, 10)+" lines were dropped: the reader was too slow\n"), b...)
			}
			if err := out(b); err != nil {
				return err
			}
		}
	}
}

type monitorWriter struct {
	lines   chan []byte
	dropped atomic.Int64
}

func (w *monitorWriter) Write(b []byte) (int, error) {
	select {
	case w.lines <- bytes.Clone(b):
	default:
		w.dropped.Add(1)
	}
	return len(b), nil
}

func (w *monitorWriter) lost() int64 { return w.dropped.Swap(0) }

// MayReadMetrics lets callers with agent:read read the metrics, or all if the configuration says so. A server decides by
// its own state, so that metrics can be read while there is no leader.
func (a *Agent) MayReadMetrics(ctx context.Context, token string) error {
	if a.cfg.PublicMetrics {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req := &methods.ACLAuthorizeRequest{Query: methods.Query{Stale: true}, What: "agent", Level: "read"}
	_, err := rpc.Invoke(ctx, a.back, methods.ACLAuthorize, rpc.Header{Token: token, Region: a.cfg.Region, Namespace: structs.NamespaceDefault}, req)
	return err
}

// Metrics returns the metrics in a format.
func (a *Agent) Metrics(format string) (string, []byte, error) { return a.tel.Metrics(format) }

// Reload reads certificates and the reloadable part of the configuration again.
func (a *Agent) Reload() error {
	var errs []error
	if a.tls != nil {
		errs = append(errs, a.tls.Reload())
	}
	if a.cfg.Reload != nil {
		errs = append(errs, a.cfg.Reload())
	}
	if err := errors.Join(errs...); err != nil {
		return structs.Errorf(structs.CodeUnprocessable, "reload: %v; what was loaded before stays", err)
	}
	a.log.Info("configuration was read again")
	return nil
}

// Times of the warning that a certificate expires.
const (
	expiryNear  = 30 * 24 * time.Hour
	expiryEvery = 24 * time.Hour
)

// warnOfExpiry logs each day that this agent's certificate will expire, or has. Connections that are open stay, so nothing else
// shows it before they are all needed again.
func (a *Agent) warnOfExpiry(ctx context.Context) {
	for {
		if end := a.tls.NotAfter(); time.Until(end) < expiryNear {
			a.log.Warn("this agent's certificate expires: new connections are refused from then on; replace the files and send SIGHUP", "at", end.UTC().Format(time.RFC3339), "file", a.cfg.TLS.Cert)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(expiryEvery):
		}
	}
}

// Host returns facts about the machine.
func (a *Agent) Host() map[string]any {
	name, _ := os.Hostname()
	return map[string]any{"OS": runtime.GOOS, "Arch": runtime.GOARCH, "Hostname": name, "CPUs": runtime.NumCPU(), "GoVersion": runtime.Version(), "Uptime": time.Since(a.started).String()}
}

// LocalNode returns the node this agent runs, or zero.
func (a *Agent) LocalNode() structs.NodeID {
	if a.client == nil {
		return structs.NodeID{}
	}
	return a.client.ID()
}

// LocalServer returns the name of the server this agent runs, or "".
func (a *Agent) LocalServer() string {
	if a.server == nil {
		return ""
	}
	return a.cfg.Name + "." + a.cfg.Region
}

// Workers describes the passes of this server.
func (a *Agent) Workers() []map[string]any {
	if a.server == nil {
		return nil
	}
	status := "Paused"
	if a.server.IsLeader() {
		status = "Running"
	}
	return []map[string]any{{"id": a.server.ID(), "started": a.started.UTC().Format(time.RFC3339), "status": status, "workload_status": "WaitingToDequeue"}}
}

// stats describes all parts, for agent-info.
func (a *Agent) stats() map[string]map[string]string {
	out := map[string]map[string]string{
		"nomad":   {"server": strconv.FormatBool(a.server != nil), "leader": "false", "known_regions": "1", "version": version.Version, "nomad_version": version.NomadCompat},
		"runtime": {"goroutines": strconv.Itoa(runtime.NumGoroutine()), "max_procs": strconv.Itoa(runtime.GOMAXPROCS(0)), "version": runtime.Version(), "kernel.name": runtime.GOOS, "arch": runtime.GOARCH},
	}
	if a.server != nil {
		out["nomad"]["leader"] = strconv.FormatBool(a.server.IsLeader())
		addr, _ := a.server.Leader()
		out["nomad"]["leader_addr"] = addr
		out["server"] = a.server.Stats()
		out["raft"] = a.server.RaftStats()
	}
	if a.client != nil {
		out["client"] = map[string]string{"node_id": a.client.ID().String(), "num_allocations": strconv.Itoa(len(a.client.Allocs()))}
	}
	return out
}
