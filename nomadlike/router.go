package nomadlike

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// A route is one path and its handler. In a pattern, {name} matches one path segment, except for the first one, which
// matches all remaining segments: job ids may contain slashes, escaped (%2F) or not.
type route struct {
	methods string // "GET", "GET,PUT,POST", ...
	pattern string // "/v1/job/{id}/plan"
	rpc     string // method of internal/methods that authorises it; "" if only the local agent answers
	handle  handler
	effects bool // a GET changes something, as Nomad's clients expect

	prefix []string // literal segments before the first parameter
	suffix []string // segments after it; a parameter keeps its braces
	param  string   // name of the first parameter, "" for none
}

type router struct {
	routes []*route
	byLit  map[string][]*route // first two literal segments -> candidates, most specific first
}

func newRouter(routes []route) *router {
	rt := &router{byLit: map[string][]*route{}}
	for i := range routes {
		r := &routes[i]
		segs := strings.Split(strings.TrimPrefix(r.pattern, "/"), "/")
		for j, s := range segs {
			if strings.HasPrefix(s, "{") {
				r.param = strings.Trim(s, "{}")
				r.prefix, r.suffix = segs[:j], segs[j+1:]
				break
			}
		}
		if r.param == "" {
			r.prefix = segs
		}
		rt.routes = append(rt.routes, r)
		k := routeKey(r.prefix)
		rt.byLit[k] = append(rt.byLit[k], r)
	}
	for _, list := range rt.byLit {
		slices.SortStableFunc(list, func(a, b *route) int { return specificity(b) - specificity(a) })
	}
	return rt
}

func specificity(r *route) int {
	n := 10 * len(r.prefix)
	for _, s := range r.suffix {
		if strings.HasPrefix(s, "{") {
			n++
		} else {
			n += 4
		}
	}
	if r.param == "" {
		n += 1000
	}
	return n
}

func routeKey(segs []string) string {
	return strings.Join(segs[:min(2, len(segs))], "/")
}

// find returns the route for a request and the values of its parameters. For a known path with another method it
// returns the allowed methods instead.
func (rt *router) find(method, escapedPath string) (r *route, params map[string]string, allow string) {
	path := strings.TrimPrefix(escapedPath, "/")
	segs := strings.Split(path, "/")
	var allowed []string
	for _, cand := range rt.byLit[routeKey(segs)] {
		p, ok := cand.match(segs)
		if !ok {
			continue
		}
		if slices.Contains(strings.Split(cand.methods, ","), method) {
			return cand, p, ""
		}
		allowed = append(allowed, cand.methods)
	}
	return nil, nil, strings.Join(allowed, ",")
}

func (r *route) match(segs []string) (map[string]string, bool) {
	if len(segs) < len(r.prefix) || !slices.Equal(segs[:len(r.prefix)], r.prefix) {
		return nil, false
	}
	rest := segs[len(r.prefix):]
	if r.param == "" {
		return nil, len(rest) == 0
	}
	n := len(rest) - len(r.suffix)
	if n < 1 {
		return nil, false
	}
	params := map[string]string{}
	for i, want := range r.suffix {
		got := rest[n+i]
		if strings.HasPrefix(want, "{") {
			v, err := url.PathUnescape(got)
			if err != nil || v == "" {
				return nil, false
			}
			params[strings.Trim(want, "{}")] = v
		} else if got != want {
			return nil, false
		}
	}
	v, err := url.PathUnescape(strings.Join(rest[:n], "/"))
	if err != nil || v == "" {
		return nil, false
	}
	params[r.param] = v
	return params, true
}

// Route describes one served path, for the authorisation test and the API reference.
type Route struct {
	Methods []string
	Pattern string
	RPC     string // "" if the local agent answers alone
}

// Routes lists everything served, in the order of the table.
func Routes() []Route {
	var out []Route
	for _, r := range table() {
		out = append(out, Route{Methods: strings.Split(r.methods, ","), Pattern: r.pattern, RPC: r.rpc})
	}
	return out
}

var _ http.Handler = (*Server)(nil)
