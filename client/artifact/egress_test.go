package artifact

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/muster-sched/muster/client/egress"
)

// TestEgress fetches from addresses that are refused: named in every way, by a redirect, and with git. The listener there
// sees no connection.
func TestEgress(t *testing.T) {
	var reached atomic.Int64
	forbidden := server(t, "127.0.0.2:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		_, _ = w.Write([]byte("credentials"))
	}))
	_, port, _ := net.SplitHostPort(forbidden)
	permitted := server(t, "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/fine") {
			_, _ = w.Write([]byte("fine"))
			return
		}
		http.Redirect(w, r, "http://"+forbidden+r.URL.RequestURI(), http.StatusFound)
	}))
	rules := egress.Rules{Allow: []string{"127.0.0.1/32"}}
	for _, src := range []string{
		"http://" + forbidden + "/x", "http://[::ffff:127.0.0.2]:" + port + "/x", "http://0.0.0.0:" + port + "/x", "http://[::]:" + port + "/x",
		"http://" + permitted + "/redirect", "http://169.254.169.254/latest/meta-data/iam", "http://[fd00:ec2::254]/latest", "http://[64:ff9b::a9fe:a9fe]/latest",
		"git::http://" + forbidden + "/r.git", "git::http://" + permitted + "/redirect.git", "git::https://" + forbidden + "/r.git",
		"git::git://" + forbidden + "/r.git", "git::ssh://git@" + forbidden + "/r.git", "git::http://169.254.169.254/r.git",
	} {
		if _, err := exec.LookPath("git"); err != nil && strings.HasPrefix(src, "git::") {
			continue
		}
		err := fetchInto(t.Context(), Spec{Source: src, Egress: rules}, dirFor(t))
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "client.egress") {
			t.Errorf("%s: got %v, want a refusal that names the setting", src, err)
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d requests reached the refused address", n)
	}
	dir := dirFor(t)
	if err := fetchInto(t.Context(), Spec{Source: "http://" + permitted + "/fine", Egress: rules}, dir); err != nil {
		t.Errorf("an allowed address: %v", err)
	} else if b, err := os.ReadFile(filepath.Join(dir, "fine")); err != nil || string(b) != "fine" {
		t.Errorf("an allowed address: %q, %v", b, err)
	}
	rules.Deny = []string{"127.0.0.0/8"}
	if err := fetchInto(t.Context(), Spec{Source: "http://" + permitted + "/fine", Egress: rules}, dirFor(t)); !errors.Is(err, ErrRefused) {
		t.Errorf("a denied address that is allowed too: %v", err)
	}
}

// server serves at an address of this machine, and returns it.
func server(t *testing.T, addr string, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	s.Start()
	t.Cleanup(s.Close)
	return l.Addr().String()
}
