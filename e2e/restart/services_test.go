//go:build e2e

package restart

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// serveVar makes this test binary the web server that the tasks of TestRestartServices run.
const serveVar = "MUSTER_TEST_SERVE"

func init() {
	port := os.Getenv(serveVar)
	if port == "" {
		return
	}
	var sick atomic.Bool
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, os.Getenv("NOMAD_ALLOC_ID")) })
	http.HandleFunc("/sick", func(http.ResponseWriter, *http.Request) { sick.Store(true) })
	http.HandleFunc("/health", func(w http.ResponseWriter, r *http.Request) {
		if sick.Load() {
			http.Error(w, "sick", http.StatusInternalServerError)
		}
	})
	fmt.Println(http.ListenAndServe(":"+port, nil))
	os.Exit(1)
}

// registration is what the test reads of one.
type registration struct {
	ID, NodeID, AllocID, JobID, Address, Health string
	Port                                        int
	Tags                                        []string
}

const servicesJob = `job "api" {
  group "g" {
    count = 2
    network {
      port "http" {}
    }
    spread {
      attribute = "${node.unique.name}"
    }
    restart {
      attempts = 10
      interval = "10m"
      delay    = "100ms"
    }
    migrate {
      max_parallel = 2
    }
    service {
      name = "api"
      port = "http"
      tags = ["on-${node.unique.name}"]
      check {
        type     = "http"
        path     = "/health"
        interval = "1s"
        timeout  = "5s"
        check_restart {
          limit = 2
          grace = "0s"
        }
      }
    }
    task "server" {
      driver = "raw_exec"
      config {
        command = %q
      }
      env {
        %s = "${NOMAD_PORT_http}"
      }
      resources {
        cpu    = 20
        memory = 32
      }
    }
  }
}
job_end
job "watch" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "trap 'echo told: $(cat local/servers)' HUP; while :; do sleep 0.1; done"]
      }
      template {
        data          = "{{ range musterService \"api\" }}{{ .Address }}:{{ .Port }} {{ end }}"
        destination   = "local/servers"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        splay         = "0s"
      }
      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
`

// TestRestartServices: a service of two instances is found by another job's template and reached where it says; an instance
// whose check fails is restarted; the agents and the server killed with -9 leave one registration of each; a drained node
// has none, and a job that is gone neither.
func TestRestartServices(t *testing.T) {
	if os.Geteuid() != 0 {
		harness.NotRun(t, "the supervisor's cgroups need root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "muster-services-") // not below a directory that only root may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Cleanup(func() { harness.KillBelow(t, dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	httpPort, rpc := harness.FreePort(t), harness.FreePort(t)
	addr := fmt.Sprintf("http://127.0.0.1:%d", httpPort)
	conf := func(name, text string, ports ...any) string {
		path := filepath.Join(dir, name+".hcl")
		text = fmt.Sprintf("name = %q\ndata_dir = %q\nbind_addr = \"127.0.0.1\"\nports {\n  http = %d\n  rpc = %d\n  serf = %d\n}\n", append([]any{name, filepath.Join(dir, name)}, ports...)...) + text
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	confs := map[string]string{"server": conf("server", "server {\n  enabled = true\n  bootstrap_expect = 1\n}\n", httpPort, rpc, harness.FreePort(t))}
	names := []string{"one", "two"}
	for i, name := range names {
		low := 21000 + 4000*i // the nodes are one machine: their ports must differ
		confs[name] = conf(name, fmt.Sprintf("client {\n  enabled = true\n  servers = [\"127.0.0.1:%d\"]\n  min_dynamic_port = %d\n  max_dynamic_port = %d\n}\nplugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n", rpc, low, low+3999),
			harness.FreePort(t), harness.FreePort(t), harness.FreePort(t))
	}
	procs := map[string]*harness.Proc{}
	run := func(name string) { procs[name] = harness.Start(t, nil, name, nil, "agent", "-config", confs[name]) }
	api := harness.NewAPI(t, nil, "", addr)
	for _, name := range append([]string{"server"}, names...) {
		run(name)
	}
	type node struct{ ID, Name, Status string }
	nodes := func(want int) (list []node) {
		t.Helper()
		harness.Eventually(t, 60*time.Second, "the nodes to be ready", func() (bool, string) {
			err := api.Call("GET", "/v1/nodes", nil, &list)
			ready := 0
			for _, n := range list {
				if n.Status == "ready" {
					ready++
				}
			}
			return err == nil && ready == want, fmt.Sprint(list, err)
		})
		return list
	}
	nodes(2)
	first, second, _ := strings.Cut(fmt.Sprintf(servicesJob, self, serveVar), "job_end\n")
	for name, text := range map[string]string{"api": first, "watch": second} {
		var job any
		if err := api.Call("POST", "/v1/jobs/parse", map[string]any{"JobHCL": text, "Canonicalize": true}, &job); err != nil {
			t.Fatalf("parse %s: %v", name, err)
		}
		if err := api.Call("POST", "/v1/jobs", map[string]any{"Job": job}, nil); err != nil {
			t.Fatalf("register %s: %v", name, err)
		}
	}
	list := func() (out []registration, err error) {
		err = api.Call("GET", "/v1/service/api", nil, &out)
		return out, err
	}
	// passing waits until so many are registered, all of them well, and gives them.
	passing := func(what string, want int) (out []registration) {
		t.Helper()
		harness.Eventually(t, 90*time.Second, what, func() (bool, string) {
			var err error
			out, err = list()
			good := err == nil && len(out) == want
			for _, r := range out {
				good = good && r.Health == "passing"
			}
			return good, fmt.Sprintf("%+v %v", out, err)
		})
		return out
	}
	at := func(r registration) string { return net.JoinHostPort(r.Address, strconv.Itoa(r.Port)) }
	get := func(r registration, path string) (string, error) {
		resp, err := http.Get("http://" + at(r) + path)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	reach := func(all []registration) {
		t.Helper()
		for _, r := range all {
			if got, err := get(r, "/"); got != r.AllocID {
				t.Errorf("at %s is %q (%v), want allocation %s", at(r), got, err, r.AllocID)
			}
		}
	}
	// told waits until the consumer's file has exactly these.
	told := func(what string, all []registration) {
		t.Helper()
		var want []string
		for _, r := range all {
			want = append(want, at(r))
		}
		slices.Sort(want)
		harness.Eventually(t, 60*time.Second, what, func() (bool, string) {
			as, err := api.Allocs("watch")
			if err != nil {
				return false, err.Error()
			}
			text := ""
			for _, a := range as {
				if a.ClientStatus == "running" && a.DesiredStatus == "run" {
					err = api.Call("GET", "/v1/client/fs/cat/"+a.ID+"?path=t/local/servers", nil, &text)
				}
			}
			got := strings.Fields(text)
			slices.Sort(got)
			return err == nil && slices.Equal(got, want), fmt.Sprintf("%q, want %q (%v)", got, want, err)
		})
	}
	ids := func(all []registration) (out []string) {
		for _, r := range all {
			out = append(out, r.ID)
		}
		slices.Sort(out)
		return out
	}
	all := passing("two instances", 2)
	reach(all)
	told("the consumer to know both", all)
	if !strings.HasPrefix(all[0].Tags[0], "on-") || all[0].JobID != "api" {
		t.Errorf("%+v", all[0])
	}

	// One falls ill: the consumer loses it, it is restarted, and comes back under the same name.
	began := time.Now()
	if _, err := get(all[0], "/sick"); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 60*time.Second, "the restart of the sick one", func() (bool, string) {
		as, err := api.Allocs("api")
		for _, a := range as {
			if a.ID == all[0].AllocID {
				return a.TaskStates["server"].Restarts > 0, fmt.Sprintf("%+v %v", a.TaskStates, err)
			}
		}
		return false, fmt.Sprint(err)
	})
	well := passing("both again", 2)
	t.Logf("from ill to restarted and well: %s", time.Since(began).Round(time.Millisecond))
	if !slices.Equal(ids(well), ids(all)) {
		t.Errorf("registered as %v, before as %v", ids(well), ids(all))
	}
	reach(well)
	told("the consumer to know both again", well)

	// Agents and server are killed, and come back to what runs.
	for _, name := range append([]string{"server"}, names...) {
		procs[name].Kill9()
		run(name)
		if name != "server" {
			harness.Eventually(t, 60*time.Second, name+" to be back", func() (bool, string) {
				log := procs[name].Log.String()
				return strings.Contains(log, "registered"), procs[name].Log.Tail(5)
			})
		}
	}
	ready := nodes(2)
	time.Sleep(3 * time.Second) // in case one is registered a second time
	back := passing("both after the kills", 2)
	if !slices.Equal(ids(back), ids(all)) {
		t.Errorf("registered as %v, before as %v", ids(back), ids(all))
	}
	reach(back)

	// A node is drained: nothing on it is registered any more, and the consumer knows.
	drained := back[0].NodeID
	if err := api.Call("PUT", "/v1/node/"+drained+"/drain", map[string]any{"DrainSpec": map[string]any{"Deadline": int64(time.Minute)}}, nil); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 60*time.Second, "the drained node to have no registration", func() (bool, string) {
		out, err := list()
		return err == nil && !slices.ContainsFunc(out, func(r registration) bool { return r.NodeID == drained }), fmt.Sprintf("%+v of %+v, %v", out, ready, err)
	})
	moved := passing("both on the other node", 2)
	reach(moved)
	told("the consumer to know where they are now", moved)

	if err := api.Call("DELETE", "/v1/job/api?purge=true", nil, nil); err != nil {
		t.Fatal(err)
	}
	passing("no registration of a job that is gone", 0)
	told("the consumer to know that there is none", nil)
	if err := api.Call("DELETE", "/v1/job/watch?purge=true", nil, nil); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 60*time.Second, "every task to end", func() (bool, string) {
		live := append(harness.Tasks(filepath.Join(dir, "one")), harness.Tasks(filepath.Join(dir, "two"))...)
		return len(live) == 0, fmt.Sprint(live)
	})
}
