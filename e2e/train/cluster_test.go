//go:build e2e

// Package train starts distributed training on nodes that are network namespaces of this machine: PyTorch over Gloo rank by
// rank, with torchrun and with mpirun, again and again, and with a node killed in the middle.
package train

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// cluster is a server and four nodes with two made-up GPUs each.
type cluster struct {
	t     *testing.T
	dir   string // shared by all nodes, as a shared file system is
	net   *harness.Net
	procs map[string]*harness.Proc
	api   *harness.API
}

var nodes = []string{"n1", "n2", "n3", "n4"}

func newCluster(t *testing.T) *cluster {
	harness.NeedNamespaces(t)
	dir, err := os.MkdirTemp("/var/tmp", "muster-train-") // tasks have a /tmp of their own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { harness.KillBelow(t, dir); os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, dir: dir, procs: map[string]*harness.Proc{}}
	c.net = harness.NewNet(t, append([]string{"s1"}, nodes...)...)
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	gossip := base64.StdEncoding.EncodeToString(key)
	server := c.net.Host("s1").IP
	for _, name := range append([]string{"s1"}, nodes...) {
		h, role := c.net.Host(name), "client"
		if name == "s1" {
			role = "server"
		}
		conf := fmt.Sprintf("name = %q\ndata_dir = %q\nbind_addr = %q\ninsecure = true\n", name, filepath.Join(dir, "data-"+name), h.IP)
		if role == "server" {
			conf += fmt.Sprintf("server {\n  enabled = true\n  bootstrap_expect = 1\n  encrypt = %q\n}\n", gossip)
		} else {
			conf += fmt.Sprintf("client {\n  enabled = true\n  servers = [\"%s:4647\"]\n  run_as {\n    allow = [\"mtrain*\"]\n  }\n  fabric {\n    interfaces = [\"eth0\"]\n  }\n}\nserver {\n  encrypt = %q\n}\nplugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n", server, gossip)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".hcl"), []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.api = harness.NewAPI(t, c.net.Dial, "", "http://"+server+":4646")
	c.start("s1")
	harness.Eventually(t, 60*time.Second, "a leader", func() (bool, string) {
		var l string
		err := c.api.Call("GET", "/v1/status/leader", nil, &l)
		return err == nil && l != "", fmt.Sprint(err)
	})
	for _, n := range nodes {
		c.start(n, "-dev-gpus=2xH100")
	}
	harness.Eventually(t, 90*time.Second, "four nodes with GPUs", func() (bool, string) {
		out, err := c.muster("gpu", "list")
		return err == nil && strings.Contains(out, " 8 "), out
	})
	return c
}

func (c *cluster) start(name string, more ...string) {
	c.procs[name] = harness.Start(c.t, c.net.Host(name), name, nil, append([]string{"agent", "-config", filepath.Join(c.dir, name+".hcl")}, more...)...)
}

// muster runs the command line on the server's host.
func (c *cluster) muster(args ...string) (string, error) {
	cmd := c.net.Host("s1").Muster(c.t, args...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), "MUSTER_ADDR=http://"+c.net.Host("s1").IP+":4646")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// job is a gang of two nodes with two GPUs each.
type job struct {
	id, launch, driver, command string
	args                        []string
	env                         map[string]string
}

// run submits a job and returns when.
func (c *cluster) run(j job) time.Time {
	c.t.Helper()
	var args, env strings.Builder
	for _, a := range j.args {
		fmt.Fprintf(&args, "%q, ", a)
	}
	for k, v := range j.env {
		fmt.Fprintf(&env, "        %s = %q\n", k, v)
	}
	text := fmt.Sprintf(`
job %q {
  type = "batch"
  group "train" {
    count  = 2
    gang   = { timeout = "2m" }
    launch = %s
    reschedule {
      attempts       = 0
      unlimited      = true
      delay          = "5s"
      delay_function = "constant"
    }
    checkpoint = { dir = %q }
    task "main" {
      driver = %q
      config {
        command = %q
        args    = [%s]
      }
      env {
        OMP_NUM_THREADS    = "1"
%s
      }
      resources {
        cpu    = 10
        memory = 600
        gpu    = { count = 2 }
      }
    }
  }
}
`, j.id, j.launch, c.dir, j.driver, j.command, strings.TrimSuffix(args.String(), ", "), env.String())
	path := filepath.Join(c.dir, j.id+".hcl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	at := time.Now()
	if out, err := c.muster("job", "run", "-detach", path); err != nil {
		c.t.Fatalf("job run %s: %v\n%s\n%s", j.id, err, out, text)
	}
	return at
}

// ended waits until both members have ended well, and gives what all ranks wrote.
func (c *cluster) ended(id string, within time.Duration) string {
	c.t.Helper()
	harness.Eventually(c.t, within, id+" ends well", func() (bool, string) {
		as, err := c.api.Allocs(id)
		if err == nil && harness.Count(as, "complete") >= 2 && harness.Count(as, "running")+harness.Count(as, "pending") == 0 {
			return true, ""
		}
		if harness.Count(as, "failed") == 0 {
			return false, fmt.Sprint(err, as)
		}
		out, _ := c.muster("job", "logs", "-all", "-stdout", id)
		errs, _ := c.muster("job", "logs", "-all", "-stderr", id)
		return false, fmt.Sprint(err, as, "\n", out, errs)
	})
	out, err := c.muster("job", "logs", "-all", "-stdout", id)
	if err != nil {
		c.t.Fatalf("logs of %s: %v\n%s", id, err, out)
	}
	return out
}

// figure finds the numbers that a rank printed behind a word.
func figures(out, word string) (all []float64) {
	for _, m := range regexp.MustCompile(regexp.QuoteMeta(word)+`=([0-9.]+)`).FindAllStringSubmatch(out, -1) {
		var f float64
		fmt.Sscan(m[1], &f)
		all = append(all, f)
	}
	return all
}
