// Package egress decides which addresses an agent connects to for URLs that users give: of artifacts, checks and
// checkpoints. An agent reaches more than a user's task may, such as the cloud's metadata service, which hands out the
// machine's credentials.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"syscall"
	"time"
)

// Rules are the exceptions from the addresses that a Filter refuses by default. Prefixes are written "10.0.0.0/8".
type Rules struct {
	Allow    []string // addresses that are refused by default
	Deny     []string // further addresses to refuse; they win over Allow
	Loopback bool     // loopback is not refused: tasks of this node listen there
}

// reserved are the addresses that are refused by default.
var reserved = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local, where clouds have their metadata service"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fd00:ec2::254/128"), "a cloud's metadata service"},
	{netip.MustParsePrefix("fd20:ce::254/128"), "a cloud's metadata service"},
	{netip.MustParsePrefix("100.100.100.200/32"), "a cloud's metadata service"},
	{netip.MustParsePrefix("192.0.0.192/32"), "a cloud's metadata service"},
	{netip.MustParsePrefix("168.63.129.16/32"), "a cloud's host"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},
}

// loopback are the addresses that lead back to the machine; 0.0.0.0 and :: do so when they are dialled.
var loopback = prefixes("127.0.0.0/8", "::1/128", "0.0.0.0/8", "::/128")

// nat64 embeds IPv4 addresses in IPv6 ones.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// ErrRefused marks addresses that a Filter refuses.
var ErrRefused = errors.New("address refused")

type refusal struct {
	addr netip.Addr
	why  string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("the address %s is refused: %s; the operator of the node can allow it with allow in the block client.egress", r.addr, r.why)
}

func (r *refusal) Is(target error) bool { return target == ErrRefused }

// Filter refuses addresses.
type Filter struct {
	allow, deny []netip.Prefix
	loopback    bool
	proxies     sync.Map // "host:port" of the operator's proxies
}

// New returns the filter with these exceptions.
func New(r Rules) (*Filter, error) {
	f := &Filter{loopback: r.Loopback}
	for _, l := range []struct {
		in  []string
		out *[]netip.Prefix
	}{{r.Allow, &f.allow}, {r.Deny, &f.deny}} {
		for _, s := range l.in {
			p, err := netip.ParsePrefix(s)
			if err != nil {
				return nil, fmt.Errorf("%.60q: want a range of addresses such as 10.0.0.0/8 or fd00::/8", s)
			}
			*l.out = append(*l.out, p.Masked())
		}
	}
	return f, nil
}

var local, _ = New(Rules{Loopback: true}) // without prefixes it cannot fail

// Local returns f, or for nil the filter without exceptions of requests to tasks of this node.
func (f *Filter) Local() *Filter {
	if f == nil {
		return local
	}
	return f
}

// Check returns an error that is ErrRefused if the agent must not connect to the address.
func (f *Filter) Check(a netip.Addr) error {
	a = a.Unmap().WithZone("")
	if nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	in := func(list []netip.Prefix) bool {
		for _, p := range list {
			if p.Contains(a) {
				return true
			}
		}
		return false
	}
	if in(f.deny) {
		return &refusal{a, "the operator denies it"}
	}
	if in(f.allow) {
		return nil
	}
	if !f.loopback && in(loopback) {
		return &refusal{a, "it is the machine itself"}
	}
	for _, r := range reserved {
		if r.prefix.Contains(a) {
			return &refusal{a, "it is " + r.what}
		}
	}
	return nil
}

// Dialer returns a dialer that checks the address right before it connects, so that a name cannot mean another address
// by then.
func (f *Filter) Dialer() *net.Dialer {
	return &net.Dialer{Timeout: 30 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%q is no address: %w", address, err)
		}
		return f.Check(ap.Addr())
	}}
}

// Resolve returns the addresses of a host if all of them are allowed. It is for programs that connect by themselves;
// they must be given one of the addresses.
func (f *Filter) Resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	for _, a := range list {
		if err := f.Check(a); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Transport returns a transport that connects to allowed addresses only, redirects included. With proxied, requests go
// through the proxy that the environment names, if any; it may be anywhere, and connects by itself, so the host of the
// URL is checked before.
func (f *Filter) Transport(proxied bool) *http.Transport {
	t := &http.Transport{TLSHandshakeTimeout: 10 * time.Second, ForceAttemptHTTP2: true}
	filtered, plain := f.Dialer(), &net.Dialer{Timeout: 30 * time.Second}
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if _, ok := f.proxies.Load(addr); ok {
			return plain.DialContext(ctx, network, addr)
		}
		return filtered.DialContext(ctx, network, addr)
	}
	if proxied {
		t.Proxy = func(r *http.Request) (*url.URL, error) { return f.Proxy(r) }
	}
	return t
}

// Proxy returns the proxy that the environment names for a request, or nil.
func (f *Filter) Proxy(r *http.Request) (*url.URL, error) {
	u, err := http.ProxyFromEnvironment(r)
	if u == nil || err != nil {
		return nil, err
	}
	if _, err := f.Resolve(r.Context(), r.URL.Hostname()); errors.Is(err, ErrRefused) {
		return nil, err // a name that only the proxy can resolve is its business
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	f.proxies.Store(net.JoinHostPort(u.Hostname(), port), true)
	return u, nil
}
