package docker

import (
	"fmt"
	"strings"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/internal/driverconf"
)

// ConfigSchema lists the config keys: those of Nomad's docker driver that are supported.
func (d *Driver) ConfigSchema() driver.Schema { return driver.Schema(driverconf.Docker.Keys) }

// decode checks a task's config block.
func (d *Driver) decode(config map[string]any) (driver.Values, error) {
	for _, p := range driverconf.Docker.Unsupported(config) {
		return nil, refuse("%s", p.Text)
	}
	v, err := d.ConfigSchema().Decode("docker", config)
	if err != nil {
		return nil, err
	}
	for _, b := range v.Blocks("logging") {
		if _, err := driver.Schema(driverconf.DockerLogging).Decode("docker: logging", b); err != nil {
			return nil, err
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
