package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/hashicorp/go-hclog"

	"go.uber.org/goleak"

	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/internal/agentconfig"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/jobspec"
)

func TestMain(m *testing.M) {
	supervisor.MaybeRun()
	jobspec.MaybeRunChild()
	goleak.VerifyTestMain(m)
}

// live runs a dev agent with tokens demanded, in this process, and gives the address of its HTTP API.
func live(t *testing.T) string {
	t.Helper()
	return startAgent(t, devConfig(t, `"acl": {"enabled": true}`))
}

// devConfig is the configuration of a dev agent with these settings (JSON). It listens on any free ports.
func devConfig(t *testing.T, settings string) Config {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	file := filepath.Join(dir, "agent.json")
	conf := `{"name": "one", "log_level": "ERROR", "ports": {"http": 0, "rpc": 0, "serf": 0}`
	if !strings.Contains(settings, `"limits"`) {
		conf += `, "limits": {"http_max_conns_per_client": 500, "http_wrong_token_delay": "0s"}`
	}
	if settings != "" {
		conf += ", " + settings
	}
	conf += "}"
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := agentconfig.Load(agentconfig.Options{Dev: true, Paths: []string{file}})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := FromConfig(c, hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: hclog.Error, Output: t.Output()}))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Client.Fake {
		t.Error("an ordinary -dev agent offers the driver fake")
	}
	cfg.Client.Fake = true // for the jobs of these tests
	return cfg
}

// TestDefaultUserIsTold checks that who owns the directories of a task is who the driver runs it as.
func TestDefaultUserIsTold(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.hcl")
	if err := os.WriteFile(file, []byte("plugin \"exec\" {\n  config {\n    default_user = \"daemon\"\n  }\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := agentconfig.Load(agentconfig.Options{Dev: true, Paths: []string{file}})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := FromConfig(c, hclog.NewInterceptLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.Client.Config.Tasks.DefaultUsers["exec"]; got != "daemon" || cfg.Client.Exec.DefaultUser != "daemon" {
		t.Errorf("directories are made for %q, tasks run as %q; want daemon", got, cfg.Client.Exec.DefaultUser)
	}
}

func startAgent(t *testing.T, cfg Config) string {
	t.Helper()
	addr, _ := startStoppable(t, cfg)
	return addr
}

// startStoppable starts an agent that stop ends, or the end of the test.
func startStoppable(t *testing.T, cfg Config) (addr string, stop func()) {
	t.Helper()
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Error("the agent did not end")
		}
	})
	t.Cleanup(stop)
	return "http://" + a.HTTPAddr(), stop
}

// ask makes a request and gives its status; 0 when the answer did not come within the patience, as of a stream.
func ask(t *testing.T, patience time.Duration, addr, method, path, token, body string) (status int, answer []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("X-Nomad-Token", token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return 0, nil
		}
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	answer, _ = io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, answer
}

// identity is one kind of caller.
type identity struct {
	name  string
	token string
	rules string // of the policy that its token has; "" for none
	may   func(methods.Need) bool
}

const nowhere = "ffffffff-ffff-4fff-8fff-ffffffffffff"

// TestAuthorisationOverHTTP requests every route as every identity. Whether it is allowed follows from the needs in
// internal/methods: denied is 403, every other answer was let through.
func TestAuthorisationOverHTTP(t *testing.T) {
	if testing.Short() {
		t.Skip("not run: -short")
	}
	addr := live(t)
	var root struct{ SecretID string }
	wait(t, "the bootstrap", func() bool {
		status, b := ask(t, 5*time.Second, addr, "PUT", "/v1/acl/bootstrap", "", "")
		return status == 200 && json.Unmarshal(b, &root) == nil
	})
	must := func(method, path, body string) []byte {
		t.Helper()
		status, b := ask(t, 10*time.Second, addr, method, path, root.SecretID, body)
		if status != 200 {
			t.Fatalf("%s %s: status %d: %s", method, path, status, b)
		}
		return b
	}
	must("PUT", "/v1/namespace", `{"Name": "other"}`)
	reads := map[string]bool{"list-jobs": true, "parse-job": true, "read-job": true, "read-job-scaling": true, "list-scaling-policies": true, "read-scaling-policy": true}
	open := func(n methods.Need) bool { return n.AnyToken || n.Queue == "read" } // a queue that no rule mentions is open
	ids := []identity{
		{name: "no token", may: func(methods.Need) bool { return false }},
		{name: "unknown token", token: nowhere, may: func(methods.Need) bool { return false }},
		{name: "token that is no id", token: "not-an-id", may: func(methods.Need) bool { return false }},
		{name: "writer of another namespace", rules: `namespace "other" { policy = "write" }`, may: func(n methods.Need) bool { return open(n) }},
		{name: "reader of the namespace", rules: `namespace "default" { policy = "read" }`, may: func(n methods.Need) bool { return open(n) || reads[n.Namespace] }},
		{name: "reader of the operator API", rules: `operator { policy = "read" }`, may: func(n methods.Need) bool { return open(n) || n.Operator == "read" }},
		{name: "writer of quotas", rules: `quota { policy = "write" }`, may: func(n methods.Need) bool { return open(n) || n.Quota != "" }},
		{name: "writer of nodes", rules: `node { policy = "write" }`, may: func(n methods.Need) bool { return open(n) || n.Node != "" }},
		{name: "reader of agents", rules: `agent { policy = "read" }`, may: func(n methods.Need) bool { return open(n) || n.Agent == "read" }},
		{name: "deleted token", rules: `namespace "default" { policy = "write" }`, may: func(methods.Need) bool { return false }},
		{name: "management", token: root.SecretID, may: func(n methods.Need) bool { return !n.NodeSecret && !n.ServerCert }},
	}
	for i := range ids {
		id := &ids[i]
		if id.rules == "" {
			continue
		}
		policy := fmt.Sprintf("p%d", i)
		rules, _ := json.Marshal(map[string]string{"Name": policy, "Rules": id.rules})
		must("PUT", "/v1/acl/policy/"+policy, string(rules))
		var tok struct{ AccessorID, SecretID string }
		if err := json.Unmarshal(must("PUT", "/v1/acl/token", fmt.Sprintf(`{"Name": %q, "Type": "client", "Policies": [%q]}`, id.name, policy)), &tok); err != nil {
			t.Fatal(err)
		}
		id.token = tok.SecretID
		if id.name == "deleted token" {
			must("DELETE", "/v1/acl/token/"+tok.AccessorID, "")
		}
	}

	// Something to ask about: a node, a job, its allocation and evaluation.
	job := func(id string) string {
		return fmt.Sprintf(`{"ID": %q, "Type": "service", "Datacenters": ["dc1"], "TaskGroups": [{"Name": "g", "Count": 1, "Tasks": [{"Name": "t", "Driver": "fake", "Config": {"run_for": "1h"}, "Resources": {"CPU": 20, "MemoryMB": 16}}]}]}`, id)
	}
	var node, alloc, eval string
	wait(t, "a node", func() bool {
		var nodes []struct{ ID, Status string }
		_, b := ask(t, 5*time.Second, addr, "GET", "/v1/nodes", root.SecretID, "")
		if json.Unmarshal(b, &nodes) != nil || len(nodes) != 1 || nodes[0].Status != "ready" {
			return false
		}
		node = nodes[0].ID
		return true
	})
	must("PUT", "/v1/jobs", `{"Job": `+job("held")+`}`)
	wait(t, "an allocation", func() bool {
		var allocs []struct{ ID, EvalID string }
		_, b := ask(t, 5*time.Second, addr, "GET", "/v1/job/held/allocations", root.SecretID, "")
		if json.Unmarshal(b, &allocs) != nil || len(allocs) != 1 {
			return false
		}
		alloc, eval = allocs[0].ID, allocs[0].EvalID
		return true
	})

	// Where authorisation follows the reading of the request, the request has to be a good one.
	bodies := map[string]string{
		"/v1/jobs": `{"Job": ` + job("held") + `}`, "/v1/job/{id}": `{"Job": ` + job("held") + `}`, "/v1/job/{id}/plan": `{"Job": ` + job("held") + `}`,
		"/v1/validate/job": `{"Job": ` + job("held") + `}`, "/v1/queues": `[{"Path": "third"}]`, "/v1/queue/{path}": `{"Path": "x"}`,
		"/v1/quota": `{"Name": "third"}`, "/v1/quota/{name}": `{"Name": "third"}`, "/v1/jobs/parse": `{"JobHCL": "job \"x\" {}"}`,
		"/v1/job/{id}/priority": `{"Priority": 50}`, "/v1/job/{id}/scale": `{"Count": 1, "Target": {"Group": "g"}}`, "/v1/job/{id}/revert": `{"JobID": "held", "JobVersion": 0}`, "/v1/job/{id}/stable": `{"JobID": "held", "JobVersion": 0, "Stable": true}`,
		"/v1/node/{id}/eligibility": `{"Eligibility": "eligible"}`, "/v1/evaluations": `{"EvalIDs": ["` + nowhere + `"]}`,
		"/v1/namespace": `{"Name": "third"}`, "/v1/namespaces": `{"Name": "third"}`, "/v1/namespace/{name}": `{"Name": "third"}`,
		"/v1/node/pools": `{"Name": "third"}`, "/v1/node/pool/{name}": `{"Name": "third"}`,
		"/v1/acl/policy/{name}": `{"Name": "third", "Rules": "node { policy = \"read\" }"}`, "/v1/acl/token": `{"Type": "client", "Policies": ["third"]}`,
		"/v1/acl/token/{id}": `{"AccessorID": "` + nowhere + `", "Type": "client", "Policies": ["third"]}`,
		"/v1/acl/role":       `{"Name": "third", "Policies": [{"Name": "p3"}]}`, "/v1/acl/role/{id}": `{"ID": "` + nowhere + `", "Name": "fourth", "Policies": [{"Name": "p3"}]}`,
		"/v1/acl/token/onetime/exchange": `{"OneTimeSecretID": "` + nowhere + `"}`,
		"/v1/search":                     `{"Prefix": "h", "Context": "jobs"}`, "/v1/search/fuzzy": `{"Text": "held", "Context": "jobs"}`,
		"/v1/client/allocation/{id}/signal": `{"Task": "t", "Signal": "SIGCONT"}`, "/v1/operator/scheduler/configuration": `{"SchedulerAlgorithm": "binpack"}`,
		"/v1/operator/autopilot/configuration": `{"CleanupDeadServers": true, "LastContactThreshold": "200ms", "ServerStabilizationTime": "10s", "MaxTrailingLogs": 250}`,
		"/v1/agent/keyring/{op}":               `{"Key": "AAAA"}`, "/v1/job/{id}/versions/{tag}/tag": `{"Version": 0, "Name": "first"}`,
	}
	queries := map[string]string{
		"/v1/operator/raft/peer": "?id=nobody", "/v1/operator/raft/transfer-leadership": "?id=nobody", "/v1/job/{id}/submission": "?version=0",
		"/v1/client/fs/logs/{id}": "?task=t&type=stdout", "/v1/client/allocation/{id}/exec": `?task=t&command=["true"]`, "/v1/client/allocation/{id}/port-forward": "?port=http",
		"/v1/agent/join": "?address=127.0.0.1:1", "/v1/agent/force-leave": "?node=nobody", "/v1/agent/servers": "?address=127.0.0.1:1",
		"/v1/client/stats": "?node_id=" + node, "/v1/client/gc": "?node_id=" + node, "/v1/client/metadata": "?node_id=" + node, "/v1/agent/pprof/{name}": "?seconds=1",
	}
	// What the handler decides by what it finds, once the caller is let in.
	byContent := map[string]bool{
		methods.NamespaceGet.Name: true, methods.ACLTokenGet.Name: true, methods.ACLTokenSelf.Name: true, methods.ACLOneTimeCreate.Name: true, methods.ACLOneTimeUse.Name: true,
		methods.ACLPolicyGet.Name: true, methods.ACLRoleGet.Name: true, methods.EventStream.Name: true, methods.PoolNodes.Name: true, methods.ACLBootstrap.Name: true,
		methods.QuotaGet.Name: true,
	}
	need := func(rpc string) (n methods.Need, known bool) {
		if what, level, ok := strings.Cut(rpc, ":"); ok {
			switch what {
			case "agent":
				return methods.Need{Agent: level}, true
			case "node":
				return methods.Need{Node: level}, true
			case "operator":
				return methods.Need{Operator: level}, true
			}
			return n, false
		}
		if row := methods.Find(rpc); row != nil {
			return row.Need, true
		}
		return n, false
	}
	const deployment = "d0000000-0000-4000-8000-00000000000d" // which no one has: any right in a namespace leads to the lookup
	checks, denied := 0, 0
	for _, rt := range nomadlike.Routes() {
		n, known := need(rt.RPC)
		switch {
		case rt.Pattern == "/v1/jobs/parse":
			n = methods.Need{Namespace: "parse-job"}
		case rt.RPC == "":
			n = methods.Need{Anonymous: true}
		case !known:
			t.Errorf("%s names %q, which is neither a method nor a need", rt.Pattern, rt.RPC)
			continue
		}
		for _, method := range rt.Methods {
			if method == http.MethodPost && len(rt.Methods) > 1 {
				continue // the same as PUT
			}
			need := n
			if need.Agent != "" && method != http.MethodGet {
				need.Agent = "write"
			}
			for _, id := range ids {
				want := need.Anonymous || id.may(need)
				if want && byContent[rt.RPC] && (id.name != "management" || rt.RPC == methods.ACLOneTimeUse.Name) {
					continue
				}
				if rt.Pattern == "/v1/scaling/policy/{id}" && id.rules != "" {
					continue // looks in all namespaces that the token may list
				}
				jobID, nodeID, allocID := "held", node, alloc
				if want && method != http.MethodGet { // let in, so do no harm
					jobID, nodeID, allocID = "nobody", nowhere, nowhere
				}
				fill := map[string]string{"{name}": "third", "{tag}": "first", "{op}": "list", "{path}": "x", "{id}": jobID}
				switch {
				case strings.Contains(rt.Pattern, "/node/{id}"):
					fill["{id}"] = nodeID
				case strings.Contains(rt.Pattern, "alloc") && !strings.HasPrefix(rt.Pattern, "/v1/job/") || strings.Contains(rt.Pattern, "/fs/"):
					fill["{id}"] = allocID
				case strings.HasPrefix(rt.Pattern, "/v1/deployment/"):
					fill["{id}"] = deployment
				case strings.HasPrefix(rt.Pattern, "/v1/evaluation/"):
					fill["{id}"] = eval
				case strings.Contains(rt.Pattern, "/acl/"):
					fill["{id}"] = nowhere
				}
				if strings.Contains(rt.Pattern, "/evaluation/{id}/allocations") {
					fill["{id}"] = eval
				}
				if strings.Contains(rt.Pattern, "pprof") {
					fill["{name}"] = "cmdline"
				}
				path := rt.Pattern
				for k, v := range fill {
					path = strings.ReplaceAll(path, k, v)
				}
				body := bodies[rt.Pattern]
				if want && method != http.MethodGet {
					body = strings.ReplaceAll(body, "held", "nobody")
				}
				if body == "" && method != http.MethodGet && rt.RPC != methods.SnapshotRestore.Name {
					body = "{}"
				}
				patience := 10 * time.Second
				if rt.RPC == methods.EventStream.Name || strings.Contains(rt.Pattern, "monitor") || strings.Contains(rt.Pattern, "/fs/stream") {
					patience = 300 * time.Millisecond
				}
				put := func(path string) (int, []byte) {
					if rt.RPC == methods.ClientExec.Name || rt.RPC == methods.ClientForward.Name {
						return upgrade(t, addr+path+queries[rt.Pattern], id.token)
					}
					return ask(t, patience, addr, method, path+queries[rt.Pattern], id.token, body)
				}
				status, answer := put(path)
				checks++
				if !want {
					denied++
				}
				if !want && status == http.StatusForbidden && id.rules != "" && id.name != "deleted token" && !bytes.Contains(answer, []byte("Permission denied: needs ")) {
					t.Errorf("%s %s as %s: %s; the refusal does not name what is missing", method, path, id.name, answer)
				}
				other := strings.NewReplacer(alloc, nowhere, eval, nowhere, deployment, nowhere).Replace(path)
				if !want && status != http.StatusForbidden && strings.Contains(id.name, "another namespace") && other != path {
					// What is in a namespace that the caller may not read looks like what does not exist.
					again, text := put(other)
					if again != status || !bytes.Equal(bytes.ReplaceAll(answer, []byte(alloc), []byte(nowhere)), text) {
						t.Errorf("%s %s as %s: %d, %s; what does not exist is answered with %d, %s", method, path, id.name, status, answer, again, text)
					}
					continue
				}
				if got := status != http.StatusForbidden; got != want {
					t.Errorf("%s %s as %s: status %d (%s); want it %s", method, path, id.name, status, bytes.TrimSpace(answer[:min(len(answer), 120)]), map[bool]string{true: "let through", false: "denied"}[want])
				}
			}
		}
	}
	if checks < 6*len(nomadlike.Routes()) || denied < checks/3 {
		t.Errorf("only %d checks, %d of them of a refusal, for %d routes", checks, denied, len(nomadlike.Routes()))
	}
	t.Logf("%d checks, %d of them of a refusal, over %d routes", checks, denied, len(nomadlike.Routes()))
}

// upgrade opens a websocket. A refusal comes as the reason for which it is closed.
func upgrade(t *testing.T, url, token string) (status int, reason []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ws, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPHeader: http.Header{"X-Nomad-Token": {token}}})
	if err != nil && resp != nil { // refused before the upgrade
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, b
	}
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	defer ws.CloseNow()
	_, b, err := ws.Read(ctx)
	if err != nil && (strings.Contains(err.Error(), "Permission denied") || strings.Contains(err.Error(), "ACL token")) {
		return http.StatusForbidden, []byte(err.Error())
	}
	if err != nil && strings.Contains(err.Error(), "Unknown allocation") {
		return http.StatusNotFound, []byte(err.Error())
	}
	return http.StatusSwitchingProtocols, b
}

func wait(t *testing.T, what string, good func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !good(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s took too long", what)
		}
	}
}
