package harness

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// API speaks to the HTTP API of agents, trying each address until one answers.
type API struct {
	Addrs []string // "https://10.77.0.1:4646"
	Token string
	http  *http.Client
}

// NewAPI makes a client; dial is Net.Dial or nil, caFile is "" for plain HTTP.
func NewAPI(t testing.TB, dial func(ctx context.Context, network, addr string) (net.Conn, error), caFile string, addrs ...string) *API {
	t.Helper()
	tr := &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 16, IdleConnTimeout: 5 * time.Second}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		tr.TLSClientConfig = &tls.Config{RootCAs: pool}
		// Clients of the HTTP API show no certificate here: verify_https_client is off.
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &API{Addrs: addrs, http: &http.Client{Transport: tr, Timeout: 10 * time.Second}}
}

// StatusError is an answer with an error status.
type StatusError struct {
	Status int
	Body   string
}

func (e *StatusError) Error() string { return fmt.Sprintf("status %d: %s", e.Status, e.Body) }

// At is the same client for one address.
func (a *API) At(addr string) *API { return &API{Addrs: []string{addr}, Token: a.Token, http: a.http} }

// Within is the same client with another time limit for a request.
func (a *API) Within(d time.Duration) *API {
	return &API{Addrs: a.Addrs, Token: a.Token, http: &http.Client{Transport: a.http.Transport, Timeout: d}}
}

// Call sends a request to the first address that takes it. An answer of 500 and above tries the next one.
func (a *API) Call(method, path string, in, out any) error {
	var last error
	for _, addr := range a.Addrs {
		err := a.once(addr, method, path, in, out)
		if err == nil {
			return nil
		}
		last = err
		if se, ok := err.(*StatusError); ok && se.Status < 500 && se.Status != 429 {
			return err
		}
	}
	return last
}

func (a *API) once(addr, method, path string, in, out any) error {
	answer, err := a.Send(addr, method, path, in)
	if err != nil {
		return err
	}
	b := answer.Body
	if answer.Status >= 300 {
		return &StatusError{answer.Status, strings.TrimSpace(string(b))}
	}
	if out == nil || len(bytes.TrimSpace(b)) == 0 {
		return nil
	}
	if s, ok := out.(*string); ok && !strings.HasPrefix(string(b), "\"") {
		*s = string(b)
		return nil
	}
	return json.Unmarshal(b, out)
}

// Bootstrap makes the first ACL token, which all later calls use. The answer of an attempt may be lost although the attempt
// made the token, so the secret is chosen here.
func (a *API) Bootstrap(t testing.TB, within time.Duration) {
	t.Helper()
	var b [16]byte
	_, _ = rand.Read(b[:])
	secret := fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	Eventually(t, within, "a leader and the first ACL token", func() (bool, string) {
		a.Token = ""
		err := a.Call("PUT", "/v1/acl/bootstrap", map[string]string{"BootstrapSecret": secret}, nil)
		a.Token = secret
		if err != nil && a.Call("GET", "/v1/acl/token/self", nil, nil) == nil {
			err = nil
		}
		return err == nil, fmt.Sprint(err)
	})
}

// Answer is the response to one request.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Send sends one request to one address, and does not repeat it.
func (a *API) Send(addr, method, path string, in any) (*Answer, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, addr+path, body)
	if err != nil {
		return nil, err
	}
	if a.Token != "" {
		req.Header.Set("X-Nomad-Token", a.Token)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	return &Answer{resp.StatusCode, resp.Header, b}, nil
}

// Outcome says what a caller may conclude about a request from its answer.
type Outcome string

// Outcomes.
const (
	Done    Outcome = "done"
	Refused Outcome = "refused" // by the state: there is no such object (404), or a check-and-set failed (409)
	NotDone Outcome = "not done"
	Unknown Outcome = "unknown" // it may have been done, or will be
)

// Outcome returns what the answer, or the error of Send, says about a request.
func (a *Answer) Outcome(err error) Outcome {
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial":
		return NotDone
	case err != nil:
		return Unknown
	case a.Status < 300:
		return Done
	case a.Status == http.StatusNotFound || a.Status == http.StatusConflict:
		return Refused
	case a.Status < 500 || a.Status == http.StatusNotImplemented || a.Status == http.StatusServiceUnavailable:
		return NotDone
	}
	return Unknown
}

// Alloc is what the tests read of an allocation.
type Alloc struct {
	ID, Name, NodeID, NodeName, JobID  string
	TaskGroup                          string
	ClientStatus, DesiredStatus        string
	ClientDescription                  string
	JobVersion                         uint64
	NextAllocation, PreviousAllocation string
	TaskStates                         map[string]struct {
		State    string
		Failed   bool
		Restarts uint64
		Events   []struct {
			Type, DisplayMessage string
			ExitCode             int
			Time                 int64
		}
	}
}

// Allocs lists a job's allocations.
func (a *API) Allocs(job string) ([]Alloc, error) {
	var out []Alloc
	err := a.Call("GET", "/v1/job/"+job+"/allocations?all=true", nil, &out)
	return out, err
}

// Count counts allocations by client status, of those the server wants to run (or any, for terminal states).
func Count(as []Alloc, client string) int {
	n := 0
	for _, a := range as {
		if a.ClientStatus == client && (client != "running" || a.DesiredStatus == "run") {
			n++
		}
	}
	return n
}

// Eventually polls until ok or the time is over; what describes the wait, and the last explanation is printed.
func Eventually(t testing.TB, d time.Duration, what string, ok func() (bool, string)) time.Duration {
	t.Helper()
	start := time.Now()
	last := ""
	for {
		good, why := ok()
		if good {
			return time.Since(start)
		}
		last = why
		if time.Since(start) > d {
			t.Fatalf("%s: not within %s: %s", what, d, last)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Ready waits until that many nodes are ready.
func (a *API) Ready(t testing.TB, want int) {
	t.Helper()
	Eventually(t, 90*time.Second, "nodes to be ready", func() (bool, string) {
		ready := 0
		nodes := a.Nodes()
		for _, status := range nodes {
			if status == "ready" {
				ready++
			}
		}
		return ready == want, fmt.Sprint(nodes)
	})
}

// Nodes returns the status of each node by name; none if no server answers.
func (a *API) Nodes() map[string]string {
	var list []struct{ Name, Status string }
	out := map[string]string{}
	if a.Call("GET", "/v1/nodes", nil, &list) == nil {
		for _, n := range list {
			out[n.Name] = n.Status
		}
	}
	return out
}
