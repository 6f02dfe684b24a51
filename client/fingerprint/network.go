package fingerprint

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// speedDefault is the speed, in Mbit/s, of interfaces that do not report one.
const speedDefault = 1000

// network finds the interface of the default route and its addresses. A machine without a route has the loopback.
func (o Options) network(_ context.Context, f *Facts) error {
	name := o.Iface
	if name == "" {
		name = defaultRoute()
	}
	bridge := ""
	if o.Networks != nil {
		bridge = o.Networks.Bridge()
	}
	iface, err := findInterface(name, bridge)
	if err != nil {
		return err
	}
	addrs, err := iface.Addrs()
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", iface.Name, err)
	}
	speed := o.SpeedMB
	if speed == 0 {
		speed = linkSpeed(iface.Name)
	}
	var nets, local []structs.NodeNetwork
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		cidr := n.IP.String() + "/128"
		if n.IP.To4() != nil {
			cidr = n.IP.String() + "/32"
		}
		nn := structs.NodeNetwork{Device: iface.Name, IP: n.IP.String(), CIDR: cidr, MBits: speed}
		if n.IP.IsLinkLocalUnicast() {
			local = append(local, nn)
			continue
		}
		nets = append(nets, nn)
	}
	if len(nets) == 0 {
		nets = local
	}
	if len(nets) == 0 {
		return fmt.Errorf("interface %s has no address", iface.Name)
	}
	nets[0].Alias = "default"
	f.Resources.Networks = nets
	f.Attributes["unique.network.ip-address"] = nets[0].IP
	f.Attributes["unique.network.interface"] = iface.Name
	f.Attributes["network.speed"] = strconv.FormatInt(speed, 10)
	return nil
}

// Networks provides the networks of allocations.
type Networks interface {
	// Unable returns why it cannot, for modes none and bridge.
	Unable() (none, bridge error)
	// Bridge returns the name of the bridge.
	Bridge() string
}

// networks records which networks allocations can have.
func (o Options) networks(_ context.Context, f *Facts) error {
	if o.Networks == nil {
		return nil
	}
	none, bridge := o.Networks.Unable()
	for _, m := range []struct {
		attribute, value string
		lacks            error
	}{{structs.NoneAttribute, "1", none}, {structs.BridgeAttribute, o.Networks.Bridge(), bridge}} {
		if m.lacks != nil {
			f.Attributes[m.attribute+structs.LacksSuffix] = m.lacks.Error()
		} else {
			f.Attributes[m.attribute] = m.value
		}
	}
	return nil
}

// findInterface returns the named interface, or for "" the first suitable one other than the allocations' bridge.
func findInterface(name, not string) (*net.Interface, error) {
	if name != "" {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("network interface %q: %w", name, err)
		}
		return i, nil
	}
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("network interfaces: %w", err)
	}
	var loop *net.Interface
	for i := range all {
		if all[i].Flags&net.FlagUp == 0 || all[i].Name == not {
			continue
		}
		if all[i].Flags&net.FlagLoopback != 0 {
			loop = &all[i]
			continue
		}
		if addrs, err := all[i].Addrs(); err == nil && len(addrs) > 0 {
			return &all[i], nil
		}
	}
	if loop == nil {
		return nil, fmt.Errorf("the machine has no network interface that is up")
	}
	return loop, nil
}

// defaultRoute returns the interface of the IPv4 default route with the least metric, or "".
func defaultRoute() string {
	file, err := os.Open("/proc/net/route")
	if err != nil {
		return ""
	}
	defer file.Close()
	best, bestMetric := "", int64(1)<<62
	for sc := bufio.NewScanner(file); sc.Scan(); {
		// Iface Destination Gateway Flags RefCnt Use Metric Mask ...
		p := strings.Fields(sc.Text())
		if len(p) < 8 || p[1] != "00000000" || p[7] != "00000000" {
			continue
		}
		if m, err := strconv.ParseInt(p[6], 10, 64); err == nil && m < bestMetric {
			best, bestMetric = p[0], m
		}
	}
	return best
}

// linkSpeed returns the kernel's value in Mbit/s, or speedDefault.
func linkSpeed(iface string) int64 {
	b, err := os.ReadFile("/sys/class/net/" + iface + "/speed")
	if err != nil {
		return speedDefault
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || n <= 0 {
		return speedDefault
	}
	return n
}
