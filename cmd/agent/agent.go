// Package agent assembles one process from its parts: a server, a client, gossip, the HTTP API and its metrics. An
// Agent is a value with Run and Close, so that a test can have several in one process.
package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/driver/docker"
	"github.com/muster-sched/muster/client/driver/exec"
	"github.com/muster-sched/muster/client/driver/fake"
	"github.com/muster-sched/muster/client/driver/rawexec"
	"github.com/muster-sched/muster/client/fingerprint"
	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/client/netns"
	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/internal/gcpace"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rotate"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/telemetry"
	"github.com/muster-sched/muster/internal/tlsutil"
	"github.com/muster-sched/muster/internal/version"
	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/edge"
	"github.com/muster-sched/muster/server"
	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Config is the complete configuration of an agent: addresses are resolved and files are named. Package agentconfig
// makes one from configuration files and flags.
type Config struct {
	Dev        bool
	Name       string // unique in the region
	Region     string
	Datacenter string
	DataDir    string // "" only with Dev: a temporary directory, removed at the end

	HTTP, RPC, Gossip                            string // "host:port" to listen on; RPC of servers; Gossip "" for none
	AdvertiseHTTP, AdvertiseRPC, AdvertiseGossip string // "": the listen address

	Server *ServerConfig // nil: no server part
	Client *ClientConfig // nil: no client part

	ACL             bool
	TLSRPC, TLSHTTP bool
	TLS             tlsutil.Files
	VerifyHTTPS     bool   // clients of the HTTP API must show a certificate
	Encrypt         []byte // gossip key
	Insecure        bool   // the configuration spells out that it is insecure

	Rates        edge.RateLimits
	AllowedHosts []string // further host names of the HTTP API, in lower case; see edge.NewSite

	ConnsPerIP    int  // of the HTTP API and a client of it; see edge.NewConns
	ConnsTotal    int  // of the HTTP API; see edge.NewConns
	RPCPerIP      int  // connections of one address to the RPC port; 0 is its default
	AllocRate     int  // see server.Config.AllocRatePerToken
	EnableDebug   bool // pprof without a token
	Telemetry     telemetry.Sinks
	PublicMetrics bool           // metrics without a token
	Effective     map[string]any // configuration for /v1/agent/self, without secrets

	Log    hclog.InterceptLogger
	Reload func() error // reads the configuration again; nil: nothing to reload
}

// ServerConfig is the server part.
type ServerConfig struct {
	BootstrapExpect int
	OIDCIssuer      string
	Join            []string
	RetryJoin       []string
	RetryInterval   time.Duration
	BundlesMax      int64          // see server.Config.BundlesMax
	DecisionLog     rotate.Options // Path "": none
	RestartGrace    time.Duration
	GossipNodes     int
	JoinKey         []byte // proves to other servers that this is one, with ACLs and without TLS; or nil
	Logins          endpoint.LoginNodes
	Priorities      endpoint.Priorities
	Collect         duty.CollectLimits
	Raft            replica.RaftConfig
}

// ClientConfig is the client part.
type ClientConfig struct {
	Servers []string // RPC addresses; unused when the server part is in the same process
	Join    []string // gossip addresses to join before the servers name theirs
	Config  client.Config
	RawExec bool
	Docker  *docker.Options // how to reach the Docker Engine; nil: not at all
	Fake    bool            // offer the fake driver, which starts nothing; configuration files cannot ask for it
	Devices []fingerprint.DeviceFingerprinter
	GPU     *gpu.Config  // how to look for NVIDIA GPUs; nil: not at all
	Exec    exec.Options // Supervisor is filled in
	Bridge  netns.Config // Dir and Log are filled in
}

// Agent is one process.
type Agent struct {
	cfg      Config
	log      hclog.InterceptLogger
	tel      *telemetry.Telemetry
	tls      *tlsutil.Source
	server   *server.Server
	client   *client.Client
	super    *supervisor.Client
	networks *netns.Manager
	gpus     *gpu.NVIDIA    // or nil
	docker   *docker.Driver // or nil
	gossip   *membership    // of an agent without a server part; or nil
	back     rpc.Caller

	clientDir string // data of the client part

	listener net.Listener // HTTP
	unix     net.Listener // HTTP for users of this machine
	conns    *edge.Conns
	requests *telemetry.Histogram
	http     *http.Server
	logins   *logins
	started  time.Time
	temp     string // directory to remove at the end
	nodeID   structs.NodeID

	closing sync.Once
}

// New opens everything: ports, files, state. Nothing runs before Run. On an error everything is closed again.
func New(cfg Config) (a *Agent, err error) {
	if cfg.Log == nil {
		cfg.Log = hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "muster", Level: hclog.Info})
	}
	a = &Agent{cfg: cfg, log: cfg.Log, started: time.Now()}
	if cfg.Server != nil {
		gcpace.Start(gcpace.Server)
		supervisor.Relax(supervisor.ServerSlack)
	} else {
		gcpace.Start(gcpace.Node)
	}
	defer func() {
		if err != nil {
			a.Close()
			a = nil
		}
	}()
	if a.cfg.DataDir == "" {
		if !cfg.Dev {
			return a, errors.New("data_dir is required: state and tasks are kept there")
		}
		if a.temp, err = os.MkdirTemp("", tempPrefix); err != nil {
			return a, err
		}
		if err = os.Chmod(a.temp, 0o711); err != nil { // tasks of other users must be able to traverse it to their own directories
			return a, err
		}
		a.cfg.DataDir = a.temp
	}
	if err := os.MkdirAll(a.cfg.DataDir, 0o711); err != nil {
		return a, fmt.Errorf("data_dir: %w", err)
	}
	if cfg.TLSRPC || cfg.TLSHTTP {
		if a.tls, err = tlsutil.Load(cfg.TLS, cfg.Region); err != nil {
			return a, fmt.Errorf("tls: %w", err)
		}
	}
	if a.tel, err = telemetry.New(cfg.Telemetry); err != nil {
		return a, err
	}
	if a.listener, err = net.Listen("tcp", cfg.HTTP); err != nil {
		return a, listenError("HTTP", cfg.HTTP, err)
	}
	if cfg.Server != nil {
		if err := a.openServer(); err != nil {
			return a, err
		}
	}
	if cfg.Client != nil {
		if err := a.openClient(); err != nil {
			return a, err
		}
	}
	switch {
	case a.server != nil:
		a.back = a.server.Caller(rpc.Peer{})
	case a.client != nil:
		a.back = a.client.Servers()
	default:
		return a, errors.New("neither server nor client is enabled: set server { enabled = true }, client { enabled = true }, or start with -dev")
	}
	if err := a.openMetrics(); err != nil {
		return a, err
	}
	return a, a.openHTTP()
}

func (a *Agent) openServer() error {
	cfg := &a.cfg
	l, err := net.Listen("tcp", cfg.RPC)
	if err != nil {
		return listenError("RPC", cfg.RPC, err)
	}
	sc := server.Config{
		Name: cfg.Name, Region: cfg.Region, Datacenter: cfg.Datacenter, Version: version.Version, Build: version.NomadCompat,
		DataDir: filepath.Join(cfg.DataDir, "server"), InMemory: cfg.Dev && a.temp != "", Dev: cfg.Dev,
		BootstrapExpect: cfg.Server.BootstrapExpect, Listeners: []net.Listener{l}, Advertise: cfg.AdvertiseRPC,
		ACL: cfg.ACL, OIDCIssuer: cfg.Server.OIDCIssuer, JoinKey: cfg.Server.JoinKey, Logins: cfg.Server.Logins, Priorities: cfg.Server.Priorities, Collect: cfg.Server.Collect, MaxConnsPerIP: cfg.RPCPerIP, AllocRatePerToken: cfg.AllocRate, BundlesMax: cfg.Server.BundlesMax, RestartGrace: cfg.Server.RestartGrace, Filter: nomadlike.Filter, Logger: a.log.Named("server"), Raft: cfg.Server.Raft,
	}
	sc.Monitor = func(ctx context.Context, req *methods.MonitorRequest, st *rpc.Stream) error {
		return client.Monitor(ctx, a.log, req, st)
	}
	if cfg.TLSRPC {
		sc.TLSServer, sc.TLSClient = a.tls.RPCServer(), a.tls.ClientTo
	}
	g := &sc.Gossip
	if cfg.Gossip == "" {
		g.Disabled = true
	} else {
		host, port, err := splitPort(cfg.Gossip)
		if err != nil {
			l.Close()
			return fmt.Errorf("gossip address: %w", err)
		}
		g.BindAddr, g.BindPort = host, port
		if cfg.AdvertiseGossip != "" {
			if g.AdvertiseAddr, g.AdvertisePort, err = splitPort(cfg.AdvertiseGossip); err != nil {
				l.Close()
				return fmt.Errorf("advertised gossip address: %w", err)
			}
		}
		g.Nodes = cfg.Server.GossipNodes
		g.Key, g.Join, g.RetryJoin, g.RetryInterval, g.AllowPlain = cfg.Encrypt, cfg.Server.Join, cfg.Server.RetryJoin, cfg.Server.RetryInterval, cfg.Insecure
	}
	if a.server, err = server.New(sc); err != nil {
		for _, errno := range []error{syscall.EADDRINUSE, syscall.EADDRNOTAVAIL} { // the gossip library does not wrap them
			if strings.Contains(err.Error(), errno.Error()) {
				return listenError("gossip", cfg.Gossip, errno)
			}
		}
		return fmt.Errorf("server: %w", err)
	}
	return nil
}

func (a *Agent) openClient() error {
	cfg := &a.cfg
	cc := cfg.Client.Config
	cc.Node.Name, cc.Node.Region, cc.Node.Datacenter, cc.Node.Version = cfg.Name, cfg.Region, cfg.Datacenter, version.Version
	cc.Node.TLSEnabled = cfg.TLSHTTP
	if cc.Node.HTTPAddr = cfg.AdvertiseHTTP; cc.Node.HTTPAddr == "" {
		cc.Node.HTTPAddr = a.listener.Addr().String()
	}
	if cc.Storage.DataDir == "" {
		cc.Storage.DataDir = filepath.Join(cfg.DataDir, "client")
	}
	a.clientDir = cc.Storage.DataDir
	var err error
	supervisor.Relax(supervisor.TaskSlack)
	if dir := filepath.Join(cfg.DataDir, "supervisor"); a.temp != "" {
		a.super, err = supervisor.OpenBound(context.Background(), dir, "", a.temp)
	} else {
		a.super, err = supervisor.Open(dir, "")
	}
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	if l, err := a.super.Groups(); err == nil && !l.Has("cpuset") {
		cc.Host.Fingerprint.NoCpuset = true
	}
	isolated := cfg.Client.Exec
	isolated.Supervisor = a.super
	drivers := []driver.Driver{
		exec.New(isolated),
		rawexec.New(rawexec.Options{Supervisor: a.super, Enabled: cfg.Client.RawExec}),
	}
	if cfg.Client.Docker != nil {
		a.openDocker()
		drivers = append(drivers, a.docker)
	}
	if cfg.Client.Fake {
		drivers = append(drivers, fake.New())
	}
	cc.Host.Drivers = driver.NewSet(drivers...)
	bridge := cfg.Client.Bridge
	bridge.Dir, bridge.Log = networkDir(cc.Storage.DataDir), a.log
	if a.networks, err = netns.New(bridge); err != nil {
		return fmt.Errorf("client: %w", err)
	}
	cc.Host.Networks = a.networks
	cc.Host.Fingerprint.Devices = cfg.Client.Devices
	a.openGPUs(&cc)
	cc.Host.Supervisor, cc.Host.Leases = a.supervisor(), a.super
	cc.Log, cc.Monitor = a.log, a.log
	cc.OnNode = func(id structs.NodeID) { a.nodeID = id }
	cc.Tasks.ServeTask = a.serveTask
	if a.server != nil {
		peer := rpc.Peer{Role: string(tlsutil.RoleClient), Region: cfg.Region, Name: cfg.Name, Local: true}
		cc.Connect = client.InProcess(func(back rpc.Caller) rpc.Caller { return a.server.CallerFor(peer, back) })
	} else {
		dc := client.DialConfig{Servers: cfg.Client.Servers, Log: a.log}
		if cfg.TLSRPC {
			dc.Dial = rpc.TLSDialer(rpc.NetDialer(), a.tls.Client)
		}
		cc.Connect = client.Dial(dc)
		if cfg.Gossip == "" {
			a.log.Warn("this agent does not gossip, so that only missed heartbeats show that its machine is lost: server.encrypt, the gossip key, is not set")
		} else {
			if a.gossip, err = newMembership(cfg, a.log); err != nil {
				return err
			}
			cc.OnGossip = a.gossip.advise
		}
	}
	if a.client, err = client.New(cc); err != nil {
		return err
	}
	if a.docker != nil {
		a.docker.Tidy()
	}
	if a.server != nil {
		a.server.SetNode(a.client.ID())
	} else if a.gossip != nil {
		a.gossip.cfg.Meta.ID = a.client.ID().String()
	}
	return nil
}

func (a *Agent) openHTTP() error {
	var enter func(ctx context.Context, write bool) (context.Context, func(), error)
	if a.server != nil {
		enter = a.server.EnterUser
	}
	api := nomadlike.New(nomadlike.Config{
		Enter:   enter,
		Backend: a.back, Agent: a, Log: a.log.Named("http"), Debug: a.cfg.EnableDebug, Region: a.cfg.Region, Observe: a.observeHTTP,
		Rates: edge.NewRates(a.cfg.Rates, a.log.Named("http")),
		Site:  edge.NewSite(a.ownHosts(), a.cfg.AllowedHosts),
	})
	a.logins = newLogins(a)
	a.http = nomadlike.NewHTTPServer(a.logins.handler(api), a.log.Named("http"))
	a.http.ConnContext = connContext
	a.conns = edge.NewConns(a.cfg.ConnsPerIP, a.cfg.ConnsTotal, a.log.Named("http"))
	a.listener = a.conns.Listener(a.listener, "")
	if a.cfg.TLSHTTP {
		a.listener = tls.NewListener(a.listener, a.tls.HTTPServer(a.cfg.VerifyHTTPS))
	}
	path := filepath.Join(a.cfg.DataDir, "muster.sock")
	if len(path) < 100 { // sun_path holds 108 bytes
		_ = os.Remove(path)
		l, err := net.Listen("unix", path)
		if err != nil {
			a.log.Warn("no unix socket for users of this machine", "path", path, "error", err)
			return nil
		}
		if err := os.Chmod(path, 0o666); err != nil { // the kernel identifies the user of each connection
			l.Close()
			return err
		}
		a.unix = a.conns.Listener(l, "")
	}
	return nil
}

func splitPort(addr string) (string, int, error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, fmt.Errorf("%q: want HOST:PORT", addr)
	}
	n, err := strconv.Atoi(p)
	if err != nil || n < 0 || n > 65535 {
		return "", 0, fmt.Errorf("%q: the port must be a number from 0 to 65535", addr)
	}
	return host, n, nil
}

// HTTPAddr returns where the HTTP API listens.
func (a *Agent) HTTPAddr() string { return a.listener.Addr().String() }

// Server returns the server part, or nil.
func (a *Agent) Server() *server.Server { return a.server }

// Client returns the client part, or nil.
func (a *Agent) Client() *client.Client { return a.client }

// Run serves until ctx ends, then closes. Tasks keep running, except those of a -dev agent, which end with it.
func (a *Agent) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	run := func(what string, f func() error) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := f(); err != nil && ctx.Err() == nil {
				stop(fmt.Errorf("%s: %w", what, err))
			}
		}()
	}
	serve := func(l net.Listener) func() error {
		return func() error {
			if err := a.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		}
	}
	serverCtx, stopServer := context.WithCancel(context.WithoutCancel(ctx)) // until the client part has ended
	defer stopServer()
	if a.server != nil {
		run("server", func() error { return a.server.Run(serverCtx) })
		if o := a.cfg.Server.DecisionLog; o.Path != "" {
			run("server.decision_log", func() error { return a.logDecisions(ctx, o) })
		}
	}
	clientCtx, stopClient := context.WithCancel(context.WithoutCancel(ctx))
	defer stopClient()
	clientDone := make(chan struct{})
	if a.client != nil {
		run("client", func() error { defer close(clientDone); return a.client.Run(clientCtx) })
	} else {
		close(clientDone)
	}
	if a.gossip != nil {
		run("gossip", func() error { a.gossip.run(ctx); return nil })
	}
	run("telemetry", func() error { a.tel.Run(ctx); return nil })
	if a.tls != nil {
		run("certificate", func() error { a.warnOfExpiry(ctx); return nil })
	}
	run("http", serve(a.listener))
	if a.unix != nil {
		run("http", serve(a.unix))
	}
	<-ctx.Done()
	if a.cfg.Dev && a.client != nil {
		// A cluster for trying things out must not leave tasks behind.
		all := a.supervisor()
		ids, err := all.TaskIDs(context.Background())
		if err == nil {
			for _, id := range ids {
				_ = all.Destroy(context.Background(), id)
			}
		}
	}
	stopClient()
	<-clientDone
	stopServer()
	a.Close()
	wg.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Close ends everything immediately, without leaving the cluster.
func (a *Agent) Close() error {
	a.closing.Do(func() {
		if a.http != nil {
			shut, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			_ = a.http.Shutdown(shut) // streams and blocking queries are cut after that
			cancel()
			a.http.Close()
		}
		for _, l := range []net.Listener{a.listener, a.unix} {
			if l != nil {
				l.Close()
			}
		}
		if a.client != nil {
			a.client.Close()
			within, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			if err := a.client.RestoreGPUPower(within); err != nil {
				a.log.Warn("ending", "error", err)
			}
			cancel()
		}
		if a.docker != nil {
			a.docker.Close()
		}
		if a.gpus != nil {
			a.gpus.Close()
		}
		if a.gossip != nil {
			a.gossip.close()
		}
		if a.server != nil {
			a.server.Close()
		}
		if a.super != nil {
			if a.cfg.Dev {
				_ = a.super.Shutdown(context.Background())
			}
			a.super.Close()
		}
		if a.tel != nil {
			a.tel.Close()
		}
		if a.networks != nil {
			if a.cfg.Dev {
				if err := a.networks.Sweep(func(string) bool { return false }); err != nil {
					a.log.Warn("ending", "error", err)
				}
			}
			a.networks.Close()
		}
		if a.cfg.Dev && a.clientDir != "" {
			unmountBelow(a.clientDir)
		}
		if a.temp != "" {
			if err := removeTemp(a.temp); err != nil {
				a.log.Warn("the temporary data directory stays", "error", err)
			}
		}
	})
	return nil
}

// Leave takes the agent out of the cluster deliberately: the client part drains as configured, the server part hands
// over its duties.
func (a *Agent) Leave(ctx context.Context) error {
	var errs []error
	if a.client != nil {
		errs = append(errs, a.client.Leave(ctx))
	}
	if a.server != nil {
		errs = append(errs, a.server.Leave(ctx))
	}
	if a.gossip != nil {
		errs = append(errs, a.gossip.leave())
	}
	return errors.Join(errs...)
}
