//go:build e2e

// Package overload offers one or three real servers five times the load that they can serve, then four fifths of it, and
// looks from outside at what they do. The load is an open loop: requests come at a rate, whether or not
// others have been answered.
package overload

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

const (
	nodes     = 20
	sources   = 32                     // addresses that the load comes from, each below the limits of one client
	deadline  = 2 * time.Second        // after which a client has given up
	openMax   = 1600                   // requests open at a time; 50 for each address. What cannot be sent counts as late
	normalP99 = 250 * time.Millisecond // or twice what it was before, if that is more
)

// outcome counts the requests of one second.
type outcome struct {
	sent, good, refused, failed, late int
	took                              []time.Duration // of the good ones
}

func (o *outcome) p99() time.Duration {
	if len(o.took) == 0 {
		return 0
	}
	slices.Sort(o.took)
	return o.took[len(o.took)*99/100]
}

func (o *outcome) add(x *outcome) {
	o.sent, o.good, o.refused, o.failed, o.late = o.sent+x.sent, o.good+x.good, o.refused+x.refused, o.failed+x.failed, o.late+x.late
	o.took = append(o.took, x.took...)
}

func (o *outcome) String() string {
	return fmt.Sprintf("sent %d, accepted %d (p99 %s), refused %d, failed %d, not sent %d", o.sent, o.good, o.p99().Round(time.Millisecond), o.refused, o.failed, o.late)
}

// generator sends writes and reads at a rate.
type generator struct {
	t       *testing.T
	addrs   []string // of the servers, which are asked in turn
	clients []*http.Client
	slots   chan struct{}
	n       int

	mu    sync.Mutex
	first string // the first failure that is no refusal
	wrong string // a refusal without Retry-After
}

func newGenerator(t *testing.T, addrs []string) *generator {
	g := &generator{t: t, addrs: addrs, slots: make(chan struct{}, openMax)}
	for i := range sources {
		from := &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i))}
		d := &net.Dialer{LocalAddr: from, Timeout: deadline}
		tr := &http.Transport{DialContext: d.DialContext, MaxIdleConnsPerHost: openMax / sources, MaxConnsPerHost: openMax / sources}
		t.Cleanup(tr.CloseIdleConnections)
		g.clients = append(g.clients, &http.Client{Transport: tr, Timeout: deadline})
	}
	return g
}

// one sends a request: three quarters are writes of a variable, the others reads of jobs.
func (g *generator) one(n int, o *outcome) {
	method, path, body := "PUT", fmt.Sprintf("/v1/var/load/%d", n%500), fmt.Sprintf(`{"Items":{"a":"%d"}}`, n)
	if n%4 == 3 {
		method, path, body = "GET", "/v1/jobs", ""
	}
	req, err := http.NewRequest(method, g.addrs[n/4%len(g.addrs)]+path, strings.NewReader(body))
	if err != nil {
		g.t.Error(err)
		return
	}
	began := time.Now()
	resp, err := g.clients[n%sources].Do(req)
	status, text, retry := 0, "", ""
	if err == nil {
		b, rerr := io.ReadAll(resp.Body)
		resp.Body.Close()
		status, text, retry, err = resp.StatusCode, string(b), resp.Header.Get("Retry-After"), rerr
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case err == nil && status == http.StatusOK:
		o.good++
		o.took = append(o.took, time.Since(began))
	case err == nil && (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable):
		o.refused++
		if retry == "" {
			g.wrong = text
		}
	default:
		o.failed++
		if g.first == "" {
			g.first = fmt.Sprintf("%s %s: %d %s %v", method, path, status, text, err)
		}
	}
}

// run sends at a rate for so many seconds, and returns what became of the requests of each second.
func (g *generator) run(rate float64, seconds int) []*outcome {
	out := make([]*outcome, seconds)
	for i := range out {
		out[i] = &outcome{}
	}
	var wg sync.WaitGroup
	began := time.Now()
	next := began
	for {
		at := next.Sub(began)
		if at >= time.Duration(seconds)*time.Second {
			break
		}
		time.Sleep(time.Until(next))
		next = next.Add(time.Duration(rand.ExpFloat64() / rate * float64(time.Second)))
		o := out[int(at/time.Second)]
		n := g.n
		g.n++
		select {
		case g.slots <- struct{}{}:
		default:
			g.mu.Lock()
			o.late++
			g.mu.Unlock()
			continue
		}
		g.mu.Lock()
		o.sent++
		g.mu.Unlock()
		wg.Go(func() {
			g.one(n, o)
			<-g.slots
		})
	}
	wg.Wait()
	return out
}

// capacity finds what the server answers a second, by clients that each wait for their answer.
func (g *generator) capacity(seconds int) float64 {
	const at = 64
	o := &outcome{}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(seconds)*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for w := range at {
		wg.Go(func() {
			for n := w; ctx.Err() == nil; n += at + 1 {
				g.one(n, o)
			}
		})
	}
	wg.Wait()
	return float64(o.good) / float64(seconds)
}

func sum(os []*outcome) *outcome {
	all := &outcome{}
	for _, o := range os {
		all.add(o)
	}
	return all
}

// metric returns the sum of a metric over its labels and all servers.
func metric(t *testing.T, api *harness.API, name, label string) (total float64) {
	t.Helper()
	for _, addr := range api.Addrs {
		text := ""
		if err := api.At(addr).Call("GET", "/v1/metrics?format=prometheus", nil, &text); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(text) {
			f := strings.Fields(line)
			if len(f) == 2 && strings.HasPrefix(f[0], name) && strings.Contains(f[0], label) {
				v := 0.0
				fmt.Sscan(f[1], &v)
				total += v
			}
		}
	}
	return total
}

// start starts servers that find each other, and returns their addresses for requests and for agents.
func start(t *testing.T, n int) (addrs, rpcs []string) {
	dir := t.TempDir()
	var ports [][3]int
	var joins []string
	for range n {
		p := [3]int{harness.FreePort(t), harness.FreePort(t), harness.FreePort(t)}
		ports = append(ports, p)
		joins = append(joins, fmt.Sprintf("\"127.0.0.1:%d\"", p[2]))
	}
	for i, p := range ports {
		name := fmt.Sprint("s", i+1)
		conf := filepath.Join(dir, name+".hcl")
		if err := os.WriteFile(conf, fmt.Appendf(nil, "name = %q\ndata_dir = %q\nbind_addr = \"127.0.0.1\"\nports {\n  http = %d\n  rpc = %d\n  serf = %d\n}\n"+
			"server {\n  enabled = true\n  bootstrap_expect = %d\n  server_join {\n    retry_join = [%s]\n  }\n}\n",
			name, filepath.Join(dir, name), p[0], p[1], p[2], n, strings.Join(joins, ", ")), 0o600); err != nil {
			t.Fatal(err)
		}
		harness.Start(t, nil, name, nil, "agent", "-config", conf)
		addrs, rpcs = append(addrs, fmt.Sprintf("http://127.0.0.1:%d", p[0])), append(rpcs, fmt.Sprintf("127.0.0.1:%d", p[1]))
	}
	return addrs, rpcs
}

// term returns raft's term, which every election raises.
func term(t *testing.T, api *harness.API) int {
	t.Helper()
	var self struct {
		Stats map[string]map[string]string `json:"stats"`
	}
	if err := api.Call("GET", "/v1/agent/self", nil, &self); err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(self.Stats["raft"]["term"])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestOverload: SERVERS (1, or 3) with default limits and 20 nodes, at 5 times their capacity and then at 0.8. OVERLOAD is how
// many seconds the overload takes (12; 60 in the long form).
func TestOverload(t *testing.T) {
	seconds := harness.Number(t, "OVERLOAD", 12)
	addrs, rpcs := start(t, harness.Number(t, "SERVERS", 1))
	api := harness.NewAPI(t, nil, "", addrs...)
	harness.Start(t, nil, "nodes", nil, "nodesim", "-count", fmt.Sprint(nodes), "-server-addr", strings.Join(rpcs, ","))
	down := func() (ready, down int) {
		var list []struct{ Status string }
		if err := api.Call("GET", "/v1/nodes", nil, &list); err != nil {
			return 0, 0
		}
		for _, n := range list {
			if n.Status == "ready" {
				ready++
			} else {
				down++
			}
		}
		return ready, down
	}
	harness.Eventually(t, 60*time.Second, "the nodes are ready", func() (bool, string) {
		r, d := down()
		return r == nodes, fmt.Sprint(r, d)
	})

	speed := spin()
	first := term(t, api)
	g := newGenerator(t, addrs)
	g.capacity(1) // connections
	capacity := g.capacity(3)
	before := sum(g.run(0.5*capacity, 3))
	limit := max(normalP99, 2*before.p99())
	t.Logf("%d servers: capacity %.0f requests a second; at half of it: %s", len(addrs), capacity, before)

	flood := sum(g.run(5*capacity, seconds))
	goodput := float64(flood.good) / float64(seconds)
	t.Logf("at 5 times: %s; goodput %.0f a second, %.0f %% of the capacity", flood, goodput, 100*goodput/capacity)

	after := g.run(0.8*capacity, 12)
	normal, run := -1, 0 // three seconds in a row: a pause of the machine in a later one is not the server's
	for i, o := range after {
		run++
		if o.refused+o.failed+o.late > o.sent/100 || o.p99() > limit {
			run = 0
		}
		if run == 3 {
			normal = i - 2
			break
		}
	}
	t.Logf("at 0.8: %s", sum(after))
	missed := metric(t, api, "muster_server_heartbeats_missed_total", "")
	counted := metric(t, api, "muster_server_calls_refused_total", "")
	r, d := down()
	t.Logf("normal again within %d s (-1: not within 10); heartbeats missed %.0f, nodes ready %d, down %d; refused by the servers' count %.0f; %d elections", normal, missed, r, d, counted, term(t, api)-first)

	if normal < 0 {
		// On a machine that others use, what was four fifths of the capacity may be more than all of it.
		if now := spin(); now < 3*speed/4 {
			t.Logf("this round says nothing about the recovery: a loop on this machine does %d rounds a second, and did %d", now, speed)
		} else {
			t.Errorf("the server is not normal within 10 s of the load's end")
		}
		for i, o := range after {
			t.Logf("second %d: %s", i, o)
		}
	}
	if missed != 0 || d != 0 || r != nodes {
		t.Errorf("%.0f nodes missed heartbeats, %d are down, %d ready of %d", missed, d, r, nodes)
	}
	if n := metric(t, api, "muster_server_calls_refused_total", `"node"`); n != 0 {
		t.Errorf("%.0f calls of nodes were refused", n)
	}
	if float64(flood.refused) > counted {
		t.Errorf("%d refusals, of which the server counted %.0f", flood.refused, counted)
	}
	if goodput < capacity/4 {
		t.Errorf("the goodput collapsed: %.0f a second of %.0f", goodput, capacity)
	}
	if g.wrong != "" {
		t.Errorf("a refusal without Retry-After: %s", g.wrong)
	}
	if flood.failed > flood.sent/100 {
		t.Errorf("%d of %d requests failed, the first with %s", flood.failed, flood.sent, g.first)
	}
}

// spin returns how many rounds of a loop a second all processors of this machine do now.
func spin() int64 {
	const length = 500 * time.Millisecond
	var rounds atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			sum := [32]byte{}
			for end := time.Now().Add(length); time.Now().Before(end); rounds.Add(1) {
				for range 100 {
					sum = sha256.Sum256(sum[:])
				}
			}
		})
	}
	wg.Wait()
	return rounds.Load() * int64(time.Second/length)
}
