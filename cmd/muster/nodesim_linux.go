package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/client/nodesim"
	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/internal/gcpace"
	"github.com/muster-sched/muster/internal/loglimit"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/tlsutil"
	"github.com/muster-sched/muster/internal/version"
)

// nodesimOptions holds the flags of muster nodesim.
type nodesimOptions struct {
	cfg      nodesim.Config
	tls      tlsutil.Files
	logLevel string
	debug    string // address of /debug/pprof, "" for none
}

func newNodesim(e *env) *cobra.Command {
	o := &nodesimOptions{}
	c := &cobra.Command{
		Use:   "nodesim -count N -server-addr HOST:PORT [options]",
		Short: "Run many simulated nodes in one process",
		Long: "Run simulated nodes until interrupted: real clients whose machine and driver are made up, to see how servers and\n" +
			"schedulers do with a large cluster. Their tasks are of the driver \"fake\".",
		Example:               indent("muster nodesim -count 1000 -server-addr 127.0.0.1:4647\nmuster nodesim -count 64 -gpus 8xH100 -pool h100 -server-addr 127.0.0.1:4647"),
		Args:                  cobra.NoArgs,
		DisableFlagsInUseLine: true,
	}
	f := c.Flags()
	f.IntVar(&o.cfg.Count, "count", 10, "nodes to simulate")
	f.StringSliceVar(&o.cfg.Servers, "server-addr", []string{"127.0.0.1:4647"}, "RPC address of a server; may be repeated")
	f.StringVar(&o.cfg.Name, "prefix", "sim", "beginning of the nodes' names")
	f.StringVar(&o.cfg.Region, "region", "global", "region of the nodes")
	f.StringVar(&o.cfg.Datacenter, "dc", "dc1", "datacenter of the nodes")
	f.StringVar((*string)(&o.cfg.Pool), "pool", "default", "pool of the nodes")
	f.StringVar(&o.cfg.Class, "node-class", "", "class of the nodes")
	f.StringToStringVar(&o.cfg.Meta, "meta", nil, "KEY=VALUE describing the nodes; may be repeated")
	f.Int64Var(&o.cfg.CPU, "cpu", 64_000, "MHz of one node")
	f.Int64Var(&o.cfg.Cores, "cores", 32, "cores of one node")
	f.Int64Var(&o.cfg.MemoryMiB, "memory", 256<<10, "MiB of memory of one node")
	f.Int64Var(&o.cfg.DiskMiB, "disk", 1_000_000, "MiB of disk of one node")
	f.StringVar(&o.cfg.GPUs, "gpus", "", "GPUs of one node, such as 8xH100")
	f.DurationVar(&o.cfg.JoinOver, "join-over", 0, "time over which the nodes register (1s for every 1,000)")
	f.StringVar(&o.tls.CA, "ca-file", "", "PEM file of the CA; with it, TLS is spoken")
	f.StringVar(&o.tls.Cert, "cert-file", "", "PEM file of a client certificate")
	f.StringVar(&o.tls.Key, "key-file", "", "PEM file of its key")
	f.StringVar(&o.debug, "debug-addr", "", "serve Go's profiles of this process at http://HOST:PORT/debug/pprof/, and at /debug/late how many seconds a node waited at most for its turn since the last question, to anyone who reaches it")
	f.StringVar(&o.logLevel, "log-level", "WARN", "TRACE, DEBUG, INFO, WARN, ERROR or OFF")
	c.RunE = func(cmd *cobra.Command, _ []string) error { return runNodesim(cmd.Context(), e, o) }
	return c
}

func runNodesim(ctx context.Context, e *env, o *nodesimOptions) error {
	level := hclog.LevelFromString(o.logLevel)
	if level == hclog.NoLevel {
		return fmt.Errorf("-log-level %q: want TRACE, DEBUG, INFO, WARN, ERROR or OFF", o.logLevel)
	}
	if o.cfg.CPU < 1 || o.cfg.Cores < 1 || o.cfg.MemoryMiB < 1 || o.cfg.DiskMiB < 1 {
		return fmt.Errorf("-cpu, -cores, -memory and -disk must be above 0")
	}
	o.cfg.Log = nodesimLog(e.err, level)
	o.cfg.Version = version.Version
	if o.tls != (tlsutil.Files{}) {
		if o.tls.CA == "" || o.tls.Cert == "" || o.tls.Key == "" {
			return fmt.Errorf("TLS needs -ca-file, -cert-file and -key-file")
		}
		src, err := tlsutil.Load(o.tls, o.cfg.Region)
		if err != nil {
			return err
		}
		o.cfg.Dial = rpc.TLSDialer(rpc.NetDialer(), src.Client)
	}
	var running atomic.Pointer[nodesim.Fleet]
	if o.debug != "" {
		stop, err := serveProfiles(o.debug, func() (late time.Duration) {
			if f := running.Load(); f != nil {
				late = f.Late()
			}
			return late
		})
		if err != nil {
			return err
		}
		defer stop()
	}
	start := e.now()
	o.cfg.OnJoin = func(n int) {
		switch {
		case n == o.cfg.Count:
			e.printf("%s registered in %s; interrupt to end\n", plural(int64(n), "node"), e.now().Sub(start).Round(time.Millisecond))
		case n%1000 == 0:
			e.hint("%d of %d nodes registered", n, o.cfg.Count)
		}
	}
	gcpace.Start(gcpace.Nodes)
	supervisor.Relax(supervisor.ServerSlack)
	fleet, err := nodesim.New(o.cfg)
	if err != nil {
		return err
	}
	running.Store(fleet)
	return fleet.Run(ctx)
}

// nodesimLog returns the log of all nodes. A server that ends concerns each of them at once and at each of its attempts,
// so the lines are limited.
func nodesimLog(to io.Writer, level hclog.Level) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: "nodesim", Level: level, Output: loglimit.New(to, "nodesim")})
}

// serveProfiles serves net/http/pprof, and how late the nodes are, on an address until stop is called.
func serveProfiles(addr string, late func() time.Duration) (stop func(), err error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("-debug-addr %s: %w", addr, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/late", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "%.3f\n", late().Seconds()) })
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(l) }()
	return func() { _ = srv.Close() }, nil
}
