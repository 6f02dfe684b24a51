package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/clientfake"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/driver/exec"
	"github.com/muster-sched/muster/client/driver/rawexec"
	"github.com/muster-sched/muster/client/egress"
	"github.com/muster-sched/muster/client/fingerprint"
	"github.com/muster-sched/muster/client/netns"
	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// effect is a setting of work that runs, and a task that behaves otherwise with it.
type effect struct {
	driver string               // raw_exec unless it says otherwise
	script string               // of the task main
	base   func(j *structs.Job) // what the job has in both runs; nil: nothing more
	set    func(j *structs.Job)
	alloc  func(a *structs.Allocation) // in both runs, or nil
	stop   bool                        // the allocation is stopped when the task has said "ready"
	evict  bool                        // it is evicted then
	saves  bool                        // whether the agent has found a checkpoint within seconds is part of the outcome
	asks   string                      // how often the node asks the web server for this path is part of the outcome
	then   string                      // script of the allocation that takes the place of the first one; "": there is none
}

func onGroup(set func(g *structs.Group)) func(j *structs.Job) {
	return func(j *structs.Job) { set(j.Groups[0]) }
}

func onMain(set func(x *structs.Task)) func(j *structs.Job) {
	return func(j *structs.Job) { set(j.Groups[0].Tasks[0]) }
}

func onNetwork(set func(n *structs.Network)) func(j *structs.Job) {
	return onGroup(func(g *structs.Group) {
		if len(g.Networks) == 0 {
			g.Networks = []structs.Network{{}}
		}
		set(&g.Networks[0])
	})
}

func raw(v any) structs.RawConfig {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

const (
	loops    = "; echo ready; while :; do sleep 0.02; done"
	prints   = `x=$(printf %0800d 1); i=0; while [ $i -lt 3600 ]; do echo "$x"; i=$((i+1)); done`
	resolves = "cat /etc/resolv.conf"
	volume   = "data"
)

func mounted(j *structs.Job) {
	g := j.Groups[0]
	g.Volumes = []structs.VolumeRequest{{Name: volume, Raw: raw(m{"Name": volume, "Type": "host", "Source": "one"})}}
	g.Tasks[0].VolumeMounts = []structs.VolumeMount{{Raw: raw(m{"Volume": volume, "Destination": "data"})}}
}

func templated(text string) func(j *structs.Job) {
	return onMain(func(x *structs.Task) {
		x.Templates = []structs.Template{{Raw: raw(m{"EmbeddedTmpl": text, "DestPath": "local/t", "ChangeMode": "noop"})}}
	})
}

func named(name string) func(j *structs.Job) {
	return onMain(func(x *structs.Task) {
		x.Identities = []structs.Identity{{Raw: raw(m{"Name": name, "Audience": []string{"a"}, "Env": true})}}
	})
}

func bridged(j *structs.Job) { onNetwork(func(n *structs.Network) { n.Mode = "bridge" })(j) }

// effects has rows for the fields of jobs, groups and tasks that say how work runs on its node. web is a server that the
// node can reach, ports are free ones.
func effects(web string, ports [2]int) map[string]effect {
	fetched := func(path string) func(j *structs.Job) {
		return onMain(func(x *structs.Task) {
			x.Artifacts = []structs.Artifact{{Raw: raw(m{"GetterSource": web + path, "GetterMode": "file", "RelativeDest": "local/f"})}}
		})
	}
	word := map[string]string{"word": "said"}
	return map[string]effect{
		"Task.Config":          {script: "echo one", set: onMain(func(x *structs.Task) { x.Config = sh("main", "echo two").Config })},
		"Task.Env":             {script: "echo $WORD", set: onMain(func(x *structs.Task) { x.Env = map[string]string{"WORD": "said"} })},
		"Job.Meta":             {script: "echo $NOMAD_META_WORD", set: func(j *structs.Job) { j.Meta = word }},
		"Group.Meta":           {script: "echo $NOMAD_META_WORD", set: onGroup(func(g *structs.Group) { g.Meta = word })},
		"Task.Meta":            {script: "echo $NOMAD_META_WORD", set: onMain(func(x *structs.Task) { x.Meta = word })},
		"Task.User":            {script: "id -u", set: onMain(func(x *structs.Task) { x.User = "nobody" })},
		"Task.WorkDir":         {script: "pwd", set: onMain(func(x *structs.Task) { x.WorkDir = "/usr" })},
		"Task.Umask":           {script: "umask", set: onMain(func(x *structs.Task) { x.Umask = "077" })},
		"Task.LogPath":         {script: "echo said; sleep 0.2; cat local/x.log", set: onMain(func(x *structs.Task) { x.LogPath = "${NOMAD_TASK_DIR}/x.log" })},
		"Task.LogErrorPath":    {script: "echo said >&2; sleep 0.2; cat local/x.log", set: onMain(func(x *structs.Task) { x.LogErrorPath = "${NOMAD_TASK_DIR}/x.log" })},
		"Task.DispatchPayload": {script: "cat local/p", base: func(j *structs.Job) { j.Payload = []byte("payload") }, set: onMain(func(x *structs.Task) { x.DispatchPayload = "p" })},
		"Task.Templates":       {script: "cat local/t", set: templated("said")},
		"Template.Raw":         {script: "cat local/t", base: templated("one"), set: templated("two")},
		"Task.Artifacts":       {script: "cat local/f", set: fetched("/one")},
		"Artifact.Raw":         {script: "cat local/f", base: fetched("/one"), set: fetched("/two")},
		"Task.Identities":      {script: "env | grep MUSTER_TOKEN", set: named("one")},
		"Identity.Raw":         {script: "env | grep MUSTER_TOKEN", base: named("one"), set: named("two")},
		"Task.VolumeMounts":    {driver: "exec", script: "cat data/name", base: func(j *structs.Job) { mounted(j); j.Groups[0].Tasks[0].VolumeMounts = nil }, set: mounted},
		"VolumeMount.Raw": {driver: "exec", script: "cat data/name other/name", base: mounted, set: onMain(func(x *structs.Task) {
			x.VolumeMounts[0].Raw = raw(m{"Volume": volume, "Destination": "other"})
		})},
		"VolumeRequest.Raw": {driver: "exec", script: "cat data/name", base: mounted, set: onGroup(func(g *structs.Group) {
			g.Volumes[0].Raw = raw(m{"Name": volume, "Type": "host", "Source": "two"})
		})},

		"Task.KillSignal":     {script: "trap 'echo usr1; exit' USR1; trap 'echo int; exit' INT; trap 'echo term; exit' TERM" + loops, stop: true, set: onMain(func(x *structs.Task) { x.KillSignal = "SIGUSR1" })},
		"Task.KillTimeout":    {script: "trap 'sleep 0.4; echo done; exit' INT TERM" + loops, stop: true, set: onMain(func(x *structs.Task) { x.KillTimeout = 50 * time.Millisecond })},
		"Task.ShutdownDelay":  {script: "true" + loops, stop: true, set: onMain(func(x *structs.Task) { x.ShutdownDelay = 20 * time.Millisecond })},
		"Group.ShutdownDelay": {script: "true" + loops, stop: true, set: onGroup(func(g *structs.Group) { g.ShutdownDelay = 1500 * time.Millisecond })},
		"Task.Restart": {script: "exit 1", set: onMain(func(x *structs.Task) {
			x.Restart = &structs.Restart{Mode: "fail"}
		})},
		"LogConfig.Disabled":      {script: "echo said", set: onMain(func(x *structs.Task) { x.Logs.Disabled = true })},
		"LogConfig.MaxFiles":      {script: prints, set: onMain(func(x *structs.Task) { x.Logs.MaxFiles = 3 })},
		"LogConfig.MaxFileSizeMB": {script: prints, set: onMain(func(x *structs.Task) { x.Logs.MaxFileSizeMB = 5 })},

		"Resources.SecretsMiB": {script: "df --output=size $NOMAD_SECRETS_DIR", set: onMain(func(x *structs.Task) { x.Resources.SecretsMiB = 3 })},
		"Resources.ShmMiB":     {driver: "exec", script: "df --output=size /dev/shm", set: onMain(func(x *structs.Task) { x.Resources.ShmMiB = 3 })},
		"Resources.Ulimits":    {driver: "exec", script: "ulimit -n", set: onMain(func(x *structs.Task) { x.Resources.Ulimits = map[string]string{"nofile": "123"} })},
		"EphemeralDisk.Sticky": {script: "echo kept > local/f", then: "cat local/f", set: onGroup(func(g *structs.Group) { g.Disk.Sticky = true })},

		"Network.Mode":     {driver: "exec", script: "cat /etc/hosts", set: bridged},
		"Network.Hostname": {driver: "exec", script: "cat /etc/hosts; cat /proc/sys/kernel/hostname", base: bridged, set: onNetwork(func(n *structs.Network) { n.Hostname = "its-own" })},
		"Network.DNS":      {driver: "exec", script: resolves, set: onNetwork(func(n *structs.Network) { n.DNS = &structs.DNS{Servers: []string{"192.0.2.53"}} })},
		"DNS.Servers": {driver: "exec", script: resolves, base: onNetwork(func(n *structs.Network) { n.DNS = &structs.DNS{Searches: []string{"s"}} }),
			set: onNetwork(func(n *structs.Network) { n.DNS.Servers = []string{"192.0.2.53"} })},
		"DNS.Searches": {driver: "exec", script: resolves, base: onNetwork(func(n *structs.Network) { n.DNS = &structs.DNS{Servers: []string{"192.0.2.53"}} }),
			set: onNetwork(func(n *structs.Network) { n.DNS.Searches = []string{"lab.example"} })},
		"DNS.Options": {driver: "exec", script: resolves, base: onNetwork(func(n *structs.Network) { n.DNS = &structs.DNS{Servers: []string{"192.0.2.53"}} }),
			set: onNetwork(func(n *structs.Network) { n.DNS.Options = []string{"ndots:2"} })},

		"Array.Params": {script: "echo $MUSTER_PARAM_LR", base: func(j *structs.Job) { j.Array = &structs.Array{Count: 2} },
			set: func(j *structs.Job) { j.Array.Params = map[string][]string{"LR": {"0.1", "0.2"}} }},
		"Checkpoint.URL": {script: "true" + loops, evict: true, asks: "/save", base: onGroup(func(g *structs.Group) {
			g.Checkpoint = &structs.Checkpoint{URL: web + "/other", Grace: 50 * time.Millisecond}
		}), set: onGroup(func(g *structs.Group) { g.Checkpoint.URL = web + "/save" })},
		"Checkpoint.Poll": {script: "echo x > state" + loops, stop: true, saves: true, base: onGroup(func(g *structs.Group) { g.Checkpoint = &structs.Checkpoint{Path: "state"} }),
			set: onGroup(func(g *structs.Group) { g.Checkpoint.Poll = time.Second })},
		"Launch.Port": {script: "echo $MASTER_PORT", base: onGroup(func(g *structs.Group) { g.Launch = &structs.Launch{Port: ports[0]} }),
			set: onGroup(func(g *structs.Group) { g.Launch.Port = ports[1] })},
	}
}

// attached is a network of allocations that is the node's own, with another address.
type attached struct{}

func (attached) Setup(string, netns.Want) (*netns.Attached, error) { return attached{}.Get(""), nil }
func (attached) Get(string) *netns.Attached {
	return &netns.Attached{Path: fmt.Sprintf("/proc/%d/ns/net", os.Getpid()), IP: "192.0.2.99"}
}
func (attached) Release(string) error                { return nil }
func (attached) Sweep(func(alloc string) bool) error { return nil }
func (attached) Bridge() string                      { return "" }
func (attached) Unable() (none, bridge error)        { return nil, nil }

// bench is a node on which the rows of effects run.
type bench struct {
	*agent
	jobs  atomic.Int64
	mu    sync.Mutex
	asked map[string]int // how often, by the path on the web server
}

var changing = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|after [0-9.]+m?s|in [0-9.]+m?s`)

// run returns what became of a job's allocation: its end, what its tasks said and the events of each.
func (b *bench) run(t *testing.T, e *effect, set func(j *structs.Job)) string {
	t.Helper()
	script := func(text string) *structs.Job {
		job := clientfake.Job(fmt.Sprint("w", b.jobs.Add(1)), structs.JobBatch, sh("main", text))
		job.Groups[0].Restart = structs.Restart{Attempts: 1, Interval: time.Minute, Delay: time.Millisecond, Mode: "fail"}
		if e.driver != "" {
			job.Groups[0].Tasks[0].Driver = e.driver
		}
		for _, change := range []func(j *structs.Job){e.base, set} {
			if change != nil {
				change(job)
			}
		}
		return job
	}
	place := func(job *structs.Job, more ...func(*structs.Allocation)) structs.AllocID {
		if e.alloc != nil {
			more = append(more, e.alloc)
		}
		return b.srv.Place(b.ID(), job, more...)
	}
	id := place(script(e.script))
	back := b.srv.Back(b.ID())
	asked, early := time.Now(), false
	if e.stop || e.evict {
		b.srv.Wait(t, "the start", func() bool { return b.srv.Alloc(id).Client == structs.ClientRunning })
		readLog(t, back, id, "stdout", func(s string) bool { return strings.Contains(s, "ready\n") })
		for until := time.Now().Add(2500 * time.Millisecond); e.saves && !early && time.Now().Before(until); {
			early = b.srv.Alloc(id).Saved != nil
			<-time.After(20 * time.Millisecond)
		}
		asked = time.Now()
		b.srv.Change(id, func(al *structs.Allocation) {
			if al.Desired = structs.DesiredStop; e.evict {
				al.Desired = structs.DesiredEvict
			}
		})
	}
	b.srv.Wait(t, "the end", func() bool { return b.srv.Alloc(id).ClientTerminal() })
	if e.then != "" {
		first := id
		id = place(script(e.then), func(al *structs.Allocation) { al.OwnLineage().Previous = first })
		b.srv.Wait(t, "the end of the second one", func() bool { return b.srv.Alloc(id).ClientTerminal() })
	}
	end := b.srv.Alloc(id)
	said := fmt.Sprintf("%s: %s\n", end.Client, end.ClientDesc)
	if e.stop {
		said += fmt.Sprintf("late: %t\n", end.FinishedAt.Time().Sub(asked) > 1200*time.Millisecond)
	}
	if e.asks != "" {
		b.mu.Lock()
		said += fmt.Sprintf("asked for %s: %d\n", e.asks, b.asked[e.asks])
		b.mu.Unlock()
	}
	if e.saves {
		said += fmt.Sprintf("saved early: %t\n", early)
	}
	for name, st := range end.TaskStates.All() {
		said += fmt.Sprintf("%s failed=%t restarts=%d\n", name, st.Failed, st.Restarts)
		for _, x := range st.Events {
			said += fmt.Sprintf("  %s: exit %d signal %d\n", x.Type, x.ExitCode, x.Signal) // messages may repeat a setting that has no effect
		}
	}
	logs, _ := filepath.Glob(filepath.Join(b.cfg.Storage.DataDir, "allocs", id.String(), "alloc", "logs", "main.std*"))
	slices.Sort(logs)
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > 4000 {
			text = fmt.Appendf(nil, "%d bytes", len(text))
		}
		said += fmt.Sprintf("%s: %s\n", filepath.Base(path), text)
	}
	return changing.ReplaceAllString(said, "*")
}

func freePorts(t *testing.T) (out [2]int) {
	t.Helper()
	for i := range out {
		l, err := net.Listen("tcp", ":0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		out[i] = l.Addr().(*net.TCPAddr).Port
	}
	return out
}

// TestWitnessesOfTasks: each field of a job that says how its tasks run makes a task run otherwise.
// internal/lint/testdata/witnesses.txt has the rows of all fields.
func TestWitnessesOfTasks(t *testing.T) {
	dir := scratch(t)
	if err := os.Chmod(dir, 0o755); err != nil { // tasks of exec are not root
		t.Fatal(err)
	}
	sup, err := supervisor.Open(filepath.Join(dir, "supervisor"), "")
	if err != nil {
		t.Fatal(err)
	}
	defer sup.Close()
	b := &bench{asked: map[string]int{}}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		b.asked[r.URL.Path]++
		b.mu.Unlock()
		fmt.Fprintln(w, "this is", r.URL.Path)
	}))
	defer web.Close()

	drivers := driver.NewSet(rawexec.New(rawexec.Options{Supervisor: sup, Enabled: true}), exec.New(exec.Options{Supervisor: sup}))
	isolates := drivers["exec"].Fingerprint(t.Context())
	cfg := Config{
		Node:    NodeConfig{Name: "n1", HostVolumes: map[string]structs.HostVolume{}},
		Storage: StorageConfig{DataDir: filepath.Join(dir, "data")},
		Host:    HostConfig{Drivers: drivers, Supervisor: Supervised(sup), Fingerprinters: machine(fingerprint.Options{Drivers: drivers}), Networks: attached{}},
	}
	for _, name := range []string{"one", "two"} {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "name"), []byte(name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		cfg.Node.HostVolumes[name] = structs.HostVolume{Path: path}
	}
	srv := clientfake.New()
	rpc.Handle(srv.Registry(), methods.NodeIdentity, func(_ context.Context, _ *rpc.Call, req *methods.NodeIdentityRequest) (*methods.NodeIdentityResponse, error) {
		now := structs.LogTimeOf(time.Now())
		return &methods.NodeIdentityResponse{Token: "signed-for-" + req.Identity, Issued: now, Expires: now.Add(time.Hour)}, nil
	})
	cfg.Tasks.CheckpointSettle = 100 * time.Millisecond
	cfg.Tasks.Egress = egress.Rules{Allow: []string{"127.0.0.0/8"}}
	cfg.Connect = InProcess(srv.InProcess)
	b.agent = start(t, srv, cfg)

	t.Run("rows", func(t *testing.T) {
		for name, e := range effects(web.URL, freePorts(t)) {
			t.Run(name, func(t *testing.T) {
				if e.driver == "exec" && !isolates.Detected {
					t.Skip("not run: " + isolates.Detail)
				}
				t.Parallel()
				before, again, after := b.run(t, &e, nil), b.run(t, &e, nil), b.run(t, &e, e.set)
				if before != again {
					t.Errorf("two runs of %s differ:\n%s\n%s", name, before, again)
				}
				if before == after {
					t.Errorf("%s changes nothing: it is inert, or its row sets it where it does not matter:\n%s", name, before)
				}
				if os.Getenv("ZZ") != "" {
					t.Logf("ZZ %s\n%s---\n%s", name, before, after)
				}
			})
		}
	})
}
