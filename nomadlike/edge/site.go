// Package edge decides which connections and requests reach the HTTP API: how many connections a client may have, how
// often it may ask, and which requests of browsers are refused.
package edge

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// Site refuses requests that a web page sends on behalf of another site.
//
// A page can make its visitor's browser send requests to an agent that only the visitor reaches. The browser names the
// page's origin in most of them, and an origin other than the agent is refused. That is not enough: the page's owner
// can point the name of the page at the agent's address (DNS rebinding), and the browser then believes that page and
// agent are one origin. So the name that the browser used must be one of the agent's, which no stranger controls.
type Site struct {
	own     func(host string) bool // or nil
	allowed []string
	origin  *http.CrossOriginProtection
}

// NewSite returns the policy of an agent. It answers to IP addresses, localhost, the hosts for which own returns true,
// and the names in allowed, of which one that starts with "*." means all names below it. Pages of the allowed names may
// send requests too: an agent behind a proxy does not see the name that the browser used.
func NewSite(own func(host string) bool, allowed []string) *Site {
	return &Site{own: own, allowed: allowed, origin: http.NewCrossOriginProtection()}
}

// Check returns an error if a request must not be answered. effects says that the request changes something, even if
// its method is GET.
func (s *Site) Check(r *http.Request, effects bool) error {
	if l, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && l.Network() == "unix" {
		return nil // browsers do not connect to unix sockets
	}
	if host := hostOf(r.Host); !s.answersTo(host) {
		return structs.Errorf(structs.CodeDenied, "this agent does not answer to the host name %q; if it is a name of the agent, add it to http_allowed_hosts in the agent's configuration", clip(host))
	}
	origin := r.Header.Get("Origin")
	if u, err := url.Parse(origin); err == nil && u.Host != "" && s.allows(hostOf(u.Host)) {
		return nil
	}
	// The library lets GET pass, because a page cannot read the answer. It can open a websocket, though, and some GETs
	// of this API change something.
	asPost := *r
	asPost.Method = http.MethodPost
	if s.origin.Check(&asPost) != nil {
		if origin == "" {
			origin = "unknown"
		}
		return structs.Errorf(structs.CodeDenied, "a web page of another site (origin %s) sent this request; if that site is this agent behind a proxy, add its host name to http_allowed_hosts in the agent's configuration", clip(origin))
	}
	// Browsers send no Sec-Fetch-Site to plain http, and no Origin with a GET, such as one for an image.
	if effects && origin == "" && r.Header.Get("Sec-Fetch-Site") == "" && strings.HasPrefix(r.UserAgent(), "Mozilla/") && !preflighted(r) {
		return structs.Errorf(structs.CodeDenied, "a browser sent this request without saying which site it comes from; send it with the header X-Nomad-Token or the content type application/json (http_allowed_hosts does not change this)")
	}
	return nil
}

// preflighted reports whether a request has a header that a page can send to another site only with that site's
// permission, which this API never gives.
func preflighted(r *http.Request) bool {
	if r.Header.Get("X-Nomad-Token") != "" || r.Header.Get("X-Muster-Token") != "" || r.Header.Get("Authorization") != "" {
		return true
	}
	return strings.HasPrefix(r.Header.Get("Content-Type"), "application/json")
}

func (s *Site) answersTo(host string) bool {
	if host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") { // "": HTTP/1.0, which no browser speaks
		return true
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return s.allows(host) || s.own != nil && s.own(host)
}

func (s *Site) allows(host string) bool {
	for _, a := range s.allowed {
		if a == host {
			return true
		}
		if below, ok := strings.CutPrefix(a, "*"); ok && strings.HasSuffix(host, below) && len(host) > len(below) {
			return true
		}
	}
	return false
}

// hostOf returns the host of "HOST" or "HOST:PORT" in lower case, without brackets and final dot.
func hostOf(s string) string {
	if h, _, err := net.SplitHostPort(s); err == nil {
		s = h
	}
	s = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	return strings.ToLower(strings.TrimSuffix(s, "."))
}

// clip shortens what a client sent for an error message.
func clip(s string) string {
	if len(s) > 120 {
		return s[:120] + "..."
	}
	return s
}
