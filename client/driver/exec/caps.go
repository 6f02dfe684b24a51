package exec

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/driver"
)

// DefaultCaps are the capabilities of a task that is root, and those that cap_add may name, unless the agent configures
// others: those of Nomad's exec driver.
var DefaultCaps = []string{
	"audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service", "setfcap", "setgid", "setpcap", "setuid", "sys_chroot",
}

// capabilities are the names of all capabilities, in the order of their numbers.
var capabilities = []string{
	"chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "linux_immutable", "net_bind_service",
	"net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner", "sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct", "sys_admin",
	"sys_boot", "sys_nice", "sys_resource", "sys_time", "sys_tty_config", "mknod", "lease", "audit_write", "audit_control", "setfcap", "mac_override",
	"mac_admin", "syslog", "wake_alarm", "block_suspend", "audit_read", "perfmon", "bpf", "checkpoint_restore",
}

// capBit finds a capability by its name, with or without CAP_, in any case.
func capBit(name string) (uint64, bool) {
	i := slices.Index(capabilities, strings.TrimPrefix(strings.ToLower(name), "cap_"))
	return 1 << max(i, 0), i >= 0
}

// ParseCaps turns names into a mask. "all" means every capability.
func ParseCaps(names []string) (uint64, error) {
	var mask uint64
	for _, n := range names {
		if strings.EqualFold(n, "all") {
			mask |= 1<<(unix.CAP_LAST_CAP+1) - 1
			continue
		}
		bit, ok := capBit(n)
		if !ok {
			return 0, fmt.Errorf("%q is not a capability", n)
		}
		mask |= bit
	}
	return mask, nil
}

// harmless are capabilities that a task may have without being root even if the operator has not named them.
const harmless = 1 << unix.CAP_NET_BIND_SERVICE

// capMask returns the capabilities of a task that is root, and those of any other task: what it asked for by name, if
// the operator has allowed it by name. The default set is only for root tasks; most of it would make another task root.
func capMask(v driver.Values, allow []string) (mask, ambient uint64, err error) {
	safe := ^uint64(0)
	if allow == nil {
		allow, safe = DefaultCaps, harmless
	}
	allowed, err := ParseCaps(allow)
	if err != nil {
		return 0, 0, fmt.Errorf("exec: allow_caps of this node: %w", err)
	}
	std, _ := ParseCaps(DefaultCaps)
	drop, err := ParseCaps(v.List("cap_drop"))
	if err != nil {
		return 0, 0, driver.Permanent(fmt.Errorf("exec: config key \"cap_drop\": %w", err))
	}
	added, err := ParseCaps(v.List("cap_add"))
	if err != nil {
		return 0, 0, driver.Permanent(fmt.Errorf("exec: config key \"cap_add\": %w", err))
	}
	if no := added &^ allowed; no != 0 {
		var names []string
		for i, n := range capabilities {
			if no&(1<<i) != 0 {
				names = append(names, n)
			}
		}
		return 0, 0, driver.Permanent(fmt.Errorf("exec: config key \"cap_add\": this node does not allow %s (plugin \"exec\", allow_caps)", strings.Join(names, ", ")))
	}
	return std&allowed&^drop | added, added & safe, nil
}
