package client

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/clientfake"
	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// listener is a web server of the test's that tasks are said to be.
type listener struct {
	*httptest.Server
	status atomic.Int64
	asked  atomic.Int64
}

func newListener(t *testing.T) *listener {
	l := &listener{}
	l.status.Store(200)
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.asked.Add(1)
		w.WriteHeader(int(l.status.Load()))
		fmt.Fprint(w, "I am ", r.URL.Path)
	}))
	t.Cleanup(l.Close)
	return l
}

// at gives an allocation the listener's port under a label.
func (l *listener) at(label string) func(*structs.Allocation) {
	addr := l.Listener.Addr().(*net.TCPAddr)
	return func(a *structs.Allocation) {
		a.Ports = append(a.Ports, structs.PortGrant{Label: label, Value: addr.Port, HostIP: addr.IP.String()})
	}
}

type m = map[string]any

// offers is a service as jobs carry it.
func offers(name, port string, more m, checks ...m) structs.Service {
	raw := m{"Name": name, "PortLabel": port, "Provider": "nomad", "Checks": checks}
	for k, v := range more {
		raw[k] = v
	}
	b, err := json.Marshal(raw)
	if err != nil {
		panic(err)
	}
	return structs.Service{Name: name, PortLabel: port, Raw: b, Checked: len(checks) > 0}
}

func httpCheck(more m) m {
	c := m{"Name": "alive", "Type": "http", "Path": "/health", "Interval": 20 * time.Millisecond, "Timeout": time.Second}
	for k, v := range more {
		c[k] = v
	}
	return c
}

// newest returns the last report about an allocation.
func newest(srv *clientfake.Server, id structs.AllocID) (o structs.AllocObserved) {
	if seen := srv.Seen(id); len(seen) > 0 {
		return seen[len(seen)-1]
	}
	return o
}

// healths waits until the newest report offers as many services, all with this health.
func healths(t *testing.T, srv *clientfake.Server, id structs.AllocID, n int, want structs.ServiceHealth) structs.AllocObserved {
	t.Helper()
	srv.Wait(t, fmt.Sprintf("%d services, %s", n, want), func() bool {
		o := newest(srv, id)
		for _, s := range o.Services {
			if s.Health != want {
				return false
			}
		}
		return len(o.Services) == n
	})
	return newest(srv, id)
}

func TestServicesFollowTasks(t *testing.T) {
	srv := clientfake.New()
	cfg := newConfig(t, srv)
	cfg.Node.Meta = map[string]string{"rack": "r7"}
	a := start(t, srv, cfg)
	web := newListener(t)
	job := clientfake.Job("train", structs.JobService, clientfake.Task("main", "fake", `{}`))
	job.Groups[0].Services = []structs.Service{
		offers("${NOMAD_JOB_NAME}-api", "http", m{"Tags": []string{"rack-${meta.rack}", "v1"}, "Meta": m{"alloc": "${NOMAD_SHORT_ALLOC_ID}"}}, httpCheck(nil)),
		offers("for-consul", "http", m{"Provider": "consul"}),
	}
	job.Groups[0].Tasks[0].Services = []structs.Service{offers("raw", "http", m{"Address": "gpu.example"}, m{"Name": "port", "Type": "tcp", "Interval": 20 * time.Millisecond, "Timeout": time.Second})}
	id := srv.Place(a.ID(), job, web.at("http"))
	o := healths(t, srv, id, 2, structs.HealthPassing)
	api, raw := o.Services[0], o.Services[1]
	addr := web.Listener.Addr().(*net.TCPAddr)
	if api.Service != "train-api" || strings.Join(api.Tags, " ") != "rack-r7 v1" || api.Meta["alloc"] != id.Short() || api.Address != addr.IP.String() || api.Port != addr.Port {
		t.Errorf("the group offers %+v", api)
	}
	if raw.Service != "raw" || raw.Address != "gpu.example" || raw.Port != addr.Port || raw.ID == api.ID {
		t.Errorf("the task offers %+v", raw)
	}
	if o.HealthySince == 0 || o.HealthySince < o.StartedAt {
		t.Errorf("healthy since %d, started at %d", o.HealthySince, o.StartedAt)
	}

	resp, err := rpc.Invoke(t.Context(), srv.Back(a.ID()), methods.ClientChecks, rpc.Header{}, &methods.AllocNodeRequest{AllocID: id})
	if err != nil || len(resp.Checks) != 2 {
		t.Fatalf("checks %+v, %v", resp, err)
	}
	for _, c := range resp.Checks {
		if c.Status != structs.HealthPassing || c.Group != "g" || c.Check == "alive" && (c.Code != 200 || c.Output != "I am /health" || c.Task != "") || c.Check == "port" && c.Task != "main" {
			t.Errorf("check %+v", c)
		}
	}

	web.status.Store(503)
	srv.Wait(t, "the check to fail", func() bool {
		o := newest(srv, id)
		return len(o.Services) == 2 && o.Services[0].Health == structs.HealthFailing && o.Services[1].Health == structs.HealthPassing && o.HealthySince == 0
	})
	web.status.Store(204)
	healths(t, srv, id, 2, structs.HealthPassing)

	// A restarted agent registers the same services with the same IDs.
	reports := len(srv.Seen(id))
	a = a.restart()
	srv.Wait(t, "a report of the new agent", func() bool { return len(srv.Seen(id)) > reports })
	o = healths(t, srv, id, 2, structs.HealthPassing)
	if o.Services[0].ID != api.ID || o.Services[1].ID != raw.ID {
		t.Errorf("after the restart %+v", o.Services)
	}

	// Servers that were restored from a backup get all services again: the backup may lack them.
	reports = len(srv.Seen(id))
	srv.Restore()
	srv.Wait(t, "a report to the restored servers", func() bool { return len(srv.Seen(id)) > reports && len(newest(srv, id).Services) == 2 })

	// An in-place update of the job changes the services while the task keeps running.
	srv.Change(id, func(a *structs.Allocation) {
		j := *a.Job
		g := *j.Groups[0]
		g.Services = []structs.Service{offers("other", "http", nil)}
		j.Groups = []*structs.Group{&g}
		a.Job = &j
	})
	srv.Wait(t, "the new words", func() bool {
		o := newest(srv, id)
		return len(o.Services) == 2 && o.Services[0].Service == "other" && o.Services[0].Health == structs.HealthNone
	})

	// An allocation that stops has no services from the moment of the request, before its tasks have ended.
	srv.Stop(id)
	srv.WaitStatus(t, id, structs.ClientComplete)
	running := 0
	for _, o := range srv.Seen(id) {
		if o.Client != structs.ClientRunning && len(o.Services) > 0 {
			t.Errorf("%s and offers %+v", o.Client, o.Services)
		}
		running += len(o.Services)
	}
	asked := web.asked.Load()
	time.Sleep(100 * time.Millisecond) // several intervals without a check
	if n := web.asked.Load(); running == 0 || n > asked+1 {
		t.Errorf("%d services offered in all; the check went on after the end (%d, then %d times)", running, asked, n)
	}
}

// A service with an invalid name, or without its port, is reported and does not harm the task.
func TestServicesThatCannotBe(t *testing.T) {
	srv := clientfake.New()
	a := start(t, srv, newConfig(t, srv))
	job := clientfake.Job("odd", structs.JobService, clientfake.Task("main", "fake", `{}`))
	job.Groups[0].Services = []structs.Service{offers("x-${meta.none}", "", nil), offers("no-port", "http", nil), offers("fine", "9000", nil)}
	id := srv.Place(a.ID(), job)
	o := healths(t, srv, id, 1, structs.HealthNone)
	if o.Services[0].Service != "fine" || o.Services[0].Port != 9000 || o.Services[0].Address != "192.0.2.7" {
		t.Errorf("offers %+v", o.Services)
	}
	srv.Wait(t, "an event", func() bool {
		for _, e := range newest(srv, id).TaskStates.Get("main").Events {
			if e.Type == runner.EventServices && strings.Contains(e.Message, "x-${meta.none}") && strings.Contains(e.Message, "no-port") {
				return true
			}
		}
		return false
	})
}

// A check that fails restarts the task as far as the restart policy goes, and not while the grace lasts.
func TestChecksRestartTasks(t *testing.T) {
	srv := clientfake.New()
	a := start(t, srv, newConfig(t, srv))
	sick := newListener(t)
	sick.status.Store(500)
	sicker := newListener(t)
	sicker.status.Store(500)
	restart := func(grace time.Duration) m {
		return m{"CheckRestart": m{"Limit": 2, "Grace": grace}}
	}
	job := clientfake.Job("sick", structs.JobService, clientfake.Task("main", "fake", `{}`))
	job.Groups[0].Restart.Attempts, job.Groups[0].Restart.Interval = 2, time.Hour
	job.Groups[0].Services = []structs.Service{offers("sick", "http", nil, httpCheck(restart(0)))}
	patient := clientfake.Job("patient", structs.JobService, clientfake.Task("main", "fake", `{}`))
	patient.Groups[0].Services = []structs.Service{offers("patient", "http", nil, httpCheck(restart(time.Hour)))}
	still := srv.Place(a.ID(), patient, sicker.at("http"))
	id := srv.Place(a.ID(), job, sick.at("http"))
	al := srv.WaitStatus(t, id, structs.ClientFailed)
	st := al.TaskStates.Get("main")
	if st.Restarts != 2 || !st.Failed {
		t.Errorf("%d restarts, failed %t: want both that the policy allows, and the end", st.Restarts, st.Failed)
	}
	found := false
	for _, e := range st.Events {
		found = found || e.Type == runner.EventRestartSignal && strings.Contains(e.Message, `healthcheck: check "alive" unhealthy`)
	}
	if !found {
		t.Errorf("no event tells why: %+v", st.Events)
	}
	o := newest(srv, still)
	if o.TaskStates.Get("main").Restarts != 0 || len(o.Services) != 1 || o.Services[0].Health != structs.HealthFailing {
		t.Errorf("within its grace: %+v, %+v", o.TaskStates.Get("main"), o.Services)
	}
}

// Every kind of check asks as the job says.
func TestKindsOfChecks(t *testing.T) {
	srv := clientfake.New()
	a := start(t, srv, newConfig(t, srv))
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := make([]byte, 100)
		n, _ := r.Body.Read(b)
		switch {
		case r.URL.Path == "/away":
			http.Redirect(w, r, "/fine", http.StatusFound)
		case r.URL.Path == "/slow":
			<-r.Context().Done()
		case r.URL.Path == "/post" && (r.Method != "POST" || string(b[:n]) != "ping" || r.Header.Get("X-Key") != "v" || r.Host != "gpu.example"):
			w.WriteHeader(400)
		}
		fmt.Fprintf(w, "%s %s", r.Method, r.URL.RequestURI())
	})
	plain, secure := httptest.NewServer(echo), httptest.NewTLSServer(echo)
	defer plain.Close()
	defer secure.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	to := func(label string, addr net.Addr) func(*structs.Allocation) {
		return func(a *structs.Allocation) {
			a.Ports = append(a.Ports, structs.PortGrant{Label: label, Value: addr.(*net.TCPAddr).Port, HostIP: "127.0.0.1"})
		}
	}
	checks := []m{
		httpCheck(m{"Name": "get", "Path": "fine?x=1"}),
		httpCheck(m{"Name": "post", "Path": "/post", "Method": "POST", "Body": "ping", "Header": m{"X-Key": []string{"v"}, "host": []string{"gpu.example"}}}),
		httpCheck(m{"Name": "redirected", "Path": "/away"}),
		httpCheck(m{"Name": "slow", "Path": "/slow", "Timeout": 50 * time.Millisecond}),
		httpCheck(m{"Name": "tls", "Protocol": "https", "PortLabel": "tls", "TLSSkipVerify": true}),
		httpCheck(m{"Name": "tls-unknown", "Protocol": "https", "PortLabel": "tls"}),
		{"Name": "open", "Type": "tcp", "Interval": 20 * time.Millisecond, "Timeout": time.Second},
		{"Name": "closed", "Type": "tcp", "PortLabel": "closed", "Interval": 20 * time.Millisecond, "Timeout": time.Second},
		httpCheck(m{"Name": "only-shown", "PortLabel": "closed", "OnUpdate": "ignore"}),
	}
	want := map[string]structs.ServiceHealth{"get": structs.HealthPassing, "post": structs.HealthPassing, "tls": structs.HealthPassing, "open": structs.HealthPassing,
		"redirected": structs.HealthFailing, "slow": structs.HealthFailing, "tls-unknown": structs.HealthFailing, "closed": structs.HealthFailing, "only-shown": structs.HealthFailing}
	job := clientfake.Job("kinds", structs.JobService, clientfake.Task("main", "fake", `{}`))
	job.Groups[0].Services = []structs.Service{offers("kinds", "plain", nil, checks...)}
	id := srv.Place(a.ID(), job, to("plain", plain.Listener.Addr()), to("tls", secure.Listener.Addr()), to("closed", closed.Addr()))
	got := map[string]runner.CheckStatus{}
	srv.Wait(t, "every check to be as it should", func() bool {
		r := a.Alloc(id)
		if r == nil {
			return false
		}
		for _, c := range r.Checks() {
			got[c.Check] = c
		}
		for name, h := range want {
			if got[name].Status != h {
				return false
			}
		}
		return len(got) == len(checks)
	})
	if got["get"].Output != "GET /fine?x=1" || got["redirected"].Code != 302 || !got["only-shown"].Readiness || got["get"].Readiness || got["slow"].Code != 0 {
		t.Errorf("%+v", got)
	}
}

// TestScriptChecks runs checks as commands in real tasks: what they say, see and do.
func TestScriptChecks(t *testing.T) {
	srv, cfg := processNode(t)
	a := start(t, srv, cfg)
	script := func(name, text string) m {
		return m{"Name": name, "Type": "script", "Command": "/bin/sh", "Args": []string{"-c", text}, "Interval": 50 * time.Millisecond, "Timeout": 3 * time.Second, "OnUpdate": "ignore"}
	}
	job := clientfake.Job("scripted", structs.JobService, sh("main", `touch local/well; sleep 300`))
	job.Groups[0].Tasks[0].Services = []structs.Service{offers("api", "", nil,
		m{"Name": "file", "Type": "script", "Command": "/bin/sh", "Args": []string{"-c", "echo in ${NOMAD_TASK_NAME} $NOMAD_ALLOC_INDEX; ls local/well"}, "Interval": 50 * time.Millisecond, "Timeout": 3 * time.Second},
		script("loud", "yes loud | head -c 1000000; exit 3"),
		m{"Name": "hung", "Type": "script", "Command": "/bin/sleep", "Args": []string{"297"}, "Interval": 50 * time.Millisecond, "Timeout": time.Second, "OnUpdate": "ignore"},
		m{"Name": "missing", "Type": "script", "Command": "/no/such", "Interval": 50 * time.Millisecond, "Timeout": time.Second, "OnUpdate": "ignore"},
	)}
	id := srv.Place(a.ID(), job, func(*structs.Allocation) {})
	back := srv.Back(a.ID())
	check := func(name string, want structs.ServiceHealth, text string) {
		t.Helper()
		srv.Wait(t, name+" is "+string(want), func() bool {
			resp, err := rpc.Invoke(t.Context(), back, methods.ClientChecks, rpc.Header{}, &methods.AllocNodeRequest{AllocID: id})
			if err != nil {
				return false
			}
			for _, c := range resp.Checks {
				if c.Check == name && c.Status == want && strings.Contains(c.Output, text) {
					return len(c.Output) < 4<<10
				}
			}
			return false
		})
	}
	check("file", structs.HealthPassing, "in main 0\nlocal/well")
	check("loud", structs.HealthFailing, "ended with exit code 3")
	check("hung", structs.HealthFailing, "/bin/sleep did not end within 1s")
	check("missing", structs.HealthFailing, "could not be run")
	srv.Wait(t, "the health of the allocation", func() bool { return newest(srv, id).HealthySince != 0 })
	if err := os.Remove(filepath.Join(cfg.Storage.DataDir, "allocs", id.String(), "main", "local", "well")); err != nil {
		t.Fatal(err)
	}
	check("file", structs.HealthFailing, "No such file")
	srv.Wait(t, "the end of its health", func() bool { return newest(srv, id).HealthySince == 0 })
}
