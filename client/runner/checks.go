package runner

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/structs"
)

// Bounds of checks.
const (
	checkFirst     = 500 * time.Millisecond // delay before the first look, unless the interval is shorter
	checkOutputMax = 3 << 10                // bytes kept of a service's answer
	checkGrace     = time.Second
)

// CheckStatus is the latest result of a check.
type CheckStatus struct {
	ID, Check, Service, Task, Group string
	Readiness                       bool // the check does not count for the health of the allocation
	Status                          structs.ServiceHealth
	Output                          string
	Code                            int // of an HTTP answer; 0: none
	Time                            structs.LogTime
}

// checkRun runs one check while its service is up.
type checkRun struct {
	plan *checkPlan
	made string // the plan as text, to detect a changed plan
	stop context.CancelFunc

	mu     sync.Mutex
	last   CheckStatus
	passed structs.LogTime // start of the current series of passes; 0: the check does not pass
}

func checkID(registration, name string) string {
	sum := sha256.Sum256([]byte(registration + "\x00" + name))
	return hex.EncodeToString(sum[:16])
}

// standing returns the check's status and since when it passes.
func (c *checkRun) standing() (structs.ServiceHealth, structs.LogTime) {
	if c == nil {
		return structs.HealthPending, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last.Status, c.passed
}

// sync starts the checks of the services that are up and stops all others. The caller holds v.mu.
func (v *services) sync(ctx context.Context, r *Runner, group string, up []*offer) {
	want := map[string]*checkPlan{}
	for _, o := range up {
		for _, p := range o.checks {
			want[p.id] = p
		}
	}
	made := map[string]string{}
	for id, p := range want {
		b, _ := json.Marshal(struct {
			Spec    checkSpec
			Restart []string
			Address string
		}{p.spec, p.restart, p.address}) // plain fields cannot fail
		made[id] = string(b)
	}
	for id, c := range v.runs {
		if want[id] == nil || made[id] != c.made {
			c.stop()
			delete(v.runs, id)
		}
	}
	for id, p := range want {
		if v.runs[id] != nil {
			continue
		}
		if v.runs == nil {
			v.runs = map[string]*checkRun{}
		}
		c := &checkRun{plan: p, made: made[id]}
		var cctx context.Context
		cctx, c.stop = context.WithCancel(ctx)
		c.last = CheckStatus{
			ID: id, Check: p.spec.Name, Service: p.service, Task: p.task, Group: group, Readiness: p.spec.OnUpdate == "ignore",
			Status: structs.HealthPending, Output: "the check has not run yet", Time: now(),
		}
		switch {
		case r.dir == nil: // nothing listens on a simulated node
			c.last.Status, c.last.Output, c.passed = structs.HealthPassing, "simulated", now()
		case p.spec.InitialStatus == "passing":
			c.last.Status, c.passed = structs.HealthPassing, now()
		}
		v.runs[id] = c
		if r.dir != nil {
			r.cfg.Agent.Go(func() { c.loop(cctx, r) })
		}
	}
}

// loop runs the check at its interval until ctx ends.
func (c *checkRun) loop(ctx context.Context, r *Runner) {
	p := &c.plan.spec
	begun := time.Now()
	fails := 0
	for wait := min(checkFirst, p.Interval); sleep(ctx, wait); wait = p.Interval {
		ok, output, code := c.look(ctx, r)
		if ctx.Err() != nil {
			return
		}
		status := structs.HealthFailing
		if ok {
			status = structs.HealthPassing
		}
		c.mu.Lock()
		turned := c.last.Status != status
		c.last.Status, c.last.Output, c.last.Code, c.last.Time = status, output, code, now()
		if !ok {
			c.passed = 0
		} else if c.passed == 0 {
			c.passed = c.last.Time
		}
		c.mu.Unlock()
		if turned {
			r.changed()
		}
		if fails++; ok {
			fails = 0
		}
		if limit, grace := p.restartAfter(); limit > 0 && fails > 0 {
			if time.Since(begun) < grace {
				fails = 0
			} else if fails >= limit {
				fails = 0
				c.restart(ctx, r, output)
			}
		}
	}
}

// restartAfter returns after how many failures in a row tasks are restarted (0: never), and for how long after the
// start failures are ignored.
func (p *checkSpec) restartAfter() (limit int, grace time.Duration) {
	if p.CheckRestart == nil {
		return 0, 0
	}
	if grace = checkGrace; p.CheckRestart.Grace != nil {
		grace = *p.CheckRestart.Grace
	}
	return p.CheckRestart.Limit, grace
}

// restart asks the tasks of the check to end; their restart policy decides whether they run again.
func (c *checkRun) restart(ctx context.Context, r *Runner, output string) {
	for _, m := range r.members() {
		if len(c.plan.restart) > 0 && !slices.Contains(c.plan.restart, m.name) || len(c.plan.restart) == 0 && m.role != roleMain {
			continue
		}
		if m.st.State != stateRunning {
			continue
		}
		why := fmt.Sprintf("healthcheck: check %q unhealthy", c.plan.spec.Name)
		m.ask(ctx, wish{wishUnhealthy, event(EventRestartSignal, why+": "+output, detailRestartReason, why)})
	}
}

// look runs the check once.
func (c *checkRun) look(ctx context.Context, r *Runner) (ok bool, output string, code int) {
	ctx, cancel := context.WithTimeout(ctx, c.plan.spec.Timeout)
	defer cancel()
	switch c.plan.spec.Type {
	case "script":
		return c.script(ctx, r)
	case "tcp":
		conn, err := r.cfg.Policy.Local.Local().Dialer().DialContext(ctx, "tcp", c.plan.address)
		if err != nil {
			return false, err.Error(), 0
		}
		conn.Close()
		return true, "connected to " + c.plan.address, 0
	}
	return c.http(ctx, r)
}

// script runs the command of a check inside its task, with the task's rights and limits. Exit code 0 passes.
func (c *checkRun) script(ctx context.Context, r *Runner) (ok bool, output string, code int) {
	p := &c.plan.spec
	if len(c.plan.restart) == 0 { // refused when the job was registered
		return false, "the check names no task to run its command in", 0
	}
	out := limitedText{room: checkOutputMax}
	code, err := r.Exec(ctx, c.plan.restart[0], driver.ExecRequest{Command: append([]string{p.Command}, p.Args...), Stdout: &out, Stderr: &out, Whole: true})
	output = out.text()
	switch {
	case ctx.Err() != nil:
		return false, joinLines(output, fmt.Sprintf("%s did not end within %s", p.Command, p.Timeout)), 0
	case err != nil:
		return false, joinLines(output, fmt.Sprintf("%s could not be run: %v", p.Command, err)), 0
	case code != 0:
		return false, joinLines(output, fmt.Sprintf("%s ended with exit code %d", p.Command, code)), 0
	}
	return true, output, 0
}

func joinLines(a, b string) string {
	if a == "" {
		return b
	}
	return a + "\n" + b
}

// limitedText keeps the first room bytes that are written to it.
type limitedText struct {
	mu   sync.Mutex
	room int
	b    []byte
}

// Write implements io.Writer.
func (l *limitedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p[:min(len(p), l.room-len(l.b))]...)
	return len(p), nil
}

func (l *limitedText) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.ToValidUTF8(strings.TrimRight(string(l.b), "\n"), "?")
}

// http sends the request of a check. A status between 200 and 299 passes. Redirects are not followed: a service must
// not direct the agent to another address.
func (c *checkRun) http(ctx context.Context, r *Runner) (ok bool, output string, code int) {
	p := &c.plan.spec
	scheme := p.Protocol
	if scheme == "" {
		scheme = "http"
	}
	path := p.Path
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	method := p.Method
	if method == "" {
		method = http.MethodGet
	}
	var body io.Reader
	if p.Body != "" {
		body = strings.NewReader(p.Body)
	}
	req, err := http.NewRequestWithContext(ctx, method, scheme+"://"+c.plan.address+path, body)
	if err != nil {
		return false, err.Error(), 0
	}
	req.Header.Set("User-Agent", "Muster")
	for k, list := range p.Header {
		if k = textproto.CanonicalMIMEHeaderKey(k); k == "Host" && len(list) > 0 {
			req.Host = list[0]
			continue
		}
		req.Header[k] = list
	}
	transport := r.cfg.Policy.Local.Local().Transport(false)
	transport.DisableKeepAlives, transport.ForceAttemptHTTP2 = true, false
	transport.TLSClientConfig = &tls.Config{ServerName: p.TLSServerName, InsecureSkipVerify: p.TLSSkipVerify} // as the job asks
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return false, err.Error(), 0
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, checkOutputMax))
	output = strings.ToValidUTF8(string(b), "?")
	if err != nil && output == "" {
		output = err.Error()
	}
	return resp.StatusCode >= 200 && resp.StatusCode < 300, output, resp.StatusCode
}

// Checks returns the latest results of the allocation's checks, sorted by ID.
func (r *Runner) Checks() []CheckStatus {
	r.services.mu.Lock()
	defer r.services.mu.Unlock()
	var out []CheckStatus
	for _, c := range r.services.runs {
		c.mu.Lock()
		out = append(out, c.last)
		c.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b CheckStatus) int { return strings.Compare(a.ID, b.ID) })
	return out
}
