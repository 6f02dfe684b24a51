package docker

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/gpu/shim"
	"github.com/muster-sched/muster/internal/driverconf"
	"github.com/muster-sched/muster/structs"
)

// AllowDevicesDefault are the device files that a task may name by default. GPUs are never among them: they are
// granted.
var AllowDevicesDefault = []string{"/dev/fuse", "/dev/infiniband/*", "/dev/kvm", "/dev/net/tun"}

// cdiKind is the device kind in Muster's CDI specifications; the name of a task's device is the task's id.
const cdiKind = "muster.local/gpu"

// nvidiaKind is the device kind in specifications of NVIDIA's tools.
const nvidiaKind = "nvidia.com/gpu"

// devices adds the device files that the job names.
func (d *Driver) devices(_ *driver.TaskConfig, v driver.Values, host *container.HostConfig) error {
	for _, b := range v.Blocks("devices") {
		o, err := driver.Schema(driverconf.DockerDevice).Decode("docker: devices", b)
		if err != nil {
			return err
		}
		m := container.DeviceMapping{PathOnHost: o.String("host_path"), PathInContainer: o.String("container_path"), CgroupPermissions: o.String("cgroup_permissions")}
		if m.PathInContainer == "" {
			m.PathInContainer = m.PathOnHost
		}
		if m.CgroupPermissions == "" {
			m.CgroupPermissions = "rwm"
		}
		real, st, err := d.findDevice(m.PathOnHost)
		if err != nil {
			return err
		}
		if _, isGPU := nodeName(readMajors(filepath.Join(cmp.Or(d.opt.Proc, "/proc"), "devices")), driver.DeviceNode{Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev))}); isGPU {
			return refuse("devices: %s is a GPU's: ask for GPUs in resources", m.PathOnHost)
		}
		if !d.opt.AllowPrivileged && !slices.ContainsFunc(d.opt.AllowDevices, func(p string) bool { ok, _ := path.Match(p, real); return ok }) {
			return d.notAllowed(m.PathOnHost)
		}
		host.Devices = append(host.Devices, m)
	}
	return nil
}

func (d *Driver) notAllowed(device string) error {
	return refuse("devices: %s is not one of %s, which this node allows (plugin \"docker\", allow_devices)", device, strings.Join(d.opt.AllowDevices, ", "))
}

// findDevice opens the device file that a job names, and returns its path without links. It looks only in directories
// of files that the node allows, and follows no link out of them: errors must not show what else there is.
func (d *Driver) findDevice(name string) (real string, st unix.Stat_t, err error) {
	clean, base := path.Clean(name), ""
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	if d.opt.AllowPrivileged {
		base, how.Resolve = "/", unix.RESOLVE_NO_MAGICLINKS
	}
	for _, p := range d.opt.AllowDevices {
		fixed, _, _ := strings.Cut(strings.NewReplacer("*", "\x00", "?", "\x00", "[", "\x00", "\\", "\x00").Replace(p), "\x00")
		if dir := path.Dir(fixed + "x"); (base == "" || !d.opt.AllowPrivileged && len(dir) < len(base)) && path.IsAbs(dir) && dir != "/" && strings.HasPrefix(clean, dir+"/") {
			base = dir
		}
	}
	if base == "" {
		return "", st, d.notAllowed(name)
	}
	dir, err := unix.Open(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", st, refuse("devices: %s: %v", base, err)
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, strings.TrimPrefix(strings.TrimPrefix(clean, base), "/"), &how)
	switch {
	case errors.Is(err, unix.EXDEV):
		return "", st, refuse("devices: %s leads out of %s", name, base)
	case err != nil:
		return "", st, refuse("devices: %s: %v", name, err)
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR && st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return "", st, refuse("devices: %s is not a device file", name)
	}
	if real, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil {
		return "", st, fmt.Errorf("docker: devices: %s: %w", name, err)
	}
	return real, st, nil
}

// gpuMode returns how this engine passes GPUs to containers; "none" if it cannot.
func (d *Driver) gpuMode(e engine) string {
	cdi := slices.ContainsFunc(e.cdiDirs, func(dir string) bool { return samePlace(dir, d.opt.CDIDir) })
	runtime := slices.Contains(e.runtimes, "nvidia")
	switch {
	case d.opt.GPU == GPUDevices:
		return GPUDevices
	case (d.opt.GPU == GPUAuto || d.opt.GPU == GPUCDI) && cdi:
		return GPUCDI
	case (d.opt.GPU == GPUAuto || d.opt.GPU == GPURuntime) && runtime:
		return GPURuntime
	}
	return structs.DockerGPUNone
}

// shim mounts the library that enforces the task's shares of GPU memory over the copy in the allocation's directory,
// which a container's root could change. The mounted file is the agent's own, and read-only, so that a task's own
// preload setting does no harm.
func (d *Driver) shim(cfg *driver.TaskConfig, host *container.HostConfig) error {
	lib, _, _ := strings.Cut(cfg.Env()[shim.Env], ":")
	if ok, _ := path.Match(allocTarget+"/gpu/*/"+shim.Library, lib); !ok || path.Clean(lib) != lib || shim.Built() != "" {
		return nil
	}
	own, err := shim.Write(filepath.Join(d.opt.StateDir, "lib"))
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeBind, Source: own, Target: lib, ReadOnly: true})
	return nil
}

func samePlace(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	ra, err1 := filepath.EvalSymlinks(a) // /var/run is a link
	rb, err2 := filepath.EvalSymlinks(b)
	return err1 == nil && err2 == nil && ra == rb
}

// grant passes the granted GPUs and other devices to a container.
func (d *Driver) grant(cfg *driver.TaskConfig, e engine, host *container.HostConfig) error {
	majors := readMajors(filepath.Join(cmp.Or(d.opt.Proc, "/proc"), "devices"))
	var gpus, others []driver.DeviceNode
	for _, n := range cfg.Resources.Devices {
		if _, isGPU := nodeName(majors, n); isGPU {
			gpus = append(gpus, n)
		} else {
			others = append(others, n)
		}
	}
	if err := d.plain(cfg.TaskID, majors, others, host); err != nil {
		return err
	}
	if len(gpus) == 0 && len(cfg.Resources.GPUs) == 0 {
		return nil
	}
	switch d.gpuMode(e) {
	case GPUCDI:
		if err := d.writeSpec(cfg, majors, gpus); err != nil {
			return err
		}
		host.DeviceRequests = append(host.DeviceRequests, container.DeviceRequest{Driver: "cdi", DeviceIDs: []string{cdiKind + "=" + cfg.TaskID}})
		return nil
	case GPURuntime:
		if host.Runtime != "" && host.Runtime != "nvidia" {
			return refuse("config key \"runtime\": GPUs need the runtime nvidia on this node, not %q", host.Runtime)
		}
		host.Runtime = "nvidia"
		return nil
	case GPUDevices:
		return d.plain(cfg.TaskID, majors, gpus, host)
	}
	return refuse("this node cannot give GPUs to containers: its engine has neither CDI for %s nor the runtime nvidia. With gpu = \"devices\" in plugin \"docker\" images get the device files and bring the driver's libraries themselves", d.opt.CDIDir)
}

// plain maps device files one by one.
func (d *Driver) plain(taskID string, majors map[string]int64, nodes []driver.DeviceNode, host *container.HostConfig) error {
	for _, n := range nodes {
		inside, file, err := d.deviceFile(taskID, majors, n)
		if err != nil {
			return err
		}
		host.Devices = append(host.Devices, container.DeviceMapping{PathOnHost: file, PathInContainer: inside, CgroupPermissions: "rw"})
	}
	return nil
}

// deviceFile returns a device's path inside a container, and a host file for it: the usual one, or one that is created
// for the task.
func (d *Driver) deviceFile(taskID string, majors map[string]int64, n driver.DeviceNode) (inside, file string, err error) {
	dev := unix.Mkdev(uint32(n.Major), uint32(n.Minor))
	is := func(p string) bool {
		var st unix.Stat_t
		return unix.Stat(p, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == dev
	}
	inside, known := nodeName(majors, n)
	if !known {
		link, err := os.Readlink(fmt.Sprintf("/sys/dev/char/%d:%d", n.Major, n.Minor))
		if err != nil {
			return "", "", fmt.Errorf("docker: nothing on this node names the device %d:%d", n.Major, n.Minor)
		}
		for _, dir := range []string{"/dev", "/dev/infiniband"} {
			if p := filepath.Join(dir, filepath.Base(link)); is(p) {
				return p, p, nil
			}
		}
		inside = filepath.Join("/dev", filepath.Base(link))
	}
	if is(inside) {
		return inside, inside, nil
	}
	dir := d.deviceDir(taskID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", fmt.Errorf("docker: %w", err)
	}
	file = filepath.Join(dir, fmt.Sprintf("%d-%d", n.Major, n.Minor))
	if err := unix.Mknod(file, unix.S_IFCHR|0o666, int(dev)); err != nil && !errors.Is(err, unix.EEXIST) {
		return "", "", fmt.Errorf("docker: make a device file for %s: %w", inside, err)
	}
	return inside, file, nil
}

func (d *Driver) deviceDir(taskID string) string {
	return filepath.Join(d.opt.StateDir, "dev", taskID)
}

// nodeName returns the usual path of an NVIDIA device file, by number; ok is false for other devices.
func nodeName(majors map[string]int64, n driver.DeviceNode) (name string, ok bool) {
	const nvidia = 195
	minor := strconv.FormatInt(n.Minor, 10)
	uvm, hasUVM := majors["nvidia-uvm"]
	caps, hasCaps := majors["nvidia-caps"]
	switch {
	case n.Major == nvidia && n.Minor == 255:
		return "/dev/nvidiactl", true
	case n.Major == nvidia && n.Minor == 254:
		return "/dev/nvidia-modeset", true
	case n.Major == nvidia:
		return "/dev/nvidia" + minor, true
	case hasUVM && n.Major == uvm && n.Minor == 1:
		return "/dev/nvidia-uvm-tools", true
	case hasUVM && n.Major == uvm:
		return "/dev/nvidia-uvm", true
	case hasCaps && n.Major == caps:
		return "/dev/nvidia-caps/nvidia-cap" + minor, true
	}
	return "", false
}

// readMajors reads the major numbers of character drivers.
func readMajors(file string) map[string]int64 {
	out := map[string]int64{}
	b, err := os.ReadFile(file)
	if err != nil {
		return out
	}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "Block") {
			break
		}
		if f := strings.Fields(line); len(f) == 2 {
			if n, err := strconv.ParseInt(f[0], 10, 64); err == nil {
				out[f[1]] = n
			}
		}
	}
	return out
}

// specFile returns the path of a task's CDI specification.
func (d *Driver) specFile(taskID string) string {
	return filepath.Join(d.opt.CDIDir, "muster-"+taskID+".json")
}

// writeSpec writes the task's CDI specification: its device files and variables, and what NVIDIA's own specification on
// this node adds to every container (the driver's libraries and hooks).
func (d *Driver) writeSpec(cfg *driver.TaskConfig, majors map[string]int64, nodes []driver.DeviceNode) error {
	type object = map[string]any
	version, common := nvidiaEdits([]string{d.opt.CDIDir, "/etc/cdi"})
	list := strings.Join(cfg.Resources.GPUs, ",")
	edits := object{"env": []string{"NVIDIA_VISIBLE_DEVICES=" + list, "CUDA_VISIBLE_DEVICES=" + list}}
	var files []object
	for _, n := range nodes {
		name, _ := nodeName(majors, n)
		files = append(files, object{"path": name, "type": "c", "major": n.Major, "minor": n.Minor, "permissions": "rw", "fileMode": 0o666})
	}
	if files != nil {
		edits["deviceNodes"] = files
	}
	spec := object{"cdiVersion": version, "kind": cdiKind, "devices": []object{{"name": cfg.TaskID, "containerEdits": edits}}}
	if len(common) > 0 {
		spec["containerEdits"] = common
	}
	b, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.opt.CDIDir, 0o755); err != nil {
		return fmt.Errorf("docker: CDI specification: %w", err)
	}
	if err := renameio.WriteFile(d.specFile(cfg.TaskID), b, 0o644); err != nil {
		return fmt.Errorf("docker: CDI specification: %w", err)
	}
	return nil
}

// cdiVersion is the version of Muster's specifications.
const cdiVersion = "0.5.0"

// nvidiaEdits returns what NVIDIA's specification adds to every container independent of the GPU, without device files
// (the task's own are listed) and without the variable that hides GPUs.
func nvidiaEdits(dirs []string) (version string, edits map[string]any) {
	for _, dir := range dirs {
		files, _ := os.ReadDir(dir)
		for _, f := range files {
			ext := filepath.Ext(f.Name())
			if ext != ".json" && ext != ".yaml" {
				continue
			}
			b, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				continue
			}
			var spec struct {
				Version string         `yaml:"cdiVersion"`
				Kind    string         `yaml:"kind"`
				Edits   map[string]any `yaml:"containerEdits"`
			}
			if yaml.Unmarshal(b, &spec) != nil || spec.Kind != nvidiaKind { // YAML includes JSON
				continue
			}
			delete(spec.Edits, "deviceNodes")
			if env, ok := spec.Edits["env"].([]any); ok {
				spec.Edits["env"] = slices.DeleteFunc(env, func(e any) bool { s, _ := e.(string); return strings.HasPrefix(s, "NVIDIA_VISIBLE_DEVICES=") })
			}
			if spec.Version == "" {
				spec.Version = cdiVersion
			}
			return spec.Version, spec.Edits
		}
	}
	return cdiVersion, nil
}
