package edge

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestSite lists requests as clients and browsers send them, and whether they are answered.
func TestSite(t *testing.T) {
	site := NewSite(func(host string) bool { return host == "one" || host == "one.cluster.lan" }, []string{"muster.example.com", "*.proxy.example"})
	const mozilla = "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0"
	for _, c := range []struct {
		name   string
		method string
		host   string
		header string // "Name: value", separated by |
		refuse string // part of the refusal; "" for none
	}{
		{"curl", "GET", "127.0.0.1:4646", "User-Agent: curl/8.5.0", ""},
		{"curl posts a form", "POST", "localhost:4646", "User-Agent: curl/8.5.0|Content-Type: application/x-www-form-urlencoded", ""},
		{"Nomad's client", "PUT", "[::1]:4646", "User-Agent: Go-http-client/1.1|Accept-Encoding: gzip", ""},
		{"an address without port", "GET", "10.1.2.3", "", ""},
		{"an IPv6 address without brackets' port", "GET", "[fd00::1]", "", ""},
		{"HTTP/1.0 without a host", "GET", "", "", ""},
		{"the agent's name", "PUT", "one:4646", "", ""},
		{"its full name in capitals with a dot", "PUT", "One.Cluster.LAN.:4646", "", ""},
		{"a name of the setting", "PUT", "muster.example.com", "", ""},
		{"a name below one of the setting", "PUT", "a.b.proxy.example:80", "", ""},
		{"the name above it", "PUT", "proxy.example", "", "http_allowed_hosts"},
		{"a name that ends like it", "PUT", "evilproxy.example", "", "http_allowed_hosts"},
		{"a rebound name", "GET", "rebind.evil.example:4646", "", `"rebind.evil.example"`},
		{"a rebound name, same origin for the browser", "POST", "rebind.evil.example:4646", "Origin: http://rebind.evil.example:4646|Sec-Fetch-Site: same-origin", "http_allowed_hosts"},
		{"an address with a name around it", "GET", "127.0.0.1.evil.example", "", "http_allowed_hosts"},
		{"localhost as a prefix", "GET", "localhost.evil.example", "", "http_allowed_hosts"},
		{"a form of another site", "POST", "127.0.0.1:4646", "Origin: http://evil.example|Content-Type: text/plain|User-Agent: " + mozilla, "http://evil.example"},
		{"a form of a file", "POST", "127.0.0.1:4646", "Origin: null|Content-Type: text/plain", "another site"},
		{"another port of this machine", "POST", "127.0.0.1:4646", "Origin: http://127.0.0.1:8080", "another site"},
		{"a read of another site", "GET", "127.0.0.1:4646", "Origin: http://evil.example", "another site"},
		{"an image of another site", "GET", "127.0.0.1:4646", "Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: no-cors", "origin unknown"},
		{"a subdomain's page", "GET", "one.cluster.lan:4646", "Sec-Fetch-Site: same-site", "another site"},
		{"a websocket of another site", "GET", "127.0.0.1:4646", "Origin: http://evil.example|Upgrade: websocket|Sec-Fetch-Site: cross-site", "another site"},
		{"a preflight", "OPTIONS", "127.0.0.1:4646", "Origin: http://evil.example|Access-Control-Request-Method: PUT", "another site"},
		{"an own page", "POST", "127.0.0.1:4646", "Origin: http://127.0.0.1:4646|Sec-Fetch-Site: same-origin", ""},
		{"an own page without Sec-Fetch-Site", "POST", "10.0.0.5:4646", "Origin: http://10.0.0.5:4646", ""},
		{"typed into the address bar", "GET", "localhost:4646", "Sec-Fetch-Site: none|User-Agent: " + mozilla, ""},
		{"a page behind a proxy that changes the host", "POST", "10.0.0.5:4646", "Origin: https://muster.example.com", ""},
		{"an image over plain http", "GET", "10.0.0.5:4646", "User-Agent: " + mozilla, ""},
		{"an image over plain http that changes something", "GET effects", "10.0.0.5:4646", "User-Agent: " + mozilla, "which site"},
		{"a form over plain http without origin", "POST", "10.0.0.5:4646", "Content-Type: text/plain|User-Agent: " + mozilla, "which site"},
		{"a browser with a token", "GET effects", "10.0.0.5:4646", "X-Nomad-Token: x|User-Agent: " + mozilla, ""},
		{"a browser that sends JSON", "PUT", "10.0.0.5:4646", "Content-Type: application/json; charset=utf-8|User-Agent: " + mozilla, ""},
		{"a program that collects garbage", "GET effects", "10.0.0.5:4646", "User-Agent: Go-http-client/1.1", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			method, _, effects := strings.Cut(c.method, " ")
			r := httptest.NewRequest(method, "/v1/jobs", nil)
			r.Host = c.host
			for _, h := range strings.Split(c.header, "|") {
				if k, v, ok := strings.Cut(h, ": "); ok {
					r.Header.Set(k, v)
				}
			}
			err := site.Check(r, effects || method != "GET")
			if c.refuse == "" && err != nil || c.refuse != "" && (err == nil || !strings.Contains(err.Error(), c.refuse) || !strings.Contains(err.Error(), "http_allowed_hosts")) {
				t.Errorf("got %v, want a refusal with %q", err, c.refuse)
			}
		})
	}
	r := httptest.NewRequest("PUT", "/v1/jobs", nil)
	r.Host = "unix"
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(&net.UnixAddr{Net: "unix"})))
	if err := site.Check(r, true); err != nil {
		t.Errorf("a request at a unix socket: %v", err)
	}
}
