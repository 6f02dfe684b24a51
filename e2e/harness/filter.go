package harness

import (
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Silence drops what one host sends to another, one way only: programs notice nothing but silence. Hear undoes it.
func (n *Net) Silence(from, to *Host) { n.setFilter(from, to, 100) }

// Hear undoes Silence.
func (n *Net) Hear(from, to *Host) { n.setFilter(from, to, 0) }

// Lose drops so many percent of the packets that other hosts send to this one. 0 undoes it.
func (h *Host) Lose(percent uint32) { h.net.setFilter(nil, h, percent) }

// route is what goes from one host (nil: any) to another.
type route struct{ from, to *Host }

func (n *Net) setFilter(from, to *Host, percent uint32) {
	n.t.Helper()
	if n.drops == nil {
		n.drops = map[route]uint32{}
	}
	n.drops[route{from, to}] = percent
	if err := n.filter(); err != nil {
		n.t.Fatalf("nftables on the switch: %v", err)
	}
}

// filter replaces the table of the switch:
//
//	table bridge faults { chain forward { type filter hook forward priority 0; ip saddr A ip daddr B drop; ... } }
//
// Rules of the host itself would not be silent: a packet that is dropped where it is sent is an error of send.
func (n *Net) filter() error {
	ns, err := os.Open("/var/run/netns/" + n.sw)
	if err != nil {
		return err
	}
	defer ns.Close()
	c, err := nftables.New(nftables.WithNetNSFd(int(ns.Fd())))
	if err != nil {
		return err
	}
	t := &nftables.Table{Family: nftables.TableFamilyBridge, Name: "faults"}
	c.AddTable(t) // a table must exist to be deleted
	c.DelTable(t)
	c.AddTable(t)
	ch := c.AddChain(&nftables.Chain{Name: "forward", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	for r, percent := range n.drops {
		if percent == 0 {
			continue
		}
		rule := &nftables.Rule{Table: t, Chain: ch}
		match := func(offset uint32, h *Host) {
			rule.Exprs = append(rule.Exprs,
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: net.ParseIP(h.IP).To4()})
		}
		const source, destination = 12, 16 // in the header of IPv4
		if r.from != nil {
			match(source, r.from)
		}
		match(destination, r.to)
		if percent < 100 {
			rule.Exprs = append(rule.Exprs,
				&expr.Numgen{Register: 1, Modulus: 100, Type: unix.NFT_NG_RANDOM},
				&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
				&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: binary.BigEndian.AppendUint32(nil, percent)})
		}
		rule.Exprs = append(rule.Exprs, &expr.Verdict{Kind: expr.VerdictDrop})
		c.AddRule(rule)
	}
	return c.Flush()
}

// Slow delays the packets of a host in both directions, by about 100 ms each way. Where the kernel has no netem, a rate
// of 400 kbit/s makes them queue, and drops what queues for longer than that.
func (h *Host) Slow() {
	h.net.t.Helper()
	for _, at := range h.ends() {
		if netem() {
			h.net.in(at.ns, "tc", "qdisc", "replace", "dev", at.dev, "root", "netem", "delay", "100ms", "50ms")
		} else {
			h.net.in(at.ns, "tc", "qdisc", "replace", "dev", at.dev, "root", "tbf", "rate", "400kbit", "burst", "4kb", "latency", "100ms")
		}
	}
}

// Fast undoes Slow.
func (h *Host) Fast() {
	h.net.t.Helper()
	for _, at := range h.ends() {
		h.net.in(at.ns, "tc", "qdisc", "del", "dev", at.dev, "root")
	}
}

// netem reports whether the kernel can delay packets.
var netem = sync.OnceValue(func() bool {
	return exec.Command("tc", "qdisc", "add", "dev", "lo", "root", "netem", "limit", "1000").Run() == nil &&
		exec.Command("tc", "qdisc", "del", "dev", "lo", "root").Run() == nil
})

type end struct{ ns, dev string }

// ends returns both ends of the host's cable: what leaves the host passes the first, what arrives the second.
func (h *Host) ends() []end { return []end{{h.ns, "eth0"}, {h.net.sw, h.port()}} }
