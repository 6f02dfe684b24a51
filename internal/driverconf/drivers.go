package driverconf

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-sched/muster/internal/suggest"
)

// Driver is a task driver of this build.
type Driver struct {
	Name      string
	Keys      Schema
	Elsewhere map[string]string // keys of Nomad's driver of this name that this one does not have, and why
}

// Drivers are all task drivers of this build. There are no plugins: a job with another driver can run nowhere.
var Drivers = []*Driver{&Docker, &Exec, &Fake, &RawExec}

// Names lists the drivers for a person. The fake one is for tests and simulated nodes.
func Names() []string {
	names := make([]string, 0, len(Drivers))
	for _, d := range Drivers {
		if d != &Fake {
			names = append(names, d.Name)
		}
	}
	return names
}

// Check returns what is wrong with the config block of a submitted task; all of it is certain to fail on every node. The
// second result is false when there is no such driver.
func Check(driver string, config map[string]any) ([]Problem, bool) {
	i := slices.IndexFunc(Drivers, func(d *Driver) bool { return d.Name == driver })
	if i < 0 {
		return nil, false
	}
	d := Drivers[i]
	rest := make(map[string]any, len(config))
	for k, v := range config {
		if d.Elsewhere[k] == "" {
			rest[k] = v
		}
	}
	return append(d.Unsupported(config), d.Keys.check(rest)...), true
}

// Unsupported returns a problem for each key that only Nomad's driver of this name has.
func (d *Driver) Unsupported(config map[string]any) (out []Problem) {
	for _, k := range slices.Sorted(maps.Keys(d.Elsewhere)) {
		if config[k] != nil {
			out = append(out, Problem{k, fmt.Sprintf("config key %q is not supported: %s", k, d.Elsewhere[k])})
		}
	}
	return out
}

// Unknown says that there is no such driver, and which one may be meant.
func Unknown(driver string) string {
	return fmt.Sprintf("there is no driver %q%s (there are %s)", driver, suggest.DidYouMean(driver, Names()), strings.Join(Names(), ", "))
}

// Docker runs containers by a Docker Engine. Its keys are those of Nomad's docker driver that are supported.
var Docker = Driver{Name: "docker", Keys: Schema{
	{Name: "image", Type: String, Required: true, Doc: "image to run: name, with tag or digest"},
	{Name: "command", Type: String, Doc: "program in place of the image's command"},
	{Name: "args", Type: List, Doc: "arguments"},
	{Name: "entrypoint", Type: List, Doc: "in place of the image's entrypoint"},
	{Name: "load", Type: String, Doc: "archive with the image (docker save), below the task's directory"},
	{Name: "force_pull", Type: Bool, Doc: "ask the registry even when the image is there"},
	{Name: "image_pull_timeout", Type: Duration, Doc: "how long a pull may take; default as long as it makes progress"},
	{Name: "auth", Type: Map, Keys: []string{"email", "password", "server_address", "username"}, Doc: "credentials for the registry: username, password, server_address"},
	{Name: "auth_soft_fail", Type: Bool, Doc: "without credentials of the agent, pull without any"},
	{Name: "work_dir", Type: String, Doc: "working directory in the container"},
	{Name: "hostname", Type: String, Doc: "host name in the container"},
	{Name: "labels", Type: Map, Doc: "labels of the container"},
	{Name: "network_mode", Type: String, Doc: "host, none, bridge, or the name of one of the engine's networks"},
	{Name: "network_aliases", Type: List, Doc: "further names in a named network"},
	{Name: "ports", Type: List, Doc: "labels of the group's ports to publish"},
	{Name: "port_map", Type: Map, Doc: "port in the container, by label"},
	{Name: "volumes", Type: List, Doc: "\"source:target[:ro]\"; a relative source is below the task's directory"},
	{Name: "mount", Type: Blocks, Inner: DockerMount, Doc: "mounts: type, source, target, readonly, bind_options, tmpfs_options, volume_options"},
	{Name: "mounts", Type: Blocks, Inner: DockerMount, Doc: "the same"},
	{Name: "devices", Type: Blocks, Inner: DockerDevice, Doc: "device files: host_path, container_path, cgroup_permissions"},
	{Name: "privileged", Type: Bool, Doc: "no wall; where the agent allows it"},
	{Name: "cap_add", Type: List, Doc: "capabilities to have; those that the agent allows"},
	{Name: "cap_drop", Type: List, Doc: "capabilities to do without; \"all\" for all"},
	{Name: "security_opt", Type: List, Doc: "no-new-privileges, and what only loosens where the agent allows privileged containers"},
	{Name: "readonly_rootfs", Type: Bool, Doc: "the image's file system cannot be written"},
	{Name: "init", Type: Bool, Doc: "a small init is process 1"},
	{Name: "interactive", Type: Bool, Doc: "keep standard input open"},
	{Name: "tty", Type: Bool, Doc: "a terminal for the task"},
	{Name: "runtime", Type: String, Doc: "the engine's runtime; of those that the agent allows"},
	{Name: "shm_size", Type: Int, Doc: "size of /dev/shm in bytes"},
	{Name: "storage_opt", Type: Map, Doc: "options of the engine's storage driver"},
	{Name: "sysctl", Type: Map, Doc: "kernel settings of the container's namespaces"},
	{Name: "ulimit", Type: Map, Doc: "limits: name = \"soft:hard\""},
	{Name: "pids_limit", Type: Int, Doc: "most processes and threads at once; default the agent's"},
	{Name: "cpu_hard_limit", Type: Bool, Doc: "make the task's cpu a ceiling and not only a share"},
	{Name: "cpu_cfs_period", Type: Int, Doc: "period of that ceiling in microseconds; default 100,000"},
	{Name: "memory_hard_limit", Type: Int, Doc: "limit in MiB, with the task's memory as reservation"},
	{Name: "oom_score_adj", Type: Int, Doc: "0 to 1000; higher is killed first"},
	{Name: "dns_servers", Type: List, Doc: "resolvers"},
	{Name: "dns_search_domains", Type: List, Doc: "search domains"},
	{Name: "dns_options", Type: List, Doc: "options of the resolver"},
	{Name: "extra_hosts", Type: List, Doc: "\"name:address\" for /etc/hosts"},
	{Name: "group_add", Type: List, Doc: "further groups of the task's user"},
	{Name: "pid_mode", Type: String, Doc: "\"host\" where the agent allows privileged containers"},
	{Name: "ipc_mode", Type: String, Doc: "the same"},
	{Name: "uts_mode", Type: String, Doc: "the same"},
	{Name: "userns_mode", Type: String, Doc: "the same"},
	{Name: "cgroupns", Type: String, Doc: "\"private\", or \"host\" where the agent allows privileged containers"},
	{Name: "logging", Type: Blocks, Inner: DockerLogging, Doc: "accepted with type json-file and local: the agent collects the logs"},
}, Elsewhere: map[string]string{
	"advertise_ipv6_address": "addresses are the node's",
	"group_network":          "set network_mode",
	"healthchecks":           "health is judged by the task's services",
	"image_pull_policy":      "set force_pull",
	"ipv4_address":           "addresses in named networks are the engine's choice",
	"ipv6_address":           "addresses in named networks are the engine's choice",
	"isolation":              "it is for Windows",
	"log_opts":               "set the task's logs block",
	"mac_address":            "addresses are the engine's choice",
	"ssl":                    "the engine knows its registries",
	"volume_driver":          "name it in a mount's volume_options",
}}

// Blocks within docker's config.
var (
	DockerMount = Schema{
		{Name: "type", Type: String}, {Name: "source", Type: String}, {Name: "target", Type: String, Required: true},
		{Name: "readonly", Type: Bool}, {Name: "bind_options", Type: Map}, {Name: "tmpfs_options", Type: Map}, {Name: "volume_options", Type: Blocks, Inner: DockerVolume},
	}

	DockerVolume = Schema{
		{Name: "no_copy", Type: Bool}, {Name: "labels", Type: Map}, {Name: "driver_config", Type: Blocks, Inner: DockerVolumeDriver},
	}

	DockerVolumeDriver = Schema{{Name: "name", Type: String}, {Name: "options", Type: Map}}

	DockerDevice = Schema{
		{Name: "host_path", Type: String, Required: true}, {Name: "container_path", Type: String}, {Name: "cgroup_permissions", Type: String},
	}

	DockerLogging = Schema{
		{Name: "type", Type: String, OneOf: engineLogs, Doc: engineLogsWhy}, {Name: "driver", Type: String, OneOf: engineLogs, Doc: engineLogsWhy}, {Name: "config", Type: Map},
	}
)

// engineLogs are the ways of the engine to keep the output of containers so that an agent can read it.
var engineLogs = []string{"json-file", "local"}

const engineLogsWhy = "the agent collects the output, for which the engine must keep it"

// Exec runs programs in control groups and namespaces of their own.
var Exec = Driver{Name: "exec", Keys: Schema{
	{Name: "command", Type: String, Required: true, Doc: "program to run: absolute, or looked up in the task's directory and in PATH"},
	{Name: "args", Type: List, Doc: "arguments"},
	{Name: "work_dir", Type: String, Doc: "working directory, absolute or relative to the task's; default the task's local directory"},
	{Name: "pids_limit", Type: Int, Doc: "most processes and threads at once; default the agent's"},
	{Name: "cpu_hard_limit", Type: Bool, Doc: "make the task's cpu a ceiling and not only a share"},
	{Name: "nofile_limit", Type: Int, Doc: "most open files of a process; default and most the agent's"},
	{Name: "cap_add", Type: List, Doc: "capabilities to have, of those that the agent allows; a task that is not root has only those that the agent allows by name"},
	{Name: "cap_drop", Type: List, Doc: "capabilities to do without; \"all\" for all"},
	{Name: "pid_mode", Type: String, Doc: "\"private\", the only mode"},
	{Name: "ipc_mode", Type: String, Doc: "\"private\", the only mode"},
	{Name: "rootfs", Type: String, Doc: "directory that becomes the root: in the task's directory, or absolute below one that the agent allows"},
	{Name: "readonly_rootfs", Type: Bool, Doc: "let the task write to nothing but its allocation, /tmp and /dev/shm"},
}}

// Fake runs nothing. It is for tests and simulated nodes.
var Fake = Driver{Name: "fake", Keys: Schema{
	{Name: "command", Type: String, Doc: "shown, not run"},
	{Name: "args", Type: List, Doc: "shown, not used"},
	{Name: "run_for", Type: Duration, Doc: "the task ends after this time; without it, it runs until it is stopped"},
	{Name: "exit_code", Type: Int, Doc: "exit code after run_for, 0 to 255"},
	{Name: "exit_signal", Type: String, Doc: "signal that ends the task after run_for, instead of an exit code"},
	{Name: "exit_err", Type: String, Doc: "error reported with the exit"},
	{Name: "start_err", Type: String, Doc: "makes the start fail with this error"},
	{Name: "start_block_for", Type: Duration, Doc: "how long the start takes"},
	{Name: "kill_after", Type: Duration, Doc: "how long the task runs after a request to stop"},
	{Name: "stdout_string", Type: String, Doc: "written to the task's stdout log at the start"},
}}

// RawExec runs programs of the node, without isolation.
var RawExec = Driver{Name: "raw_exec", Keys: Schema{
	{Name: "command", Type: String, Required: true, Doc: "program to run: absolute, or looked up in the task's directory and in PATH"},
	{Name: "args", Type: List, Doc: "arguments"},
	{Name: "work_dir", Type: String, Doc: "working directory, absolute or relative to the task's; default the task's local directory"},
	{Name: "pids_limit", Type: Int, Doc: "most processes and threads at once; 0 means no limit"},
}}
