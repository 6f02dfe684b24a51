package agent

import (
	"net"
	"os"
	"strings"
)

// ownHosts returns a predicate for the host names of this agent: its name, the machine's, those that it
// advertises, and those in its certificate, which may change when it is loaded again.
func (a *Agent) ownHosts() func(host string) bool {
	own := map[string]bool{strings.ToLower(a.cfg.Name): true, strings.ToLower(a.cfg.Name + "." + a.cfg.Region): true}
	if name, err := os.Hostname(); err == nil {
		own[strings.ToLower(name)] = true
	}
	for _, addr := range []string{a.cfg.HTTP, a.cfg.RPC, a.cfg.Gossip, a.cfg.AdvertiseHTTP, a.cfg.AdvertiseRPC, a.cfg.AdvertiseGossip} {
		if host, _, err := net.SplitHostPort(addr); err == nil && host != "" {
			own[strings.ToLower(host)] = true
		}
	}
	return func(host string) bool {
		return own[host] || a.tls != nil && a.tls.Leaf().VerifyHostname(host) == nil
	}
}
