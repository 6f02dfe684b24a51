package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/docker/go-units"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/muster-sched/muster/client/allocdir"
	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/taskfs"
	"github.com/muster-sched/muster/internal/driverconf"
	"github.com/muster-sched/muster/structs"
)

// request builds the engine's create request of a task. image is an image id.
func (d *Driver) request(cfg *driver.TaskConfig, v driver.Values, image string) (*client.ContainerCreateOptions, error) {
	host := &container.HostConfig{
		Privileged: v.Bool("privileged"), ReadonlyRootfs: v.Bool("readonly_rootfs"), StorageOpt: v.Map("storage_opt"), Sysctls: v.Map("sysctl"),
		DNSSearch: v.List("dns_search_domains"), DNSOptions: v.List("dns_options"), ExtraHosts: v.List("extra_hosts"), GroupAdd: v.List("group_add"),
		ShmSize: v.Int("shm_size"), OomScoreAdj: int(v.Int("oom_score_adj")), Runtime: v.String("runtime"),
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled}, // the agent restarts tasks
	}
	conf := &container.Config{
		Image: image, User: cfg.User, Hostname: v.String("hostname"), WorkingDir: v.String("work_dir"), Tty: v.Bool("tty"), OpenStdin: v.Bool("interactive"),
		Entrypoint: v.List("entrypoint"), Labels: map[string]string{}, Cmd: v.List("args"),
	}
	if conf.WorkingDir == "" {
		conf.WorkingDir = cfg.WorkDir
	}
	if c := v.String("command"); c != "" {
		conf.Cmd = append([]string{c}, conf.Cmd...)
	}
	for k, l := range v.Map("labels") {
		if !strings.HasPrefix(k, "muster.") && k != labelNomad {
			conf.Labels[k] = l
		}
	}
	conf.Labels[LabelNode], conf.Labels[LabelAlloc], conf.Labels[LabelTask] = d.opt.NodeID(), cfg.AllocID, cfg.Name
	conf.Labels[LabelID], conf.Labels[labelNomad] = cfg.TaskID, cfg.AllocID
	if v.Bool("init") {
		yes := true
		host.Init = &yes
	}
	if host.ShmSize == 0 {
		host.ShmSize = cfg.Resources.ShmMiB << 20
	}
	env := map[string]string{}
	maps.Copy(env, cfg.Env())
	for _, step := range []func(*driver.TaskConfig, driver.Values, *container.HostConfig) error{
		d.permissions, d.limits, d.mounts, d.devices, resolver,
	} {
		if err := step(cfg, v, host); err != nil {
			return nil, err
		}
	}
	net, err := networking(cfg, v, conf, host, env)
	if err != nil {
		return nil, err
	}
	// Images often set this variable to "all", which NVIDIA's runtime would obey.
	env["NVIDIA_VISIBLE_DEVICES"] = "void"
	if len(cfg.Resources.GPUs) > 0 {
		list := strings.Join(cfg.Resources.GPUs, ",")
		env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_VISIBLE_DEVICES"] = list, list
	}
	for k, x := range env {
		conf.Env = append(conf.Env, k+"="+x)
	}
	sort.Strings(conf.Env)
	host.LogConfig = container.LogConfig{Type: "none"}
	if cfg.Logs.StdoutBase != "" || cfg.Logs.StderrBase != "" {
		host.LogConfig = engineLog()
	}
	return &client.ContainerCreateOptions{Name: cfg.TaskID, Config: conf, HostConfig: host, NetworkingConfig: net}, nil
}

// permissions applies settings that need the agent's permission.
func (d *Driver) permissions(_ *driver.TaskConfig, v driver.Values, host *container.HostConfig) error {
	if host.Privileged && !d.opt.AllowPrivileged {
		return refuse("this node does not allow privileged containers (plugin \"docker\", allow_privileged)")
	}
	modes := map[string]func(string){
		"pid_mode":    func(m string) { host.PidMode = container.PidMode(m) },
		"ipc_mode":    func(m string) { host.IpcMode = container.IpcMode(m) },
		"uts_mode":    func(m string) { host.UTSMode = container.UTSMode(m) },
		"userns_mode": func(m string) { host.UsernsMode = container.UsernsMode(m) },
		"cgroupns":    func(m string) { host.CgroupnsMode = container.CgroupnsMode(m) },
	}
	for _, k := range []string{"pid_mode", "ipc_mode", "uts_mode", "userns_mode", "cgroupns"} {
		switch m := v.String(k); {
		case m == "", m == "private" && k != "ipc_mode" && k != "cgroupns":
		case m == "private", m == "none" && k == "ipc_mode":
			modes[k](m)
		case m == "host" && d.opt.AllowPrivileged:
			modes[k](m)
		case m == "host":
			return refuse("config key %q: this node does not share its own namespaces with containers (plugin \"docker\", allow_privileged)", k)
		default:
			return refuse("config key %q: want \"host\" or \"private\", got %q; namespaces of other containers are not shared", k, m)
		}
	}
	if r := host.Runtime; r != "" && !slices.Contains(d.opt.AllowRuntimes, r) {
		return refuse("config key \"runtime\": %q is not one of %s, which this node allows (plugin \"docker\", allow_runtimes)", r, strings.Join(d.opt.AllowRuntimes, ", "))
	}
	for _, o := range v.List("security_opt") {
		if name, val, _ := strings.Cut(strings.ReplaceAll(o, ":", "="), "="); (name != "no-new-privileges" || val == "false") && !d.opt.AllowPrivileged {
			return refuse("config key \"security_opt\": %q needs a node that allows privileged containers (plugin \"docker\", allow_privileged)", o)
		}
		host.SecurityOpt = append(host.SecurityOpt, o)
	}
	return d.capabilities(v, host)
}

// capabilities grants a task those that the agent allows, without those that it drops. The engine starts from its own
// set, so all are dropped first.
func (d *Driver) capabilities(v driver.Values, host *container.HostConfig) error {
	if host.Privileged {
		return nil
	}
	allowed := map[string]bool{}
	every := false
	for _, c := range d.opt.AllowCaps {
		allowed[capability(c)] = true
		every = every || capability(c) == "all"
	}
	have := map[string]bool{}
	for _, c := range AllowCapsDefault {
		have[c] = every || allowed[c]
	}
	for _, c := range v.List("cap_drop") {
		if capability(c) == "all" {
			clear(have)
		}
		delete(have, capability(c))
	}
	for _, c := range v.List("cap_add") {
		c = capability(c)
		if c == "all" && !every || !every && !allowed[c] {
			list := slices.Clone(d.opt.AllowCaps)
			slices.Sort(list)
			return refuse("config key \"cap_add\": %q is not one of %s, which this node allows (plugin \"docker\", allow_caps)", c, strings.Join(list, ", "))
		}
		have[c] = true
	}
	host.CapDrop = []string{"ALL"}
	for c, on := range have {
		switch {
		case c == "all":
			host.CapDrop, host.CapAdd = nil, []string{"ALL"}
			return nil
		case on:
			host.CapAdd = append(host.CapAdd, strings.ToUpper(c))
		}
	}
	slices.Sort(host.CapAdd)
	return nil
}

// The limits of processor shares in control groups.
const (
	sharesMin = 2
	sharesMax = 262144
)

func (d *Driver) limits(cfg *driver.TaskConfig, v driver.Values, host *container.HostConfig) error {
	r := cfg.Resources
	if r.CPUMHz > 0 {
		host.CPUShares = min(max(r.CPUMHz, sharesMin), sharesMax)
	}
	host.CpusetCpus, host.CpusetMems = cgroup.FormatSet(r.Cores), cgroup.FormatSet(r.Mems)
	period := v.Int("cpu_cfs_period")
	if period == 0 {
		period = 100_000
	}
	if period < 1000 || period > 1_000_000 {
		return refuse("config key \"cpu_cfs_period\": want 1,000 to 1,000,000 microseconds, got %d", period)
	}
	switch {
	case r.CPUQuota > 0:
		host.CPUPeriod, host.CPUQuota = period, max(1000, r.CPUQuota*period/1000)
	case v.Bool("cpu_hard_limit") && r.CPUMHz > 0:
		mhz := int64(0)
		if d.opt.CoreMHz != nil {
			mhz = d.opt.CoreMHz()
		}
		if mhz == 0 {
			return fmt.Errorf("docker: cpu_hard_limit: the speed of this node's cores is unknown")
		}
		host.CPUPeriod, host.CPUQuota = period, max(1000, r.CPUMHz*period/mhz)
	}
	host.Memory = r.MemoryMiB << 20
	most := max(r.MemoryMaxMiB, v.Int("memory_hard_limit"))
	if v.Int("memory_hard_limit") > 0 && v.Int("memory_hard_limit") < r.MemoryMiB {
		return refuse("config key \"memory_hard_limit\": %d MiB is less than the task's memory of %d MiB", v.Int("memory_hard_limit"), r.MemoryMiB)
	}
	if most > r.MemoryMiB && r.MemoryMiB > 0 {
		host.Memory, host.MemoryReservation = most<<20, r.MemoryMiB<<20
	}
	if host.Memory > 0 {
		host.MemorySwap = host.Memory // no additional swap
	}
	pids := r.PidsMax
	if n := v.Int("pids_limit"); n < 0 {
		return refuse("config key \"pids_limit\" must not be negative, got %d", n)
	} else if n > 0 && (pids == 0 || n < pids) {
		pids = n
	}
	if pids > 0 {
		host.PidsLimit = &pids
	}
	if n := v.Int("oom_score_adj"); n < 0 || n > 1000 {
		return refuse("config key \"oom_score_adj\": want 0 to 1000, got %d", n)
	}
	names := make([]string, 0, len(v.Map("ulimit")))
	for k := range v.Map("ulimit") {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, k := range names {
		u, err := units.ParseUlimit(k + "=" + v.Map("ulimit")[k])
		if err != nil {
			return refuse("config key \"ulimit\": %s = %q: %v", k, v.Map("ulimit")[k], err)
		}
		host.Ulimits = append(host.Ulimits, u)
	}
	for _, k := range slices.Sorted(maps.Keys(cfg.Ulimits)) {
		soft, hard, err := structs.ParseUlimit(k, cfg.Ulimits[k])
		if err != nil {
			return refuse("ulimits: %s: %v", k, err)
		}
		if _, own := v.Map("ulimit")[k]; !own {
			host.Ulimits = append(host.Ulimits, &container.Ulimit{Name: k, Soft: int64(soft), Hard: int64(hard)}) // -1 is no limit there, too
		}
	}
	for _, f := range cfg.Resources.RDMA {
		host.Devices = append(host.Devices, container.DeviceMapping{PathOnHost: f.Path, PathInContainer: f.Path, CgroupPermissions: "rw"})
	}
	if _, own := v.Map("ulimit")["nofile"]; cfg.NoFile > 0 && !own {
		host.Ulimits = append(host.Ulimits, &container.Ulimit{Name: "nofile", Soft: int64(cfg.NoFile), Hard: int64(cfg.NoFile)})
	}
	return nil
}

// mounts adds the task's own directories, the volumes of its group and the mounts of its config.
func (d *Driver) mounts(cfg *driver.TaskConfig, v driver.Values, host *container.HostConfig) error {
	add := func(source, target string) {
		if source != "" {
			host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeBind, Source: source, Target: target})
		}
	}
	add(cfg.Dirs.AllocDir, allocTarget)
	if err := d.shim(cfg, host); err != nil {
		return err
	}
	if cfg.Dirs.TaskDir != "" {
		add(filepath.Join(cfg.Dirs.TaskDir, "local"), localTarget)
	}
	add(cfg.Dirs.SecretsDir, secretsTarget)
	for _, m := range slices.Concat(cfg.Etc, []driver.Mount{cfg.Muster}) { // files of the agent, which no task can replace
		if m.Source != "" {
			host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeBind, Source: m.Source, Target: m.Target, ReadOnly: true})
		}
	}
	for _, m := range cfg.Mounts {
		p := map[string]mount.Propagation{"": "", "private": "", "host-to-task": mount.PropagationRSlave, "bidirectional": mount.PropagationRShared}[m.Propagation]
		host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeBind, Source: m.Source, Target: path.Join("/", m.Target), ReadOnly: m.ReadOnly, BindOptions: &mount.BindOptions{Propagation: p}})
	}
	for _, s := range v.List("volumes") {
		parts := strings.Split(s, ":")
		if len(parts) < 2 || len(parts) > 3 || !path.IsAbs(parts[1]) {
			return refuse("config key \"volumes\": %q: want \"source:/target\" or \"source:/target:ro\"", s)
		}
		m := mount.Mount{Type: mount.TypeBind, Target: parts[1]}
		if len(parts) == 3 {
			for _, o := range strings.Split(parts[2], ",") {
				switch o {
				case "ro":
					m.ReadOnly = true
				case "rw", "z", "Z":
				default:
					return refuse("config key \"volumes\": %q: unknown option %q (want ro or rw)", s, o)
				}
			}
		}
		var err error
		if m.Source, err = d.source("volumes", cfg, parts[0], true); err != nil {
			return err
		}
		host.Mounts = append(host.Mounts, m)
	}
	for _, b := range slices.Concat(v.Blocks("mount"), v.Blocks("mounts")) {
		m, err := d.mount(cfg, b)
		if err != nil {
			return err
		}
		host.Mounts = append(host.Mounts, *m)
	}
	seen := map[string]bool{}
	for _, m := range host.Mounts {
		t := path.Clean(m.Target)
		switch {
		case !path.IsAbs(t) || t == "/":
			return refuse("mount target %q must be an absolute path below /", m.Target)
		case seen[t]:
			return refuse("two mounts have the target %q", t)
		}
		seen[t] = true
	}
	return nil
}

func (d *Driver) mount(cfg *driver.TaskConfig, block map[string]any) (*mount.Mount, error) {
	v, err := driver.Schema(driverconf.DockerMount).Decode("docker: mount", block)
	if err != nil {
		return nil, err
	}
	m := &mount.Mount{Type: mount.Type(v.String("type")), Target: v.String("target"), ReadOnly: v.Bool("readonly")}
	if m.Type == "" {
		m.Type = mount.TypeVolume // the default of Docker's clients
	}
	switch m.Type {
	case mount.TypeBind:
		if m.Source, err = d.source("mount", cfg, v.String("source"), true); err != nil {
			return nil, err
		}
		switch p := mount.Propagation(v.Map("bind_options")["propagation"]); {
		case p == "":
		case !slices.Contains(mount.Propagations, p):
			return nil, refuse("mount: unknown propagation %q", p)
		case (p == mount.PropagationShared || p == mount.PropagationRShared) && !d.opt.AllowPrivileged:
			return nil, refuse("mount: propagation %q needs a node that allows privileged containers (plugin \"docker\", allow_privileged)", p)
		default:
			m.BindOptions = &mount.BindOptions{Propagation: p}
		}
	case mount.TypeTmpfs:
		o := &mount.TmpfsOptions{}
		if s := v.Map("tmpfs_options")["size"]; s != "" {
			if o.SizeBytes, err = strconv.ParseInt(s, 10, 64); err != nil || o.SizeBytes < 0 {
				return nil, refuse("mount: tmpfs_options: size %q: want a number of bytes", s)
			}
		}
		if s := v.Map("tmpfs_options")["mode"]; s != "" {
			n, err := strconv.ParseUint(s, 10, 32) // HCL has converted 0755 to a number already
			if err != nil {
				return nil, refuse("mount: tmpfs_options: mode %q: want a number", s)
			}
			o.Mode = os.FileMode(n)
		}
		m.TmpfsOptions = o
	case mount.TypeVolume:
		if !d.opt.Volumes {
			return nil, refuse("mount: this node does not allow volumes of the engine (plugin \"docker\", volumes)")
		}
		m.Source = v.String("source")
		for _, b := range v.Blocks("volume_options") {
			o, err := driver.Schema(driverconf.DockerVolume).Decode("docker: mount: volume_options", b)
			if err != nil {
				return nil, err
			}
			m.VolumeOptions = &mount.VolumeOptions{NoCopy: o.Bool("no_copy"), Labels: o.Map("labels")}
			for _, b := range o.Blocks("driver_config") {
				c, err := driver.Schema(driverconf.DockerVolumeDriver).Decode("docker: mount: driver_config", b)
				if err != nil {
					return nil, err
				}
				if len(c.Map("options")) > 0 && !d.opt.AllowPrivileged { // options can name any device or directory of the host
					return nil, refuse("mount: options of a volume driver need a node that allows privileged containers (plugin \"docker\", allow_privileged)")
				}
				m.VolumeOptions.DriverConfig = &mount.Driver{Name: c.String("name"), Options: c.Map("options")}
			}
		}
	default:
		return nil, refuse("mount: type %q: want bind, tmpfs or volume", m.Type)
	}
	return m, nil
}

// source returns the host path of a mount. A relative one is below the task's directory and must stay within the
// allocation, through any links of the task (pin ensures that until the container has started); an absolute one needs
// the agent's permission.
func (d *Driver) source(key string, cfg *driver.TaskConfig, name string, create bool) (string, error) {
	if name == "" {
		return "", refuse("config key %q: a mount has no source", key)
	}
	if filepath.IsAbs(name) {
		if !d.opt.Volumes {
			return "", refuse("config key %q: this node does not allow mounts of its directories (%s); sources below the task's directory are relative (plugin \"docker\", volumes)", key, name)
		}
		return name, nil // the engine says if there is nothing: the agent does not look, as root, at paths of jobs
	}
	rel, err := filepath.Rel(cfg.Dirs.AllocRoot, filepath.Join(cfg.Dirs.TaskDir, name))
	if err != nil || !filepath.IsLocal(rel) {
		return "", refuse("config key %q: source %q leads out of the allocation's directory", key, name)
	}
	alloc := allocdir.Dir{Root: cfg.Dirs.AllocRoot}
	at, err := alloc.Real(rel)
	if errors.Is(err, fs.ErrNotExist) && create {
		var dir *taskfs.Dir
		if dir, err = alloc.MakeDir(rel); err == nil {
			dir.Close()
			at = rel
		}
	}
	if err != nil {
		return "", refuse("config key %q: source %q: %v", key, name, err)
	}
	return filepath.Join(cfg.Dirs.AllocRoot, at), nil
}

// resolver sets the DNS configuration.
func resolver(_ *driver.TaskConfig, v driver.Values, host *container.HostConfig) error {
	for _, s := range v.List("dns_servers") {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return refuse("config key \"dns_servers\": %q is not an address", s)
		}
		host.DNS = append(host.DNS, a)
	}
	return nil
}

// networking chooses the container's network and publishes ports.
func networking(cfg *driver.TaskConfig, v driver.Values, conf *container.Config, host *container.HostConfig, env map[string]string) (*network.NetworkingConfig, error) {
	mode := v.String("network_mode")
	if mode == "" && cfg.Network == "none" {
		mode = "none"
	}
	if strings.Contains(mode, ":") {
		return nil, refuse("config key \"network_mode\": %q: networks of other containers and namespaces are not shared", mode)
	}
	host.NetworkMode = container.NetworkMode(mode)
	var out *network.NetworkingConfig
	named := mode != "" && mode != "host" && mode != "none" && mode != "bridge" && mode != "default"
	if aliases := v.List("network_aliases"); len(aliases) > 0 {
		if !named {
			return nil, refuse("config key \"network_aliases\" needs a network_mode that names one of the engine's networks")
		}
		out = &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{mode: {Aliases: aliases}}}
	}
	if conf.Hostname != "" && mode == "host" {
		return nil, refuse("config key \"hostname\" has no meaning with network_mode host")
	}
	wanted := map[string]int{}
	for _, l := range v.List("ports") {
		wanted[l] = 0
	}
	for l, to := range v.Map("port_map") {
		n, err := strconv.Atoi(to)
		if err != nil || n < 1 || n > 65535 {
			return nil, refuse("config key \"port_map\": %s = %q: want a port", l, to)
		}
		wanted[l] = n
	}
	labels := make([]string, 0, len(wanted))
	for l := range wanted {
		labels = append(labels, l)
	}
	slices.Sort(labels)
	for _, l := range labels {
		i := slices.IndexFunc(cfg.Ports, func(p driver.Port) bool { return p.Label == l })
		if i < 0 {
			return nil, refuse("the group's network has no port %q", l)
		}
		p := cfg.Ports[i]
		if mode == "host" {
			continue // the task itself decides to listen there
		}
		if mode == "none" {
			return nil, refuse("port %q cannot be published: the network mode is none", l)
		}
		inside := p.Host
		if p.To > 0 {
			inside = p.To
		}
		if wanted[l] > 0 {
			inside = wanted[l]
			env["NOMAD_PORT_"+l], env["MUSTER_PORT_"+l] = strconv.Itoa(inside), strconv.Itoa(inside)
		}
		ip, _ := netip.ParseAddr(p.HostIP)
		for _, proto := range []network.IPProtocol{network.TCP, network.UDP} {
			port, _ := network.PortFrom(uint16(inside), proto)
			if conf.ExposedPorts == nil {
				conf.ExposedPorts, host.PortBindings = network.PortSet{}, network.PortMap{}
			}
			conf.ExposedPorts[port] = struct{}{}
			host.PortBindings[port] = append(host.PortBindings[port], network.PortBinding{HostIP: ip, HostPort: strconv.Itoa(p.Host)})
		}
	}
	return out, nil
}
