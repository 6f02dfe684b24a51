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

// filterTable is the name of the nftables table of packets that a host drops.
const filterTable = "faults"

// Filter is which packets a host drops, by nftables in its namespace. Programs notice nothing but silence.
type Filter struct {
	From []*Host // packets from these hosts are dropped on arrival
	To   []*Host // packets to these hosts are never sent
	Loss uint32  // percent of all packets that arrive or leave
}

// Drop replaces the host's filter. The zero Filter lets everything pass.
func (h *Host) Drop(f Filter) {
	h.net.t.Helper()
	if err := h.drop(f); err != nil {
		h.net.t.Fatalf("nftables on %s: %v", h.Name, err)
	}
}

func (h *Host) drop(f Filter) error {
	ns, err := os.Open(h.Namespace())
	if err != nil {
		return err
	}
	defer ns.Close()
	c, err := nftables.New(nftables.WithNetNSFd(int(ns.Fd())))
	if err != nil {
		return err
	}
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: filterTable}
	c.AddTable(t) // a table must exist to be deleted
	c.DelTable(t)
	c.AddTable(t)
	chain := func(name string, hook *nftables.ChainHook, peers []*Host, offset uint32) {
		ch := c.AddChain(&nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter})
		drop := &expr.Verdict{Kind: expr.VerdictDrop}
		for _, p := range peers {
			c.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: []expr.Any{
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: net.ParseIP(p.IP).To4()},
				drop,
			}})
		}
		if f.Loss > 0 {
			c.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: []expr.Any{
				&expr.Numgen{Register: 1, Modulus: 100, Type: unix.NFT_NG_RANDOM},
				&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
				&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: binary.BigEndian.AppendUint32(nil, f.Loss)},
				drop,
			}})
		}
	}
	const source, destination = 12, 16 // in the header of IPv4
	chain("arriving", nftables.ChainHookInput, f.From, source)
	chain("leaving", nftables.ChainHookOutput, f.To, destination)
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
