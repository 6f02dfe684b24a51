package nomadlike

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// FuzzFilter compiles any expression over each kind of object: within its steps it ends with an answer or a sentence.
func FuzzFilter(f *testing.F) {
	for _, s := range []string{`ID == "x"`, `Name matches "a.*" and not (Status in ["a", "b"])`, `Meta.a is empty`, `TaskGroups[0].Name contains "x"`, `any TaskGroups as g { g.Name == "x" }`, `((((((ID==""))))))`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, expr string) {
		if len(expr) > FilterMax {
			return
		}
		for kind, o := range map[string]any{"job": &structs.Job{ID: "x"}, "node": &structs.Node{Name: "n", Meta: map[string]string{"a": "b"}}, "namespace": &structs.Namespace{Name: "d"}} {
			begin := time.Now()
			match, err := Filter(kind, expr)
			if err == nil {
				_, err = match(o)
			}
			if err != nil && structs.CodeOf(err) != structs.CodeInvalid {
				t.Fatalf("%q: %v", expr, err)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Fatalf("%d bytes took %v", len(expr), took)
			}
		}
	})
}

// shut is a cluster that answers nothing.
type shut struct{}

func (shut) Invoke(context.Context, rpc.Header, any, any) error {
	return structs.Errorf(structs.CodeUnavailable, "shut")
}

func (shut) InvokeRaw(context.Context, rpc.Header, []byte) ([]byte, error) {
	return nil, structs.Errorf(structs.CodeUnavailable, "shut")
}

func (shut) Open(context.Context, rpc.Header, any) (*rpc.Stream, error) {
	return nil, structs.Errorf(structs.CodeUnavailable, "shut")
}

// FuzzRequest sends any request through the whole HTTP API up to the call of a server. No handler panics, every answer
// has a status, and a refusal is short text.
func FuzzRequest(f *testing.F) {
	for _, s := range []struct{ method, target, body string }{
		{"GET", "/v1/jobs?filter=ID%3D%3D%22x%22&per_page=3", ""}, {"PUT", "/v1/jobs", `{"Job": {"ID": "x", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "exec"}]}]}}`},
		{"POST", "/v1/job/x/dispatch", `{"Payload": "YQ=="}`}, {"PUT", "/v1/var/a/b?cas=1", `{"Items": {"a": "b"}}`}, {"GET", "/v1/client/fs/logs/11111111-1111-1111-1111-111111111111?task=x&type=stdout&offset=-1", ""},
		{"PUT", "/v1/queues", `[{"Path": "a"}]`}, {"PUT", "/v1/quota", `{"Name": "q", "Limits": [{"Region": "global"}]}`}, {"GET", "/v1/event/stream?topic=Job:x&index=1", ""},
		{"PUT", "/v1/node/11111111-1111-1111-1111-111111111111/drain", `{"DrainSpec": {"Deadline": "1h"}}`}, {"GET", "/v1/service/x?choose=1|k", ""}, {"PUT", "/v1/search/fuzzy", `{"Text": "a"}`},
		{"DELETE", "/v1/job/%2e%2e?purge=maybe", ""}, {"PUT", "/v1/operator/scheduler/configuration?cas=x", `{"SchedulerAlgorithm": 1}`},
	} {
		f.Add(s.method, s.target, s.body)
	}
	log := &panics{}
	s := New(Config{Backend: shut{}, Agent: open{}, Log: hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Error}), Region: "global"})
	f.Fuzz(func(t *testing.T, method, target, body string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || strings.Contains(target, "pprof") || strings.Contains(target, "/v1/agent") || strings.Contains(target, "/v1/jobs/parse") {
			return // profiles take their time, open knows nothing of an agent, and job files have a target of their own
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", strings.NewReader(body))
		r.Method, r.URL, r.RequestURI, r.Host = method, u, target, "127.0.0.1"
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		res := w.Result()
		b, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
		switch {
		case log.seen != nil:
			t.Fatalf("%s %s %q: %s", method, target, body, log.seen)
		case res.StatusCode < 200 || res.StatusCode > 599:
			t.Fatalf("%s %s: status %d", method, target, res.StatusCode)
		case res.StatusCode >= 400 && len(b) > 16<<10+len(body):
			t.Fatalf("%s %s: a refusal of %d bytes", method, target, len(b))
		}
	})
}

// panics keeps what the server logs about a panic.
type panics struct{ seen []byte }

func (p *panics) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("panicked")) {
		p.seen = bytes.Clone(b)
	}
	return len(b), nil
}
