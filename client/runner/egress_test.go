package runner

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/egress"
)

// TestEgressOfTasks: checks and checkpoint requests reach tasks on loopback, and no metadata service, by a redirect
// neither.
func TestEgressOfTasks(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusTemporaryRedirect)
		}
	}))
	defer srv.Close()
	own := srv.Listener.Addr().String()
	denied, err := egress.New(egress.Rules{Loopback: true, Deny: []string{"127.0.0.0/8"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, addr, path string
		filter           *egress.Filter
		refused          bool
	}{
		{"a task", own, "/", nil, false},
		{"the metadata service", "169.254.169.254:80", "/", nil, true},
		{"the metadata service in IPv6", net.JoinHostPort("::ffff:169.254.169.254", "80"), "/", nil, true},
		{"an address that the operator denies", own, "/", denied, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &Runner{cfg: &Config{Policy: Policy{Local: c.filter}}}
			for _, kind := range []string{"http", "tcp"} {
				check := &checkRun{plan: &checkPlan{address: c.addr, spec: checkSpec{Type: kind, Path: c.path, Timeout: 5 * time.Second}}}
				ok, output, _ := check.look(t.Context(), r)
				if ok == c.refused || c.refused && !strings.Contains(output, "client.egress") {
					t.Errorf("%s check: %v, %q", kind, ok, output)
				}
			}
			if err := r.cfg.Policy.post(t.Context(), "http://"+c.addr+c.path); (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "client.egress") {
				t.Errorf("checkpoint: %v", err)
			}
		})
	}
	if err := new(Policy).post(t.Context(), srv.URL+"/away"); err == nil || !strings.Contains(err.Error(), "client.egress") {
		t.Errorf("a redirect to the metadata service: %v", err)
	}
}
