package runner

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/netns"
	"github.com/muster-sched/muster/client/taskenv"
	"github.com/muster-sched/muster/client/taskfs"
	"github.com/muster-sched/muster/structs"
)

// Networks creates the networks of allocations.
type Networks interface {
	Setup(alloc string, w netns.Want) (*netns.Attached, error)
	Get(alloc string) *netns.Attached
	Release(alloc string) error
}

// buildNetwork creates the network that the tasks of the allocation share, or finds an existing one.
func buildNetwork(_ context.Context, r *Runner) error {
	g := r.group()
	if g == nil || g.OwnNetwork() == "" {
		return nil
	}
	if r.cfg.Host.Networks == nil {
		return fmt.Errorf("this node has no network of mode %s", g.NetworkMode())
	}
	want := netns.Want{Bridge: g.OwnNetwork() == structs.NetworkBridge}
	for _, p := range r.Alloc().Ports {
		m := netns.Port{Host: p.Value, To: p.To}
		if m.To <= 0 {
			m.To = p.Value
		}
		if named(g, p.Label) {
			m.HostIP = p.HostIP
		}
		want.Ports = append(want.Ports, m)
	}
	if _, err := r.cfg.Host.Networks.Setup(r.id.String(), want); err != nil {
		return err
	}
	r.services.mu.Lock()
	r.services.alloc = nil // offers depend on the address: compute them again
	r.services.mu.Unlock()
	return nil
}

// named reports whether the port was requested on a named host network. Other ports listen on all addresses of the
// node.
func named(g *structs.Group, label string) bool {
	for _, n := range g.Networks {
		for _, p := range slices.Concat(n.StaticPorts, n.DynamicPorts) {
			if p.Label == label {
				return p.HostNetwork != "" && p.HostNetwork != "default"
			}
		}
	}
	return false
}

func dropNetwork(r *Runner) {
	if r.cfg.Host.Networks == nil {
		return
	}
	if err := r.cfg.Host.Networks.Release(r.id.String()); err != nil {
		r.log().Warn("the network of an allocation that has ended is left; it is removed later", "error", err)
	}
}

// network returns the allocation's own network, or nil. Without a bridge it has no address.
func (r *Runner) network() *netns.Attached {
	if r.cfg.Host.Networks == nil {
		return nil
	}
	if g := r.group(); g == nil || g.OwnNetwork() == "" {
		return nil
	}
	return r.cfg.Host.Networks.Get(r.id.String())
}

// address returns the allocation's own network for the tasks' variables, or nil.
func (r *Runner) address() *taskenv.Network {
	n := r.network()
	if n == nil || n.IP == "" {
		return nil
	}
	return &taskenv.Network{IP: n.IP, Interface: netns.Interface}
}

// setNetwork fills in the allocation's network, its ports, and the task's /etc/hosts and /etc/resolv.conf.
func setNetwork(_ context.Context, a *attempt) error {
	r := a.task.r
	for _, p := range r.Alloc().Ports {
		a.config.Ports = append(a.config.Ports, driver.Port{Label: p.Label, HostIP: p.HostIP, Host: p.Value, To: p.To})
	}
	g := r.group()
	if g == nil || len(g.Networks) == 0 {
		return nil
	}
	block := &g.Networks[0]
	a.config.Network = block.Mode
	own := g.OwnNetwork()
	if j, ok := a.driver.(driver.NetworkJoiner); own != "" && ok && j.JoinsNetwork() {
		n := r.network()
		if n == nil {
			return errors.New("the allocation's network is gone")
		}
		a.config.NetNS = n.Path
	} else if own == structs.NetworkBridge {
		return driver.Permanent(fmt.Errorf("tasks of driver %q cannot join the network of their allocation", a.spec.Driver))
	}
	if elsewhere(a.driver) != nil || r.dir == nil {
		return nil
	}
	return a.writeEtc(block)
}

// etcDir holds the files that a task sees in /etc, below the allocation's directory.
const etcDir = ".etc"

// writeEtc writes the task's /etc/hosts and /etc/resolv.conf where they differ from the node's.
func (a *attempt) writeEtc(block *structs.Network) error {
	r := a.task.r
	at := r.address()
	files := map[string]string{}
	if at != nil {
		name := a.env.Replace(block.Hostname)
		if name != "" {
			if err := structs.CheckHostname(name); err != nil {
				return driver.Permanent(fmt.Errorf("hostname: %w", err))
			}
			a.config.Hostname = name
		} else if name, _ = os.Hostname(); name == "" {
			name = r.id.Short()
		}
		files["hosts"] = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n" + at.IP + " " + name + "\n"
	}
	if d := block.DNS; d != nil && len(d.Servers)+len(d.Searches)+len(d.Options) > 0 {
		files["resolv.conf"] = resolver(d, nodeResolver(at != nil))
	} else if at != nil {
		files["resolv.conf"] = nodeResolver(true)
	}
	if len(files) == 0 {
		return nil
	}
	dir, err := r.dir.Private(filepath.Join(etcDir, a.spec.Name), 0o755)
	if err != nil {
		return fmt.Errorf("files of the task's network: %w", err)
	}
	defer dir.Close()
	for _, name := range []string{"hosts", "resolv.conf"} {
		text, ok := files[name]
		if !ok {
			continue
		}
		if err := dir.Replace(name, []byte(text), 0o644, taskfs.Agent); err != nil { // an ended run may still have the old one mounted
			return fmt.Errorf("files of the task's network: %w", err)
		}
		a.config.Etc = append(a.config.Etc, driver.Mount{Source: filepath.Join(r.dir.Root, etcDir, a.spec.Name, name), Target: "/etc/" + name, ReadOnly: true})
	}
	return nil
}

// resolver returns a resolv.conf with the job's settings. The node's apply where the job sets none.
func resolver(d *structs.DNS, node string) string {
	var b strings.Builder
	kept := func(key string) {
		for line := range strings.Lines(node) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == key {
				b.WriteString(strings.Join(f, " ") + "\n")
			}
		}
	}
	if len(d.Searches) > 0 {
		b.WriteString("search " + strings.Join(d.Searches, " ") + "\n")
	} else {
		kept("search")
	}
	if len(d.Servers) > 0 {
		for _, s := range d.Servers {
			b.WriteString("nameserver " + s + "\n")
		}
	} else {
		kept("nameserver")
	}
	if len(d.Options) > 0 {
		b.WriteString("options " + strings.Join(d.Options, " ") + "\n")
	} else {
		kept("options")
	}
	return b.String()
}

// Files that name the node's DNS servers. The second is the upstream list of systemd-resolved, which itself listens on
// a loopback address: that address is unreachable from an allocation's own network.
var resolvers = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// nodeResolver returns the node's resolv.conf. With elsewhere it leaves out loopback servers, which cannot be reached
// from another network.
func nodeResolver(elsewhere bool) string {
	for _, path := range resolvers {
		b, err := os.ReadFile(path)
		if err != nil || len(b) > 64<<10 {
			continue
		}
		if !elsewhere {
			return string(b)
		}
		var out strings.Builder
		servers := 0
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" {
				if ip, err := netip.ParseAddr(f[1]); err == nil && ip.IsLoopback() {
					continue
				}
				servers++
			}
			out.WriteString(line)
		}
		if servers > 0 {
			return out.String()
		}
	}
	return ""
}
