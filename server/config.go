package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/fsync"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/decide"
	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/server/member"
	"github.com/muster-sched/muster/server/nodes"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Config configures a server. The zero value of a field means its default.
type Config struct {
	Name       string // unique in the region; required
	ID         string // raft server ID, a UUID; "": read from DataDir, where the first start stores a new one
	Region     string // default "global"
	Datacenter string // default "dc1"
	Version    string // of the program; sent to other servers
	Build      string // commit; sent to other servers
	DataDir    string // parent of the raft log and snapshots; required unless InMemory
	InMemory   bool   // keep everything in memory: for -dev, and tests in virtual time
	Dev        bool   // no ACL and no gossip key; one server bootstraps itself at once

	// BootstrapExpect is the number of servers that bootstrap a new cluster together; 0: join an existing one. With 1
	// (or Dev) the server bootstraps a cluster alone.
	BootstrapExpect int

	BundlesMax int64 // bytes of all bundles that this server keeps; 0: structs.BundlesMaxMiB, negative: it takes none

	Listeners []net.Listener // the RPC and raft port, already listening; at least one. The server closes them
	Advertise string         // "host:port" at which others reach this server; "": the first listener's address
	Dial      rpc.Dialer     // connects to other servers, below TLS; nil: TCP

	TLSServer *tls.Config                     // for the listeners; nil: plaintext
	TLSClient func(region string) *tls.Config // for connections to servers of a region; required with TLSServer

	// JoinKey proves to other servers that this is one, where access control is on and TLS is off. nil: this server then
	// has no peers.
	JoinKey []byte

	Gossip member.GossipConfig

	// RestartGrace is how long after its last heartbeat a node keeps its work when only its agent has ended; 0:
	// nodes.RestartGraceDefault.
	RestartGrace time.Duration
	Raft         replica.RaftConfig

	ACL               bool // enforce access control; if false, every caller has management rights
	Logins            endpoint.LoginNodes
	Priorities        endpoint.Priorities
	Collect           duty.CollectLimits // what has ended is kept so long; what is 0 is as in duty.DefaultCollectLimits
	AllocRatePerToken int                // allocations a second that a token without management rights may ask for; 0: structs.AllocRateDefault, negative: no limit
	MaxStreams        int                // calls in progress per session; 0: rpc.DefaultMaxStreams
	MaxConnsPerIP     int                // see rpc.ServerConfig
	OIDCIssuer        string             // issuer in workload identities; "" for none

	// Filter compiles a filter expression over the wire shape of a kind of object ("job", "alloc", "eval", "node",
	// "pool", "namespace", "token", "policy", "role"). nil: filters are refused.
	Filter func(kind, expr string) (func(object any) (bool, error), error)

	// Monitor serves this process's log to Agent.Monitor calls, or is nil.
	Monitor func(ctx context.Context, req *methods.MonitorRequest, st *rpc.Stream) error

	Logger hclog.Logger     // or nil
	Exit   func(why string) // ends the process when the state cannot be trusted; nil: log a line and os.Exit(1)
	Now    func() time.Time // wall clock; nil: time.Now

	Testing TestingKnobs
}

// TestingKnobs let tests interfere with a server. The zero value is for production.
type TestingKnobs struct {
	Replica replica.TestingKnobs
	Decide  decide.TestingKnobs

	NoSigningKey bool             // the first identity makes the key that signs them, not the first leader
	Steady       func() time.Time // the monotonic clock that times heartbeats and probes; nil: time.Now, which keeps one
}

func (c *Config) setDefaults() error {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&c.Region, structs.RegionDefault)
	def(&c.Datacenter, structs.DatacenterDefault)
	if c.Name == "" {
		return errors.New("server: Config.Name is empty; it must name this server within its region")
	}
	if len(c.Listeners) == 0 {
		return errors.New("server: Config.Listeners is empty; it needs the listener of the RPC port")
	}
	if c.DataDir == "" && !c.InMemory {
		return errors.New("server: Config.DataDir is empty; name a directory or set InMemory")
	}
	if c.TLSServer != nil && c.TLSClient == nil {
		return errors.New("server: TLSServer is set without TLSClient; servers could not reach each other")
	}
	if c.Dev && c.BootstrapExpect == 0 {
		c.BootstrapExpect = 1
	}
	if c.BootstrapExpect < 0 || c.BootstrapExpect > 9 {
		return fmt.Errorf("server: bootstrap_expect is %d; want 0 to 9, usually 3 or 5", c.BootstrapExpect)
	}
	if c.Advertise == "" {
		c.Advertise = c.Listeners[0].Addr().String()
	}
	if host, _, err := net.SplitHostPort(c.Advertise); err != nil {
		return fmt.Errorf("server: advertised address %q: %w", c.Advertise, err)
	} else if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("server: the advertised address %s is not one that others can reach; set advertise.rpc", c.Advertise)
	}
	if c.Dial == nil {
		c.Dial = rpc.NetDialer()
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Testing.Steady == nil {
		c.Testing.Steady = time.Now
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.RestartGrace == 0 {
		c.RestartGrace = nodes.RestartGraceDefault
	}
	return nil
}

// serverID returns the ID stored in the data directory. The first start makes one.
func serverID(cfg *Config) (string, error) {
	if cfg.ID != "" {
		return cfg.ID, nil
	}
	var seed structs.Seed
	rand.Read(seed[:])
	fresh := structs.DeriveID[structs.NodeID](seed, "server", cfg.Name, 0).String()
	if cfg.InMemory {
		return fresh, nil
	}
	if err := fsync.MkdirAll(cfg.DataDir); err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	path := filepath.Join(cfg.DataDir, "server-id")
	b, err := os.ReadFile(path)
	if err == nil {
		id := strings.TrimSpace(string(b))
		if _, err := structs.ParseID[structs.NodeID](id); err != nil || id == "" {
			return "", fmt.Errorf("%s does not hold an id; restore it, or remove the whole data directory to join as a new server", path)
		}
		return id, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	if err := fsync.WriteFile(path, []byte(fresh+"\n")); err != nil {
		return "", fmt.Errorf("write %s: %w", path, err)
	}
	return fresh, nil
}
