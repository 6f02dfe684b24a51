package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client"
	"github.com/muster-sched/muster/client/driver/docker"
	drvexec "github.com/muster-sched/muster/client/driver/exec"
	"github.com/muster-sched/muster/client/egress"
	"github.com/muster-sched/muster/client/fingerprint"
	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/client/gpuwatch"
	"github.com/muster-sched/muster/client/netns"
	"github.com/muster-sched/muster/client/notify"
	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/internal/agentconfig"
	"github.com/muster-sched/muster/internal/rotate"
	"github.com/muster-sched/muster/internal/telemetry"
	"github.com/muster-sched/muster/internal/tlsutil"
	"github.com/muster-sched/muster/nomadlike/edge"
	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/server/raftlog"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// FromConfig turns a checked configuration into the input of New. The caller fills in Reload and devices.
func FromConfig(c *agentconfig.Config, log hclog.InterceptLogger) (Config, error) {
	cfg := Config{
		Dev: c.Dev, Name: c.Name, Region: c.Region, Datacenter: c.Datacenter, DataDir: c.DataDir,
		HTTP: c.Bind.HTTP, RPC: c.Bind.RPC, Gossip: c.Bind.Serf,
		AdvertiseHTTP: c.Public.HTTP, AdvertiseRPC: c.Public.RPC, AdvertiseGossip: c.Public.Serf,
		ACL: c.ACL.Enabled, TLSRPC: c.TLS.RPC, TLSHTTP: c.TLS.HTTP,
		TLS:         tlsutil.Files{CA: c.TLS.CAFile, Cert: c.TLS.CertFile, Key: c.TLS.KeyFile},
		VerifyHTTPS: c.TLS.VerifyHTTPSClient, Encrypt: c.GossipKey(), Insecure: c.Insecure,
		ConnsPerIP: limit(c.Limits.HTTPMaxConnsPerClient), ConnsTotal: c.Limits.HTTPMaxConns,
		Rates: edge.RateLimits{PerClient: c.Limits.HTTPMaxRatePerClient, PerToken: c.Limits.HTTPMaxRatePerToken, WrongToken: c.Limits.HTTPWrongTokenDelay}, RPCPerIP: limit(c.Limits.RPCMaxConnsPerClient),
		AllocRate:    limit(c.Limits.AllocMaxRatePerToken),
		AllowedHosts: c.HTTPAllowedHosts, EnableDebug: c.EnableDebug, Telemetry: sinks(c), PublicMetrics: c.Telemetry.UnauthenticatedMetricsAccess, Effective: effective(c), Log: log,
	}
	if c.Server.Enabled {
		s := &c.Server
		cfg.Server = &ServerConfig{
			BootstrapExpect: s.BootstrapExpect, OIDCIssuer: s.OIDCIssuer, Join: s.ServerJoin.StartJoin, RetryJoin: s.ServerJoin.RetryJoin, RetryInterval: s.ServerJoin.RetryInterval, JoinKey: c.JoinKey(),
			DecisionLog:  rotate.Options{Path: s.DecisionLog, Name: "decisions.jsonl", MaxBytes: c.LogRotateBytes, MaxAge: c.LogRotateDuration, Keep: c.LogRotateMaxFiles},
			BundlesMax:   s.BundlesMaxMB << 20,
			RestartGrace: s.RestartGrace, GossipNodes: s.GossipNodes, Priorities: endpoint.Priorities{Max: s.JobMaxPriority, Default: s.JobDefaultPriority},
			Collect: duty.CollectLimits{
				Interval: s.JobGCInterval, JobAge: s.JobGCThreshold, EvalAge: s.EvalGCThreshold, BatchAge: s.BatchEvalGCThreshold, NodeAge: s.NodeGCThreshold,
				AcctAge: s.AcctRetention, AcctKept: s.AcctMaxRecords,
			},
		}
		for _, n := range c.ACL.LoginNodes {
			if n == agentconfig.AllNodes {
				cfg.Server.Logins.All = true
				continue
			}
			id, err := structs.ParseID[structs.NodeID](n)
			if err != nil {
				return cfg, fmt.Errorf("acl.login_nodes: %w", err)
			}
			cfg.Server.Logins.Nodes = append(cfg.Server.Logins.Nodes, id)
		}
		r := &cfg.Server.Raft
		if m := time.Duration(s.RaftMultiplier); m > 1 {
			r.Quiet, r.Heartbeat = m*replica.QuietDefault, m*replica.HeartbeatDefault
		}
		r.TrailingLogs, r.SnapshotEntries, r.SnapshotEvery = uint64(s.RaftTrailingLogs), uint64(s.RaftSnapshotThreshold), s.RaftSnapshotInterval
		r.NoLogCache = s.RaftLogStore.DisableLogCache
		r.Log = raftlog.Options{
			Backend: raftlog.Backend(s.RaftLogStore.Backend), SegmentBytes: s.RaftLogStore.WAL.SegmentSizeMB << 20,
			NoFreelistSync: s.RaftLogStore.BoltDB.NoFreelistSync || s.RaftBoltDB.NoFreelistSync,
		}
	}
	if !c.Client.Enabled {
		return cfg, nil
	}
	cl := &c.Client
	ports, err := agentconfig.ParseRanges(cl.Reserved.ReservedPorts, 1, 65535)
	if err != nil {
		return cfg, fmt.Errorf("client.reserved.reserved_ports: %w", err)
	}
	cores, err := agentconfig.ParseRanges(cl.Reserved.Cores, 0, 8191)
	if err != nil {
		return cfg, fmt.Errorf("client.reserved.cores: %w", err)
	}
	cc := client.Config{
		Node: client.NodeConfig{
			IntroToken: cl.IntroToken, Pool: structs.PoolName(cl.NodePool), Class: cl.NodeClass, Meta: cl.Meta, Options: cl.Options,
			Reserved:       structs.NodeReserved{CPU: cl.Reserved.CPU, MemoryMiB: cl.Reserved.Memory, DiskMiB: cl.Reserved.Disk, Ports: ports},
			DynamicPortMin: cl.MinDynamicPort, DynamicPortMax: cl.MaxDynamicPort,
		},
		Storage: client.StorageConfig{AllocsDir: cl.AllocDir},
		Host: client.HostConfig{Fingerprint: fingerprint.Options{
			Iface: cl.NetworkInterface, CPUMHz: cl.CPUTotalCompute, MemoryMB: cl.MemoryTotalMB, DiskMB: cl.DiskTotalMB, SpeedMB: cl.NetworkSpeed,
		}},
		GC: client.GCConfig{
			Interval: cl.GCInterval, MaxAllocs: cl.GCMaxAllocs, DiskPercent: cl.GCDiskUsageThreshold, InodePercent: cl.GCInodeUsageThreshold,
			Parallel: cl.GCParallelDestroys, MaxAge: cl.GCMaxAge,
		},
		Tasks: client.TaskConfig{MaxKillTimeout: cl.MaxKillTimeout},
	}
	for _, n := range cores {
		cc.Node.Reserved.Cores = append(cc.Node.Reserved.Cores, int64(n))
	}
	if len(cl.HostVolumes) > 0 {
		cc.Node.HostVolumes = make(map[string]structs.HostVolume, len(cl.HostVolumes))
		for name, v := range cl.HostVolumes {
			cc.Node.HostVolumes[name] = structs.HostVolume{Path: v.Path, ReadOnly: v.ReadOnly}
		}
	}
	cc.Hooks = client.Hooks{Prolog: hook(cl.Hooks.Prolog), Epilog: hook(cl.Hooks.Epilog), Health: hook(agentconfig.Hook{Command: cl.Hooks.Health.Command, Timeout: cl.Hooks.Health.Timeout}), HealthEvery: cl.Hooks.Health.Interval}
	cc.GPU.Idle = cl.GPUIdle
	if cc.GPU.Pressure, err = pressure(&cl.GPUPressure); err != nil {
		return cfg, err
	}
	if d := cl.DrainOnShutdown; d != nil {
		cc.Drain = &client.DrainConfig{Deadline: d.Deadline, Force: d.Force, IgnoreSystemJobs: d.IgnoreSystemJobs}
	}
	exec, nvidia := c.Plugin.Exec.Config, c.Plugin.NVIDIA.Config
	if r := cl.RunAs; r != nil {
		cc.Tasks.RunAs = &runner.RunAs{Allow: r.Allow, Deny: r.Deny}
	}
	cc.Tasks.Egress = egress.Rules{Allow: cl.Egress.Allow, Deny: cl.Egress.Deny}
	fb := cl.Fabric
	cc.Host.Fabric = client.Fabric{Interfaces: fb.Interfaces, HCAs: fb.HCAs, Leaf: fb.Leaf, SL: fb.ServiceLevel, TC: fb.TrafficClass, RDMADir: fb.RDMADir, Env: fb.Env}
	if exec.DefaultUser != "" {
		cc.Tasks.DefaultUsers = map[string]string{"exec": exec.DefaultUser}
	}
	denied := slices.Concat(exec.DeniedUsers, agentconfig.Names(cl.Options["user.denylist"]))
	if _, set := cl.Options["user.denylist"]; !set && exec.DeniedUsers == nil {
		denied = []string{"root"}
	}
	cfg.Client = &ClientConfig{
		Servers: c.ClientServers(), Join: cl.GossipJoin, Config: cc, Bridge: netns.Config{Bridge: cl.BridgeNetworkName, Subnet: cl.BridgeNetworkSubnet}, RawExec: c.Plugin.RawExec.Config.Enabled,
		Exec: drvexec.Options{
			DefaultUser: exec.DefaultUser, DeniedUsers: denied, AllowCaps: exec.AllowCaps, NoFilter: exec.Seccomp == "off", NoFile: uint64(exec.NoFile), RootDirs: exec.RootDirs,
		},
	}
	b := &cfg.Client.Bridge
	if b.Bridge == "" {
		b.Bridge = netns.BridgeDefault
	}
	if b.Subnet == "" {
		b.Subnet = netns.SubnetDefault
	}
	if _, err := netns.Check(b.Bridge, b.Subnet); err != nil {
		return cfg, fmt.Errorf("client.%w", err)
	}
	if _, err := drvexec.ParseCaps(exec.AllowCaps); err != nil {
		return cfg, fmt.Errorf("plugin.exec.config.allow_caps: %w", err)
	}
	if dk := c.Plugin.Docker.Config; dk.Enabled {
		cfg.Client.Docker = &docker.Options{
			Host: dk.Endpoint, AllowPrivileged: dk.AllowPrivileged, AllowCaps: dk.AllowCaps, AllowRuntimes: dk.AllowRuntimes, AllowDevices: dk.AllowDevices,
			Volumes: dk.Volumes.Enabled, AuthFile: dk.Auth.Config, AuthHelper: dk.Auth.Helper, PullPatience: dk.PullActivityTimeout,
			KeepImages: !dk.GC.Image, ImageDelay: dk.GC.ImageDelay, GPU: dk.GPU, CDIDir: dk.CDIDir,
		}
	}
	if nvidia.Enabled {
		cfg.Client.GPU = &gpu.Config{Library: nvidia.Library, Ignored: nvidia.IgnoredGPUIDs, Every: nvidia.FingerprintPeriod, XIDs: xidActions(nvidia.XID)}
	}
	return cfg, nil
}

// xidActions returns the configured actions for GPU errors, by XID number.
func xidActions(x agentconfig.XIDRules) map[int64]gpu.XIDAction {
	out := map[int64]gpu.XIDAction{}
	for _, l := range []struct {
		list []int
		act  gpu.XIDAction
	}{{x.Ignore, gpu.XIDIgnore}, {x.Program, gpu.XIDProgram}, {x.Degrade, gpu.XIDDegrade}, {x.Quarantine, gpu.XIDQuarantine}} {
		for _, n := range l.list {
			out[int64(n)] = l.act
		}
	}
	return out
}

// pressure configures notices of full GPU memory.
func pressure(p *agentconfig.GPUPressure) (gpuwatch.Pressure, error) {
	out := gpuwatch.Pressure{Share: p.Share, Device: p.Device, Clear: p.Clear}
	if c := hook(p.Command); c != nil {
		out.Targets = append(out.Targets, &notify.Command{Program: c})
	}
	names := make([]string, 0, len(p.Webhooks))
	for name := range p.Webhooks {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		w := p.Webhooks[name]
		t := &notify.Webhook{Label: name, URL: w.URL, Headers: w.Headers, Timeout: w.Timeout, Attempts: w.Attempts}
		if w.SecretFile != "" {
			b, err := os.ReadFile(w.SecretFile)
			if err == nil && len(bytes.TrimSpace(b)) == 0 {
				err = errors.New("it is empty")
			}
			if err != nil {
				return out, fmt.Errorf("client.gpu_pressure.webhook.%s.secret_file: %w", name, err)
			}
			t.Secret = bytes.TrimSpace(b)
		}
		out.Targets = append(out.Targets, t)
	}
	return out, nil
}

// hook returns a command of the operator, nil for none.
func hook(h agentconfig.Hook) *runner.Command {
	if len(h.Command) == 0 {
		return nil
	}
	return &runner.Command{Argv: h.Command, Timeout: h.Timeout}
}

// sinks returns where metrics are sent.
func sinks(c *agentconfig.Config) telemetry.Sinks {
	t := &c.Telemetry
	s := telemetry.Sinks{
		Statsd: t.StatsdAddress, Statsite: t.StatsiteAddress, DogStatsd: t.DatadogAddress, Tags: t.DatadogTags,
		Interval: t.CollectionInterval, Filter: t.PrefixFilter, DropOthers: !t.FilterDefault,
	}
	switch {
	case t.UseNodeName:
		s.Host = c.Name
	case !t.DisableHostname:
		s.Host, _ = os.Hostname()
	}
	return s
}

// limit converts a limit for the servers, where negative means none.
func limit(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

// effective returns the configuration as /v1/agent/self shows it: with the keys of Nomad's clients, without secrets.
func effective(c *agentconfig.Config) map[string]any {
	return map[string]any{
		"BindAddr":       c.BindAddr,
		"Addresses":      map[string]any{"HTTP": c.Bind.HTTP, "RPC": c.Bind.RPC, "Serf": c.Bind.Serf},
		"AdvertiseAddrs": map[string]any{"HTTP": c.Public.HTTP, "RPC": c.Public.RPC, "Serf": c.Public.Serf},
		"Ports":          map[string]any{"HTTP": c.Ports.HTTP, "RPC": c.Ports.RPC, "Serf": c.Ports.Serf},
		"LogLevel":       c.LogLevel, "LogJson": c.LogJSON, "LogFile": c.LogFile,
		"EnableDebug": c.EnableDebug, "LeaveOnInt": c.LeaveOnInterrupt, "LeaveOnTerm": c.LeaveOnTerminate,
		"Files": c.Files, "Insecure": c.Insecure,
		"Telemetry": map[string]any{
			"PrometheusMetrics": true, "StatsdAddr": c.Telemetry.StatsdAddress, "StatsiteAddr": c.Telemetry.StatsiteAddress, "DataDogAddr": c.Telemetry.DatadogAddress,
			"CollectionInterval": c.Telemetry.CollectionInterval.String(), "DisableHostname": c.Telemetry.DisableHostname, "UseNodeName": c.Telemetry.UseNodeName,
		},
	}
}

// TLS reports whether the HTTP API speaks TLS.
func (a *Agent) TLS() bool { return a.cfg.TLSHTTP }

// ACL reports whether tokens are required.
func (a *Agent) ACL() bool { return a.cfg.ACL }

// DataDir returns the directory of state and tasks. Temporary reports whether it is removed at the end.
func (a *Agent) DataDir() string { return a.cfg.DataDir }

// Temporary reports whether the data directory is removed with the agent.
func (a *Agent) Temporary() bool { return a.temp != "" }
