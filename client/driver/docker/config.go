package docker

import (
	"fmt"
	"strings"

	"github.com/muster-sched/muster/client/driver"
)

// ConfigSchema lists the config keys: those of Nomad's docker driver that are supported.
func (d *Driver) ConfigSchema() driver.Schema { return schema }

var schema = driver.Schema{
	{Name: "image", Type: driver.String, Required: true, Doc: "image to run: name, with tag or digest"},
	{Name: "command", Type: driver.String, Doc: "program in place of the image's command"},
	{Name: "args", Type: driver.List, Doc: "arguments"},
	{Name: "entrypoint", Type: driver.List, Doc: "in place of the image's entrypoint"},
	{Name: "load", Type: driver.String, Doc: "archive with the image (docker save), below the task's directory"},
	{Name: "force_pull", Type: driver.Bool, Doc: "ask the registry even when the image is there"},
	{Name: "image_pull_timeout", Type: driver.Duration, Doc: "how long a pull may take; default as long as it makes progress"},
	{Name: "auth", Type: driver.Map, Doc: "credentials for the registry: username, password, server_address"},
	{Name: "auth_soft_fail", Type: driver.Bool, Doc: "without credentials of the agent, pull without any"},
	{Name: "work_dir", Type: driver.String, Doc: "working directory in the container"},
	{Name: "hostname", Type: driver.String, Doc: "host name in the container"},
	{Name: "labels", Type: driver.Map, Doc: "labels of the container"},
	{Name: "network_mode", Type: driver.String, Doc: "host, none, bridge, or the name of one of the engine's networks"},
	{Name: "network_aliases", Type: driver.List, Doc: "further names in a named network"},
	{Name: "ports", Type: driver.List, Doc: "labels of the group's ports to publish"},
	{Name: "port_map", Type: driver.Map, Doc: "port in the container, by label"},
	{Name: "volumes", Type: driver.List, Doc: "\"source:target[:ro]\"; a relative source is below the task's directory"},
	{Name: "mount", Type: driver.Blocks, Doc: "mounts: type, source, target, readonly, bind_options, tmpfs_options, volume_options"},
	{Name: "mounts", Type: driver.Blocks, Doc: "the same"},
	{Name: "devices", Type: driver.Blocks, Doc: "device files: host_path, container_path, cgroup_permissions"},
	{Name: "privileged", Type: driver.Bool, Doc: "no wall; where the agent allows it"},
	{Name: "cap_add", Type: driver.List, Doc: "capabilities to have; those that the agent allows"},
	{Name: "cap_drop", Type: driver.List, Doc: "capabilities to do without; \"all\" for all"},
	{Name: "security_opt", Type: driver.List, Doc: "no-new-privileges, and what only loosens where the agent allows privileged containers"},
	{Name: "readonly_rootfs", Type: driver.Bool, Doc: "the image's file system cannot be written"},
	{Name: "init", Type: driver.Bool, Doc: "a small init is process 1"},
	{Name: "interactive", Type: driver.Bool, Doc: "keep standard input open"},
	{Name: "tty", Type: driver.Bool, Doc: "a terminal for the task"},
	{Name: "runtime", Type: driver.String, Doc: "the engine's runtime; of those that the agent allows"},
	{Name: "shm_size", Type: driver.Int, Doc: "size of /dev/shm in bytes"},
	{Name: "storage_opt", Type: driver.Map, Doc: "options of the engine's storage driver"},
	{Name: "sysctl", Type: driver.Map, Doc: "kernel settings of the container's namespaces"},
	{Name: "ulimit", Type: driver.Map, Doc: "limits: name = \"soft:hard\""},
	{Name: "pids_limit", Type: driver.Int, Doc: "most processes and threads at once; default the agent's"},
	{Name: "cpu_hard_limit", Type: driver.Bool, Doc: "make the task's cpu a ceiling and not only a share"},
	{Name: "cpu_cfs_period", Type: driver.Int, Doc: "period of that ceiling in microseconds; default 100,000"},
	{Name: "memory_hard_limit", Type: driver.Int, Doc: "limit in MiB, with the task's memory as reservation"},
	{Name: "oom_score_adj", Type: driver.Int, Doc: "0 to 1000; higher is killed first"},
	{Name: "dns_servers", Type: driver.List, Doc: "resolvers"},
	{Name: "dns_search_domains", Type: driver.List, Doc: "search domains"},
	{Name: "dns_options", Type: driver.List, Doc: "options of the resolver"},
	{Name: "extra_hosts", Type: driver.List, Doc: "\"name:address\" for /etc/hosts"},
	{Name: "group_add", Type: driver.List, Doc: "further groups of the task's user"},
	{Name: "pid_mode", Type: driver.String, Doc: "\"host\" where the agent allows privileged containers"},
	{Name: "ipc_mode", Type: driver.String, Doc: "the same"},
	{Name: "uts_mode", Type: driver.String, Doc: "the same"},
	{Name: "userns_mode", Type: driver.String, Doc: "the same"},
	{Name: "cgroupns", Type: driver.String, Doc: "\"private\", or \"host\" where the agent allows privileged containers"},
	{Name: "logging", Type: driver.Blocks, Doc: "accepted with type json-file and local: the agent collects the logs"},
}

// elsewhere lists keys of Nomad's docker driver that this one does not support, and why.
var elsewhere = map[string]string{
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
}

var mountSchema = driver.Schema{
	{Name: "type", Type: driver.String}, {Name: "source", Type: driver.String}, {Name: "target", Type: driver.String, Required: true},
	{Name: "readonly", Type: driver.Bool}, {Name: "bind_options", Type: driver.Map}, {Name: "tmpfs_options", Type: driver.Map}, {Name: "volume_options", Type: driver.Blocks},
}

var volumeSchema = driver.Schema{
	{Name: "no_copy", Type: driver.Bool}, {Name: "labels", Type: driver.Map}, {Name: "driver_config", Type: driver.Blocks},
}

var volumeDriverSchema = driver.Schema{{Name: "name", Type: driver.String}, {Name: "options", Type: driver.Map}}

var deviceSchema = driver.Schema{
	{Name: "host_path", Type: driver.String, Required: true}, {Name: "container_path", Type: driver.String}, {Name: "cgroup_permissions", Type: driver.String},
}

var loggingSchema = driver.Schema{
	{Name: "type", Type: driver.String}, {Name: "driver", Type: driver.String}, {Name: "config", Type: driver.Map},
}

// decode checks a task's config block.
func (d *Driver) decode(config map[string]any) (driver.Values, error) {
	for k, why := range elsewhere {
		if v, ok := config[k]; ok && v != nil {
			return nil, refuse("config key %q is not supported: %s", k, why)
		}
	}
	v, err := schema.Decode("docker", config)
	if err != nil {
		return nil, err
	}
	for _, b := range v.Blocks("logging") {
		l, err := loggingSchema.Decode("docker: logging", b)
		if err != nil {
			return nil, err
		}
		typ := l.String("type")
		if typ == "" {
			typ = l.String("driver")
		}
		if typ != "" && typ != "json-file" && typ != "local" {
			return nil, refuse("config key \"logging\": type %q is not supported: the agent collects the logs, for which the engine must keep them (json-file or local)", typ)
		}
	}
	for k := range v.Map("auth") {
		switch k {
		case "username", "password", "email", "server_address":
		default:
			return nil, refuse("config key \"auth\": unknown key %q (valid keys: password, server_address, username)", k)
		}
	}
	return v, nil
}

// refuse makes an error that another attempt cannot cure.
func refuse(format string, args ...any) error {
	return driver.Permanent(fmt.Errorf("docker: "+format, args...))
}

// capability converts a name to the spelling of the agent's list.
func capability(s string) string { return strings.TrimPrefix(strings.ToLower(s), "cap_") }
