package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	stdlog "log"
	"maps"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/client/fingerprint"
	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/client/taskenv"
	"github.com/muster-sched/muster/cmd/agent"
	"github.com/muster-sched/muster/internal/agentconfig"
	"github.com/muster-sched/muster/internal/fakegpu"
	"github.com/muster-sched/muster/internal/nodump"
	"github.com/muster-sched/muster/internal/rotate"
	"github.com/muster-sched/muster/internal/version"
	"github.com/muster-sched/muster/structs"
)

// agentOptions holds the flags of muster agent.
type agentOptions struct {
	dev, version bool
	gpus         string
	paths, meta  []string
	load         agentconfig.Options
}

// agentFlag is a flag that sets one key of the configuration.
type agentFlag struct {
	name, key, usage string
	value            any // zero value of its type: string, bool, int, []string
}

var agentFlags = []agentFlag{
	{"data-dir", "data_dir", "directory for state and tasks", ""},
	{"bind", "bind_addr", "IP address to listen on", ""},
	{"name", "name", "name of this agent, unique in its region", ""},
	{"node", "name", "the same as -name", ""},
	{"region", "region", "region of this agent", ""},
	{"dc", "datacenter", "datacenter of this agent", ""},
	{"server", "server.enabled", "be a server", false},
	{"bootstrap-expect", "server.bootstrap_expect", "number of servers that found the cluster together", 0},
	{"encrypt", "server.encrypt", "gossip key, in base64", ""},
	{"join", "start_join", "server to join at the start; may be repeated", []string(nil)},
	{"retry-join", "retry_join", "server to join, tried until it works; may be repeated", []string(nil)},
	{"client", "client.enabled", "run allocations", false},
	{"servers", "client.servers", "RPC addresses of servers, for a client; may be repeated or have commas", []string(nil)},
	{"node-class", "client.node_class", "class of the node", ""},
	{"node-pool", "client.node_pool", "pool of the node", ""},
	{"network-interface", "client.network_interface", "network interface whose address allocations get", ""},
	{"acl-enabled", "acl.enabled", "demand ACL tokens", false},
	{"insecure", "insecure", "listen beyond this machine without TLS, ACLs or a gossip key", false},
	{"log-level", "log_level", "TRACE, DEBUG, INFO, WARN, ERROR or OFF", ""},
	{"log-json", "log_json", "log lines as JSON", false},
	{"log-include-location", "log_include_location", "log lines with file and line of the program", false},
}

func newAgent(e *env) *cobra.Command {
	o := &agentOptions{}
	c := &cobra.Command{
		Use:   "agent [options]",
		Short: "Run an agent: a server, a client, or both",
		Long: "Run an agent until it is interrupted. Servers keep the state of the cluster and decide, clients run allocations.\n" +
			"SIGHUP reads certificates and log_level again; a second SIGINT or SIGTERM ends at once.",
		Example: indent("muster agent -dev\nmuster agent -dev -dev-gpus=8xH100\nmuster agent -config /etc/muster.d\n" +
			"muster agent -client -data-dir /var/lib/muster -servers 10.0.0.1:4647"),
		Args:                  cobra.NoArgs,
		DisableFlagsInUseLine: true,
	}
	f := c.Flags()
	f.BoolVar(&o.dev, "dev", false, "one-machine cluster for trying things out: open, on 127.0.0.1, gone when it ends")
	f.StringVar(&o.gpus, "dev-gpus", "", "make up GPUs, such as 8xH100, 4xA100,2xT4 or, divided, 4xA100-40GB:mig")
	f.StringArrayVar(&o.paths, "config", nil, "configuration file (HCL or JSON) or directory of such; may be repeated, later ones win")
	f.StringArrayVar(&o.meta, "meta", nil, "KEY=VALUE describing the node; may be repeated")
	f.BoolVar(&o.version, "version", false, "print the version and end")
	for _, a := range agentFlags {
		switch v := a.value.(type) {
		case string:
			f.String(a.name, v, a.usage)
		case bool:
			f.Bool(a.name, v, a.usage)
		case int:
			f.Int(a.name, v, a.usage)
		case []string:
			f.StringSlice(a.name, v, a.usage)
		}
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.version {
			e.println(version.String())
			return nil
		}
		if err := o.prepare(cmd); err != nil {
			return err
		}
		return runAgent(cmd.Context(), e, o)
	}
	return c
}

// prepare turns the flags into settings.
func (o *agentOptions) prepare(cmd *cobra.Command) error {
	f := cmd.Flags()
	o.load = agentconfig.Options{Dev: o.dev, Paths: o.paths}
	set := func(name, key string, v any) {
		o.load.Flags = append(o.load.Flags, agentconfig.Flag{Name: "-" + name, Key: key, Value: v})
	}
	// Without a flag that selects the part, a file does, and the setting of the other part is unused.
	server := o.dev || f.Changed("server") || !f.Changed("client")
	client := !o.dev && !f.Changed("server")
	for _, a := range agentFlags {
		if !f.Changed(a.name) {
			continue
		}
		if a.name == "join" || a.name == "retry-join" { // gossip addresses for a server, RPC addresses for a client
			v, _ := f.GetStringSlice(a.name)
			if server {
				set(a.name, "server.server_join."+a.key, v)
			}
			if client {
				set(a.name, "client.server_join."+a.key, slices.Clone(v))
			}
			continue
		}
		switch a.value.(type) {
		case string:
			v, _ := f.GetString(a.name)
			set(a.name, a.key, v)
		case bool:
			v, _ := f.GetBool(a.name)
			set(a.name, a.key, v)
		case int:
			v, _ := f.GetInt(a.name)
			set(a.name, a.key, v)
		case []string:
			v, _ := f.GetStringSlice(a.name)
			set(a.name, a.key, v)
		}
	}
	if len(o.meta) > 0 {
		meta := map[string]string{}
		for _, kv := range o.meta {
			k, v, ok := strings.Cut(kv, "=")
			if !ok || k == "" {
				return fmt.Errorf("-meta %q: want KEY=VALUE", kv)
			}
			meta[k] = v
		}
		set("meta", "client.meta", meta)
	}
	return nil
}

// runAgent runs an agent until a signal ends it.
func runAgent(ctx context.Context, e *env, o *agentOptions) error {
	// The signals are handled differently, so the agent must not get the context that ends with the first of them.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	// Without this, a log line to a closed pipe would end the process. The signal itself is ignored: once it is caught,
	// every closed connection raises it too. SIG_IGN would be inherited by tasks.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	unread := make(chan struct{}, 1)

	undumped := nodump.Set() // before it knows a secret
	c, err := agentconfig.Load(o.load)
	if err == nil {
		err = c.CheckMachine()
	}
	if err != nil {
		return fmt.Errorf("the configuration is not usable:\n%w", err)
	}
	log, closeLog, err := agentLogger(unreadLog{e.err, unread}, c)
	if err != nil {
		return err
	}
	defer closeLog()
	for _, w := range c.Warnings {
		log.Warn(w)
	}
	if undumped != nil {
		log.Warn("a core dump of this agent would show its secrets", "error", undumped)
	}
	limitMemory(log)
	cfg, err := agent.FromConfig(c, log)
	if err != nil {
		return err
	}
	if o.gpus != "" {
		if cfg.Client == nil {
			return fmt.Errorf("-dev-gpus makes up GPUs of a client, but this agent runs none; add -client or -dev")
		}
		forget, err := o.devGPUs(cfg.Client, c.Name, log)
		if err != nil {
			return fmt.Errorf("-dev-gpus: %w", err)
		}
		defer forget()
	}
	cfg.Reload = func() error { return reloadAgent(o, c, log) }
	a, err := agent.New(cfg)
	if err != nil {
		return err
	}
	runCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	done := make(chan error, 1)
	go func() { done <- a.Run(runCtx) }()
	if !c.Dev {
		e.agentSummary(c, a)
	}
	go func() {
		if agentUp(runCtx, a) && c.Dev {
			e.devBanner(a, o)
		}
	}()
	for {
		select {
		case err := <-done:
			return err
		case s := <-signals:
			if s == syscall.SIGHUP {
				if err := a.Reload(); err != nil {
					log.Error(err.Error())
				}
				continue
			}
			return endAgent(a, c, log, s, signals, stop, done)
		case <-unread:
			if c.Dev { // a -dev agent lives for the user who watches it
				return endAgent(a, c, log, syscall.SIGPIPE, signals, stop, done)
			}
		case <-ctx.Done():
			// Either one of the signals above, which arrives immediately, or the end of the caller's context.
			var s os.Signal = os.Interrupt
			select {
			case s = <-signals:
			case <-time.After(50 * time.Millisecond):
			}
			return endAgent(a, c, log, s, signals, stop, done)
		}
	}
}

// leaveMax limits how long an agent takes to leave. The deadline of a drain is added.
const leaveMax = 15 * time.Second

// devGPUs creates simulated GPUs. With the fake driver libraries (`make fakegpu`), the agent finds them like real ones
// and programs can use them; without, they are only names. forget removes what was created.
func (o *agentOptions) devGPUs(cfg *agent.ClientConfig, name string, log hclog.Logger) (forget func(), err error) {
	forget = func() {}
	seed := machineSeed(name)
	static, err := fingerprint.ParseGPUs(o.gpus, seed)
	if err != nil {
		return forget, err
	}
	cfg.Config.Host.Fingerprint.TwoNUMA = true
	libs, err := fakeLibraries()
	if err != nil {
		return forget, err
	}
	if libs == "" || gpu.Built != "" {
		cfg.GPU = nil
		cfg.Devices = append(cfg.Devices, static)
		log.Warn("GPUs are made up; nothing runs on them", "gpus", o.gpus)
		return forget, nil
	}
	state, err := fakegpu.New(o.gpus, string(seed[:]))
	if err != nil {
		return forget, err
	}
	state.ShortNames()
	dir, err := madeUpDir("/var/tmp") // not /tmp, because exec tasks have their own
	if err != nil {
		if dir, err = madeUpDir(os.TempDir()); err != nil {
			return forget, err
		}
	}
	forget = func() { os.RemoveAll(dir) }
	if err := os.Chmod(dir, 0o777); err != nil { // tasks of other users record their memory use there
		forget()
		return func() {}, err
	}
	f, err := fakegpu.Create(filepath.Join(dir, "state"), state)
	if err != nil {
		forget()
		return func() {}, err
	}
	if err := fakeProc(dir); err != nil {
		return forget, err
	}
	if libs, err = forTasks(libs, dir); err != nil {
		return forget, err
	}
	// Tasks find the libraries, and a program that uses them, without configuration.
	for k, v := range map[string]string{fakegpu.Env: f.Path, "LD_LIBRARY_PATH": libs, "PATH": os.Getenv("PATH") + ":" + libs} {
		if err := os.Setenv(k, v); err != nil {
			return forget, err
		}
	}
	if cfg.Config.Tasks.Inherit == nil {
		cfg.Config.Tasks.Inherit = taskenv.InheritDefault
	}
	cfg.Config.Tasks.Inherit = append(slices.Clip(cfg.Config.Tasks.Inherit), fakegpu.Env, "LD_LIBRARY_PATH")
	var gc gpu.Config
	if cfg.GPU != nil { // the operator's settings for errors and periods also apply to simulated GPUs
		gc = *cfg.GPU
	}
	gc.Proc, gc.Library, gc.Env = dir, filepath.Join(libs, "libnvidia-ml.so.1"), []string{fakegpu.Env + "=" + f.Path}
	cfg.GPU = &gc
	log.Warn("GPUs are simulated; tasks see them through these variables, which are in their environment", "gpus", o.gpus,
		"LD_LIBRARY_PATH", libs, fakegpu.Env, f.Path)
	return forget, nil
}

// fakeProc writes the device numbers that a driver reports below /proc: those of MIG instances must be known before a
// task gets one.
func fakeProc(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "driver/nvidia-caps"), 0o755); err != nil {
		return err
	}
	var minors strings.Builder
	minor := 3
	for gpu := range 16 {
		for gi := range 15 {
			fmt.Fprintf(&minors, "gpu%d/gi%d/access %d\n", gpu, gi, minor)
			fmt.Fprintf(&minors, "gpu%d/gi%d/ci0/access %d\n", gpu, gi, minor+1)
			minor += 2
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "driver/nvidia-caps/mig-minors"), []byte(minors.String()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "devices"), []byte("Character devices:\n195 nvidia\n500 nvidia-caps\n501 nvidia-uvm\n"), 0o644)
}

// fakeLibraries returns the directory of the fake driver libraries: the one in the environment, or fakegpu next to this
// program; "" if there is none.
func fakeLibraries() (string, error) {
	has := func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, "libnvidia-ml.so.1"))
		return err == nil
	}
	if dir := os.Getenv(fakegpu.DirEnv); dir != "" {
		if !has(dir) {
			return "", fmt.Errorf("%s=%s: there is no libnvidia-ml.so.1 (make fakegpu builds it)", fakegpu.DirEnv, dir)
		}
		return filepath.Abs(dir)
	}
	exe, err := os.Executable()
	if err != nil {
		return "", nil
	}
	if dir := filepath.Join(filepath.Dir(exe), "fakegpu"); has(dir) {
		return dir, nil
	}
	return "", nil
}

// machineSeed makes the ids of simulated devices differ between machines and constant on one.
func machineSeed(name string) structs.Seed {
	sum := sha256.Sum256([]byte("dev-gpus " + name))
	return structs.Seed(sum[:16])
}

// endAgent ends an agent, which first leaves the cluster if so configured. Another signal ends the process.
func endAgent(a *agent.Agent, c *agentconfig.Config, log hclog.Logger, s os.Signal, signals <-chan os.Signal, stop func(), done <-chan error) error {
	leave := leavesOn(c, s)
	log.Info("ending", "signal", s, "leave", leave)
	ended := make(chan error, 1)
	go func() {
		if leave {
			limit := leaveMax
			if d := c.Client.DrainOnShutdown; d != nil {
				limit += max(d.Deadline, time.Minute)
			}
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			if err := a.Leave(ctx); err != nil {
				log.Error("leaving the cluster", "error", err)
			}
			cancel()
		}
		stop()
		ended <- <-done
	}()
	for {
		select {
		case err := <-ended:
			return err
		case s := <-signals:
			if s != syscall.SIGHUP {
				log.Warn("second signal, ending at once", "signal", s)
				return exitCode(exitError)
			}
		}
	}
}

// leavesOn reports whether an agent leaves the cluster when it gets a signal.
func leavesOn(c *agentconfig.Config, s os.Signal) bool {
	return s == os.Interrupt && c.LeaveOnInterrupt || s == syscall.SIGTERM && c.LeaveOnTerminate
}

// reloadAgent reads the configuration again and applies what can change in a running agent.
func reloadAgent(o *agentOptions, c *agentconfig.Config, log hclog.Logger) error {
	now, err := agentconfig.Load(o.load)
	if err != nil {
		return err
	}
	log.SetLevel(hclog.LevelFromString(now.Reloadable().LogLevel))
	if list := agentconfig.Changes(c, now); len(list) > 0 {
		log.Warn("these settings changed and need a restart", "settings", strings.Join(list, ", "))
	}
	return nil
}

// agentLogger logs to standard error and, if configured, to a file.
func agentLogger(stderr io.Writer, c *agentconfig.Config) (hclog.InterceptLogger, func(), error) {
	out, end := stderr, func() {}
	if c.LogFile != "" {
		f, err := rotate.Open(rotate.Options{Path: c.LogFile, Name: "muster.log", MaxBytes: c.LogRotateBytes, MaxAge: c.LogRotateDuration, Keep: c.LogRotateMaxFiles})
		if err != nil {
			return nil, nil, fmt.Errorf("log_file: %w", err)
		}
		out, end = io.MultiWriter(stderr, f), func() { f.Close() }
	}
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{
		Name: "muster", Level: hclog.LevelFromString(c.LogLevel), Output: out, JSONFormat: c.LogJSON, IncludeLocation: c.LogIncludeLocation,
	})
	// Some libraries, such as the sinks of metrics, write to the standard logger.
	stdlog.SetFlags(0)
	stdlog.SetOutput(l.Named("library").StandardWriter(&hclog.StandardLoggerOptions{InferLevels: true}))
	return l, end, nil
}

// agentUp waits until all parts work; false if ctx ended first.
func agentUp(ctx context.Context, a *agent.Agent) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if srv, cl, _, _ := a.Health(); srv == "" && cl == "" {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// devDrivers prints which task drivers work here, and why the others do not.
func (e *env) devDrivers(all map[string]*structs.DriverInfo) {
	var work, lack []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if d := all[name]; d.Healthy {
			work = append(work, name)
		} else {
			lack = append(lack, "no "+name+": "+d.HealthDesc)
		}
	}
	for i, l := range append([]string{strings.Join(work, ", ")}, lack...) {
		head := ""
		if i == 0 {
			head = "Drivers"
		}
		e.printf("    %-11s  %s\n", head, l)
	}
}

// devBanner prints what runs and the next commands.
func (e *env) devBanner(a *agent.Agent, o *agentOptions) {
	url := "http://" + a.HTTPAddr()
	if a.TLS() {
		url = "https://" + a.HTTPAddr()
	}
	access := "open: no ACL, no TLS; anyone who reaches it may run programs here"
	switch {
	case a.ACL() && a.TLS():
		access = "ACL tokens and TLS are demanded"
	case a.ACL():
		access = "ACL tokens are demanded (muster acl bootstrap); no TLS"
	}
	data, about := a.DataDir(), ""
	if a.Temporary() {
		about = " (removed at the end, tasks too)"
	}
	e.println("==> " + e.bold("Muster is up.") + " Ctrl-C ends it.")
	e.println()
	e.printf("    HTTP         %s\n", url)
	e.printf("    Data         %s%s\n", data, about)
	e.printf("    Access       %s\n", access)
	if o.gpus != "" {
		e.printf("    GPUs         %s, made up\n", o.gpus)
	}
	e.devDrivers(a.Drivers())
	e.println()
	e.println("    In another terminal:")
	if _, err := exec.LookPath("muster"); err != nil {
		if self, err := os.Executable(); err == nil {
			e.printf("      export PATH=%s:$PATH\n", word(filepath.Dir(self)))
		}
	}
	if url != "http://127.0.0.1:4646" {
		e.printf("      export MUSTER_ADDR=%s\n", url)
	}
	next := []string{"muster job init", "muster job run example.muster.hcl", "muster job status", "muster alloc logs -f -job example"}
	if o.gpus != "" {
		next = append(next, "muster run -gpus 1 -- /bin/sh -c 'echo $CUDA_VISIBLE_DEVICES'")
	}
	for _, l := range next {
		e.println("      " + l)
	}
	e.println()
}

// agentSummary prints the configuration.
func (e *env) agentSummary(c *agentconfig.Config, a *agent.Agent) {
	on := func(b bool) string {
		if b {
			return "on"
		}
		return "off"
	}
	rows := [][2]string{
		{"Name", c.Name}, {"Region", c.Region + " (datacenter " + c.Datacenter + ")"}, {"Data dir", c.DataDir},
		{"HTTP", address(a.HTTPAddr(), c.Public.HTTP)},
	}
	if c.Server.Enabled {
		rows = append(rows, [2]string{"RPC", address(c.Bind.RPC, c.Public.RPC)}, [2]string{"Gossip", address(c.Bind.Serf, c.Public.Serf)},
			[2]string{"Server", "yes, bootstrap_expect " + strconv.Itoa(c.Server.BootstrapExpect)})
	}
	if c.Client.Enabled {
		v := "yes, pool " + c.Client.NodePool
		if list := c.ClientServers(); len(list) > 0 && !c.Server.Enabled {
			v += ", servers " + strings.Join(list, ", ")
		}
		rows = append(rows, [2]string{"Client", v})
	}
	acl := on(c.ACL.Enabled)
	if !c.Server.Enabled && !c.ACL.Enabled {
		acl = "as on the servers, which decide"
	}
	rows = append(rows, [2]string{"TLS", "HTTP " + on(c.TLS.HTTP) + ", RPC " + on(c.TLS.RPC)}, [2]string{"ACL", acl},
		[2]string{"Log level", c.LogLevel}, [2]string{"Version", version.String()})
	if len(c.Files) > 0 {
		rows = append(rows, [2]string{"Configuration", strings.Join(c.Files, ", ")})
	}
	e.println("==> Muster agent configuration:")
	e.println()
	for _, r := range rows {
		e.printf("    %13s: %s\n", r[0], r[1])
	}
	e.println()
	e.println("==> Muster agent started! Log data will stream in below:")
	e.println()
}

func address(bind, public string) string {
	if public == "" || public == bind {
		return bind
	}
	return bind + ", advertised as " + public
}

// limitMemory keeps the process below the memory limit of its control group, unless GOMEMLIMIT is set: at nine tenths
// of it, so that collection works harder before the kernel kills.
func limitMemory(log hclog.Logger) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return
	}
	_, path, ok := strings.Cut(strings.TrimSpace(string(own)), "0::")
	if !ok {
		return
	}
	limit := int64(math.MaxInt64)
	for p := filepath.Clean("/" + path); ; p = filepath.Dir(p) {
		if b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", p, "memory.max")); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
				limit = min(limit, n)
			}
		}
		if p == "/" {
			break
		}
	}
	if limit < math.MaxInt64 {
		debug.SetMemoryLimit(limit / 10 * 9)
		log.Debug("memory limit", "cgroup_bytes", limit)
	}
}
