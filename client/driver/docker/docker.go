// Package docker runs a task as a container of a Docker Engine, or of another engine with its API, over the engine's
// socket. The engine supervises: a container outlives the agent, keeps its exit code until the agent has recorded it,
// and is found again by its name, which is the task's id.
//
// A container that this agent created has labels with its node, allocation and task. The driver touches no other
// container.
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
	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/structs"
)

// Labels of the containers that this driver makes.
const (
	LabelNode  = "muster.node"
	LabelAlloc = "muster.alloc"
	LabelTask  = "muster.task"
	LabelID    = "muster.task_id"
	labelNomad = "com.hashicorp.nomad.alloc_id" // tools made for Nomad look for it
)

// Paths of the task's directories inside a container.
const (
	allocTarget   = "/alloc"
	localTarget   = "/local"
	secretsTarget = "/secrets"
)

// DefaultHost is the default address of the engine.
const DefaultHost = client.DefaultDockerHost

// Ways to pass GPUs to containers.
const (
	GPUAuto    = "auto"    // CDI if the engine has it, else NVIDIA's runtime if it is registered, else none
	GPUCDI     = "cdi"     // a CDI specification for each task
	GPURuntime = "runtime" // NVIDIA's runtime and NVIDIA_VISIBLE_DEVICES
	GPUDevices = "devices" // only the device files: the image must contain the driver's libraries
)

// AllowCapsDefault are the capabilities that a task may have by default: those that the engine grants by default,
// without net_raw.
var AllowCapsDefault = []string{
	"audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service",
	"setfcap", "setgid", "setpcap", "setuid", "sys_chroot",
}

// Options of the driver.
type Options struct {
	Host     string                   // of the engine: "unix:///run/x.sock" or "tcp://..."; "" is DOCKER_HOST, or DefaultHost
	StateDir string                   // for log positions and device files; required
	NodeID   func() string            // of this agent; containers of other nodes are left alone; required
	CoreMHz  func() int64             // speed of one core, 0 when unknown; nil: cpu_hard_limit is refused
	Log      hclog.Logger             // nil discards
	Known    func(taskID string) bool // reports whether a task is still needed; nil: all are

	// Guards end the containers of tasks with StopOnClientAfter; nil: such tasks are refused.
	Guards Guards
	// Bound has Guards end all other containers, too: they do so when this process is gone, because no other one will.
	Bound bool

	AllowPrivileged bool          // tasks may ask for privileged containers and the host's namespaces
	AllowCaps       []string      // capabilities tasks may have; nil is AllowCapsDefault, "all" is every one
	AllowDevices    []string      // patterns of device files that tasks may ask for; nil is AllowDevicesDefault
	AllowRuntimes   []string      // runtimes tasks may name; nil is runc and nvidia
	Volumes         bool          // tasks may mount any directory of the host
	AuthFile        string        // path of a Docker client's config.json with registry credentials
	AuthHelper      string        // name of a credentials helper: the program docker-credential-NAME
	PullPatience    time.Duration // time without progress after which a pull fails; 0 is 2 min
	KeepImages      bool          // do not remove pulled images that are no longer used
	ImageDelay      time.Duration // how long such an image is kept; 0 is 3 min
	GPU             string        // GPUAuto and so on; "" is GPUAuto
	CDIDir          string        // directory for CDI specifications; "" is /var/run/cdi
	Proc            string        // directory with the device numbers; "" is /proc
}

// Guards end containers without the agent when contact with the servers is lost (supervisor.Client).
type Guards interface {
	Guard(ctx context.Context, g *supervisor.Guard) error
	Unguard(ctx context.Context, taskID string) error
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
	seen   bool   // an engine has answered before
	engine engine // as of the last answer
	pulls  map[string]*pull
	copies map[string]*copier // by container
	images *imageBook
}

// engine holds the relevant properties of the engine.
type engine struct {
	version, api, storage, cgroup string
	arch                          string // of the machine, in the spelling of images
	runtimes                      []string
	defaultRuntime                string
	cdiDirs                       []string // none: it does not support CDI
	at                            time.Time
}

// engineAge is how long the properties of a responding engine are cached.
const engineAge = time.Minute

// New makes the driver. It does not contact the engine yet.
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

// Tidy starts the periodic removal of objects that are no longer needed; it runs until Close.
func (d *Driver) Tidy() {
	d.wg.Add(1)
	go d.sweepLoop()
}

// Close ends the driver's goroutines. Containers keep running.
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

// MountsProgram implements driver.ProgramMounter.
func (d *Driver) MountsProgram() bool { return true }

// pingPatience limits a ping of the engine.
const pingPatience = 3 * time.Second

// Fingerprint reports whether the engine responds.
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

// look pings the engine, and reads its properties if the cached ones are old.
func (d *Driver) look(ctx context.Context) (engine, error) {
	if d.err != nil {
		return engine{}, d.err
	}
	ctx, cancel := context.WithTimeout(ctx, pingPatience)
	defer cancel()
	ping, err := d.api.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	if err != nil {
		d.mu.Lock()
		d.engine = engine{} // the next one may be a different engine
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
		e.cgroup = "v1" // engines before 20.10 do not report it
	}
	for name := range in.Runtimes {
		e.runtimes = append(e.runtimes, name)
	}
	d.mu.Lock()
	d.engine, d.seen = e, true
	d.mu.Unlock()
	return e, nil
}

// architecture converts a machine's architecture from the kernel's spelling, which the engine uses, to that of images.
func architecture(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}

// brief shortens an error for users: the client's messages are repetitive.
func brief(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("the engine takes too long")
	}
	if client.IsErrConnectionFailed(err) {
		return errors.New("no connection to the engine")
	}
	return err
}

// gone reports whether the engine no longer knows the object.
func gone(err error) bool { return errdefs.IsNotFound(err) }

// unreachable reports whether an error is about the engine, not the request.
func unreachable(err error) bool {
	return client.IsErrConnectionFailed(err) || errdefs.IsUnavailable(err)
}

// isPermanent reports whether another attempt cannot cure a start error.
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
