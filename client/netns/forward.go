package netns

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// iptablesPatience limits one run of iptables, which waits for other programs that change rules.
const iptablesPatience = 10 * time.Second

func iptables(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), iptablesPatience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "iptables", append([]string{"-w", "5"}, args...)...).CombinedOutput()
	return string(out), err
}

// forwards returns the rules that accept packets of the bridge: those that it sends, and those that answer or were sent
// to a port.
func forwards(bridge string) [][]string {
	comment := []string{"-m", "comment", "--comment", "muster: network of allocations"}
	return [][]string{
		slices.Concat([]string{"-i", bridge}, comment, []string{"-j", "ACCEPT"}),
		slices.Concat([]string{"-o", bridge, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED,DNAT"}, comment, []string{"-j", "ACCEPT"}),
	}
}

// allowForward inserts two rules into the node's chain FORWARD if its policy is DROP, as a Docker Engine sets it: no
// other table could accept what this one drops. Otherwise it changes nothing. A failure is logged, and retried by the
// next Sweep.
func (m *Manager) allowForward() {
	if _, err := exec.LookPath("iptables"); err != nil {
		return
	}
	list, err := iptables("-S", "FORWARD")
	if err != nil || !strings.Contains(list, "-P FORWARD DROP") {
		return
	}
	for _, r := range forwards(m.cfg.Bridge) {
		if _, err := iptables(append([]string{"-C", "FORWARD"}, r...)...); err == nil {
			continue
		}
		if out, err := iptables(append([]string{"-I", "FORWARD"}, r...)...); err != nil {
			m.log.Warn("the node drops what is forwarded, and the bridge network could not be excepted", "error", err, "output", strings.TrimSpace(out))
			return
		}
	}
}

// forbidForward removes the rules.
func (m *Manager) forbidForward() {
	if _, err := exec.LookPath("iptables"); err != nil {
		return
	}
	for _, r := range forwards(m.cfg.Bridge) {
		_, _ = iptables(append([]string{"-D", "FORWARD"}, r...)...) // most nodes have none
	}
}
