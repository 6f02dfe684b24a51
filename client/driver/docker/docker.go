// Package docker runs a task as a container of a Docker Engine (or whatever speaks its API), which it reaches over the
// engine's socket. The engine supervises: a container outlives the agent, keeps its exit code until the agent has taken
// note of it, and is found again by its name, which is the task's id.
//
// A container that this agent made carries labels that say of which node, allocation and task it is. The driver touches
// no other container.
package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/hashicorp/go-hclog"
	"github.com/moby/moby/client"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/structs"
)

// Labels of the containers that this driver makes.
const (
	LabelNode  = "muster.node"
	LabelAlloc = "muster.alloc"
	LabelTask  = "muster.task"
	LabelID    = "muster.task_id"
	labelNomad = "com.hashicorp.nomad.alloc_id" // what tools made for Nomad look for
)

// Where a container sees the directories of its task.
const (
	allocTarget   = "/alloc"
	localTarget   = "/local"
	secretsTarget = "/secrets"
)

// DefaultHost is where the engine listens unless it is told otherwise.
const DefaultHost = client.DefaultDockerHost

// How GPUs are given to containers.
const (
	GPUAuto    = "auto"    // CDI if the engine has it, else NVIDIA's runtime if it is registered, else not at all
	GPUCDI     = "cdi"     // a CDI specification of our own for each task
	GPURuntime = "runtime" // NVIDIA's runtime and NVIDIA_VISIBLE_DEVICES
	GPUDevices = "devices" // the device files alone: the image must bring the driver's libraries
)

// AllowCapsDefault are the capabilities that a task may have unless the agent is told otherwise: those that the engine
// gives by itself, without net_raw.
var AllowCapsDefault = []string{
	"audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service",
	"setfcap", "setgid", "setpcap", "setuid", "sys_chroot",
}

// Options of the driver.
type Options struct {
	Host     string                   // of the engine: "unix:///run/x.sock" or "tcp://..."; "" is DOCKER_HOST, or DefaultHost
	StateDir string                   // how far logs have been copied, device files; required
	NodeID   func() string            // of this agent; containers of others are left alone; required
	CoreMHz  func() int64             // speed of one core, 0 when unknown; nil: cpu_hard_limit is refused
	Log      hclog.Logger             // nil discards
	Known    func(taskID string) bool // whether a task is still somebody's; nil: everything is

	AllowPrivileged bool          // tasks may ask for privileged containers and the host's namespaces
	AllowCaps       []string      // capabilities tasks may have; nil is AllowCapsDefault, "all" is every one
	AllowDevices    []string      // patterns of device files that tasks may ask for; nil is AllowDevicesDefault
	AllowRuntimes   []string      // runtimes tasks may name; nil is runc and nvidia
	Volumes         bool          // tasks may mount any directory of the host
	AuthFile        string        // a Docker client's config.json with the registries' credentials
	AuthHelper      string        // program docker-credential-<this> that knows them
	PullPatience    time.Duration // without progress, after which a pull has failed; 0 is 2 min
	KeepImages      bool          // do not remove images that were pulled and are not used any more
	ImageDelay      time.Duration // how long such an image is kept; 0 is 3 min
	GPU             string        // GPUAuto and so on; "" is GPUAuto
	CDIDir          string        // where our CDI specifications go; "" is /var/run/cdi
	Proc            string        // where device numbers are told; "" is /proc
}

// Driver is docker.
type Driver struct {
	opt Options
	log hclog.Logger
	api *client.Client
	err error // why there is no api, or nil

	ctx    context.Context // until Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	seen   bool   // an engine has answered
	engine engine // as last seen
	pulls  map[string]*pull
	copies map[string]*copier // by container
	images *imageBook
}

// engine is what matters of the engine.
type engine struct {
	version, api, storage, cgroup string
	arch                          string // of the machine, as images have it
	runtimes                      []string
	defaultRuntime                string
	cdiDirs                       []string // none: it cannot inject by CDI
	at                            time.Time
}

// engineAge is how long what was asked about the engine is believed while it answers.
const engineAge = time.Minute

// New makes the driver. It does not look for the engine yet.
func New(opt Options) *Driver {
	if opt.Log == nil {
		opt.Log = hclog.NewNullLogger()
	}
	if opt.Host == "" {
		opt.Host = os.Getenv(client.EnvOverrideHost)
	}
	if opt.Host == "" {
		opt.Host = DefaultHost
	}
	if opt.AllowCaps == nil {
		opt.AllowCaps = AllowCapsDefault
	}
	if opt.AllowRuntimes == nil {
		opt.AllowRuntimes = []string{"runc", "nvidia"}
	}
	if opt.AllowDevices == nil {
		opt.AllowDevices = AllowDevicesDefault
	}
	if opt.PullPatience == 0 {
		opt.PullPatience = 2 * time.Minute
	}
	if opt.ImageDelay == 0 {
		opt.ImageDelay = 3 * time.Minute
	}
	if opt.GPU == "" {
		opt.GPU = GPUAuto
	}
	if opt.CDIDir == "" {
		opt.CDIDir = "/var/run/cdi"
	}
	d := &Driver{opt: opt, log: opt.Log, pulls: map[string]*pull{}, copies: map[string]*copier{}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.api, d.err = client.New(client.WithHost(opt.Host))
	d.images = openImageBook(opt.StateDir)
	return d
}

// Tidy begins to look, now and then, for what nobody needs any more; it goes on until Close.
func (d *Driver) Tidy() {
	d.wg.Add(1)
	go d.sweepLoop()
}

// Close ends the driver's goroutines. Containers go on.
func (d *Driver) Close() {
	d.cancel()
	d.wg.Wait()
	if d.api != nil {
		_ = d.api.Close()
	}
}

// Name is "docker".
func (d *Driver) Name() string { return "docker" }

// TaskDirs implements driver.DirsElsewhere.
func (d *Driver) TaskDirs() (alloc, local, secrets string) {
	return allocTarget, localTarget, secretsTarget
}

// MountsVolumes implements driver.VolumeMounter.
func (d *Driver) MountsVolumes() bool { return true }

// pingPatience bounds a question to the engine whether it is there.
const pingPatience = 3 * time.Second

// Fingerprint asks the engine whether it is there.
func (d *Driver) Fingerprint(ctx context.Context) driver.Fingerprint {
	e, err := d.look(ctx)
	if err != nil {
		d.mu.Lock()
		seen := d.seen
		d.mu.Unlock()
		f := driver.Fingerprint{Health: driver.Undetected, Detail: fmt.Sprintf("no Docker Engine answers at %s: %v", d.opt.Host, err)}
		if seen {
			f.Detected, f.Health = true, driver.Unhealthy
			f.Detail = fmt.Sprintf("the Docker Engine at %s does not answer any more: %v", d.opt.Host, err)
			f.Attributes = map[string]string{}
		}
		return f
	}
	flag := func(b bool) string {
		if b {
			return "true"
		}
		return "false"
	}
	runtimes := slices.Clone(e.runtimes)
	slices.Sort(runtimes)
	return driver.Fingerprint{Detected: true, Health: driver.Healthy, Detail: "Healthy", Attributes: map[string]string{
		"driver.docker": "1", "driver.docker.version": e.version, "driver.docker.api": e.api, "driver.docker.storage": e.storage,
		"driver.docker.runtimes": strings.Join(runtimes, ","), "driver.docker.cgroup": e.cgroup,
		"driver.docker.cdi": flag(len(e.cdiDirs) > 0), structs.DockerGPUAttribute: d.gpuMode(e),
		"driver.docker.privileged.enabled": flag(d.opt.AllowPrivileged), "driver.docker.volumes.enabled": flag(d.opt.Volumes),
	}}
}

// look pings the engine, and asks about it when that was long ago.
func (d *Driver) look(ctx context.Context) (engine, error) {
	if d.err != nil {
		return engine{}, d.err
	}
	ctx, cancel := context.WithTimeout(ctx, pingPatience)
	defer cancel()
	ping, err := d.api.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	if err != nil {
		d.mu.Lock()
		d.engine = engine{} // another one may come
		d.mu.Unlock()
		return engine{}, brief(err)
	}
	d.mu.Lock()
	e := d.engine
	d.mu.Unlock()
	if time.Since(e.at) < engineAge {
		return e, nil
	}
	res, err := d.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return engine{}, brief(err)
	}
	in := res.Info
	if in.OSType != "" && in.OSType != "linux" {
		return engine{}, fmt.Errorf("it runs %s containers, and tasks need linux", in.OSType)
	}
	e = engine{
		version: in.ServerVersion, api: ping.APIVersion, storage: in.Driver, cgroup: "v" + in.CgroupVersion, defaultRuntime: in.DefaultRuntime,
		arch: architecture(in.Architecture), cdiDirs: in.CDISpecDirs, at: time.Now(),
	}
	if in.CgroupVersion == "" {
		e.cgroup = "v1" // engines before 20.10 do not tell
	}
	for name := range in.Runtimes {
		e.runtimes = append(e.runtimes, name)
	}
	d.mu.Lock()
	d.engine, d.seen = e, true
	d.mu.Unlock()
	return e, nil
}

// architecture is a machine's architecture as images have it; the engine says it as the kernel does.
func architecture(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}

// brief takes from an error what a person needs: the client's sentences repeat themselves.
func brief(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("the engine takes too long")
	}
	if client.IsErrConnectionFailed(err) {
		return errors.New("no connection to the engine")
	}
	return err
}

// gone reports whether the engine does not know the object any more.
func gone(err error) bool { return errdefs.IsNotFound(err) }

// unreachable reports whether the engine, not the request, is the trouble.
func unreachable(err error) bool {
	return client.IsErrConnectionFailed(err) || errdefs.IsUnavailable(err)
}

// isPermanent tells a start error that another attempt cannot cure.
func isPermanent(err error) bool {
	if errdefs.IsInvalidArgument(err) {
		return true
	}
	for _, s := range []string{"executable file not found", "no such file or directory: unknown", "permission denied: unknown", "is not a valid", "unable to find user", "unknown runtime", "exec format error"} {
		if strings.Contains(err.Error(), s) {
			return true
		}
	}
	return false
}
