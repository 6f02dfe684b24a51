package agentconfig

import (
	"net/http"
	"net/url"
	"strings"
	"time"
)

// thresholdsMax is how many thresholds one list may have.
const thresholdsMax = 8

func (cl *Client) checkPressure(fail failFunc) {
	p := &cl.GPUPressure
	for _, l := range []struct {
		key  string
		list []int
	}{{"share", p.Share}, {"device", p.Device}} {
		key := "client.gpu_pressure." + l.key
		if len(l.list) > thresholdsMax {
			fail(key, "%d thresholds; want at most %d", len(l.list), thresholdsMax)
		}
		for i, v := range l.list {
			if v < 1 || v > 100 {
				fail(key, "%d: want 1 to 100 percent", v)
			}
			if i > 0 && v <= l.list[i-1] {
				fail(key, "%d comes after %d: want them ascending", v, l.list[i-1])
			}
		}
	}
	if p.Clear < 0 || p.Clear > 50 {
		fail("client.gpu_pressure.clear", "%d: want 0 to 50 percentage points", p.Clear)
	}
	switch c := p.Command; {
	case len(c.Command) == 0 && c.Timeout != 0:
		fail("client.gpu_pressure.command", "command is missing")
	case len(c.Command) > 0 && !absolute(c.Command[0]):
		fail("client.gpu_pressure.command.command", "%q must be absolute", c.Command[0])
	case c.Timeout > time.Hour:
		fail("client.gpu_pressure.command.timeout", "%s: want 0 to 1h", c.Timeout)
	}
	for _, name := range sorted(p.Webhooks) {
		w, key := p.Webhooks[name], "client.gpu_pressure.webhook."+name
		u, err := url.Parse(w.URL) // the URL may hold a secret, so errors do not repeat it
		switch {
		case w.URL == "":
			fail(key, "url is required")
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
			fail(key+".url", "want http://HOST/PATH or https://HOST/PATH")
		}
		if w.SecretFile != "" && !absolute(w.SecretFile) {
			fail(key+".secret_file", "%q must be absolute", w.SecretFile)
		}
		if w.Timeout > time.Minute {
			fail(key+".timeout", "%s: want 0 to 1m", w.Timeout)
		}
		if w.Attempts < 0 || w.Attempts > 20 {
			fail(key+".attempts", "%d: want 0 to 20", w.Attempts)
		}
		for _, h := range sorted(w.Headers) {
			if http.CanonicalHeaderKey(h) == "" || strings.ContainsAny(h, " :\t\r\n") || strings.ContainsAny(w.Headers[h], "\r\n") {
				fail(key+".headers", "%.40q cannot be a header", h)
			}
		}
	}
}
