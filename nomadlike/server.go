package nomadlike

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/nomadlike/edge"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// Limits of the API. A request that exceeds one is answered with the status in brackets.
const (
	BodyMax         = 4 << 20          // bytes of a request body [413]
	SnapshotMax     = 16 << 30         // bytes of a snapshot to restore [413]
	ParseMax        = 1 << 20          // bytes of a job file sent to be parsed [413]
	FilterMax       = 10 << 10         // bytes of a filter expression [400]
	PerPageMax      = methods.PageMax  // objects per page [400]
	WaitMax         = 10 * time.Minute // of a blocking query; longer waits are shortened to it
	WaitDefault     = 5 * time.Minute
	bodyReadTime    = 30 * time.Second // to send a request's body [408]
	refusedBodyTime = time.Second      // to send the rest of a body whose request was refused
	callTime        = 60 * time.Second // for a call that does not block
	drainMax        = 16 << 20         // bytes beyond a limit that are read and discarded, so that the client sees the refusal
	gzipThreshold   = 1 << 10          // bytes below which an answer is not compressed
)

// Config configures a Server.
type Config struct {
	Backend rpc.Caller   // answers the methods of internal/methods
	Agent   Agent        // answers for this process only
	Log     hclog.Logger // never nil
	Debug   bool         // serve /debug/pprof without a token, as Nomad's enable_debug
	Region  string
	Site    *edge.Site  // which requests of browsers are refused; nil: the agent answers to addresses and localhost only
	Rates   *edge.Rates // limits of requests; nil: none
	// Enter admits a read or write of a user: it waits for a place, refuses, or returns a context for the request's calls and
	// what gives the place back. nil: everything is admitted.
	Enter   func(ctx context.Context, write bool) (context.Context, func(), error)
	Observe func(route string, status int, took time.Duration) // or nil
}

// Server answers HTTP requests. It is an http.Handler without state other than its configuration.
type Server struct {
	cfg Config
	rt  *router
}

// New makes a Server.
func New(cfg Config) *Server {
	if cfg.Site == nil {
		cfg.Site = edge.NewSite(nil, nil)
	}
	if cfg.Rates == nil {
		cfg.Rates = edge.NewRates(edge.RateLimits{}, cfg.Log)
	}
	return &Server{cfg: cfg, rt: newRouter(table())}
}

// handler answers one request. Its result is written as JSON; nil means an empty answer; an error becomes its status
// with a line of text. A handler that has written the answer itself returns errWritten.
type handler func(c *call) (any, error)

var errWritten = errors.New("answer already written")

// rawAnswer is written unchanged.
type rawAnswer struct {
	contentType string
	body        []byte
}

// call is one request in progress.
type call struct {
	*Server
	w      http.ResponseWriter
	r      *http.Request
	params map[string]string
	hdr    rpc.Header
	query  methods.Query
	outer  context.Context // of the request before it had a place; nil: its calls take places of their own
}

// ServeHTTP routes a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	rec := &recorder{ResponseWriter: w, r: r}
	name := "none"
	defer func() {
		p := recover()
		if p != nil && p != http.ErrAbortHandler {
			s.cfg.Log.Error("request handler panicked", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			if !rec.wrote {
				http.Error(rec, "Internal error; the agent's log has the detail", http.StatusInternalServerError)
			}
		}
		s.cfg.Log.Debug("request complete", "method", r.Method, "path", r.URL.Path, "status", rec.status, "duration", time.Since(start))
		if s.cfg.Observe != nil {
			s.cfg.Observe(name, rec.status, time.Since(start))
		}
		if p == http.ErrAbortHandler {
			panic(p)
		}
	}()
	h := rec.Header()
	if r.ContentLength != 0 {
		// Handlers that ignore the body, and net/http when it reads the rest of it, must not wait for ever.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyReadTime)) // not every ResponseWriter has one
	}
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Vary", "Accept-Encoding")

	path := r.URL.EscapedPath()
	rt, params, allow := s.rt.find(r.Method, path)
	effects := r.Method != http.MethodGet && r.Method != http.MethodHead || rt != nil && rt.effects
	if err := s.admit(rec, r, effects); err != nil {
		if r.ContentLength != 0 { // net/http reads the body before it answers
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedBodyTime))
		}
		(&call{Server: s, w: rec, r: r}).fail(err)
		return
	}
	if strings.HasPrefix(path, "/debug/pprof") {
		s.pprof(rec, r)
		return
	}
	if rt == nil {
		if r.Method == http.MethodHead {
			rt, params, _ = s.rt.find(http.MethodGet, path)
		}
		if rt == nil && allow != "" {
			h.Set("Allow", strings.ReplaceAll(allow, ",", ", "))
			http.Error(rec, "Invalid method", http.StatusMethodNotAllowed)
			return
		}
	}
	if rt == nil {
		http.Error(rec, fmt.Sprintf("no such endpoint: %s", clip(r.URL.Path, 200)), http.StatusNotFound)
		return
	}
	name = rt.pattern
	c := &call{Server: s, w: rec, r: r, params: params}
	if err := c.parse(); err != nil {
		c.fail(err)
		return
	}
	leave, err := c.enter(rt)
	if err != nil {
		c.fail(err)
		return
	}
	rec.leave = sync.OnceFunc(leave)
	defer rec.leave()
	out, err := rt.handle(c)
	switch {
	case errors.Is(err, errWritten):
	case err != nil:
		c.fail(err)
	default:
		c.answer(out)
	}
}

// admit returns an error for a request that its client, its token or the page that sent it may not make.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, effects bool) error {
	if wait, err := s.cfg.Rates.Take(r, tokenOf(r)); err != nil {
		w.Header().Set("Retry-After", strconv.Itoa(int((wait+time.Second-1)/time.Second)))
		return err
	}
	return s.cfg.Site.Check(r, effects)
}

// enter admits the request of a user, after its body has come, so that a slow client holds no place. Routes by which
// operators look after the cluster, and requests that wait for events, are admitted by their calls.
func (c *call) enter(rt *route) (leave func(), err error) {
	leave = func() {}
	q := c.r.URL.Query()
	if c.cfg.Enter == nil || q.Has("index") && q.Get("index") != "0" {
		return leave, nil
	}
	for _, p := range []string{"/v1/agent", "/v1/status", "/v1/operator", "/v1/metrics", "/v1/node", "/v1/system", "/v1/client", "/v1/event", "/v1/top"} {
		if strings.HasPrefix(rt.pattern, p) {
			return leave, nil
		}
	}
	if n := c.r.ContentLength; n != 0 && n <= BodyMax+drainMax { // what is longer is refused by its length
		body, err := io.ReadAll(io.LimitReader(c.r.Body, BodyMax+1+drainMax))
		if err != nil {
			return leave, structs.Errorf(structs.CodeInvalid, "the request body could not be read: %v", err)
		}
		c.r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), c.r.Body)) // handlers refuse what is longer
	}
	c.outer = c.r.Context()
	return c.takePlace(c.r.Method != http.MethodGet && c.r.Method != http.MethodHead)
}

// takePlace waits for a place for the request's calls, if they need one.
func (c *call) takePlace(write bool) (leave func(), err error) {
	if c.outer == nil {
		return func() {}, nil
	}
	ctx, leave, err := c.cfg.Enter(c.outer, write)
	if err != nil {
		return nil, err
	}
	c.r = c.r.WithContext(ctx)
	return leave, nil
}

// retryAfter is the longest Retry-After of a refused request, in seconds. The time is drawn, so that the refused do not come
// back together.
const retryAfter = 3

// recorder records the status and whether anything was written, and delays a refusal until the body has been read.
type recorder struct {
	http.ResponseWriter
	r      *http.Request
	status int
	wrote  bool
	leave  func() // gives back the request's place, as soon as the answer begins: a client that reads slowly holds none
}

// begin notes the status of an answer that begins.
func (r *recorder) begin(code int) {
	r.status, r.wrote = code, true
	if r.leave != nil {
		r.leave()
	}
}

func (r *recorder) WriteHeader(code int) {
	if !r.wrote {
		r.begin(code)
		if code >= http.StatusBadRequest {
			r.drain()
		}
	}
	r.ResponseWriter.WriteHeader(code)
}

// drain reads the rest of an unread body. Most clients read the answer only after they have sent everything, and would
// see a broken connection instead of the error; net/http reads 256 KiB only.
func (r *recorder) drain() {
	if r.r.ContentLength == 0 || r.r.Header.Get("Expect") != "" || r.Header().Get("Connection") == "close" {
		return
	}
	_, _ = io.CopyN(io.Discard, r.r.Body, drainMax)
}

func (r *recorder) Write(b []byte) (int, error) {
	if !r.wrote {
		r.begin(http.StatusOK)
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController and the websocket library reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// parse reads the parameters that every request may have: token, region, namespace, consistency, blocking and paging.
func (c *call) parse() error {
	q := c.r.URL.Query()
	c.hdr.Token = tokenOf(c.r)
	c.hdr.Region = q.Get("region")
	c.hdr.Namespace = q.Get("namespace")
	if c.hdr.Namespace == "" {
		c.hdr.Namespace = structs.NamespaceDefault
	}
	c.query.Prefix = q.Get("prefix")
	c.query.Filter = q.Get("filter")
	c.query.NextToken = q.Get("next_token")
	if len(c.query.Filter) > FilterMax {
		return structs.Errorf(structs.CodeInvalid, "filter is %d bytes; at most %d are accepted", len(c.query.Filter), FilterMax)
	}
	var err error
	if c.query.Stale, err = c.flag("stale"); err != nil {
		return err
	}
	if c.query.Reverse, err = c.flag("reverse"); err != nil {
		return err
	}
	if v := q.Get("index"); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			return structs.Errorf(structs.CodeInvalid, "Invalid index %q: want a whole number", clip(v, 40))
		}
		c.query.MinIndex = structs.Index(n)
	}
	c.query.MaxWait = WaitDefault
	if v := q.Get("wait"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			return structs.Errorf(structs.CodeInvalid, "Invalid wait time %q: want a duration such as 30s or 5m", clip(v, 40))
		}
		c.query.MaxWait = min(max(d, 0), WaitMax)
	}
	if v := q.Get("per_page"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > PerPageMax {
			return structs.Errorf(structs.CodeInvalid, "Invalid per_page %q: want a number from 0 to %d", clip(v, 40), PerPageMax)
		}
		c.query.PerPage = n
	}
	return nil
}

func tokenOf(r *http.Request) string {
	for _, k := range []string{"X-Nomad-Token", "X-Muster-Token"} {
		if t := strings.TrimSpace(r.Header.Get(k)); t != "" {
			return t
		}
	}
	if t, ok := strings.CutPrefix(strings.TrimSpace(r.Header.Get("Authorization")), "Bearer "); ok {
		return strings.TrimSpace(t)
	}
	return ""
}

// flag reads a boolean query parameter: absent is false, present without a value is true.
func (c *call) flag(name string) (bool, error) {
	vs, ok := c.r.URL.Query()[name]
	if !ok {
		return false, nil
	}
	if len(vs) == 0 || vs[0] == "" {
		return true, nil
	}
	b, err := strconv.ParseBool(vs[0])
	if err != nil {
		return false, structs.Errorf(structs.CodeInvalid, "Failed to parse value of %q (%q) as a bool", name, clip(vs[0], 40))
	}
	return b, nil
}

// uint reads an optional whole-number query parameter.
func (c *call) uint(name string) (n uint64, ok bool, err error) {
	v := c.r.URL.Query().Get(name)
	if v == "" {
		return 0, false, nil
	}
	n, err = strconv.ParseUint(v, 10, 64)
	if err != nil {
		return 0, false, structs.Errorf(structs.CodeInvalid, "Failed to parse value of %q (%q) as a whole number", name, clip(v, 40))
	}
	return n, true, nil
}

// body decodes a JSON body into v. Fields that v does not know are ignored, as Nomad does.
func (c *call) body(v any) error {
	b, err := c.rawBody(BodyMax)
	if err != nil {
		return err
	}
	_, err = wire.Decode(b, v)
	return err
}

// rawBody reads the body unchanged. Until the body is complete, the connection has the deadline that ServeHTTP set.
// After a failure the deadline stays and the connection is closed, because net/http would wait for the rest.
func (c *call) rawBody(limit int64) ([]byte, error) {
	tooLarge := structs.Errorf(structs.CodeTooLarge, "the request body is larger than %d bytes", limit)
	if enc := c.r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, structs.Errorf(structs.CodeInvalid, "the request body has the encoding %q; send it as it is", clip(enc, 40))
	}
	if c.r.ContentLength > limit+drainMax {
		c.w.Header().Set("Connection", "close")
		return nil, tooLarge
	}
	b, err := io.ReadAll(io.LimitReader(c.r.Body, limit+1))
	if err == nil && int64(len(b)) > limit {
		_, _ = io.CopyN(io.Discard, c.r.Body, drainMax)
		c.w.Header().Set("Connection", "close")
		return nil, tooLarge
	}
	if err != nil {
		c.w.Header().Set("Connection", "close")
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, structs.Errorf(structs.CodeInvalid, "the request body did not come within %s", bodyReadTime)
		}
		return nil, structs.Errorf(structs.CodeInvalid, "the request body could not be read: %v", err)
	}
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{})
	return b, nil
}

type loginKey struct{}

// WithLoginRefused adds to the context of a request why its user could not log in; a denial then says so.
func WithLoginRefused(ctx context.Context, why string) context.Context {
	return context.WithValue(ctx, loginKey{}, why)
}

// fail answers with an error: its status and one line of text, or a problem document for clients that ask for one.
func (c *call) fail(err error) {
	if errors.Is(err, structs.ErrTokenNotFound) {
		if busy := c.cfg.Rates.Wrong(c.r); busy != nil {
			err = busy
		}
	}
	var e *structs.Error
	switch {
	case errors.As(err, &e):
	case errors.Is(err, context.Canceled) && c.r.Context().Err() != nil:
		// The client has gone, or has closed its side and reads on. Without an answer net/http would send 200 and nothing more.
		panic(http.ErrAbortHandler)
	default:
		c.cfg.Log.Error("request failed", "path", c.r.URL.Path, "error", err)
		e = structs.Errorf(structs.CodeInternal, "Internal error; the agent's log has the detail")
	}
	if why, ok := c.r.Context().Value(loginKey{}).(string); ok && e.Code == structs.CodeDenied {
		e = structs.Errorf(e.Code, "%s (no token, and the login by the unix socket was refused: %s)", e.Msg, why)
	}
	status := e.Code.Status()
	h := c.w.Header()
	if e.Code == structs.CodeBusy && h.Get("Retry-After") == "" {
		seconds := 1 + rand.IntN(retryAfter)
		if e.RetryAfter > 0 {
			seconds = int((e.RetryAfter + time.Second - 1) / time.Second)
		}
		h.Set("Retry-After", strconv.Itoa(seconds))
	}
	if strings.Contains(c.r.Header.Get("Accept"), "application/problem+json") {
		h.Set("Content-Type", "application/problem+json")
		c.w.WriteHeader(status)
		_ = json.NewEncoder(c.w).Encode(map[string]any{"code": e.Code, "title": http.StatusText(status), "status": status, "detail": e.Msg})
		return
	}
	http.Error(c.w, e.Msg, status)
}

var gzips = sync.Pool{New: func() any { w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed); return w }}

// each converts a list. The result is never nil: clients expect [] for an empty list, not null.
func each[From, To any](in []From, convert func(From) To) []To {
	out := make([]To, 0, len(in))
	for _, v := range in {
		out = append(out, convert(v))
	}
	return out
}

// answer writes a value as JSON, compressed if the client accepts that and it is large enough.
func (c *call) answer(out any) {
	var body []byte
	ctype := "application/json"
	switch v := out.(type) {
	case nil:
		c.w.WriteHeader(http.StatusOK)
		return
	case rawAnswer:
		body, ctype = v.body, v.contentType
	default:
		var err error
		if pretty, _ := c.flag("pretty"); pretty {
			body, err = json.MarshalIndent(v, "", "    ")
			body = append(body, '\n')
		} else {
			body, err = json.Marshal(v)
		}
		if err != nil {
			c.fail(fmt.Errorf("encode answer: %w", err))
			return
		}
	}
	h := c.w.Header()
	h.Set("Content-Type", ctype)
	if len(body) >= gzipThreshold && strings.Contains(c.r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		var small bytes.Buffer // packed as a part of the work, not at the pace of the client
		z := gzips.Get().(*gzip.Writer)
		z.Reset(&small)
		_, _ = z.Write(body)
		_ = z.Close()
		gzips.Put(z)
		body = small.Bytes()
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(http.StatusOK)
	_, _ = c.w.Write(body) // a client that has gone needs no answer
}

// invoke makes a call with the request's token, region and namespace. Reads carry the query options, and their
// answer's meta becomes headers.
func invoke[Req, Resp any](c *call, m rpc.Method[Req, Resp], req *Req) (*Resp, error) {
	limit := callTime
	if q, ok := any(req).(methods.ReadRequest); ok {
		*q.QueryOpts() = c.query
		if c.query.MinIndex > 0 {
			limit += c.query.MaxWait
		}
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), limit)
	defer cancel()
	resp, err := rpc.Invoke(ctx, c.cfg.Backend, m, c.hdr, req)
	if err != nil {
		return nil, err
	}
	if mr, ok := any(resp).(methods.ReadResponse); ok {
		c.meta(mr.MetaRef())
	}
	return resp, nil
}

// meta writes the headers of a read.
func (c *call) meta(m *methods.Meta) {
	h := c.w.Header()
	h.Set("X-Nomad-Index", strconv.FormatUint(uint64(m.Index), 10))
	h.Set("X-Nomad-LastContact", strconv.FormatInt(m.LastContact.Milliseconds(), 10))
	h.Set("X-Nomad-KnownLeader", strconv.FormatBool(m.KnownLeader))
	if m.NextToken != "" {
		h.Set("X-Nomad-NextToken", m.NextToken)
	}
}

// index writes the header of a write.
func (c *call) index(i structs.Index) {
	c.w.Header().Set("X-Nomad-Index", strconv.FormatUint(uint64(i), 10))
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "..."
}
