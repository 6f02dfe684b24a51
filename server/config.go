package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/memberlist"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/server/raftlog"
	"github.com/muster-sched/muster/structs"
)

// Config is everything a server is told. The zero value of a field means its default.
type Config struct {
	Name       string // unique in the region; required
	ID         string // raft server id, a UUID; "" is read from (or made and kept in) DataDir
	Region     string // "global"
	Datacenter string // "dc1"
	Version    string // of the program, told to other servers
	Build      string // commit, told to other servers
	DataDir    string // raft log and snapshots; required unless InMemory
	InMemory   bool   // keep everything in memory: -dev and tests in virtual time
	Dev        bool   // open: no ACL, no gossip key, one server bootstraps itself at once

	// BootstrapExpect is how many servers found a new cluster together; 0: join an existing one. With 1 (or Dev) the
	// server founds a cluster alone.
	BootstrapExpect int

	Listeners []net.Listener // the RPC and raft port, already listening; at least one. Closed by the server
	Advertise string         // "host:port" at which others reach it; "" is the first listener's address
	Dial      rpc.Dialer     // how to connect to other servers, below TLS; nil is TCP

	TLSServer *tls.Config        // for the listeners; nil is plaintext
	TLSClient func() *tls.Config // for connections to other servers; required with TLSServer

	Gossip GossipConfig
	Raft   RaftConfig

	ACL           bool // enforce access control; else every caller is management
	MaxStreams    int  // calls in progress per session; 0 is rpc.DefaultMaxStreams
	MaxConnsPerIP int  // see rpc.ServerConfig

	// Filter compiles a filter expression over the wire shape of a kind of object ("job", "alloc", "eval", "node",
	// "pool", "namespace", "token", "policy", "role"). nil refuses filters.
	Filter func(kind, expr string) (func(object any) (bool, error), error)

	// Monitor serves this process's own log to the calls Agent.Monitor, or is nil.
	Monitor func(ctx context.Context, req *methods.MonitorRequest, st *rpc.Stream) error

	Logger hclog.Logger             // or nil
	Exit   func(why string)         // ends the process when state can no longer be trusted; nil: os.Exit(1) after a log line
	Now    func() time.Time         // wall clock; nil is time.Now
	Stats  func() map[string]string // further figures for Stats, or nil

	Testing TestingKnobs
}

// TestingKnobs are the places where tests interfere with a server. The zero value is production's.
type TestingKnobs struct {
	BeforeApply    func()                   // called before committed entries are applied, or nil
	BeforeSchedule func(in scheduler.Input) // called in each pass before it decides, or nil; may panic
}

// GossipConfig is how servers and agents find each other (D12).
type GossipConfig struct {
	Transport     memberlist.Transport // or nil: TCP and UDP on BindAddr:BindPort
	BindAddr      string               // "0.0.0.0"
	BindPort      int                  // 0: any port
	AdvertiseAddr string               // IP that others gossip to; "" is found from the bind address
	AdvertisePort int                  // 0: the bind port
	Key           []byte               // 16, 24 or 32 bytes; required unless Dev or bound to loopback
	Keyring       [][]byte             // further keys that are accepted
	Join          []string             // joined once at start; failing is an error of Run
	RetryJoin     []string             // joined until it works
	RetryInterval time.Duration        // 0: 5 s at most, growing from 250 ms
	Disabled      bool                 // no gossip at all: a single server
	AllowPlain    bool                 // the configuration spells out that it is insecure
}

// RaftConfig tunes raft. Zero means the default of each, which is for production.
type RaftConfig struct {
	Heartbeat time.Duration // 300 ms
	Election  time.Duration // 300 ms
	Lease     time.Duration // 200 ms
	Commit    time.Duration // 5 ms

	SnapshotEntries uint64        // entries since the last snapshot that call for one; 0: 16,384
	SnapshotBytes   int64         // bytes of log since the last snapshot that call for one; 0: 256 MiB
	SnapshotEvery   time.Duration // at most this often; 0: 30 s
	TrailingLogs    uint64        // entries kept behind a snapshot for slow followers; 0: 10,240

	Log          raftlog.Options // the backend of the raft log and its settings
	NoLogCache   bool            // read recent entries from the backend instead of memory
	StoreTimeout time.Duration   // StoreLogs taking longer means a hung disk and ends the process; 0: 5 s
}

func (c *Config) setDefaults() error {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	dur := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
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
	if c.Now == nil {
		c.Now = time.Now
	}
	r := &c.Raft
	dur(&r.Heartbeat, 300*time.Millisecond)
	dur(&r.Election, 300*time.Millisecond)
	dur(&r.Lease, 200*time.Millisecond)
	dur(&r.Commit, 5*time.Millisecond)
	dur(&r.SnapshotEvery, 30*time.Second)
	dur(&r.StoreTimeout, 5*time.Second)
	if r.SnapshotEntries == 0 {
		r.SnapshotEntries = 16384
	}
	if r.SnapshotBytes == 0 {
		r.SnapshotBytes = 256 << 20
	}
	if r.TrailingLogs == 0 {
		r.TrailingLogs = 10240
	}
	return nil
}
