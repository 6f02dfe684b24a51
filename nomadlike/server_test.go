package nomadlike

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/nomadlike/edge"
	"github.com/muster-sched/muster/structs"
)

// memory is a backend that knows a hundred jobs and remembers what it was asked last.
type memory struct {
	rpc.Caller // what is not below is not called
	jobID      string
	query      methods.Query
	header     rpc.Header
}

func (m *memory) Invoke(_ context.Context, h rpc.Header, req, resp any) error {
	m.header = h
	switch req := req.(type) {
	case *methods.JobGetRequest:
		m.jobID = req.JobID
		if r, is := resp.(*methods.JobGetResponse); is && strings.HasPrefix(req.JobID, "job") {
			r.Job = &structs.Job{ID: req.JobID, Name: req.JobID, Namespace: "default", Type: structs.JobBatch}
			r.Meta = methods.Meta{Index: 7, KnownLeader: true, LastContact: 3 * time.Millisecond}
		}
	case *methods.JobRegisterRequest:
		m.jobID = req.Job.ID
	case *methods.ListRequest:
		m.query = req.Query
		if r, is := resp.(*methods.JobListResponse); is {
			for i := range 100 {
				r.Jobs = append(r.Jobs, methods.JobListItem{Job: &structs.Job{ID: fmt.Sprintf("job-%03d", i), Type: structs.JobBatch}})
			}
			if req.NextToken == "" {
				r.NextToken = "default.job-100"
			}
		}
	}
	return nil
}

// open is an agent that allows everything and knows nothing.
type open struct{ Agent }

func (open) Authorize(context.Context, string, string, string) error { return nil }
func (open) MayReadMetrics(context.Context, string) error            { return nil }
func (open) Members() []Member                                       { return nil }
func (open) LocalServer() string                                     { return "one.global" }

// mute is a cluster that does not answer.
type mute struct{ shut }

func (mute) Invoke(ctx context.Context, _ rpc.Header, _, _ any) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestCancelledWriteIsNotDone: a client that closes its side while its write is under way gets no answer, and none that says
// that it was done.
func TestCancelledWriteIsNotDone(t *testing.T) {
	var status atomic.Int64
	status.Store(-1)
	h := New(Config{Backend: mute{}, Agent: open{}, Log: hclog.NewNullLogger(), Region: "global", Site: edge.NewSite(nil, []string{"example.com"}),
		Observe: func(_ string, is int, _ time.Duration) { status.Store(int64(is)) }})
	s := httptest.NewServer(h)
	defer s.Close()
	for target, body := range map[string]string{
		"/v1/jobs":  `{"Job": {"ID": "x", "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"command": "true"}}]}]}}`,
		"/v1/var/a": `{"Items": {"a": "b"}}`,
	} {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: example.com\r\nContent-Length: %d\r\n\r\n%s", target, len(body), body); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(conn); len(b) > 0 || err != nil || status.Load() != 0 {
			t.Errorf("%s: %q, %v, counted as %d", target, b, err, status.Load())
		}
	}
}

func testServer() (*Server, *memory) {
	m := &memory{}
	return New(Config{Backend: m, Agent: open{}, Log: hclog.NewNullLogger(), Region: "global", Site: edge.NewSite(nil, []string{"a", "example.com"})}), m
}

// do makes a request as it would be on the wire: the target is not cleaned.
func do(s http.Handler, method, target, body string, header ...string) *http.Response {
	r := httptest.NewRequest(method, "/", strings.NewReader(body))
	u, err := url.ParseRequestURI(target)
	if err != nil {
		panic(err)
	}
	r.URL, r.RequestURI = u, target
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result()
}

func text(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestRouter(t *testing.T) {
	rt := newRouter(table())
	for _, c := range []struct {
		method, path string
		pattern      string // "" for none
		params       string
		allow        string
	}{
		{"GET", "/v1/jobs", "/v1/jobs", "map[]", ""},
		{"GET", "/v1/job/a", "/v1/job/{id}", "map[id:a]", ""},
		{"GET", "/v1/job/a/b/c", "/v1/job/{id}", "map[id:a/b/c]", ""},
		{"GET", "/v1/job/a%2Fb", "/v1/job/{id}", "map[id:a/b]", ""},
		{"GET", "/v1/job/a%2Fb/allocations", "/v1/job/{id}/allocations", "map[id:a/b]", ""},
		{"GET", "/v1/job/a/dispatch-17-x/summary", "/v1/job/{id}/summary", "map[id:a/dispatch-17-x]", ""},
		{"PUT", "/v1/job/plan/plan", "/v1/job/{id}/plan", "map[id:plan]", ""},
		{"PUT", "/v1/job/a/periodic/force", "/v1/job/{id}/periodic/force", "map[id:a]", ""},
		{"PUT", "/v1/job/a/versions/v%2F1/tag", "/v1/job/{id}/versions/{tag}/tag", "map[id:a tag:v/1]", ""},
		{"GET", "/v1/acl/token/self", "/v1/acl/token/self", "map[]", ""},
		{"GET", "/v1/acl/token/x", "/v1/acl/token/{id}", "map[id:x]", ""},
		{"GET", "/v1/acl/role/name/x", "/v1/acl/role/name/{name}", "map[name:x]", ""},
		{"GET", "/v1/evaluations/count", "/v1/evaluations/count", "map[]", ""},
		{"PATCH", "/v1/jobs", "", "", "GET,PUT,POST"},
		{"POST", "/v1/nodes", "", "", "GET"},
		{"GET", "/v1/job/", "", "", ""},
		{"GET", "/v1/job", "", "", ""},
		{"GET", "/v1/job/%zz", "", "", ""},
		{"GET", "/v2/jobs", "", "", ""},
		{"GET", "/", "", "", ""},
		{"GET", "", "", "", ""},
		{"GET", strings.Repeat("/a", 4000), "", "", ""},
	} {
		t.Run(fmt.Sprintf("method=%q path=%q", c.method, c.path), func(t *testing.T) {
			r, params, allow := rt.find(c.method, c.path)
			pattern := ""
			if r != nil {
				pattern = r.pattern
			}
			if pattern != c.pattern || (r != nil && fmt.Sprint(params) != c.params && (len(params) > 0 || c.params != "map[]")) || allow != c.allow {
				t.Errorf("%s %.60s: route %q %v, allow %q; want %q %s, allow %q", c.method, c.path, pattern, params, allow, c.pattern, c.params, c.allow)
			}
		})
	}
	for _, r := range Routes() {
		if !strings.HasPrefix(r.Pattern, "/v1/") && !strings.HasPrefix(r.Pattern, "/.well-known/") {
			t.Errorf("%s is served outside /v1", r.Pattern)
		}
		for _, m := range r.Methods {
			if (m == "PUT") && !strings.Contains(strings.Join(r.Methods, ","), "POST") {
				t.Errorf("%s takes PUT but not POST, which other clients than Nomad's send", r.Pattern)
			}
		}
	}
}

func TestRequestParsing(t *testing.T) {
	s, m := testServer()
	for target, want := range map[string]int{
		"/v1/jobs": 200, "/v1/jobs?index=5&wait=1s": 200, "/v1/jobs?index=x": 400, "/v1/jobs?index=-1": 400, "/v1/jobs?index=99999999999999999999": 400,
		"/v1/jobs?wait=x": 400, "/v1/jobs?wait=5": 400, "/v1/jobs?per_page=x": 400, "/v1/jobs?per_page=-1": 400, "/v1/jobs?per_page=10001": 400,
		"/v1/jobs?stale": 200, "/v1/jobs?stale=maybe": 400, "/v1/jobs?reverse=2": 400, "/v1/jobs?filter=" + strings.Repeat("a", FilterMax+1): 400,
		"/v1/job/none": 404, "/v1/job/job-1": 200, "/v1/allocation/not-an-id": 404, "/v1/nope": 404, "/v1/job/a%00b": 404, "/v1/../v1/jobs": 404, "//v1/jobs": 404, "/v1//jobs": 404, "/v1/./jobs": 404,
		"/v1/client/fs/logs/00000000-0000-4000-8000-000000000001?task=t&type=stdin": 400, "/v1/client/fs/logs/00000000-0000-4000-8000-000000000001?task=t&type=stdout&since=noon": 400, "/v1/agent/monitor?log_level=loud": 400, "/v1/event/stream?topic=Job:": 400,
	} {
		t.Run(target, func(t *testing.T) {
			r := do(s, "GET", target, "")
			if r.StatusCode != want {
				t.Errorf("GET %.80s: status %d, want %d: %.200s", target, r.StatusCode, want, text(t, r))
			}
			if r.Header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("GET %.80s: no nosniff", target)
			}
		})
	}
	do(s, "GET", "/v1/jobs?index=5&wait=100h&prefix=p&namespace=ns&region=r&per_page=3&next_token=tok&reverse=true&filter=f&stale=true", "", "Authorization", "Bearer  abc ")
	q := m.query
	if q.MinIndex != 5 || q.MaxWait != WaitMax || q.Prefix != "p" || q.PerPage != 3 || q.NextToken != "tok" || !q.Reverse || q.Filter != "f" || !q.Stale {
		t.Errorf("query %+v", q)
	}
	if m.header.Token != "abc" || m.header.Namespace != "ns" || m.header.Region != "r" {
		t.Errorf("header %+v", m.header)
	}
	do(s, "GET", "/v1/job/job%0A%3F%E5%AD%97%2Fx", "")
	if m.jobID != "job\n?字/x" {
		t.Errorf("the id of an escaped path is %q", m.jobID)
	}
}

func TestAnswers(t *testing.T) {
	s, _ := testServer()
	r := do(s, "GET", "/v1/job/job-1", "")
	for h, want := range map[string]string{"X-Nomad-Index": "7", "X-Nomad-KnownLeader": "true", "X-Nomad-LastContact": "3", "Content-Type": "application/json"} {
		if got := r.Header.Get(h); got != want {
			t.Errorf("%s is %q, want %q", h, got, want)
		}
	}
	if r := do(s, "GET", "/v1/jobs?per_page=100", ""); r.Header.Get("X-Nomad-NextToken") != "default.job-100" {
		t.Errorf("next token %q", r.Header.Get("X-Nomad-NextToken"))
	}

	r = do(s, "GET", "/v1/jobs?per_page=100", "", "Accept-Encoding", "gzip")
	if r.Header.Get("Content-Encoding") != "gzip" || r.Header.Get("Vary") != "Accept-Encoding" {
		t.Fatalf("a long answer is not compressed: %v", r.Header)
	}
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	var jobs []map[string]any
	if err := json.NewDecoder(z).Decode(&jobs); err != nil || len(jobs) != 100 {
		t.Errorf("%d jobs, %v", len(jobs), err)
	}
	if r := do(s, "GET", "/v1/acl/auth-methods", "", "Accept-Encoding", "gzip"); r.Header.Get("Content-Encoding") != "" {
		t.Errorf(`an answer of two bytes is compressed: got %q, want ""`, r.Header.Get("Content-Encoding"))
	}
	if body := text(t, do(s, "GET", "/v1/job/job-1?pretty", "")); !strings.Contains(body, "\n    \"ID\": \"job-1\"") {
		t.Errorf("pretty: %.80s", body)
	}

	r = do(s, "DELETE", "/v1/nodes", "")
	if r.StatusCode != 405 || r.Header.Get("Allow") != "GET" || text(t, r) != "Invalid method" {
		t.Errorf("405: %d, Allow %q", r.StatusCode, r.Header.Get("Allow"))
	}
	r = do(s, "GET", "/v1/job/none", "", "Accept", "application/problem+json")
	var p struct {
		Code, Title, Detail string
		Status              int
	}
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil || r.Header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("problem: %v, %s", err, r.Header.Get("Content-Type"))
	}
	if p.Code != string(structs.CodeNotFound) || p.Status != 404 || p.Title != "Not Found" || p.Detail != "job not found" {
		t.Errorf("problem %+v", p)
	}
	if body := text(t, do(s, "GET", "/v1/job/none", "")); body != "job not found" {
		t.Errorf("error body %q", body)
	}
}

func TestBodies(t *testing.T) {
	s, m := testServer()
	job := func(extra string) string {
		return `{"Job": {"ID": "job-x", "Type": "batch", "Datacenters": ["dc1"]` + extra + `, "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"command": "true"}}]}]}}`
	}
	for _, c := range []struct {
		what, method, path, body string
		status                   int
		contains                 string
	}{
		{"a job", "PUT", "/v1/jobs", job(""), 200, ""},
		{"an unknown field", "POST", "/v1/jobs", job(`, "Prioritty": 3`), 200, "ignored: unknown field Job.Prioritty; did you mean"},
		{"no body", "PUT", "/v1/jobs", "", 400, ""},
		{"no JSON", "PUT", "/v1/jobs", "job {}", 400, ""},
		{"no job", "PUT", "/v1/jobs", "{}", 400, "Job must be specified"},
		{"null", "PUT", "/v1/jobs", "null", 400, ""},
		{"a list", "PUT", "/v1/jobs", "[]", 400, ""},
		{"half a body", "PUT", "/v1/jobs", `{"Job": {"ID": "x"`, 400, ""},
		{"two values", "PUT", "/v1/jobs", job("") + job(""), 400, ""},
		{"another id than the path's", "PUT", "/v1/job/other", job(""), 400, "Job ID does not match"},
		{"a wrong type", "PUT", "/v1/jobs", job(`, "Priority": "high"`), 400, "Priority"},
		{"a number beyond 64 bits", "PUT", "/v1/jobs", job(`, "Priority": 1e400`), 400, ""},
		{"depth", "PUT", "/v1/jobs", job(`, "Meta": ` + strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000)), 400, ""},
		{"5 MiB", "PUT", "/v1/jobs", job(`, "Meta": {"a": "` + strings.Repeat("x", 5<<20) + `"}`), 413, "larger than"},
		{"a long job file", "PUT", "/v1/jobs/parse", `{"JobHCL": "` + strings.Repeat("#", ParseMax+1) + `"}`, 413, ""},
		{"bytes that are not UTF-8 in an id", "PUT", "/v1/jobs", strings.ReplaceAll(job(""), "job-x", "job-\xff\xfe"), 400, ""},
		{"scale without a group", "PUT", "/v1/job/job-x/scale", `{"Count": 1}`, 400, "Group"},
		{"eligibility", "PUT", "/v1/node/00000000-0000-4000-8000-000000000001/eligibility", `{"Eligibility": "perhaps"}`, 400, "perhaps"},
	} {
		t.Run(c.what, func(t *testing.T) {
			m.jobID = ""
			r := do(s, c.method, c.path, c.body)
			body := text(t, r)
			if r.StatusCode != c.status || !strings.Contains(body, c.contains) {
				t.Errorf("%s: status %d, want %d with %q: %.200s", c.what, r.StatusCode, c.status, c.contains, body)
			}
			if c.status != 200 && m.jobID != "" {
				t.Errorf("%s reached the server", c.what)
			}
		})
	}
	if r := do(s, "PUT", "/v1/jobs", "x", "Content-Encoding", "gzip"); r.StatusCode != 400 {
		t.Errorf("an encoded body: status %d", r.StatusCode)
	}
}

// A client that sends its whole body before it reads sees why it is refused, and no broken connection.
func TestRefusalsReadTheBody(t *testing.T) {
	s, _ := testServer()
	ts := httptest.NewServer(s)
	t.Cleanup(ts.Close)
	body := strings.Repeat("x", 3<<20)
	for _, c := range []struct{ what, request, status string }{
		{"encoded", "PUT /v1/jobs HTTP/1.1\r\nContent-Encoding: gzip", "400"},
		{"a bad parameter", "PUT /v1/jobs?wait=x HTTP/1.1", "400"},
		{"no such route", "PUT /v1/nothing HTTP/1.1", "404"},
		{"no such method", "PATCH /v1/jobs HTTP/1.1", "405"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", ts.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := fmt.Fprintf(conn, "%s\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", c.request, len(body), body[:1<<20]); err != nil {
				t.Fatal(err)
			}
			time.Sleep(700 * time.Millisecond) // longer than net/http lets a connection linger
			if _, err := io.WriteString(conn, body[1<<20:]); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(conn).ReadString('\n')
			if err != nil || !strings.Contains(line, " "+c.status+" ") {
				t.Errorf("answer %q, %v; want status %s", line, err, c.status)
			}
		})
	}
}

// TestHostileConnections sends to a live listener what no client of ours would.
func TestHostileConnections(t *testing.T) {
	s, _ := testServer()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := NewHTTPServer(s, hclog.NewNullLogger())
	go srv.Serve(l)
	defer srv.Close()
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	long := strings.Repeat("a", headerBytesMax+8<<10)
	for range 20 {
		for _, c := range []struct {
			what, send string
			want       []int // statuses; 0: closed without one
		}{
			{"no HTTP", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", []int{400, 0}},
			{"a long header", "GET /v1/jobs HTTP/1.1\r\nHost: a\r\nX: " + long + "\r\n\r\n", []int{431}},
			{"a long target", "GET /" + long + " HTTP/1.1\r\nHost: a\r\n\r\n", []int{431, 414}},
			{"a strange method", "BREW /v1/jobs HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", []int{405}},
			{"a method with control characters", "G\x01T /v1/jobs HTTP/1.1\r\nHost: a\r\n\r\n", []int{400}},
			{"bytes that are not UTF-8 in the path", "GET /v1/job/\xff\xfe HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", []int{400, 404}},
			{"NUL in the path", "GET /v1/job/a%00 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", []int{404}},
			{"dots", "GET /v1/../../etc/passwd HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", []int{404}},
			{"a header name with a blank", "GET /v1/jobs HTTP/1.1\r\nHost: a\r\nX-Nomad Token: x\r\n\r\n", []int{400}},
			{"two lengths", "PUT /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", []int{400}},
			{"a length beyond all bounds", "PUT /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999999\r\n\r\n{", []int{413}},
			{"a negative length", "PUT /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", []int{400}},
			{"a chunk that is none", "PUT /v1/jobs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", []int{400}},
			{"length and chunks", "PUT /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n", []int{400}},
			{"HTTP/0.9", "GET /v1/jobs\r\n\r\n", []int{400}},
			{"an unknown version", "GET /v1/jobs HTTP/7.0\r\nHost: a\r\n\r\n", []int{505, 400}},
			{"half a request and the end", "GET /v1/jobs HTT", []int{0, 400}},
		} {
			t.Run(c.what, func(t *testing.T) {
				conn, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					t.Fatalf("after %s: %v", c.what, err)
				}
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				_, _ = io.WriteString(conn, c.send) // the answer may come before all is sent
				if strings.HasPrefix(c.what, "half") {
					_ = conn.(*net.TCPConn).CloseWrite()
				}
				status := 0
				if r, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
					status = r.StatusCode
					r.Body.Close()
				} else if ne, is := err.(net.Error); is && ne.Timeout() {
					t.Errorf("%s: no answer", c.what)
				}
				conn.Close()
				found := false
				for _, w := range c.want {
					found = found || w == status
				}
				// A reset may overtake the answer to a sender who has not stopped.
				if !found && !(status == 0 && len(c.send) > headerBytesMax) {
					t.Errorf("%s: status %d, want one of %v", c.what, status, c.want)
				}
			})
		}
	}
	// Stalled connections do not delay others.
	for i := range 200 {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		stalled := "GET /v1/jobs HTTP/1.1\r\nHost:"
		if i%2 == 1 {
			stalled = "PUT /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{"
		}
		_, _ = io.WriteString(conn, stalled)
	}
	begin := time.Now()
	r, err := http.Get("http://" + l.Addr().String() + "/v1/jobs")
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if took := time.Since(begin); r.StatusCode != 200 || took > 20*time.Second {
		t.Errorf("beside 200 stalled connections a request got status %d after %s", r.StatusCode, took)
	}
	srv.Close()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		after := heap()
		if after < before+8<<20 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the heap went from %d to %d bytes", before, after)
		}
	}
}

// reader is a client that reads an answer: seen is called with each part.
type reader struct {
	*httptest.ResponseRecorder
	seen func()
}

func (r reader) Write(b []byte) (int, error) {
	r.seen()
	return r.ResponseRecorder.Write(b)
}

// TestSlowReaders: a request holds its place while it is answered, and not while its client reads the answer.
func TestSlowReaders(t *testing.T) {
	for _, encoding := range []string{"", "gzip"} {
		s, _ := testServer()
		held, most := 0, 0
		s.cfg.Enter = func(ctx context.Context, write bool) (context.Context, func(), error) {
			held++
			most = max(most, held)
			return ctx, func() { held-- }, nil
		}
		r := httptest.NewRequest("GET", "/v1/jobs", nil)
		r.Header.Set("Accept-Encoding", encoding)
		parts := 0
		w := reader{httptest.NewRecorder(), func() {
			if parts++; held != 0 {
				t.Errorf("%q: a client that reads holds %d places", encoding, held)
			}
		}}
		s.ServeHTTP(w, r)
		if w.Code != http.StatusOK || parts == 0 || most != 1 || held != 0 {
			t.Errorf("%q: status %d, %d parts, at most %d places held, %d at the end", encoding, w.Code, parts, most, held)
		}
	}
}

// TestEveryWriteTakesAPlace: a body of unknown length, or a large one, is read before the request takes a place, which it
// needs as others do.
func TestEveryWriteTakesAPlace(t *testing.T) {
	for _, size := range []int{10, 1 << 20, BodyMax + 1} {
		for _, known := range []bool{true, false} {
			s, _ := testServer()
			body, entered := strings.NewReader(strings.Repeat(" ", size)), 0
			s.cfg.Enter = func(ctx context.Context, write bool) (context.Context, func(), error) {
				if entered++; !write || body.Len() > 1 {
					t.Errorf("%d bytes: write %t, %d bytes have not come yet", size, write, body.Len())
				}
				return ctx, func() {}, nil
			}
			r := httptest.NewRequest("PUT", "/v1/jobs", io.NopCloser(body))
			if r.ContentLength = -1; known {
				r.ContentLength = int64(size)
			}
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			want := http.StatusBadRequest // no job
			if size > BodyMax {
				want = http.StatusRequestEntityTooLarge
			}
			if entered != 1 || w.Code != want {
				t.Errorf("%d bytes: took %d places, status %d; want 1, %d", size, entered, w.Code, want)
			}
		}
	}
}

// Nomad's client asks for every profile with both debug and seconds.
func TestProfileWithDebugAndSeconds(t *testing.T) {
	s, _ := testServer()
	for target, want := range map[string]string{"goroutine?debug=2&seconds=1": "goroutine ", "goroutine?debug=1&seconds=1": "goroutine profile:", "heap?debug=1&seconds=3": "heap profile:"} {
		r := do(s, "GET", "/v1/agent/pprof/"+target, "")
		if body := text(t, r); r.StatusCode != 200 || !strings.HasPrefix(body, want) {
			t.Errorf("%s: %d %.80s, want %s", target, r.StatusCode, body, want)
		}
	}
}
