//go:build e2e

package docker

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/muster-sched/muster/e2e/harness"
)

// node is an engine and an agent that uses it.
type node struct {
	t      *testing.T
	dir    string
	engine *engine
	reg    *registry
	agent  *harness.Proc
	api    *harness.API
	addr   string
	conf   string
	env    []string
	fs     []byte // of the images
}

// newNode starts both; plugin goes into the docker plugin's configuration.
func newNode(t *testing.T, e *engine, plugin string, env ...string) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir(), engine: e, env: env}
	t.Cleanup(func() { harness.KillBelow(t, n.dir) })
	for _, dir := range []string{n.dir, filepath.Dir(n.dir)} { // tasks of other users must get through
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.conf = filepath.Join(n.dir, "agent.hcl")
	port := harness.FreePort(t)
	n.addr = fmt.Sprintf("http://127.0.0.1:%d", port)
	text := fmt.Sprintf(`
name      = "one"
data_dir  = "%s/data"
bind_addr = "127.0.0.1"
log_level = "TRACE"
enable_debug = true
ports {
  http = %d
  rpc  = %d
  serf = %d
}
server {
  enabled          = true
  bootstrap_expect = 1
}
client {
  enabled     = true
  gc_interval = "1s"
  host_volume "data" {
    path = "%s/volume"
  }
  egress {
    allow = ["127.0.0.0/8"]
  }
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
plugin "docker" {
  config {
    endpoint = %q
%s
  }
}
`, n.dir, port, harness.FreePort(t), harness.FreePort(t), n.dir, e.host(), plugin)
	if err := os.WriteFile(n.conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(n.dir+"/volume", 0o777); err != nil {
		t.Fatal(err)
	}
	n.api = harness.NewAPI(t, nil, "", n.addr)
	n.start()
	return n
}

func (n *node) start() {
	n.t.Helper()
	n.agent = harness.Start(n.t, nil, "agent", n.env, "agent", "-config", n.conf)
	harness.Eventually(n.t, 30*time.Second, "the agent to answer", func() (bool, string) {
		if dead, err := n.agent.Exited(); dead {
			n.t.Fatalf("agent ended: %v\n%s", err, n.agent.Log.Tail(30))
		}
		var ns []struct{ Status string }
		err := n.api.Call("GET", "/v1/nodes", nil, &ns)
		return err == nil && len(ns) == 1 && ns[0].Status == "ready", fmt.Sprint(ns, err)
	})
}

func (n *node) muster(args ...string) (string, error) {
	cmd := exec.Command(harness.Bin(n.t), args...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+n.addr, "MUSTER_ADDR="+n.addr)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// run submits a job of one group; task is the content of its task block, more that of the group around it.
func (n *node) run(t *testing.T, name, kind, task, more string) {
	t.Helper()
	if out, err := n.submit(t, name, kind, task, more); err != nil {
		t.Fatalf("job run %s: %v\n%s", name, err, out)
	}
}

// submit is run for a job that may be refused.
func (n *node) submit(t *testing.T, name, kind, task, more string) (string, error) {
	t.Helper()
	if !strings.Contains(task, "resources {") {
		task += "\nresources {\n cpu = 50\n memory = 64\n}\n"
	}
	if !strings.Contains(task, "driver = ") {
		task += "driver = \"docker\"\n"
	}
	text := fmt.Sprintf(`
job %q {
  type = %q
  group "g" {
    reschedule {
      attempts  = 0
      unlimited = false
    }
    restart {
      attempts = 0
      mode     = "fail"
    }
    %s
    task "t" {
      %s
    }
  }
}
`, name, kind, more, task)
	path := filepath.Join(t.TempDir(), name+".hcl")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := n.muster("job", "run", "-detach", path)
	if err == nil {
		t.Cleanup(func() { _, _ = n.muster("job", "stop", "-purge", "-detach", name) })
	}
	return out, err
}

// alloc waits until the job's newest allocation has the status.
func (n *node) alloc(t *testing.T, job, status string) harness.Alloc {
	t.Helper()
	var out harness.Alloc
	harness.Eventually(t, 40*time.Second, job+" to be "+status, func() (bool, string) {
		as, err := n.api.Allocs(job)
		if err != nil || len(as) == 0 {
			return false, fmt.Sprint(as, err)
		}
		out = as[0]
		return out.ClientStatus == status, fmt.Sprintf("%s %s %+v", out.ClientStatus, out.ClientDescription, out.TaskStates)
	})
	return out
}

func events(a harness.Alloc) string {
	var b strings.Builder
	for _, e := range a.TaskStates["t"].Events {
		fmt.Fprintf(&b, "%s: %s\n", e.Type, e.DisplayMessage)
	}
	return b.String()
}

func (n *node) logs(t *testing.T, a harness.Alloc, kind string) string {
	t.Helper()
	resp, err := http.Get(fmt.Sprintf("%s/v1/client/fs/logs/%s?task=t&type=%s&plain=true", n.addr, a.ID, kind))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	buf := make([]byte, 32<<10)
	for {
		k, err := resp.Body.Read(buf)
		b.Write(buf[:k])
		if err != nil {
			return b.String()
		}
	}
}

func wantText(t *testing.T, what, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%s lacks %q:\n%s", what, w, text)
		}
	}
}

// box is a task's config block that runs our image.
func box(args ...string) string { return boxWith("", args...) }

func boxWith(more string, args ...string) string {
	q := make([]string, len(args))
	for i, a := range args {
		q[i] = fmt.Sprintf("%q", a)
	}
	return fmt.Sprintf("config {\n image = \"box:v1\"\n args = [%s]\n %s\n}\n", strings.Join(q, ", "), more)
}

func TestDocker(t *testing.T) {
	e := newEngine(t)
	fs := imageTar(t)
	e.build(fs, "box:v1", `ENTRYPOINT ["/box"]`, `CMD ["echo", "hello"]`, `ENV NVIDIA_VISIBLE_DEVICES=all FROM_IMAGE=yes`)
	reg := newRegistry(t, fs)
	auth := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(auth, fmt.Appendf(nil, `{"auths": {%q: {"auth": %q}}}`, reg.addr, base64.StdEncoding.EncodeToString([]byte("agent:r1ght-secret"))), 0o600); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, e, "")
	n.fs, n.reg = fs, reg

	t.Run("fingerprint", n.fingerprint)
	t.Run("runs", n.runs)
	t.Run("config", n.config)
	t.Run("refusals", n.refusals)
	t.Run("images", n.images)
	t.Run("gangs", n.gangs)
	t.Run("volumes", n.volumes)
	t.Run("artifacts", n.artifacts)
	t.Run("templates", n.templates)
	t.Run("exec", n.exec)
	t.Run("stop", n.stop)
	t.Run("limits", n.limits)
	t.Run("restart policy", n.restarts)
	t.Run("agent killed", n.agentKilled)
	t.Run("silent", n.silent)
	t.Run("engine killed", n.engineKilled)
	t.Run("orphans", n.orphans)
	t.Run("discarding", n.discarding)
}

func (n *node) fingerprint(t *testing.T) {
	var list []struct{ ID string }
	if err := n.api.Call("GET", "/v1/nodes", nil, &list); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 30*time.Second, "the driver to be healthy", func() (bool, string) {
		var node struct {
			Attributes map[string]string
			Drivers    map[string]struct{ Detected, Healthy bool }
		}
		err := n.api.Call("GET", "/v1/node/"+list[0].ID, nil, &node)
		return node.Drivers["docker"].Healthy && node.Attributes["driver.docker"] == "1" && node.Attributes["driver.docker.version"] != "", fmt.Sprint(node, err)
	})
}

func (n *node) runs(t *testing.T) {
	n.run(t, "hello", "batch", "env {\n MINE = \"${NOMAD_TASK_NAME}-x\"\n}\n"+box("env"), "")
	a := n.alloc(t, "hello", "complete")
	out := n.logs(t, a, "stdout")
	wantText(t, "the environment", out, "MINE=t-x\n", "FROM_IMAGE=yes\n", "NOMAD_TASK_DIR=/local\n", "NOMAD_ALLOC_DIR=/alloc\n", "NOMAD_SECRETS_DIR=/secrets\n", "NVIDIA_VISIBLE_DEVICES=void\n", "NOMAD_ALLOC_ID="+a.ID)
	if strings.Contains(out, "XDG_") || regexp.MustCompile(`(?m)^TERM=`).MatchString(out) {
		t.Errorf("the agent's own environment is in the container:\n%s", out)
	}
	n.run(t, "both", "batch", box("both"), "")
	a = n.alloc(t, "both", "complete")
	if o, e := n.logs(t, a, "stdout"), n.logs(t, a, "stderr"); o != "to stdout\n" || e != "to stderr\n" {
		t.Errorf("stdout %q, stderr %q", o, e)
	}
	n.run(t, "seven", "batch", box("exit", "7"), "")
	a = n.alloc(t, "seven", "failed")
	wantText(t, "events", events(a), "Exit Code: 7")
	n.run(t, "many", "batch", "logs {\n max_files = 3\n max_file_size = 1\n}\n"+box("count", "0", "200000"), "")
	a = n.alloc(t, "many", "complete")
	if out := n.logs(t, a, "stdout"); !strings.HasSuffix(out, "line 199999\nline 200000\n") || len(out) < 2<<20 {
		t.Errorf("rotated logs end with %q (%d bytes)", out[max(0, len(out)-40):], len(out))
	}
	files, _ := filepath.Glob(filepath.Join(n.dir, "data/client/allocs", a.ID, "alloc/logs/t.stdout.*"))
	if len(files) != 3 {
		t.Errorf("log files %v, want 3", files)
	}
	// A terminal's line that does not end for long is in the log as it was written.
	n.run(t, "unending", "batch", boxWith("tty = true", "line", "100000"), "")
	a = n.alloc(t, "unending", "complete")
	if out := strings.TrimRight(n.logs(t, a, "stdout"), "\r\n"); out != strings.Repeat("x", 100000) {
		t.Errorf("%d bytes, %d of them x", len(out), strings.Count(out, "x"))
	}
}

func (n *node) config(t *testing.T) {
	n.run(t, "entry", "batch", "config {\n image = \"box:v1\"\n entrypoint = [\"/box\", \"echo\"]\n command = \"one\"\n args = [\"two\", \"${NOMAD_JOB_NAME}\"]\n}\n", "")
	if out := n.logs(t, n.alloc(t, "entry", "complete"), "stdout"); out != "one two entry\n" {
		t.Errorf("%q", out)
	}
	n.run(t, "user", "batch", "user = \"user\"\n"+boxWith("readonly_rootfs = true\n cap_drop = [\"all\"]", "cat", "/proc/self/status"), "")
	wantText(t, "status", n.logs(t, n.alloc(t, "user", "complete"), "stdout"), "Uid:\t1234\t1234", "CapBnd:\t0000000000000000")
	n.run(t, "root", "batch", boxWith("readonly_rootfs = true", "write", "/x", "y"), "")
	wantText(t, "stderr", n.logs(t, n.alloc(t, "root", "failed"), "stderr"), "read-only file system")
	// Relative volumes, tmpfs and the task's own directories; what one task writes the next run of another sees.
	n.run(t, "mounts", "service", boxWith(`
      volumes = ["local/deep:/deep", "local:/seen:ro"]
      mount {
        type   = "tmpfs"
        target = "/scratch"
        tmpfs_options {
          size = 1000000
        }
      }
      labels {
        team = "one"
      }
      sysctl = {
        "net.core.somaxconn" = "77"
      }
      ulimit {
        nofile = "100:200"
      }
      shm_size = 33554432
`, "sleep", "600"), "")
	a := n.alloc(t, "mounts", "running")
	mounts, err := n.muster("alloc", "exec", "-i=false", "-t=false", a.ID, "/box", "cat", "/proc/self/mounts")
	if err != nil {
		t.Error(err)
	}
	wantText(t, "mounts", mounts, " /deep ", " /seen ", " /scratch tmpfs", " /alloc ", " /local ", " /secrets ", "/dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=32768k")
	c := n.container(t, a)
	if c.Config.Labels["team"] != "one" || c.Config.Labels["muster.alloc"] != a.ID || c.HostConfig.Sysctls["net.core.somaxconn"] != "77" || c.HostConfig.Privileged {
		t.Errorf("%+v %+v", c.Config.Labels, c.HostConfig.Sysctls)
	}
	n.run(t, "work", "batch", boxWith(`work_dir = "/local"`, "write", "here", "written"), "")
	a = n.alloc(t, "work", "complete")
	if b, err := os.ReadFile(filepath.Join(n.dir, "data/client/allocs", a.ID, "t/local/here")); string(b) != "written\n" {
		t.Errorf("%q %v", b, err)
	}
	n.run(t, "port", "service", boxWith("network_mode = \"host\"\n ports = [\"http\"]", "serve", "${NOMAD_PORT_http}"), "network {\n port \"http\" {}\n}\n")
	a = n.alloc(t, "port", "running")
	port := ""
	for _, kv := range n.container(t, a).Config.Env {
		if v, ok := strings.CutPrefix(kv, "NOMAD_PORT_http="); ok {
			port = v
		}
	}
	harness.Eventually(t, 10*time.Second, "the port to be served", func() (bool, string) {
		resp, err := http.Get("http://127.0.0.1:" + port)
		if err != nil {
			return false, err.Error()
		}
		resp.Body.Close()
		return resp.StatusCode == 200, resp.Status
	})
}

// container returns what the engine knows of an allocation's task t, running or not.
func (n *node) container(t *testing.T, a harness.Alloc) container.InspectResponse {
	t.Helper()
	for _, c := range n.containers(t, a.ID) {
		res, err := n.engine.api.ContainerInspect(context.Background(), c.ID, client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return res.Container
	}
	t.Fatalf("no container of %s", a.ID)
	panic("unreachable")
}

func (n *node) containers(t *testing.T, alloc string) []container.Summary {
	t.Helper()
	f := client.Filters{}.Add("label", "muster.node")
	if alloc != "" {
		f.Add("label", "muster.alloc="+alloc)
	}
	res, err := n.engine.api.ContainerList(context.Background(), client.ContainerListOptions{All: true, Filters: f})
	if err != nil {
		t.Fatal(err)
	}
	return res.Items
}

// refusals: keys and types of the config block are checked at submission, what needs the node or the engine when the
// task starts.
func (n *node) refusals(t *testing.T) {
	early := map[string]bool{}
	for name, c := range map[string]struct{ config, want string }{
		"privileged": {boxWith("privileged = true"), "does not allow privileged containers"},
		"caps":       {boxWith(`cap_add = ["sys_admin"]`), `"sys_admin" is not one of`},
		"pid":        {boxWith(`pid_mode = "host"`), "does not share its own namespaces"},
		"hostdir":    {boxWith(`volumes = ["/etc:/e"]`), "does not allow mounts of its directories"},
		"dotdot":     {boxWith(`volumes = ["../../../../etc:/e"]`), "leads out of the allocation's directory"},
		"device":     {boxWith("devices = [{ host_path = \"/dev/mem\" }]"), "devices"},
		"runtime":    {boxWith(`runtime = "kata"`), `"kata" is not one of`},
		"seccomp":    {boxWith(`security_opt = ["seccomp=unconfined"]`), "allows privileged containers"},
		"container":  {boxWith(`network_mode = "container:x"`), "are not shared"},
		"unknown":    {boxWith(`imagee = "x"`), `did you mean "image"?`},
		"mac":        {boxWith(`mac_address = "x"`), "is not supported: addresses are the engine's choice"},
		"logging":    {boxWith("logging {\n type = \"syslog\"\n}"), "the agent collects the output"},
		"port":       {boxWith(`ports = ["nope"]`), `no port "nope"`},
		"command":    {"config {\n image = \"box:v1\"\n entrypoint = [\"/nope\"]\n}\n", "no such file or directory"},
		"userless":   {"user = \"nobody-here\"\n" + box("env"), "unable to find user"},
	} {
		if out, err := n.submit(t, "no-"+name, "batch", c.config, ""); err != nil {
			wantText(t, name, strings.Join(strings.Fields(out), " "), c.want)
			early[name] = true
			continue
		}
		a := n.alloc(t, "no-"+name, "failed")
		wantText(t, name, events(a), c.want)
		if left := n.containers(t, a.ID); len(left) > 0 {
			t.Errorf("%s left a container: %+v", name, left[0].Status)
		}
	}
	if !early["unknown"] || !early["mac"] {
		t.Errorf("refused at submission: %v; want at least the keys that do not exist or are not supported", early)
	}
}

func (n *node) images(t *testing.T) {
	image := n.reg.addr + "/app:v1"
	config := func(more string) string {
		return fmt.Sprintf("config {\n image = %q\n %s\n}\n", image, more)
	}
	n.run(t, "missing", "batch", fmt.Sprintf("config {\n image = \"%s/nothing:v1\"\n}\n", n.reg.addr), "")
	wantText(t, "a missing image", events(n.alloc(t, "missing", "failed")), "pull", "manifest unknown")
	// An image for another architecture is reported.
	other := bytes.ReplaceAll(n.savedImage(t, "foreign:v1"), []byte(`"architecture":"`+goarch()+`"`), []byte(`"architecture":"s390x"`))
	if res, err := n.engine.api.ImageLoad(context.Background(), bytes.NewReader(other)); err != nil {
		t.Error(err)
	} else {
		_, _ = readAll(res)
		res.Close()
		n.run(t, "foreign", "batch", "config {\n image = \"foreign:v1\"\n}\n", "")
		wantText(t, "an image for other machines", events(n.alloc(t, "foreign", "complete")), "is for s390x machines")
	}
	n.reg.mu.Lock()
	n.reg.password = "r1ght-secret"
	n.reg.mu.Unlock()
	n.run(t, "locked", "batch", config(""), "")
	a := n.alloc(t, "locked", "failed")
	wantText(t, "no password", events(a), "pull")
	n.run(t, "wrong", "batch", config("auth {\n username = \"u\"\n password = \"wr0ng-secret\"\n}"), "")
	a = n.alloc(t, "wrong", "failed")
	wantText(t, "a wrong password", events(a), "pull")
	n.hides(t, a, "wr0ng-secret")
	n.reg.mu.Lock()
	n.reg.pauses = 1500 * time.Millisecond
	n.reg.mu.Unlock()
	n.run(t, "right", "batch", config("auth {\n username = \"u\"\n password = \"r1ght-secret\"\n}"), "")
	n.run(t, "right2", "batch", config("auth {\n username = \"u\"\n password = \"r1ght-secret\"\n}"), "")
	a = n.alloc(t, "right", "complete")
	wantText(t, "progress", events(a), "Downloading image "+image, " layers, ")
	if out := n.logs(t, a, "stdout"); out != "hello\n" {
		t.Errorf("%q", out)
	}
	n.hides(t, n.alloc(t, "right2", "complete"), "r1ght-secret")
	n.reg.mu.Lock()
	n.reg.pauses = 0
	pulls := n.reg.pulls
	n.reg.mu.Unlock()
	if pulls > 3 { // locked and wrong do not get so far
		t.Errorf("the image was pulled %d times for two tasks", pulls)
	}
	// A task that is stopped does not wait for its image.
	n.reg.mu.Lock()
	n.reg.pauses = time.Minute
	n.reg.mu.Unlock()
	if _, err := n.engine.api.ImageRemove(context.Background(), image, client.ImageRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	n.run(t, "slow", "batch", config("auth {\n username = \"u\"\n password = \"r1ght-secret\"\n}"), "")
	harness.Eventually(t, 20*time.Second, "the pull to begin", func() (bool, string) {
		as, _ := n.api.Allocs("slow")
		return len(as) > 0 && strings.Contains(events(as[0]), "Downloading"), fmt.Sprint(as)
	})
	if out, err := n.muster("job", "stop", "-detach", "slow"); err != nil {
		t.Fatal(out)
	}
	n.alloc(t, "slow", "complete")
	n.reg.mu.Lock()
	n.reg.pauses = 0
	n.reg.mu.Unlock()

	// An archive that an earlier task of the group has put there.
	archive := filepath.Join(n.dir, "image.tar")
	if err := os.WriteFile(archive, n.savedImage(t, "loaded:v1"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.run(t, "load", "batch", "config {\n image = \"loaded:v1\"\n load = \"../alloc/data/image.tar\"\n args = [\"echo\", \"from the archive\"]\n}\n", fmt.Sprintf(`
    task "fetch" {
      driver = "raw_exec"
      lifecycle {
        hook = "prestart"
      }
      config {
        command = "/bin/cp"
        args    = [%q, "${NOMAD_ALLOC_DIR}/data/"]
      }
    }
`, archive))
	if out := n.logs(t, n.alloc(t, "load", "complete"), "stdout"); out != "from the archive\n" {
		t.Errorf("%q", out)
	}
	n.run(t, "badload", "batch", "config {\n image = \"x:v1\"\n load = \"../../../x.tar\"\n}\n", "")
	wantText(t, "an archive outside", events(n.alloc(t, "badload", "failed")), "want a path below the task's directory")
}

// savedImage is an archive as docker save makes it, of an image that the engine does not have.
func (n *node) savedImage(t *testing.T, name string) []byte {
	t.Helper()
	n.engine.build(n.fs, name, `ENTRYPOINT ["/box"]`)
	res, err := n.engine.api.ImageSave(context.Background(), []string{name})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Close()
	b, err := readAll(res)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.engine.api.ImageRemove(context.Background(), name, client.ImageRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	return b
}

// volumes are seen by containers and by isolated processes alike.
func (n *node) volumes(t *testing.T) {
	if err := os.Chmod(n.dir+"/volume", 0o777); err != nil {
		t.Fatal(err)
	}
	group := "volume \"v\" {\n type = \"host\"\n source = \"data\"\n}\n"
	mount := func(more string) string {
		return "volume_mount {\n volume = \"v\"\n destination = \"/mnt\"\n " + more + "\n}\n"
	}
	n.run(t, "writes", "batch", mount("")+box("write", "/mnt/x", "one"), group)
	n.alloc(t, "writes", "complete")
	n.run(t, "reads", "batch", mount("read_only = true")+box("cat", "/mnt/x"), group)
	if out := n.logs(t, n.alloc(t, "reads", "complete"), "stdout"); out != "one\n" {
		t.Errorf("%q", out)
	}
	n.run(t, "cannot", "batch", mount("read_only = true")+box("write", "/mnt/y", "two"), group)
	wantText(t, "stderr", n.logs(t, n.alloc(t, "cannot", "failed"), "stderr"), "read-only file system")
	n.run(t, "process", "batch", mount("")+"driver = \"exec\"\n config {\n command = \"/bin/sh\"\n args = [\"-c\", \"cat /mnt/x; echo three > /mnt/z\"]\n}\n", group)
	if out := n.logs(t, n.alloc(t, "process", "complete"), "stdout"); out != "one\n" {
		t.Errorf("%q", out)
	}
	if b, err := os.ReadFile(n.dir + "/volume/z"); string(b) != "three\n" {
		t.Errorf("%q %v", b, err)
	}
	n.run(t, "raw", "batch", mount("")+"driver = \"raw_exec\"\n config {\n command = \"/bin/true\"\n}\n", group)
	wantText(t, "events", events(n.alloc(t, "raw", "failed")), "volumes cannot be mounted for them")
}

// artifacts are fetched for containers and processes alike, and an image can be one.
func (n *node) artifacts(t *testing.T) {
	saved := n.savedImage(t, "fetched:v1")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/image.tar":
			_, _ = w.Write(saved)
		case "/text":
			fmt.Fprint(w, "fetched for "+r.Header.Get("X-For"))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer srv.Close()
	fetch := func(path, more string) string {
		return fmt.Sprintf("artifact {\n source = \"%s%s\"\n %s\n}\n", srv.URL, path, more)
	}
	n.run(t, "image", "batch", fetch("/image.tar?archive=false", "")+"config {\n image = \"fetched:v1\"\n load = \"image.tar\"\n args = [\"echo\", \"an artifact\"]\n}\n", "")
	if out := n.logs(t, n.alloc(t, "image", "complete"), "stdout"); out != "an artifact\n" {
		t.Errorf("%q", out)
	}
	n.run(t, "text", "batch", fetch("/text", "destination = \"${NOMAD_SECRETS_DIR}/deep\"\n headers {\n X-For = \"${NOMAD_TASK_NAME}\"\n}")+box("cat", "/secrets/deep/text"), "")
	if out := n.logs(t, n.alloc(t, "text", "complete"), "stdout"); out != "fetched for t" {
		t.Errorf("%q", out)
	}
	n.run(t, "asnobody", "batch", fetch("/text", "mode = \"file\"\n destination = \"local/name\"")+"driver = \"exec\"\n config {\n command = \"/bin/sh\"\n args = [\"-c\", \"cat local/name; echo; echo more >> local/name; stat -c %U local/name\"]\n}\n", "")
	if out := n.logs(t, n.alloc(t, "asnobody", "complete"), "stdout"); out != "fetched for \nnobody\n" {
		t.Errorf("%q", out)
	}
	for name, c := range map[string]struct{ block, want string }{
		"gone": {fetch("/nothing", ""), "404"}, "outside": {"meta {\n out = \"/etc/x\"\n}\n" + fetch("/text", "destination = \"${NOMAD_META_out}\""), "it is neither in the task's directory"},
		"sum": {fetch("/text?checksum=md5:00000000000000000000000000000000", ""), "its checksum is"}, "file": {"artifact {\n source = \"git::file:///etc\"\n}\n", "files of the node are not fetched"},
	} {
		n.run(t, "art-"+name, "batch", c.block+box("env"), "")
		wantText(t, name, events(n.alloc(t, "art-"+name, "failed")), c.want)
	}
}

// templates are rendered before a start, and again when what they look at changes.
func (n *node) templates(t *testing.T) {
	tpl := func(data, dest, more string) string {
		return fmt.Sprintf("template {\n data = %q\n destination = %q\n %s\n}\n", data, dest, more)
	}
	n.run(t, "rendered", "batch", "meta {\n team = \"red\"\n}\nenv {\n A = \"x,y\"\n}\n"+
		tpl(`{{ env "NOMAD_META_team" }} {{ range split "," (env "A") }}<{{ . }}>{{ end }} {{ interpolate "$${node.unique.name}" }}`, "local/deep/conf", `perms = "0640"`)+
		tpl("FROM_TEMPLATE={{ env \"NOMAD_JOB_NAME\" | toUpper }}\n# no\nQUOTED=\"a b\"\n", "secrets/env", "env = true")+box("env"), "")
	a := n.alloc(t, "rendered", "complete")
	wantText(t, "the environment", n.logs(t, a, "stdout"), "FROM_TEMPLATE=RENDERED\n", "QUOTED=a b\n")
	file := filepath.Join(n.dir, "data/client/allocs", a.ID, "t/local/deep/conf")
	if b, err := os.ReadFile(file); string(b) != "red <x><y> one" {
		t.Errorf("%q %v", b, err)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("%v %v", st, err)
	}
	// A file of the task changes: one template signals, and one restarts.
	n.run(t, "signalled", "service", tpl("v={{ file \"local/in\" }}", "local/out", "change_mode = \"signal\"\n change_signal = \"SIGHUP\"\n splay = \"0s\"")+
		tpl("one", "local/in", "once = true")+box("trap", "stubborn"), "")
	wantText(t, "events", events(n.alloc(t, "signalled", "failed")), "no such file", "template 1 (local/out)") // in the order they are written
	n.run(t, "signalled2", "service", "kill_timeout = \"1s\"\n"+tpl("one", "local/in", "once = true")+
		tpl("v={{ file \"local/in\" }}", "local/out", "change_mode = \"signal\"\n change_signal = \"SIGHUP\"\n splay = \"0s\"")+box("trap", "stubborn"), "")
	a = n.alloc(t, "signalled2", "running")
	local := filepath.Join(n.dir, "data/client/allocs", a.ID, "t/local")
	harness.Eventually(t, 10*time.Second, "ready", func() (bool, string) { return strings.Contains(n.logs(t, a, "stdout"), "ready"), "" })
	n.agent.Kill9() // the next agent continues the watch
	if err := os.WriteFile(local+"/in", []byte("two"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.start()
	harness.Eventually(t, 20*time.Second, "the signal", func() (bool, string) {
		return strings.Contains(n.logs(t, a, "stdout"), "got hangup"), n.logs(t, a, "stdout")
	})
	if b, err := os.ReadFile(local + "/out"); string(b) != "v=two" {
		t.Errorf("%q %v", b, err)
	}
	n.run(t, "again2", "service", tpl("one", "local/in", "once = true")+tpl("{{ file \"local/in\" }}", "local/out", "splay = \"0s\"")+box("sleep", "600"), "")
	a = n.alloc(t, "again2", "running")
	if err := os.WriteFile(filepath.Join(n.dir, "data/client/allocs", a.ID, "t/local/in"), []byte("two"), 0o644); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 20*time.Second, "the restart", func() (bool, string) {
		as, err := n.api.Allocs("again2")
		return err == nil && as[0].TaskStates["t"].Restarts == 1 && as[0].TaskStates["t"].State == "running" && strings.Contains(events(as[0]), "re-rendered"), fmt.Sprint(as, err)
	})
	n.run(t, "services", "batch", tpl(`SERVICES="{{ range nomadService "x" }}one{{ else }}none{{ end }}"`, "local/x", "env = true")+box("env"), "")
	wantText(t, "the environment", n.logs(t, n.alloc(t, "services", "complete"), "stdout"), "SERVICES=none\n")
	for name, c := range map[string]struct{ block, want string }{
		"outside": {"meta {\n out = \"/etc/muster-x\"\n}\n" + tpl("x", "${NOMAD_META_out}", ""), "it is neither in the task's directory"},
		"read":    {tpl(`{{ file "/etc/passwd" }}`, "local/x", ""), "it is neither in the task's directory"}, "loop": {tpl(`{{ range 100000000 }}{{ end }}`, "local/x", ""), "range goes over lists"},
	} {
		n.run(t, "tpl-"+name, "batch", c.block+box("env"), "")
		wantText(t, name, events(n.alloc(t, "tpl-"+name, "failed")), c.want)
	}
}

func (n *node) exec(t *testing.T) {
	n.run(t, "inside", "service", box("count", "100"), "")
	a := n.alloc(t, "inside", "running")
	out, err := n.muster("alloc", "exec", "-i=false", "-t=false", a.ID, "/box", "both")
	if err != nil || !strings.Contains(out, "to stdout") || !strings.Contains(out, "to stderr") {
		t.Errorf("exec: %v %q", err, out)
	}
	out, err = n.muster("alloc", "exec", "-i=false", "-t=false", a.ID, "/box", "exit", "9")
	if ee, ok := err.(*exec.ExitError); !ok || ee.ExitCode() != 9 {
		t.Errorf("exit code: %v %q", err, out)
	}
	cmd := exec.Command(harness.Bin(t), "alloc", "exec", "-i=true", "-t=false", a.ID, "/box", "stdin")
	cmd.Env = append(os.Environ(), "MUSTER_ADDR="+n.addr, "NOMAD_ADDR="+n.addr)
	cmd.Stdin = strings.NewReader("through\n")
	if b, err := cmd.CombinedOutput(); err != nil || string(b) != "through\n" {
		t.Errorf("stdin: %v %q", err, b)
	}
	// With a terminal: script makes one for the command line tool.
	if script, err := exec.LookPath("script"); err == nil {
		cmd := exec.Command(script, "-qec", fmt.Sprintf("%s alloc exec -i=true -t=true %s /box cat /proc/self/stat", harness.Bin(t), a.ID), "/dev/null")
		cmd.Env = append(os.Environ(), "MUSTER_ADDR="+n.addr, "NOMAD_ADDR="+n.addr)
		b, err := cmd.CombinedOutput()
		if f := strings.Fields(string(b)); err != nil || len(f) < 7 || f[6] == "0" { // the seventh is the terminal
			t.Errorf("tty: %v %q", err, b)
		}
	}
	var stats struct {
		Tasks map[string]struct {
			ResourceUsage struct {
				MemoryStats struct{ Usage, RSS uint64 }
				CpuStats    struct{ TotalTicks float64 }
			}
		}
	}
	harness.Eventually(t, 20*time.Second, "the task to be measured", func() (bool, string) {
		err := n.api.Call("GET", "/v1/client/allocation/"+a.ID+"/stats", nil, &stats)
		return err == nil && stats.Tasks["t"].ResourceUsage.MemoryStats.Usage > 100<<10, fmt.Sprint(stats, err)
	})
	if out, err := n.muster("alloc", "restart", a.ID); err != nil {
		t.Error(out)
	}
	harness.Eventually(t, 20*time.Second, "the restart", func() (bool, string) {
		as, err := n.api.Allocs("inside")
		return err == nil && as[0].TaskStates["t"].Restarts == 1 && as[0].TaskStates["t"].State == "running", fmt.Sprint(as, err)
	})
	if c := n.containers(t, a.ID); len(c) != 1 {
		t.Errorf("%d containers after a restart", len(c))
	}
}

func (n *node) stop(t *testing.T) {
	n.run(t, "polite", "service", "kill_signal = \"SIGUSR1\"\n"+box("trap"), "")
	a := n.alloc(t, "polite", "running")
	harness.Eventually(t, 10*time.Second, "ready", func() (bool, string) { return strings.Contains(n.logs(t, a, "stdout"), "ready"), "" })
	if out, err := n.muster("alloc", "signal", "-s", "SIGHUP", a.ID); err != nil {
		t.Error(out)
	}
	if out, err := n.muster("job", "stop", "-detach", "polite"); err != nil {
		t.Fatal(out)
	}
	a = n.alloc(t, "polite", "complete")
	wantText(t, "output", n.logs(t, a, "stdout"), "got hangup\n", "got user defined signal 1\n")
	wantText(t, "events", events(a), "Exit Code: 7")
	n.run(t, "stubborn", "service", "kill_timeout = \"1s\"\n"+box("trap", "stubborn"), "")
	a = n.alloc(t, "stubborn", "running")
	harness.Eventually(t, 10*time.Second, "ready", func() (bool, string) { return strings.Contains(n.logs(t, a, "stdout"), "ready"), "" })
	begin := time.Now()
	if out, err := n.muster("job", "stop", "-detach", "stubborn"); err != nil {
		t.Fatal(out)
	}
	a = n.alloc(t, "stubborn", "complete")
	if took := time.Since(begin); took < time.Second || took > 30*time.Second {
		t.Errorf("a task that ignores signals ended after %s, with a kill_timeout of 1s", took)
	}
	wantText(t, "events", events(a), "Exit Code: 137")
	harness.Eventually(t, 15*time.Second, "its container to be removed", func() (bool, string) { return len(n.containers(t, a.ID)) == 0, "" })
}

func (n *node) restarts(t *testing.T) {
	n.run(t, "again", "batch", "restart {\n attempts = 2\n delay = \"100ms\"\n interval = \"1m\"\n mode = \"fail\"\n}\n"+box("exit", "3"), "")
	a := n.alloc(t, "again", "failed")
	if r := a.TaskStates["t"].Restarts; r != 2 {
		t.Errorf("%d restarts, want 2\n%s", r, events(a))
	}
}

// counted checks that a task's output is the numbers from 1, each once.
func counted(t *testing.T, out string) int {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	for i, l := range lines {
		if l != fmt.Sprintf("line %d", i+1) {
			t.Fatalf("line %d is %q, after %q", i+1, l, lines[max(0, i-1)])
		}
	}
	return len(lines)
}

func (n *node) agentKilled(t *testing.T) {
	n.run(t, "lives", "service", "logs {\n max_file_size = 1\n}\n"+box("count", "1"), "")
	n.run(t, "ends", "batch", box("count", "10", "400"), "") // 4 s: it ends while no agent runs
	a, b := n.alloc(t, "lives", "running"), n.alloc(t, "ends", "running")
	before := n.container(t, a)
	for round := range 4 {
		time.Sleep(time.Duration(200+round*130) * time.Millisecond)
		n.agent.Kill9()
		if round == 3 {
			harness.Eventually(t, 20*time.Second, "the other task to end while no agent runs", func() (bool, string) {
				all := n.containers(t, b.ID)
				return !slices.ContainsFunc(all, func(c container.Summary) bool { return c.State == "running" }), fmt.Sprint(all)
			})
		}
		n.start()
		a = n.alloc(t, "lives", "running")
	}
	harness.Eventually(t, 20*time.Second, "one container, the same", func() (bool, string) {
		after := n.container(t, a)
		return after.ID == before.ID && after.State.Pid == before.State.Pid && len(n.containers(t, a.ID)) == 1, fmt.Sprint(after.ID, after.State.Pid, before.State.Pid)
	})
	if r := a.TaskStates["t"].Restarts; r != 0 {
		t.Errorf("restarted %d times\n%s", r, events(a))
	}
	b = n.alloc(t, "ends", "complete")
	if k := counted(t, n.logs(t, b, "stdout")); k != 400 {
		t.Errorf("%d lines, want 400", k)
	}
	out := n.logs(t, a, "stdout")
	k := counted(t, out[:strings.LastIndexByte(out, '\n')+1])
	harness.Eventually(t, 10*time.Second, "the log to go on", func() (bool, string) {
		return len(n.logs(t, a, "stdout")) > len(out), ""
	})
	t.Logf("%d lines without a gap over 4 kills of the agent", k)
	if out, err := n.muster("job", "stop", "-detach", "lives"); err != nil {
		t.Fatal(out)
	}
	a = n.alloc(t, "lives", "complete")
	counted(t, n.logs(t, a, "stdout"))
}

func (n *node) engineKilled(t *testing.T) {
	n.run(t, "through", "service", box("count", "5"), "")
	a := n.alloc(t, "through", "running")
	before := n.container(t, a)
	harness.Eventually(t, 20*time.Second, "its first output", func() (bool, string) { return strings.Contains(n.logs(t, a, "stdout"), "line 1\n"), "" })
	n.engine.kill()
	harness.Eventually(t, 30*time.Second, "the task to say that its engine is away", n.says(t, "through", "The Docker Engine does not answer (no connection to the engine)"))
	var list []struct{ ID string }
	if err := n.api.Call("GET", "/v1/nodes", nil, &list); err != nil {
		t.Fatal(err)
	}
	healthy := func() (bool, string) {
		var node struct {
			Drivers map[string]struct {
				Detected, Healthy bool
				HealthDescription string
			}
		}
		err := n.api.Call("GET", "/v1/node/"+list[0].ID, nil, &node)
		return node.Drivers["docker"].Healthy, fmt.Sprint(node.Drivers["docker"], err)
	}
	harness.Eventually(t, 30*time.Second, "the driver to be unhealthy", func() (bool, string) { ok, why := healthy(); return !ok, why })
	n.engine.start()
	harness.Eventually(t, 40*time.Second, "the driver to be healthy again", healthy)
	harness.Eventually(t, 20*time.Second, "the task to go on", func() (bool, string) {
		after := n.container(t, a)
		return after.State.Running && after.State.Pid == before.State.Pid, fmt.Sprint(after.State)
	})
	harness.Eventually(t, 20*time.Second, "the task to say that its engine is back", n.says(t, "through", "The Docker Engine answers again"))
	was := len(n.logs(t, a, "stdout"))
	harness.Eventually(t, 20*time.Second, "its output to go on", func() (bool, string) { return len(n.logs(t, a, "stdout")) > was, "" })
	if out, err := n.muster("job", "stop", "-detach", "through"); err != nil {
		t.Fatal(out)
	}
	a = n.alloc(t, "through", "complete")
	out := n.logs(t, a, "stdout")
	t.Logf("%d lines; what the engine itself lost between its end and its return is not ours", strings.Count(out, "\n"))
	if strings.Count(out, "line 1\n") != 1 {
		t.Error("the beginning is told twice")
	}
}

func (n *node) orphans(t *testing.T) {
	api := n.engine.api
	n.run(t, "kept", "service", box("sleep", "600"), "")
	kept := n.alloc(t, "kept", "running")
	own := n.container(t, kept).Config.Labels["muster.node"]
	make := func(name, node string) {
		_, err := api.ContainerCreate(context.Background(), client.ContainerCreateOptions{Name: name, Config: &container.Config{
			Image: "box:v1", Cmd: []string{"sleep", "600"}, Labels: map[string]string{"muster.node": node, "muster.task_id": name},
		}, HostConfig: &container.HostConfig{NetworkMode: "none"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := api.ContainerStart(context.Background(), name, client.ContainerStartOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	make("5a6b7c8d-0000-4000-8000-000000000001.t.0", own)
	make("5a6b7c8d-0000-4000-8000-000000000002.t.0", "5a6b7c8d-0000-4000-8000-00000000000f")
	n.agent.Kill9()
	n.start()
	harness.Eventually(t, 30*time.Second, "the orphan to be removed", func() (bool, string) {
		var left []string
		for _, c := range n.containers(t, "") {
			left = append(left, strings.Join(c.Names, ","))
		}
		all := strings.Join(left, " ")
		return !strings.Contains(all, "0001.t.0"), all
	})
	all := n.containers(t, "")
	found := map[string]bool{}
	for _, c := range all {
		found[strings.TrimPrefix(c.Names[0], "/")] = true
	}
	if !found["5a6b7c8d-0000-4000-8000-000000000002.t.0"] || !found[kept.ID+".t.0"] {
		t.Errorf("removed too much: %v", found)
	}
}
