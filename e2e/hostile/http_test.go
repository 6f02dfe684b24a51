//go:build e2e

package hostile

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

type httpCase struct {
	name, method, path, body string
	status                   int
	has                      string
	header                   map[string]string
}

func gz(s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, s)
	w.Close()
	return b.String()
}

func parse(hcl string) string {
	b, _ := json.Marshal(map[string]any{"JobHCL": hcl, "Canonicalize": true})
	return string(b)
}

// jsonJob is a job of one raw_exec task as JSON with one pair replaced.
func jsonJob(old, new string) string {
	s := `{"Job":{"ID":"hostile-json","Name":"hostile-json","Type":"batch","Priority":50,"Datacenters":["*"],"Meta":{},"TaskGroups":[{"Name":"g","Count":1,` +
		`"Tasks":[{"Name":"t","Driver":"raw_exec","User":"","Config":{"command":"/bin/true"},"Env":{},"Resources":{"CPU":10,"MemoryMB":10}}]}]}}`
	return strings.Replace(s, old, new, 1)
}

// pairs joins n texts with different numbers by commas.
func pairs(n int, format string) string { return pairsOf(n, format, ",") }

func pairsOf(n int, format, between string) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(list, between)
}

func httpCases() []httpCase {
	const jobs, put, get, post = "/v1/jobs", "PUT", "GET", "POST"
	cs := []httpCase{
		{"empty body", put, jobs, "", 400, "", nil},
		{"null", put, jobs, "null", 400, "", nil},
		{"list", put, jobs, "[]", 400, "", nil},
		{"text", put, jobs, `"x"`, 400, "", nil},
		{"number", put, jobs, `1`, 400, "", nil},
		{"job null", put, jobs, `{"Job":null}`, 400, "", nil},
		{"job empty", put, jobs, `{"Job":{}}`, 400, "", nil},
		{"job list", put, jobs, `{"Job":[]}`, 400, "", nil},
		{"truncated", put, jobs, `{"Job":{"ID":"x","TaskGro`, 400, "", nil},
		{"trailing garbage", put, jobs, jsonJob("", "") + "garbage", 400, "", nil},
		{"two documents", put, jobs, jsonJob("", "") + jsonJob("", ""), 400, "", nil},
		{"null group", put, jobs, `{"Job":{"ID":"x","TaskGroups":[null]}}`, 400, "", nil},
		{"null task", put, jobs, `{"Job":{"ID":"x","TaskGroups":[{"Name":"g","Tasks":[null]}]}}`, 400, "", nil},
		{"null everything", put, jobs, jsonJob(`"Meta":{}`, `"Meta":null,"Constraints":[null],"Affinities":[null],"Spreads":[null],"Update":null,"Periodic":null`), 200, "", nil},
		{"null network and service", put, jobs, jsonJob(`"Count":1`, `"Count":1,"Networks":[null],"Services":[null],"Constraints":[null],"Volumes":{"a":{"Source":"x"}}`), 200, "", nil},
		{"null volume", put, jobs, jsonJob(`"Count":1`, `"Count":1,"Volumes":{"a":null}`), 400, "names no source", nil},
		{"null ports", put, jobs, jsonJob(`"Count":1`, `"Count":1,"Networks":[{"DynamicPorts":[null],"ReservedPorts":null}]`), 400, "", nil},
		{"null devices", put, jobs, jsonJob(`"CPU":10`, `"CPU":10,"Devices":[null],"Networks":[null]`), 200, "", nil},
		{"1e308", put, jobs, jsonJob(`"Priority":50`, `"Priority":1e308`), 400, "Priority", nil},
		{"1e999", put, jobs, jsonJob(`"Priority":50`, `"Priority":1e999`), 400, "Priority", nil},
		{"fraction", put, jobs, jsonJob(`"Count":1`, `"Count":1.5`), 400, "Count", nil},
		{"count beyond 2^63", put, jobs, jsonJob(`"Count":1`, `"Count":18446744073709551615`), 400, "Count", nil},
		{"text for a number", put, jobs, jsonJob(`"Priority":50`, `"Priority":"50"`), 400, "Priority", nil},
		{"number for a text", put, jobs, jsonJob(`"Driver":"raw_exec"`, `"Driver":7`), 400, "Driver", nil},
		{"escape sequence in the id alone", put, jobs, jsonJob(`"ID":"hostile-json"`, `"ID":"a\u001b[2Jb"`), 400, "id", nil},
		{"depth 9,999", put, jobs, `{"Job":` + strings.Repeat(`{"Meta":`, 9990) + "1" + strings.Repeat("}", 9990) + "}", 400, "", nil},
		{"depth 1,000,000", put, jobs, strings.Repeat("[", 1_000_000), 400, "", nil},
		{"config of depth 5,000", put, jobs, jsonJob(`"/bin/true"`, strings.Repeat("[", 5000)+strings.Repeat("]", 5000)), 400, "", nil},
		{"5 MiB", put, jobs, jsonJob(`"Meta":{}`, `"Meta":{"a":"`+strings.Repeat("m", 5<<20)+`"}`), 413, "4194304", nil},
		{"3 MiB of meta", put, jobs, jsonJob(`"Meta":{}`, `"Meta":{"a":"`+strings.Repeat("m", 3<<20)+`"}`), 400, "16384", nil},
		{"700,000 groups", put, jobs, `{"Job":{"ID":"x","TaskGroups":[` + strings.Repeat("{},", 700_000) + `{}]}}`, 400, "200000 values", nil},
		{"90,000 groups", put, jobs, `{"Job":{"ID":"x","TaskGroups":[` + strings.Repeat("{},", 90_000) + `{}]}}`, 400, "at most 1000", nil},
		{"150,000 groups of nothing", put, jobs, `{"Job":{"ID":"x","TaskGroups":[` + strings.Repeat("null,", 150_000) + `null]}}`, 400, "", nil},
		{"90,000 tasks", put, jobs, jsonJob(`"Tasks":[`, `"Tasks":[`+strings.Repeat("{},", 90_000)), 400, "", nil},
		{"90,000 constraints", put, jobs, jsonJob(`"Meta":{}`, `"Constraints":[`+strings.Repeat(`{},`, 90_000)+`{}]`), 400, "", nil},
		{"150,000 datacenters", put, jobs, jsonJob(`["*"]`, `[`+strings.Repeat(`"",`, 150_000)+`"*"]`), 400, "", nil},
		{"150,000 pairs of meta", put, jobs, jsonJob(`"Meta":{}`, `"Meta":{`+pairs(150_000, `"%d":""`)+`}`), 400, "", nil},
		{"150,000 unknown fields", put, jobs, jsonJob(`"Meta":{}`, pairs(150_000, `"f%d":0`)), 200, "149950 more", nil},
		{"150,000 pairs of a config", put, jobs, jsonJob(`"command":"/bin/true"`, pairs(150_000, `"c%d":0`)), 400, "", nil},
		{"150,000 arguments", put, jobs, jsonJob(`"/bin/true"`, `"/bin/true","args":[`+strings.Repeat(`"a",`, 150_000)+`"a"]`), 200, "", nil},
		{"plan of 150,000 unknown fields", put, "/v1/job/hostile-json/plan", jsonJob(`"Meta":{}`, pairs(150_000, `"f%d":0`)), 200, "149950 more", nil},
		{"variable of 150,000 items", put, "/v1/var/hostile", `{"Items":{` + pairs(150_000, `"k%d":""`) + `}}`, 400, "", nil},
		{"dispatch of 150,000 pairs", put, "/v1/job/hostile-json/dispatch", `{"Meta":{` + pairs(150_000, `"k%d":""`) + `}}`, 400, "", nil},
		{"queue of 150,000 unknown fields", put, "/v1/queue/hostile", "{" + pairs(150_000, `"f%d":0`) + "}", 400, "", nil},
		{"namespace of 150,000 pairs of meta", put, "/v1/namespace", `{"Name":"hostile","Meta":{` + pairs(150_000, `"k%d":""`) + `}}`, 413, "1048576", nil},
		{"quota of 80,000 limits", put, "/v1/quota", `{"Name":"hostile","Limits":[` + strings.Repeat("{},", 80_000) + `{}]}`, 400, "", nil},
		{"search for 150,000 unknown fields", put, "/v1/search", "{" + pairs(150_000, `"f%d":0`) + "}", 200, "", nil},
		{"node meta of 150,000 pairs", put, "/v1/client/metadata", `{"Meta":{` + pairs(150_000, `"k%d":"v"`) + `}}`, 400, "at most 1000", nil},
		{"gzip body unannounced", put, jobs, gz(jsonJob("", "")), 400, "", nil},
		{"gzip body", put, jobs, gz(jsonJob("", "")), 400, "gzip", map[string]string{"Content-Encoding": "gzip"}},
		{"gzip bomb", put, jobs, gz(strings.Repeat("0", 150<<20)), 400, "gzip", map[string]string{"Content-Encoding": "gzip"}},
		{"form", put, jobs, "Job=x", 400, "", map[string]string{"Content-Type": "application/x-www-form-urlencoded"}},
		{"task user through a path", put, jobs, jsonJob(`"User":""`, `"User":"a\u0000b"`), 400, "user", nil},
		{"payload too large", put, jobs, jsonJob(`"Meta":{}`, `"Payload":"`+strings.Repeat("AAAA", 10000)+`"`), 400, "ayload", nil},
		{"negative stop after", put, jobs, jsonJob(`"Count":1`, `"Count":1,"ShutdownDelay":-1`), 400, "", nil},
		{"restart attempts negative", put, jobs, jsonJob(`"Count":1`, `"Count":1,"RestartPolicy":{"Attempts":-1,"Interval":-1,"Delay":-1,"Mode":"x"}`), 400, "", nil},
		{"periodic without a spec", put, jobs, jsonJob(`"Meta":{}`, `"Periodic":{"Enabled":true}`), 400, "", nil},
		{"job of another path", post, "/v1/job/other", jsonJob("", ""), 400, "", nil},

		{"parse empty", post, "/v1/jobs/parse", "", 400, "", nil},
		{"parse nothing", post, "/v1/jobs/parse", "{}", 400, "", nil},
		{"parse: file", post, "/v1/jobs/parse", parse(job(`meta { a = file("/etc/shadow") }`, "", "")), 400, "file", nil},
		{"parse: fileset", post, "/v1/jobs/parse", parse(job(`meta { a = join(",", fileset("/etc", "*")) }`, "", "")), 400, "fileset", nil},
		{"parse: templatefile", post, "/v1/jobs/parse", parse(job(`meta { a = templatefile("/etc/shadow", {}) }`, "", "")), 400, "templatefile", nil},
		{"parse: environment", post, "/v1/jobs/parse", parse(job(`meta { a = env("PATH") }`, "", "")), 400, "env", nil},
		{"parse: parentheses", post, "/v1/jobs/parse", parse("a = " + strings.Repeat("(", 137<<10)), 400, "deep", nil},
		{"parse: loops", post, "/v1/jobs/parse", parse(job("meta { a = \"${[for a in range(0,300): [for b in range(0,300): [for c in range(0,300): a*b*c]]]}\" }", "", "")), 422, "evaluate", nil},
		{"parse: padding", post, "/v1/jobs/parse", parse(job(`meta { a = join("",[for a in range(0,1000): format("%100000d",a)]) }`, "", "")), 422, "evaluate", nil},
		{"parse: one wide format", post, "/v1/jobs/parse", parse(job(`meta { a = format("%1000000000d", 1) }`, "", "")), 200, "", nil},
		{"parse: 2 MiB", post, "/v1/jobs/parse", parse(strings.Repeat("#\n", 1<<20)), 413, "", nil},
		{"parse: 40,000 groups", post, "/v1/jobs/parse", parse("job \"a\" {\n" + pairsOf(40_000, "group \"%d\" {}", "\n") + "\n}"), 422, "evaluate", nil},
		{"parse: 10,000 pairs of meta", post, "/v1/jobs/parse", parse(job("meta {\n"+pairsOf(10_000, "m%d = 1", "\n")+"\n}", "", "")), 200, "", nil},
		{"parse: NUL", post, "/v1/jobs/parse", parse("\x00"), 400, "", nil},

		{"plan another job", put, "/v1/job/x/plan", jsonJob("", ""), 400, "", nil},
		{"plan nothing", put, "/v1/job/x/plan", "{}", 400, "", nil},
		{"validate nothing", put, "/v1/validate/job", "{}", 400, "", nil},
		{"scale nothing", put, "/v1/job/x/scale", "{}", 400, "", nil},
		{"scale a job that is not there", put, "/v1/job/x/scale", `{"Count":1,"Target":{"Group":"g"}}`, 404, "x", nil},
		{"dispatch a job that is not there", put, "/v1/job/x/dispatch", `{}`, 404, "x", nil},
		{"revert a job that is not there", put, "/v1/job/x/revert", `{"JobID":"x","JobVersion":1}`, 404, "x", nil},
		{"force a job that is not there", put, "/v1/job/x/periodic/force", "", 404, "x", nil},

		{"wrong method", "PATCH", jobs, "", 405, "method", nil},
		{"TRACE", "TRACE", "/v1/agent/self", "", 405, "method", nil},
		{"unknown path", get, "/v1/jbos", "", 404, "", nil},
		{"no version", get, "/jobs", "", 404, "", nil},
		{"path climbing", get, "/v1/../../etc/passwd", "", 404, "", nil},
		{"encoded path climbing", get, "/v1/%2e%2e/%2e%2e/etc/passwd", "", 404, "", nil},
		{"ui path climbing", get, "/ui/..%2f..%2f..%2fetc/passwd", "", 404, "", nil},
		{"NUL in a path", get, "/v1/job/a%00b", "", 404, "", nil},
		{"long path", get, "/v1/job/" + strings.Repeat("a", 30000), "", 404, "", nil},
		{"job id of slashes", get, "/v1/job/%2f%2f%2f", "", 404, "", nil},
		{"bad allocation id", get, "/v1/allocation/zzz", "", 404, "", nil},
		{"allocation that is not there", get, "/v1/allocation/00000000-0000-0000-0000-000000000000", "", 404, "", nil},
		{"bad evaluation id", get, "/v1/evaluation/..%2f..", "", 404, "", nil},
		{"bad node id", get, "/v1/node/%27%20or%201=1", "", 404, "", nil},
		{"bad index", get, "/v1/jobs?index=-1", "", 400, "index", nil},
		{"index of letters", get, "/v1/jobs?index=abc", "", 400, "index", nil},
		{"bad wait", get, "/v1/jobs?index=1&wait=forever", "", 400, "wait", nil},
		{"bad per_page", get, "/v1/jobs?per_page=-1", "", 400, "per_page", nil},
		{"per_page beyond int32", get, "/v1/jobs?per_page=99999999999", "", 400, "per_page", nil},
		{"bad filter", get, "/v1/jobs?filter=((((", "", 400, "filter", nil},
		{"filter of an unknown field", get, "/v1/jobs?filter=Banana%20==%201", "", 400, "Banana", nil},
		{"filter of 500 KB", get, "/v1/jobs?filter=" + strings.Repeat("(", 30<<10), "", 400, "filter", nil},
		{"filter with a regexp bomb", get, `/v1/jobs?filter=ID%20matches%20%22((((a%7B1,100%7D)%7B1,100%7D)%7B1,100%7D)%7B1,100%7D)%22`, "", 400, "", nil},
		{"namespace that is not there", put, "/v1/jobs?namespace=nowhere", jsonJob("", ""), 400, "nowhere", nil},
		{"filter that panicked", get, `/v1/jobs?filter=ID%20matches%20%22(((%22`, "", 400, "filter", nil},
		{"filter of a megabyte of or", get, "/v1/jobs?filter=" + strings.Repeat("ID==a%20or%20", 2000) + "ID==a", "", 400, "filter", nil},
		{"region that is not there", get, "/v1/jobs?region=nowhere", "", 400, "nowhere", nil},
		{"bad booleans", get, "/v1/jobs?stale=maybe", "", 400, "stale", nil},
		{"bad resources switch", get, "/v1/allocations?resources=7up", "", 400, "resources", nil},
		{"logs of nothing", get, "/v1/client/fs/logs/00000000-0000-0000-0000-000000000000?task=t&type=stdout", "", 404, "", nil},
		{"events of an unknown topic", get, "/v1/event/stream?topic=Banana", "", 400, "Banana", nil},
		{"events of a bad index", get, "/v1/event/stream?index=x", "", 400, "index", nil},
		{"search of nothing", post, "/v1/search", "", 400, "", nil},
		{"search of an unknown context", post, "/v1/search", `{"Prefix":"a","Context":"banana"}`, 400, "banana", nil},
		{"fuzzy search of a megabyte", post, "/v1/search/fuzzy", `{"Text":"` + strings.Repeat("a", 1<<20) + `","Context":"all"}`, 200, "", nil},
		{"profile for ever", get, "/v1/agent/pprof/profile?seconds=99999999", "", 400, "seconds", nil},
		{"monitor of a bad level", get, "/v1/agent/monitor?log_level=banana", "", 400, "log level", nil},
		{"drain of nothing", put, "/v1/node/00000000-0000-0000-0000-000000000000/drain", "{}", 404, "", nil},
		{"scheduler configuration of garbage", put, "/v1/operator/scheduler/configuration", `{"SchedulerAlgorithm":"banana"}`, 400, "banana", nil},
		{"autopilot configuration of garbage", put, "/v1/operator/autopilot/configuration", `{"MaxTrailingLogs":"x"}`, 400, "", nil},
		{"raft peer that is not there", "DELETE", "/v1/operator/raft/peer?id=banana", "", 404, "banana", nil},
		{"snapshot of garbage", put, "/v1/operator/snapshot", strings.Repeat("garbage", 1000), 400, "", nil},
		{"snapshot of nothing", put, "/v1/operator/snapshot", "", 400, "", nil},
		{"namespace of a bad name", put, "/v1/namespaces", `{"Name":"a/../b"}`, 400, "name", nil},
		{"node pool of a bad name", put, "/v1/node/pools", `{"Name":"a b"}`, 400, "a b", nil},
		{"join of garbage", put, "/v1/agent/join?address=%00", "", 200, "no such host", nil},
		{"force leave of nobody", put, "/v1/agent/force-leave?node=banana", "", 200, "", nil},
	}
	return cs
}

func send(method, path, body string, header map[string]string) (int, string) {
	c := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
	req, err := http.NewRequest(method, base, strings.NewReader(body))
	if err != nil {
		return -1, err.Error()
	}
	raw, query, _ := strings.Cut(path, "?")
	req.URL.Opaque = "//127.0.0.1" + fmt.Sprintf(":%d", httpPort) + raw // as written: no cleaning
	req.URL.RawQuery = query
	for k, val := range header {
		req.Header.Set(k, val)
	}
	resp, err := c.Do(req)
	if err != nil {
		return -1, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return -1, err.Error()
	}
	return resp.StatusCode, string(b)
}

func testHTTP(t *testing.T, v *victim) {
	for _, c := range httpCases() {
		t.Run(c.name, func(t *testing.T) {
			begin := time.Now()
			code, out := send(c.method, c.path, c.body, c.header)
			if d := time.Since(begin); d > time.Minute {
				t.Errorf("took %s", d)
			}
			expect(t, code, out, c.status, c.has)
			if c.status >= 400 && strings.TrimSpace(out) == "" {
				t.Error("an error without a word")
			}
			v.alive(t)
		})
	}
}

// raw writes bytes to a port and reads what comes back until the peer closes or the limit is over.
func raw(t *testing.T, port int, limit time.Duration, data ...string) (answer string, closed bool) {
	t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(limit))
	for _, d := range data {
		if _, err := io.WriteString(c, d); err != nil {
			break
		}
	}
	b, err := io.ReadAll(io.LimitReader(c, 1<<20))
	ne, timeout := err.(net.Error)
	return string(b), !(timeout && ne.Timeout())
}

func testRawHTTP(t *testing.T, v *victim) {
	const head = "PUT /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"
	for _, c := range []struct{ name, data, has string }{
		{"garbage", "\x00\x01\x02\x03 garbage\r\n\r\n", "400"},
		{"negative length", head + "Content-Length: -5\r\n\r\n", "400"},
		{"two lengths", head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}", "400"},
		{"length and chunks", head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400"},
		{"bad chunk", head + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffffff\r\n", "400"},
		{"a length that never comes whole", head + "Content-Length: 999999999999\r\nConnection: close\r\n\r\n{}", "413"},
		{"the same of a foreign host", "PUT /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n{}", "403"},
		{"chunks of a foreign host", "PUT /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", "403"},
		{"ten thousand headers", head + strings.Repeat("X-A: b\r\n", 200000) + "\r\n", "431"},
		{"HTTP/2 without TLS", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1"},
		{"TLS to a plain port", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "400"},
		{"absolute URL", "GET http://169.254.169.254/latest HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "404"},
		{"CONNECT", "CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 40"},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer, closed := raw(t, httpPort, 15*time.Second, c.data)
			if !closed {
				t.Errorf("still open after 15 s; so far %q", answer)
			}
			if !strings.Contains(answer, c.has) {
				t.Errorf("want %q, have %q", c.has, answer)
			}
			v.alive(t)
		})
	}
	t.Run("chunks without end", func(t *testing.T) {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", httpPort))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(15 * time.Second))
		_, _ = io.WriteString(c, head+"Transfer-Encoding: chunked\r\n\r\n")
		chunk := "10000\r\n" + strings.Repeat(" ", 0x10000) + "\r\n"
		sent := 0
		for sent < 1<<30 {
			n, err := io.WriteString(c, chunk)
			sent += n
			if err != nil {
				break
			}
		}
		if sent > 64<<20 {
			t.Errorf("%d MiB of one body were read", sent>>20)
		}
		v.alive(t)
	})
	t.Run("slow clients do not keep others out", func(t *testing.T) {
		var conns []net.Conn
		defer func() {
			for _, c := range conns {
				c.Close()
			}
		}()
		for i := range 60 {
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", httpPort))
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
			_, _ = io.WriteString(c, []string{"GET /v1/jobs HT", head + "Content-Length: 100\r\n\r\n{\"Jo"}[i%2])
		}
		v.alive(t)
	})
}

// slowClients opens connections that begin a request and stall.
func slowClients(t *testing.T) []net.Conn {
	t.Helper()
	var out []net.Conn
	for _, begin := range []string{
		"GET /v1/jobs HT",
		"PUT /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"Jo",
		"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n",
		"PUT /v1/nowhere HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
		"PUT /v1/operator/snapshot HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nab",
	} {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", httpPort))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, begin)
		out = append(out, c)
	}
	return out
}

// cut fails for slow clients that are still connected after the deadlines of headers and bodies.
func cut(t *testing.T, conns []net.Conn, since time.Time) {
	for i, c := range conns {
		_ = c.SetReadDeadline(since.Add(45 * time.Second))
		if _, err := io.Copy(io.Discard, c); err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				_ = c.SetReadDeadline(time.Now().Add(time.Second))
				if _, err = io.Copy(io.Discard, c); err == nil {
					continue
				} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
					t.Errorf("slow client %d is still connected after %s", i, time.Since(since).Round(time.Second))
				}
			}
		}
	}
}
