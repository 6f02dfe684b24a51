package agentconfig

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-sched/muster/internal/tlsutil"
	"github.com/muster-sched/muster/structs"
)

// at returns where a key was set, or the zero pos.
func (c *Config) at(key string) pos {
	if n := c.tree.get(strings.Split(key, ".")...); n != nil {
		return n.pos
	}
	return pos{}
}

// finish checks the settings and computes those that are missing.
func (c *Config) finish(o Options, errs *problems) {
	fail := func(key, format string, args ...any) { errs.add(c.at(key), key+": "+format, args...) }
	c.names(o, fail)
	c.parts(errs, fail)
	c.numbers(fail)
	c.clientValues(fail)
	c.accepted()
	if c.LogRotateDuration == 0 {
		c.LogRotateDuration = 24 * time.Hour
	}
	if len(errs.list) > 0 {
		return // the rest depends on the checks above
	}
	c.addresses(o, errs, fail)
}

// hostPattern matches a host name, and "*." before one.
var hostPattern = regexp.MustCompile(`^(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*$`)

var nodeID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

type failFunc func(key, format string, args ...any)

func (c *Config) names(o Options, fail failFunc) {
	if c.Name == "" {
		name, err := o.Hostname()
		if err != nil || name == "" {
			fail("name", "the machine has no name (%v); set name", err)
		}
		c.Name = name
	}
	for _, f := range []struct{ key, v string }{{"name", c.Name}, {"region", c.Region}, {"datacenter", c.Datacenter}, {"client.node_pool", c.Client.NodePool}, {"client.node_class", c.Client.NodeClass}} {
		if f.v == "" && f.key != "client.node_class" {
			fail(f.key, "must not be empty")
		}
		if len(f.v) > 128 || strings.ContainsFunc(f.v, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '/' || r == '*' }) {
			fail(f.key, "%.140q: want at most 128 characters without spaces, / and *", f.v)
		}
	}
	for i, h := range c.HTTPAllowedHosts {
		h = strings.ToLower(h)
		if c.HTTPAllowedHosts[i] = h; !hostPattern.MatchString(h) {
			fail("http_allowed_hosts", "%.140q: want a host name such as muster.example.com, without scheme and port, or *.example.com for all names below it", h)
		}
	}
	for _, n := range c.ACL.LoginNodes {
		if n != AllNodes && !nodeID.MatchString(n) {
			fail("acl.login_nodes", "%.60q: want the whole ID of a node, as `muster node status -verbose` shows it, or \"*\" for all nodes", n)
		}
	}
	levels := []string{"TRACE", "DEBUG", "INFO", "WARN", "ERROR", "OFF"}
	c.LogLevel = strings.ToUpper(c.LogLevel)
	switch c.LogLevel {
	case "WARNING":
		c.LogLevel = "WARN"
	case "ERR":
		c.LogLevel = "ERROR"
	}
	if !slices.Contains(levels, c.LogLevel) {
		fail("log_level", "%q: want one of %s", c.LogLevel, strings.Join(levels, ", "))
	}
	if c.DataDir == "" {
		if !c.Dev {
			fail("data_dir", "is required: state and tasks are kept there (or start with -dev to try things out)")
		}
		return
	}
	abs, err := filepath.Abs(c.DataDir)
	if err != nil {
		fail("data_dir", "%v", err)
		return
	}
	c.DataDir = abs
	if st, err := os.Stat(abs); err == nil && !st.IsDir() {
		fail("data_dir", "%s is not a directory", abs)
	}
}

func (c *Config) parts(errs *problems, fail failFunc) {
	s := &c.Server
	s.ServerJoin.StartJoin = append(slices.Clone(s.ServerJoin.StartJoin), s.StartJoin...)
	s.ServerJoin.RetryJoin = append(slices.Clone(s.ServerJoin.RetryJoin), s.RetryJoin...)
	if s.ServerJoin.RetryInterval == 0 {
		s.ServerJoin.RetryInterval = s.RetryInterval
	}
	if !s.Enabled && !c.Client.Enabled {
		errs.add(pos{}, "neither server nor client is enabled: set server { enabled = true }, client { enabled = true }, or start with -dev")
	}
	if s.Enabled {
		if s.BootstrapExpect < 0 || s.BootstrapExpect > 9 {
			fail("server.bootstrap_expect", "%d: want 1 to 9, the number of servers that found the cluster together (3 or 5 is usual)", s.BootstrapExpect)
		} else if s.BootstrapExpect == 0 && !c.Dev && len(s.ServerJoin.StartJoin)+len(s.ServerJoin.RetryJoin) == 0 {
			c.warn(c.at("server"), "this server has neither server.bootstrap_expect nor server_join: it waits for `muster server join`")
		} else if s.BootstrapExpect == 2 || s.BootstrapExpect > 2 && s.BootstrapExpect%2 == 0 {
			c.warn(c.at("server.bootstrap_expect"), "an even number of servers (%d) survives no more failures than %d", s.BootstrapExpect, s.BootstrapExpect-1)
		}
	} else if s.BootstrapExpect != 0 {
		fail("server.bootstrap_expect", "is set, but server.enabled is not true")
	}
	if s.Encrypt != "" {
		if k, err := base64.StdEncoding.DecodeString(s.Encrypt); err != nil || len(k) != 16 && len(k) != 24 && len(k) != 32 {
			fail("server.encrypt", "want 16, 24 or 32 bytes in base64; make a key with `muster operator gossip keyring generate`")
		}
	}
	c.joinKey(fail)
	if u, err := url.Parse(s.OIDCIssuer); s.OIDCIssuer != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.Fragment != "") {
		fail("server.oidc_issuer", "%q: want a URL without a query, such as \"https://muster.example.com\"", s.OIDCIssuer)
	}
	if c.Client.Enabled && !s.Enabled && len(c.clientServers()) == 0 {
		fail("client.servers", "a client needs at least one server's RPC address, such as [\"10.0.0.1:4647\"]")
	}
	t := &c.TLS
	if t.HTTP || t.RPC {
		for _, f := range []struct{ key, v string }{{"tls.ca_file", t.CAFile}, {"tls.cert_file", t.CertFile}, {"tls.key_file", t.KeyFile}} {
			if f.v == "" {
				fail(f.key, "is required with tls.http or tls.rpc; `muster tls ca create` and `muster tls cert create` make the files")
			} else if _, err := os.Stat(f.v); err != nil {
				fail(f.key, "%s: %v", f.v, clean(err))
			}
		}
	}
	for _, j := range []struct {
		key  string
		list []string
		port int
	}{
		{"server.server_join.start_join", s.ServerJoin.StartJoin, c.Ports.Serf}, {"server.server_join.retry_join", s.ServerJoin.RetryJoin, c.Ports.Serf},
		{"client.servers", c.Client.Servers, portRPC}, {"client.server_join.start_join", c.Client.ServerJoin.StartJoin, portRPC},
		{"client.server_join.retry_join", c.Client.ServerJoin.RetryJoin, portRPC}, {"client.gossip_join", c.Client.GossipJoin, portSerf},
	} {
		for i, a := range j.list {
			full, err := withPort(a, j.port)
			if err != nil {
				fail(j.key, "%v", err)
				continue
			}
			j.list[i] = full
			if text := wrongPort(full, j.port, c.Ports); text != "" {
				c.warn(c.at(j.key), "%s", text)
			}
		}
	}
}

// joinKey checks server.join_key. Where ACLs are enabled, a server proves to others that it is one by its certificate or
// by this key. A server without peers needs neither.
func (c *Config) joinKey(fail failFunc) {
	const key, make = "server.join_key", "make a key with `muster operator join-key generate`"
	s := &c.Server
	peers := s.BootstrapExpect > 1 || len(s.ServerJoin.StartJoin)+len(s.ServerJoin.RetryJoin) > 0
	switch {
	case s.JoinKey == "":
		if s.Enabled && c.ACL.Enabled && !c.TLS.RPC && peers {
			fail(key, "is required: ACLs are enabled without tls.rpc, so only this key proves to other servers that this is one; %s and give it to the servers only", make)
		}
		return
	case !s.Enabled:
		fail(key, "is set, but server.enabled is not true; whoever holds this key can take the whole cluster over, so only servers may have it")
		return
	case s.JoinKey == s.Encrypt:
		fail(key, "is the gossip key, which client agents hold too; %s", make)
		return
	case c.TLS.RPC:
		c.warn(c.at(key), "%s has no effect: with tls.rpc, servers prove who they are by their certificates", key)
	case !c.ACL.Enabled:
		c.warn(c.at(key), "%s has no effect: acl.enabled is not true, so everybody may do everything", key)
	}
	if _, err := tlsutil.ParseJoinKey(s.JoinKey); err != nil {
		fail(key, "%v", err)
	}
}

func (c *Config) numbers(fail failFunc) {
	between := func(key string, v, low, high int64) {
		if v < low || v > high {
			fail(key, "%d: want %d to %d", v, low, high)
		}
	}
	between("ports.http", int64(c.Ports.HTTP), 0, 65535)
	between("ports.rpc", int64(c.Ports.RPC), 0, 65535)
	between("ports.serf", int64(c.Ports.Serf), 0, 65535)
	if c.Server.Enabled {
		for _, p := range [][2]any{{"rpc", c.Ports.RPC}, {"serf", c.Ports.Serf}} {
			if c.Ports.HTTP != 0 && p[1] == c.Ports.HTTP {
				fail("ports."+p[0].(string), "is %d, as is ports.http; each needs its own", p[1])
			}
		}
		if c.Ports.RPC != 0 && c.Ports.RPC == c.Ports.Serf {
			fail("ports.serf", "is %d, as is ports.rpc; each needs its own", c.Ports.Serf)
		}
	}
	const big = 1 << 40
	const tenYears = 10 * 365 * 24 * time.Hour
	between("log_rotate_bytes", c.LogRotateBytes, 0, 1<<50)
	between("log_rotate_max_files", int64(c.LogRotateMaxFiles), -1, 1<<20)
	between("server.raft_multiplier", int64(c.Server.RaftMultiplier), 0, 10)
	between("server.job_max_priority", int64(c.Server.JobMaxPriority), 0, structs.JobPriorityMax)
	between("server.job_default_priority", int64(c.Server.JobDefaultPriority), 0, int64(cmp.Or(c.Server.JobMaxPriority, structs.JobPriorityMax)))
	between("server.gossip_nodes", int64(c.Server.GossipNodes), -1, 10_000)
	if g := c.Server.RestartGrace; g < 0 || g > time.Hour {
		fail("server.restart_grace", "%s: want 0s to 1h", g)
	}
	for _, d := range []struct {
		key     string
		v, most time.Duration
	}{
		{"job_gc_interval", c.Server.JobGCInterval, 24 * time.Hour}, {"job_gc_threshold", c.Server.JobGCThreshold, tenYears},
		{"eval_gc_threshold", c.Server.EvalGCThreshold, tenYears}, {"batch_eval_gc_threshold", c.Server.BatchEvalGCThreshold, tenYears},
		{"node_gc_threshold", c.Server.NodeGCThreshold, tenYears}, {"acct_retention", c.Server.AcctRetention, tenYears},
	} {
		if d.v != 0 && (d.v < time.Second || d.v > d.most) {
			fail("server."+d.key, "%s: want 1s to %dh, or 0 for the default", d.v, d.most/time.Hour)
		}
	}
	if n := c.Server.AcctMaxRecords; n != 0 {
		between("server.acct_max_records", n, 100, structs.AcctKept)
	}
	between("server.raft_trailing_logs", c.Server.RaftTrailingLogs, 0, big)
	between("server.raft_snapshot_threshold", c.Server.RaftSnapshotThreshold, 0, big)
	c.logStore(fail)
	c.telemetry(fail)
	between("server.raft_logstore.wal.segment_size_mb", int64(c.Server.RaftLogStore.WAL.SegmentSizeMB), 0, 1024)
	cl := &c.Client
	between("client.network_speed", cl.NetworkSpeed, 0, big)
	between("client.cpu_total_compute", cl.CPUTotalCompute, 0, big)
	between("client.memory_total_mb", cl.MemoryTotalMB, 0, big)
	between("client.disk_total_mb", cl.DiskTotalMB, 0, big)
	between("client.reserved.cpu", cl.Reserved.CPU, 0, big)
	between("client.reserved.memory", cl.Reserved.Memory, 0, big)
	between("client.reserved.disk", cl.Reserved.Disk, 0, big)
	between("client.gc_disk_usage_threshold", int64(cl.GCDiskUsageThreshold), 0, 100)
	between("client.gc_inode_usage_threshold", int64(cl.GCInodeUsageThreshold), 0, 100)
	between("client.gc_max_allocs", int64(cl.GCMaxAllocs), 0, 1<<20)
	between("client.gc_parallel_destroys", int64(cl.GCParallelDestroys), 0, 1024)
	between("client.min_dynamic_port", int64(cl.MinDynamicPort), 0, 65535)
	between("client.max_dynamic_port", int64(cl.MaxDynamicPort), 0, 65535)
	if lo, hi := cl.MinDynamicPort, cl.MaxDynamicPort; lo != 0 && hi != 0 && lo > hi {
		fail("client.min_dynamic_port", "%d is above client.max_dynamic_port, %d", lo, hi)
	}
	between("limits.http_max_conns_per_client", int64(c.Limits.HTTPMaxConnsPerClient), 0, 1<<20)
	between("limits.http_max_conns", int64(c.Limits.HTTPMaxConns), 0, 1<<20)
	between("limits.http_max_rate_per_client", int64(c.Limits.HTTPMaxRatePerClient), 0, 1e9)
	between("limits.http_max_rate_per_token", int64(c.Limits.HTTPMaxRatePerToken), 0, 1e9)
	if d := c.Limits.HTTPWrongTokenDelay; d < 0 || d > 10*time.Second {
		fail("limits.http_wrong_token_delay", "%s: want 0s to 10s", d)
	}
	between("limits.rpc_max_conns_per_client", int64(c.Limits.RPCMaxConnsPerClient), 0, 1<<20)
	between("server.bundles_max_mb", c.Server.BundlesMaxMB, -1, 1<<30)
	between("limits.alloc_max_rate_per_token", int64(c.Limits.AllocMaxRatePerToken), 0, 1e9)
}

func (c *Config) clientValues(fail failFunc) {
	cl := &c.Client
	for key, list := range map[string][]string{"client.egress.allow": cl.Egress.Allow, "client.egress.deny": cl.Egress.Deny} {
		for _, s := range list {
			if _, err := netip.ParsePrefix(s); err != nil {
				fail(key, "%.60q: want a range of addresses such as 10.0.0.0/8, 169.254.169.254/32 or fd00::/8", s)
			}
		}
	}
	if _, err := ParseRanges(cl.Reserved.ReservedPorts, 1, 65535); err != nil {
		fail("client.reserved.reserved_ports", "%v", err)
	}
	if _, err := ParseRanges(cl.Reserved.Cores, 0, 8191); err != nil {
		fail("client.reserved.cores", "%v", err)
	}
	for _, name := range sorted(cl.HostVolumes) {
		switch v := cl.HostVolumes[name]; {
		case v.Path == "":
			fail("client.host_volume."+name, "path is required: the directory to offer")
		case !absolute(v.Path):
			fail("client.host_volume."+name, "path %q must be absolute", v.Path)
		}
	}
	for _, k := range sorted(cl.Meta) {
		if k == "" || strings.ContainsAny(k, " \t\n${}") {
			fail("client.meta", "%q cannot be a key: jobs could not name it", k)
		}
	}
	c.fabric(fail)
	if v, ok := cl.Options["driver.raw_exec.enable"]; ok {
		on, err := strconv.ParseBool(v)
		if err != nil {
			fail("client.options", "driver.raw_exec.enable: want \"1\" or \"0\", found %q", v)
		}
		c.Plugin.RawExec.Config.Enabled = c.Plugin.RawExec.Config.Enabled || on
	}
	if slices.Contains(Names(cl.Options["fingerprint.denylist"]), "nvidia") {
		c.Plugin.NVIDIA.Config.Enabled = false
	}
	docker := &c.Plugin.Docker.Config
	switch docker.GPU {
	case "", "auto", "cdi", "runtime", "devices":
	default:
		fail("plugin.docker.config.gpu", "want \"auto\", \"cdi\", \"runtime\" or \"devices\", got %q", docker.GPU)
	}
	if e := docker.Endpoint; e != "" && !strings.HasPrefix(e, "unix:///") && !strings.HasPrefix(e, "tcp://") {
		fail("plugin.docker.config.endpoint", "%q: want unix:///PATH or tcp://HOST:PORT", e)
	}
	for key, path := range map[string]string{"cdi_dir": docker.CDIDir, "auth.config": docker.Auth.Config} {
		if path != "" && !absolute(path) {
			fail("plugin.docker.config."+key, "%q must be absolute", path)
		}
	}
	for key, d := range map[string]time.Duration{"pull_activity_timeout": docker.PullActivityTimeout, "gc.image_delay": docker.GC.ImageDelay} {
		if d < 0 {
			fail("plugin.docker.config."+key, "%s must not be negative", d)
		}
	}
	if l := c.Plugin.NVIDIA.Config.Library; l != "" && !absolute(l) {
		fail("plugin.nvidia.config.library", "%q must be absolute", l)
	}
	if cl.IntroToken != "" {
		switch key := "client.intro_token"; {
		case len(cl.IntroToken) > 128 || strings.ContainsFunc(cl.IntroToken, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
			fail(key, "want a token as `muster node intro create` prints it")
		case c.TLS.RPC:
			c.warn(c.at(key), "%s has no effect: with tls.rpc, clients prove who they are by their certificates", key)
		}
	}
	if cl.GCMaxAge < 0 {
		fail("client.gc_max_age", "%s: want 0 or more", cl.GCMaxAge)
	}
	hooks := &cl.Hooks
	for name, h := range map[string]Hook{"prolog": hooks.Prolog, "epilog": hooks.Epilog, "health": {hooks.Health.Command, hooks.Health.Timeout}} {
		key := "client.hooks." + name
		switch {
		case len(h.Command) == 0 && h.Timeout != 0:
			fail(key, "command is missing")
		case len(h.Command) > 0 && !absolute(h.Command[0]):
			fail(key+".command", "%q must be absolute", h.Command[0])
		case h.Timeout < 0 || h.Timeout > time.Hour:
			fail(key+".timeout", "%s: want 0 to 1h", h.Timeout)
		}
	}
	cl.checkPressure(fail)
	if i := hooks.Health.Interval; i != 0 && i < time.Second {
		fail("client.hooks.health.interval", "%s: want at least 1s", i)
	}
	ex := &c.Plugin.Exec.Config
	if !slices.Contains([]string{"", "default", "off"}, ex.Seccomp) {
		fail("plugin.exec.config.seccomp", "want default or off, got %q", ex.Seccomp)
	}
	if ex.NoFile < 0 || ex.NoFile > 1<<30 {
		fail("plugin.exec.config.nofile", "%d: want 0 to %d", ex.NoFile, 1<<30)
	}
	for _, d := range ex.RootDirs {
		if !absolute(d) {
			fail("plugin.exec.config.rootfs_dirs", "%q must be absolute", d)
		}
	}
	if d := c.Plugin.NVIDIA.Config.FingerprintPeriod; d != 0 && (d < time.Second || d > 10*time.Minute) {
		fail("plugin.nvidia.config.fingerprint_period", "%s: want 1s to 10m", d)
	}
	c.Plugin.NVIDIA.Config.XID.check(fail)
	if d := cl.GPUIdle; d != 0 && d < 5*time.Second {
		fail("client.gpu_idle", "%s: want 5s or more, or 0s for never", d)
	}
	for _, k := range []string{"driver.allowlist", "driver.denylist", "driver.whitelist", "driver.blacklist"} {
		if cl.Options[k] != "" {
			fail("client.options", "%s is not supported, and to ignore it would allow what it forbids: raw_exec is off unless it is enabled, exec is always offered", k)
		}
	}
	if cl.AllocDir != "" && !absolute(cl.AllocDir) {
		fail("client.alloc_dir", "%q must be absolute", cl.AllocDir)
	}
}

// xidMax is the largest number of an error; xidFixed is the one whose effect cannot be changed.
const (
	xidMax   = 999
	xidFixed = 154
)

func (x *XIDRules) check(fail failFunc) {
	in := map[int]string{}
	for _, l := range []struct {
		name string
		list []int
	}{{"ignore", x.Ignore}, {"program", x.Program}, {"degrade", x.Degrade}, {"quarantine", x.Quarantine}} {
		key := "plugin.nvidia.config.xid." + l.name
		for _, n := range l.list {
			switch {
			case n < 1 || n > xidMax:
				fail(key, "%d: want numbers of 1 to %d", n, xidMax)
			case n == xidFixed:
				fail(key, "%d announces that the driver asks for something else; it is no error that could be put in a list", n)
			case in[n] == l.name:
				fail(key, "%d is there twice", n)
			case in[n] != "":
				fail(key, "%d is also in %s; want it in one list", n, in[n])
			default:
				in[n] = l.name
			}
		}
	}
}

// telemetry checks where metrics are sent.
func (c *Config) telemetry(fail failFunc) {
	t := &c.Telemetry
	for _, x := range []struct{ key, addr string }{{"statsd_address", t.StatsdAddress}, {"statsite_address", t.StatsiteAddress}, {"datadog_address", t.DatadogAddress}} {
		if path, ok := strings.CutPrefix(x.addr, "unix://"); ok && x.key == "datadog_address" && absolute(path) {
			continue
		}
		_, port, err := net.SplitHostPort(x.addr)
		if n, bad := strconv.Atoi(port); x.addr != "" && (err != nil || bad != nil || n < 1 || n > 65535) {
			fail("telemetry."+x.key, "%q: want HOST:PORT", x.addr)
		}
	}
	if t.CollectionInterval < 100*time.Millisecond {
		fail("telemetry.collection_interval", "%s: want 100ms or more", t.CollectionInterval)
	}
	for _, rule := range t.PrefixFilter {
		switch {
		case rule == "" || rule[0] != '+' && rule[0] != '-':
			fail("telemetry.prefix_filter", "%q: want + or - before the prefix", rule)
		case !strings.HasPrefix(rule[1:], "muster"):
			c.warn(c.at("telemetry.prefix_filter"), "telemetry.prefix_filter %q has no effect: names begin with muster", rule)
		}
	}
}

// accepted warns about settings without effect.
func (c *Config) accepted() {
	s, idle := &c.Server, func(key, backend string) {
		c.warn(c.at(key), "%s has no effect: server.raft_logstore.backend is not %q", key, backend)
	}
	if s.RaftLogStore.Backend == "boltdb" {
		if s.RaftLogStore.WAL.SegmentSizeMB != 0 {
			idle("server.raft_logstore.wal.segment_size_mb", "wal")
		}
	} else {
		if s.RaftLogStore.BoltDB.NoFreelistSync {
			idle("server.raft_logstore.boltdb.no_freelist_sync", "boltdb")
		}
		if s.RaftBoltDB.NoFreelistSync {
			idle("server.raft_boltdb.no_freelist_sync", "boltdb")
		}
	}
	if c.Client.ServerJoin.RetryInterval != 0 {
		c.warn(c.at("client.server_join.retry_interval"), "client.server_join.retry_interval has no effect: a client chooses the time between two tries itself")
	}
	if (c.TLS.HTTP || c.TLS.RPC) && c.tree.get("tls", "verify_server_hostname") != nil && !c.TLS.VerifyServerHostname {
		c.warn(c.at("tls.verify_server_hostname"), "tls.verify_server_hostname = false has no effect: server certificates are always checked for their role and region")
	}
}

// logStore checks the backend of the raft log.
func (c *Config) logStore(fail failFunc) {
	switch c.Server.RaftLogStore.Backend {
	case "", "wal", "boltdb":
	default:
		fail("server.raft_logstore.backend", "%.40q: want \"wal\" or \"boltdb\"", c.Server.RaftLogStore.Backend)
	}
}

// addresses computes the addresses to listen on and to advertise, and refuses an agent that is open to the network
// without protection.
func (c *Config) addresses(o Options, errs *problems, fail failFunc) {
	gossips := c.Server.Enabled || len(c.Client.GossipJoin) > 0
	var missing, cure []string
	if !c.TLS.RPC || !c.TLS.HTTP {
		missing = append(missing, "TLS")
		cure = append(cure, "tls { http = true  rpc = true  ca_file, cert_file, key_file } (`muster tls ca create`, `muster tls cert create`)")
	}
	if !c.ACL.Enabled {
		missing = append(missing, "ACLs")
		cure = append(cure, "acl { enabled = true }")
	}
	if gossips && c.Server.Encrypt == "" {
		missing = append(missing, "a gossip key")
		cure = append(cure, "server { encrypt = \"...\" } (`muster operator gossip keyring generate`)")
	}
	bind := c.BindAddr
	if bind == "" {
		bind = "127.0.0.1"
		switch {
		case c.Dev:
		case len(missing) == 0:
			bind = "0.0.0.0"
			c.warn(pos{}, "bind_addr is not set: listening on all addresses, because TLS, ACLs and a gossip key are configured")
		case c.Addresses == Addresses{}:
			c.warn(pos{}, "bind_addr is not set: listening on 127.0.0.1 only, because %s %s not configured", and(missing), isAre(missing))
		}
		c.BindAddr = bind
	}
	mayGossip := gossips || c.Client.Enabled && c.agentMayGossip()
	type port struct {
		key, bind, advertise string
		port                 int
		used                 bool
		outBind, outPublic   *string
	}
	ports := []port{
		{"http", c.Addresses.HTTP, c.Advertise.HTTP, c.Ports.HTTP, true, &c.Bind.HTTP, &c.Public.HTTP},
		{"rpc", c.Addresses.RPC, c.Advertise.RPC, c.Ports.RPC, c.Server.Enabled, &c.Bind.RPC, &c.Public.RPC},
		{"serf", c.Addresses.Serf, c.Advertise.Serf, c.Ports.Serf, mayGossip, &c.Bind.Serf, &c.Public.Serf},
	}
	var open []string
	openAt := pos{}
	for _, p := range ports {
		key, host := "addresses."+p.key, p.bind
		if host == "" {
			key, host = "bind_addr", bind
		}
		ip, err := parseIP(host)
		if err != nil {
			fail(key, "%v", err)
			continue
		}
		if p.advertise != "" && strings.Contains(p.advertise, "{{") {
			fail("advertise."+p.key, "%q: templates are not supported; write the address", p.advertise)
			continue
		}
		if !p.used {
			continue
		}
		*p.outBind = net.JoinHostPort(host, strconv.Itoa(p.port))
		if !ip.IsLoopback() {
			open = append(open, p.key+" "+*p.outBind)
			if openAt == (pos{}) {
				openAt = c.at(key)
			}
		}
		switch {
		case p.advertise != "":
			if *p.outPublic, err = withPort(p.advertise, p.port); err != nil {
				fail("advertise."+p.key, "%v", err)
			} else if h, _, _ := net.SplitHostPort(*p.outPublic); net.ParseIP(h) != nil && net.ParseIP(h).IsUnspecified() {
				fail("advertise."+p.key, "%s is not an address that others can reach", h)
			}
		case ip.IsUnspecified():
			got, err := o.DefaultIP()
			if err != nil {
				fail("advertise."+p.key, "is needed: %s listens on all addresses and the one to advertise cannot be found: %v", p.key, err)
				continue
			}
			*p.outPublic = net.JoinHostPort(got, strconv.Itoa(p.port))
		case p.port != 0:
			*p.outPublic = *p.outBind
		}
	}
	if len(errs.list) > 0 || len(open) == 0 || len(missing) == 0 {
		return
	}
	if c.Insecure {
		c.warn(c.at("insecure"), "INSECURE: %s without %s; anyone who reaches it may run programs here", strings.Join(open, ", "), and(missing))
		return
	}
	errs.add(openAt, "this agent would listen beyond this machine (%s) without %s, so that anyone could run programs here. "+
		"Either configure %s; or listen on 127.0.0.1; or, on a network where everybody may do everything, spell it out with insecure = true",
		strings.Join(open, ", "), and(missing), strings.Join(cure, ", and "))
}

// agentMayGossip reports whether an agent that is no server may gossip where the servers ask for it: beyond loopback it
// needs the key.
func (c *Config) agentMayGossip() bool {
	host := c.Addresses.Serf
	if host == "" {
		host = c.BindAddr
	}
	ip, err := parseIP(host)
	return c.Server.Encrypt != "" || c.Insecure || err == nil && ip.IsLoopback()
}

func isAre(list []string) string {
	if len(list) == 1 && list[0] != "ACLs" {
		return "is"
	}
	return "are"
}

func and(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + " and " + list[len(list)-1]
}

func parseIP(host string) (net.IP, error) {
	switch {
	case strings.Contains(host, "{{"):
		return nil, fmt.Errorf("%q: templates are not supported; write the address", host)
	case len(strings.Fields(host)) > 1:
		return nil, fmt.Errorf("%q: one address, please; to listen on several, use 0.0.0.0", host)
	case host == "localhost":
		return net.IPv4(127, 0, 0, 1), nil
	}
	ip := net.ParseIP(host)
	if ip == nil {
		return nil, fmt.Errorf("%q is not an IP address", host)
	}
	return ip, nil
}

// wrongPort returns a warning for an address of servers whose port is, by default, that of something else; want is the
// default port of what is meant.
func wrongPort(addr string, want int, own Ports) string {
	_, p, _ := net.SplitHostPort(addr)
	names := map[int]string{portHTTP: "the HTTP API", portRPC: "the servers' RPC (ports.rpc)", portSerf: "gossip (ports.serf)"}
	n, _ := strconv.Atoi(p)
	if n == want || names[n] == "" || names[want] == "" || own != (Ports{HTTP: portHTTP, RPC: portRPC, Serf: portSerf}) {
		return "" // servers with other ports are expected where this agent has others
	}
	return fmt.Sprintf("%q has the default port of %s; here the port of %s is needed, by default %d", addr, names[n], names[want], want)
}

// withPort completes "HOST" to "HOST:PORT".
func withPort(addr string, port int) (string, error) {
	if strings.Contains(addr, "://") {
		return "", fmt.Errorf("%q: want HOST or HOST:PORT, not a URL", addr)
	}
	host, p, err := net.SplitHostPort(addr)
	if err == nil && host == "" {
		return "", fmt.Errorf("%q: no host before the port: want HOST:PORT, such as \"10.0.0.1:%d\"", addr, port)
	}
	if err != nil {
		if host = strings.Trim(addr, "[]"); strings.Count(host, ":") == 1 || host == "" || strings.ContainsAny(host, " /") {
			return "", fmt.Errorf("%q: want HOST or HOST:PORT", addr)
		}
		return net.JoinHostPort(host, strconv.Itoa(port)), nil
	}
	if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 || host == "" || strings.ContainsAny(host, " /") {
		return "", fmt.Errorf("%q: want HOST:PORT with a port from 1 to 65535", addr)
	}
	return addr, nil
}

// clientServers returns the RPC addresses in the client's settings.
func (c *Config) clientServers() []string {
	return slices.Concat(c.Client.Servers, c.Client.ServerJoin.StartJoin, c.Client.ServerJoin.RetryJoin)
}

// ClientServers returns the RPC addresses that the client part uses, each once.
func (c *Config) ClientServers() []string {
	var out []string
	for _, a := range c.clientServers() {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// JoinKey is server.join_key in bytes, nil without one.
func (c *Config) JoinKey() []byte {
	k, _ := tlsutil.ParseJoinKey(c.Server.JoinKey) // checked by Load
	return k
}

// GossipKey is server.encrypt in bytes, nil without one.
func (c *Config) GossipKey() []byte {
	k, _ := base64.StdEncoding.DecodeString(c.Server.Encrypt) // checked by Load
	return k
}

// ParseRanges reads "22,8000-8099" into its numbers, ascending, each once.
func ParseRanges(s string, low, high int) ([]int, error) {
	var out []int
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	for _, part := range strings.Split(s, ",") {
		a, b, ranged := strings.Cut(strings.TrimSpace(part), "-")
		from, err := strconv.Atoi(a)
		to, err2 := from, error(nil)
		if ranged {
			to, err2 = strconv.Atoi(b)
		}
		if err != nil || err2 != nil || from < low || to > high || from > to {
			return nil, fmt.Errorf("%q: want numbers and ranges from %d to %d such as \"22,8000-8099\"", part, low, high)
		}
		for i := from; i <= to; i++ {
			out = append(out, i)
		}
		if len(out) > 1<<17 {
			return nil, fmt.Errorf("%q names more than %d numbers", s, 1<<17)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func sorted[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// Names splits "root, daemon" into names.
func Names(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// fabric checks client.fabric and client.run_as.
func (c *Config) fabric(fail failFunc) {
	f := &c.Client.Fabric
	for key, list := range map[string][]string{"interfaces": f.Interfaces, "hcas": f.HCAs} {
		for _, name := range list {
			if name == "" || strings.ContainsAny(name, ", =^\t\n/") {
				fail("client.fabric."+key, "%q is not a name: want one name an entry", name)
			}
		}
	}
	if strings.ContainsAny(f.Leaf, " \t\n") {
		fail("client.fabric.leaf", "%q: want a name without spaces", f.Leaf)
	}
	if f.ServiceLevel < 0 || f.ServiceLevel > 15 {
		fail("client.fabric.service_level", "%d: want 1 to 15, or 0 for what programs choose", f.ServiceLevel)
	}
	if f.TrafficClass < 0 || f.TrafficClass > 255 {
		fail("client.fabric.traffic_class", "%d: want 1 to 255, or 0 for what programs choose", f.TrafficClass)
	}
	if d := f.RDMADir; d != "" && !absolute(d) {
		fail("client.fabric.rdma_dir", "%q must be absolute", d)
	}
	for _, k := range sorted(f.Env) {
		if k == "" || strings.ContainsAny(k, "= \t\n") || strings.HasPrefix(k, "MUSTER_") || strings.HasPrefix(k, "NOMAD_") {
			fail("client.fabric.env", "%q cannot be set: want a variable that does not begin with MUSTER_ or NOMAD_", k)
		}
	}
	if r := c.Client.RunAs; r != nil {
		for key, list := range map[string][]string{"allow": r.Allow, "deny": r.Deny} {
			for _, p := range list {
				if _, err := path.Match(p, ""); err != nil || p == "" || p == "@" {
					fail("client.run_as."+key, "%q: want a user's name, with * and ? as in a shell, @GROUP, \"submitter\" or \"token-name\"", p)
				}
			}
		}
	}
}

// absolute reports whether a path of a node is absolute. Nodes run Linux, also when a laptop that does not checks the file.
func absolute(path string) bool { return strings.HasPrefix(path, "/") }
