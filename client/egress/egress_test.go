package egress

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

func filter(t *testing.T, r Rules) *Filter {
	t.Helper()
	f, err := New(r)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestCheck(t *testing.T) {
	strict, checks := filter(t, Rules{}), filter(t, Rules{Loopback: true})
	custom := filter(t, Rules{Allow: []string{"169.254.20.0/24", "127.0.0.0/8", "10.0.0.0/8"}, Deny: []string{"10.0.99.0/24", "192.0.2.0/24"}})
	for _, c := range []struct {
		addr                   string
		strict, checks, custom bool // allowed by which filter
	}{
		{"8.8.8.8", true, true, true},
		{"10.1.2.3", true, true, true},
		{"192.168.1.1", true, true, true},
		{"2001:db8::1", true, true, true},
		{"fd12::1", true, true, true},
		{"127.0.0.1", false, true, true},
		{"127.9.9.9", false, true, true},
		{"::1", false, true, false},
		{"0.0.0.0", false, true, false},
		{"::", false, true, false},
		{"::ffff:127.0.0.1", false, true, true},
		{"169.254.169.254", false, false, false},
		{"169.254.20.7", false, false, true},
		{"::ffff:169.254.169.254", false, false, false},
		{"64:ff9b::a9fe:a9fe", false, false, false},
		{"64:ff9b::8.8.8.8", true, true, true},
		{"fe80::1%eth0", false, false, false},
		{"fd00:ec2::254", false, false, false},
		{"fd20:ce::254", false, false, false},
		{"100.100.100.200", false, false, false},
		{"192.0.0.192", false, false, false},
		{"168.63.129.16", false, false, false},
		{"224.0.0.1", false, false, false},
		{"ff02::1", false, false, false},
		{"255.255.255.255", false, false, false},
		{"10.0.99.5", true, true, false},
		{"192.0.2.1", true, true, false},
		{"::ffff:192.0.2.1", true, true, false},
	} {
		a := netip.MustParseAddr(c.addr)
		for name, x := range map[string]struct {
			f    *Filter
			want bool
		}{"artifacts": {strict, c.strict}, "checks": {checks, c.checks}, "custom": {custom, c.custom}} {
			if err := x.f.Check(a); (err == nil) != x.want || err != nil && !errors.Is(err, ErrRefused) {
				t.Errorf("%s for %s: %v; want it allowed: %v", c.addr, name, err, x.want)
			}
		}
	}
	for _, bad := range []string{"", "10.0.0.1", "10.0.0.0/33", "example.com"} {
		if _, err := New(Rules{Deny: []string{bad}}); err == nil {
			t.Errorf("%q was taken as a range", bad)
		}
	}
}

// TestTransport: names that mean refused addresses and redirects to them end at the dialer.
func TestTransport(t *testing.T) {
	reached := 0
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached++ }))
	defer target.Close()
	u, err := url.Parse(target.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := http.Client{Transport: filter(t, Rules{}).Transport(false)}
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"} {
		resp, err := c.Get("http://" + host + ":" + u.Port() + "/")
		if err == nil {
			resp.Body.Close()
		}
		if !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v, want a refusal", host, err)
		}
	}
	if reached != 0 {
		t.Errorf("%d requests arrived", reached)
	}
	resp, err := (&http.Client{Transport: filter(t, Rules{Loopback: true}).Transport(false)}).Get(target.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

// TestProxied: the operator's proxy may be anywhere, and is not asked for refused hosts.
func TestProxied(t *testing.T) {
	asked := []string{}
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked = append(asked, r.URL.Host) }))
	defer proxy.Close()
	t.Setenv("HTTP_PROXY", proxy.URL) // read once in a process: no other test here uses the environment
	c := http.Client{Transport: filter(t, Rules{}).Transport(true)}
	for host, want := range map[string]bool{"203.0.113.9": true, "169.254.169.254": false, "[::ffff:169.254.169.254]": false, "only-the-proxy-knows.invalid": true} {
		resp, err := c.Get("http://" + host + "/")
		if err == nil {
			resp.Body.Close()
		}
		if (err == nil) != want || err != nil && !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v; want it fetched: %v", host, err, want)
		}
	}
	if len(asked) != 2 {
		t.Errorf("the proxy was asked for %q", asked)
	}
}

// TestGate: a program that uses the proxy reaches allowed addresses only, and strangers cannot use it.
func TestGate(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("plain")) }))
	defer plain.Close()
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("secure")) }))
	defer secure.Close()
	for _, allowed := range []bool{true, false} {
		g, err := filter(t, Rules{Loopback: allowed}).NewGate()
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		through, err := url.Parse(g.URL())
		if err != nil {
			t.Fatal(err)
		}
		tr := secure.Client().Transport.(*http.Transport).Clone()
		tr.Proxy = func(*http.Request) (*url.URL, error) { return through, nil }
		for _, target := range []string{plain.URL, secure.URL} {
			resp, err := (&http.Client{Transport: tr}).Get(target)
			if err == nil {
				resp.Body.Close()
			}
			if got := err == nil && resp.StatusCode == http.StatusOK; got != allowed {
				t.Errorf("%s, allowed %v: %v, %v", target, allowed, resp, err)
			}
		}
		if refused := g.Refused(); (refused == nil) != allowed || refused != nil && !strings.Contains(refused.Error(), "client.egress") {
			t.Errorf("allowed %v: refused %v", allowed, refused)
		}
		through.User = url.UserPassword("gate", "guess")
		if resp, err := (&http.Client{Transport: tr}).Get(plain.URL); err != nil || resp.StatusCode != http.StatusProxyAuthRequired {
			t.Errorf("a wrong password: %v, %v", resp, err)
		}
		if conn, err := net.Dial("tcp", through.Host); err != nil {
			t.Error(err)
		} else {
			conn.Close()
		}
	}
}
