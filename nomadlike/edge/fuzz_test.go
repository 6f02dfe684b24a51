package edge

import (
	"net/http/httptest"
	"net/url"
	"testing"
)

// FuzzSite checks that the page of another site changes nothing, under any names of site and agent.
func FuzzSite(f *testing.F) {
	for _, s := range [][2]string{{"127.0.0.1:4646", "http://evil.example"}, {"evil.example", "http://evil.example"}, {"[::1]:4646", "null"}, {"localhost", "http://localhost:1"}, {"a.ok.example", "https://a.ok.example"}, {"127.0.0.1", "http://127.0.0.1@evil.example"}} {
		f.Add(s[0], s[1])
	}
	site := NewSite(nil, []string{"*.ok.example"})
	f.Fuzz(func(t *testing.T, host, origin string) {
		r := httptest.NewRequest("POST", "/v1/jobs", nil)
		r.Host = host
		r.Header.Set("Origin", origin)
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		u, uerr := url.Parse(origin)
		if err := site.Check(r, true); err == nil && (uerr != nil || !site.allows(hostOf(u.Host))) {
			t.Fatalf("host %q, origin %q", host, origin)
		}
		r.Header.Del("Sec-Fetch-Site")
		r.Header.Del("Origin")
		if err := site.Check(r, true); err == nil && !site.answersTo(hostOf(host)) {
			t.Fatalf("host %q was answered", host)
		}
	})
}
