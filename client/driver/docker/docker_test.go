package docker

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"
	"pgregory.net/rapid"

	"github.com/muster-sched/muster/client/driver"
)

func newDriver(t *testing.T, opt Options) *Driver {
	t.Helper()
	opt.StateDir, opt.Host = t.TempDir(), "unix:///nowhere/docker.sock"
	opt.NodeID = func() string { return "node-1" }
	d := New(opt)
	t.Cleanup(d.Close)
	return d
}

// requestOf returns what the engine is asked to create for a task, of the image "sha256:1".
func requestOf(t *testing.T, d *Driver, cfg *driver.TaskConfig) *client.ContainerCreateOptions {
	t.Helper()
	v, err := d.decode(cfg.Config)
	if err != nil {
		t.Fatal(err)
	}
	req, err := d.request(cfg, v, "sha256:1")
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func task(t *testing.T, config map[string]any) *driver.TaskConfig {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"alloc", "t/local", "t/secrets"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if config["image"] == nil {
		config["image"] = "box:v1"
	}
	return &driver.TaskConfig{
		TaskID: "11111111-2222-3333-4444-555555555555.t.0", AllocID: "11111111-2222-3333-4444-555555555555", Name: "t", Config: config,
		Env:  driver.Vars(map[string]string{"A": "b", "NVIDIA_VISIBLE_DEVICES": "all"}),
		Dirs: driver.Dirs{AllocDir: root + "/alloc", TaskDir: root + "/t", LocalDir: root + "/t", SecretsDir: root + "/t/secrets", AllocRoot: root},
		Logs: driver.LogConfig{StdoutBase: root + "/alloc/t.stdout"},
	}
}

func TestNoEngine(t *testing.T) {
	d := newDriver(t, Options{})
	f := d.Fingerprint(t.Context())
	if f.Detected || f.Health != driver.Undetected || !strings.Contains(f.Detail, "unix:///nowhere/docker.sock") {
		t.Errorf("%+v", f)
	}
	if _, err := d.Start(t.Context(), task(t, map[string]any{})); err == nil || errors.Is(err, driver.ErrPermanent) {
		t.Errorf("an engine that is away may come back: %v", err)
	}
	if _, err := d.Recover(t.Context(), []byte(`{"Container":"x","TaskID":"y"}`)); err == nil || errors.Is(err, driver.ErrLost) {
		t.Errorf("while the engine is away nobody knows whether the task is lost: %v", err)
	}
	if ids, err := d.TaskIDs(t.Context()); len(ids) != 0 || err != nil {
		t.Errorf("%v %v; want len(ids) = 0", ids, err)
	}
}

func TestRequest(t *testing.T) {
	d := newDriver(t, Options{CoreMHz: func() int64 { return 2000 }})
	cfg := task(t, map[string]any{
		"command": "run", "args": []any{"a", "b"}, "labels": []any{map[string]any{"muster.node": "other", "team": "x"}},
		"cap_drop": []any{"chown"}, "cap_add": []any{"CAP_KILL"}, "cpu_hard_limit": true, "pids_limit": 10.0, "ports": []any{"http"},
		"port_map": []any{map[string]any{"db": 5432.0}}, "network_mode": "bridge", "volumes": []any{"local/x:/x:ro"}, "ulimit": []any{map[string]any{"nofile": "1:2"}},
	})
	cfg.Resources = driver.Resources{CPUMHz: 1000, MemoryMiB: 10, MemoryMaxMiB: 20, Cores: []int{1, 3}, Mems: []int{1}, PidsMax: 100, ShmMiB: 8}
	cfg.Ports = []driver.Port{{Label: "http", HostIP: "10.0.0.1", Host: 20001, To: 80}, {Label: "db", Host: 20002}}
	cfg.Muster = driver.Mount{Source: "/opt/muster", Target: "/usr/local/bin/muster", ReadOnly: true}
	cfg.Etc = []driver.Mount{{Source: "/a/.etc/t/muster.hostfile", Target: "/muster.hostfile", ReadOnly: true}}
	cfg.Mounts = []driver.Mount{{Source: "/srv/data", Target: "/data", ReadOnly: true, Propagation: "host-to-task"}}
	req := requestOf(t, d, cfg)
	c, h := req.Config, req.HostConfig
	if req.Name != cfg.TaskID || c.Image != "sha256:1" || fmt.Sprint(c.Cmd) != "[run a b]" || c.Labels["team"] != "x" || c.Labels[LabelNode] != "node-1" {
		t.Errorf(`%+v; want req.Name = %v, c.Image = "sha256:1", fmt.Sprint(c.Cmd) = "[run a b]", c.Labels["team"] = "x", c.Labels[LabelNode] = "node-1"`, c, cfg.TaskID)
	}
	for _, e := range []string{"A=b", "NVIDIA_VISIBLE_DEVICES=void", "NOMAD_PORT_db=5432"} {
		if !slices.Contains(c.Env, e) {
			t.Errorf("environment %v lacks %s", c.Env, e)
		}
	}
	if h.Memory != 20<<20 || h.MemoryReservation != 10<<20 || h.MemorySwap != h.Memory || h.CPUQuota != 50_000 || h.CpusetCpus != "1,3" || h.CpusetMems != "1" || *h.PidsLimit != 10 || h.ShmSize != 8<<20 || h.CPUShares != 1000 {
		t.Errorf(`%+v; want h.Memory = %v, h.MemoryReservation = %v, h.MemorySwap = %v, h.CPUQuota = 50_000, h.CpusetCpus = "1,3", h.CpusetMems = "1", *h.PidsLimit = 10, h.ShmSize = %v, h.CPUShares = 1000`, h.Resources, 20<<20, 10<<20, h.Memory, 8<<20)
	}
	if !slices.Equal(h.CapDrop, []string{"ALL"}) || slices.Contains(h.CapAdd, "CHOWN") || !slices.Contains(h.CapAdd, "KILL") || slices.Contains(h.CapAdd, "NET_RAW") {
		t.Errorf("drop %v add %v", h.CapDrop, h.CapAdd)
	}
	b, _ := json.Marshal(h.PortBindings)
	if want := `{"5432/tcp":[{"HostIp":"","HostPort":"20002"}],"5432/udp":[{"HostIp":"","HostPort":"20002"}],"80/tcp":[{"HostIp":"10.0.0.1","HostPort":"20001"}],"80/udp":[{"HostIp":"10.0.0.1","HostPort":"20001"}]}`; string(b) != want {
		t.Errorf("%s; want %v", b, want)
	}
	targets := map[string]bool{}
	for _, m := range h.Mounts {
		targets[m.Target+fmt.Sprint(m.ReadOnly)] = true
	}
	for _, w := range []string{"/allocfalse", "/localfalse", "/secretsfalse", "/datatrue", "/xtrue", "/usr/local/bin/mustertrue", "/muster.hostfiletrue"} {
		if !targets[w] {
			t.Errorf("mounts %v lack %s", targets, w)
		}
	}
	if st, err := os.Stat(filepath.Join(cfg.Dirs.TaskDir, "local/x")); err != nil || !st.IsDir() {
		t.Errorf("the relative source was not made: %v", err)
	}
}

// The library for shares of GPUs is mounted read-only from where no task can reach, and only over its own place.
func TestRequestShim(t *testing.T) {
	d := newDriver(t, Options{})
	for preload, want := range map[string]string{
		"/alloc/gpu/t/libmuster-gpu.so:/own.so": "/alloc/gpu/t/libmuster-gpu.so", "/alloc/gpu/../libmuster-gpu.so": "", "/alloc/gpu/t/x.so": "", "/x:/alloc/gpu/t/libmuster-gpu.so": "", "": "",
	} {
		t.Run(fmt.Sprintf("%q", preload), func(t *testing.T) {
			cfg := task(t, map[string]any{"command": "x"})
			cfg.Env()["LD_PRELOAD"] = preload
			req := requestOf(t, d, cfg)
			got := ""
			for _, m := range req.HostConfig.Mounts {
				if strings.HasSuffix(m.Target, ".so") {
					if got = m.Target; !m.ReadOnly || !strings.HasPrefix(m.Source, d.opt.StateDir) {
						t.Errorf("%q: %+v", preload, m)
					}
					if st, err := os.Stat(m.Source); err != nil || st.Size() == 0 {
						t.Errorf("%q: %v", preload, err)
					}
				}
			}
			if got != want {
				t.Errorf("%q: mounted at %q, want %q", preload, got, want)
			}
		})
	}
}

func TestRequestRefuses(t *testing.T) {
	d := newDriver(t, Options{})
	for want, config := range map[string]map[string]any{
		"does not allow privileged containers": {"privileged": true},
		`"sys_admin" is not one of`:            {"cap_add": []any{"SYS_ADMIN"}},
		"does not share its own namespaces":    {"ipc_mode": "host"},
		`"kata" is not one of runc, nvidia`:    {"runtime": "kata"},
		"leads out of the allocation":          {"volumes": []any{"../../x:/x"}},
		"does not allow mounts of its dir":     {"mount": []any{map[string]any{"type": "bind", "source": "/etc", "target": "/x"}}},
		"does not allow volumes of the engine": {"mount": []any{map[string]any{"type": "volume", "source": "v", "target": "/x"}}},
		"leads out":                            {"volumes": []any{"local/out:/x"}},
		`two mounts have the target "/alloc"`:  {"mount": []any{map[string]any{"type": "tmpfs", "target": "/alloc/"}}},
		"absolute path below /":                {"mount": []any{map[string]any{"type": "tmpfs", "target": "x"}}},
		"networks of other containers":         {"network_mode": "container:x"},
		"has no port":                          {"ports": []any{"x"}},
		"want 0 to 1000":                       {"oom_score_adj": -5.0},
		"must not be negative":                 {"pids_limit": -1.0},
		"is less than the task's memory":       {"memory_hard_limit": 5.0},
		"is not an address":                    {"dns_servers": []any{"x"}},
		"needs a network_mode that names one":  {"network_aliases": []any{"x"}},
		"is not supported: set network_mode":   {"group_network": true},
		`unknown key "token"`:                  {"auth": []any{map[string]any{"token": "x"}}},
		`"syslog" is not one of json-file`:     {"logging": []any{map[string]any{"driver": "syslog"}}},
		`did you mean "target"`:                {"mount": []any{map[string]any{"type": "tmpfs", "targett": "x"}}},
		"/etc/passwd is not one of":            {"devices": []any{map[string]any{"host_path": "/etc/passwd"}}},
		"/etc/no-such-file is not one of":      {"devices": []any{map[string]any{"host_path": "/etc/no-such-file"}}}, // the same: the agent does not look there
		"/dev/shm is not a device file":        {"devices": []any{map[string]any{"host_path": "/dev/shm"}}},
		"is not one of /dev/fuse":              {"devices": []any{map[string]any{"host_path": "/dev/null"}}},
		"seccomp=unconfined":                   {"security_opt": []any{"seccomp=unconfined"}},
		"needs a node that allows":             {"security_opt": []any{"no-new-privileges:false"}},
		"propagation":                          {"mount": []any{map[string]any{"type": "bind", "source": "local", "target": "/x", "bind_options": map[string]any{"propagation": "rshared"}}}},
	} {
		t.Run(want, func(t *testing.T) {
			cfg := task(t, config)
			cfg.Resources.MemoryMiB = 10
			if err := os.Symlink("/etc", filepath.Join(cfg.Dirs.TaskDir, "local/out")); err != nil {
				t.Fatal(err)
			}
			v, err := d.decode(cfg.Config)
			if err == nil {
				_, err = d.request(cfg, v, "")
			}
			if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, driver.ErrPermanent) {
				t.Errorf("%v: %v, want %q", config, err, want)
			}
		})
	}
}

// TestMountsOfTheHost: where a node allows them, the engine says whether a source is there. The agent, which is root, does
// not look at paths that jobs name.
func TestMountsOfTheHost(t *testing.T) {
	d := newDriver(t, Options{Volumes: true})
	h := requestOf(t, d, task(t, map[string]any{"volumes": []any{"/no/such/directory:/x"}})).HostConfig
	if m := h.Mounts[len(h.Mounts)-1]; m.Source != "/no/such/directory" || m.Target != "/x" {
		t.Errorf("%+v", m)
	}
}

// frames writes messages as the engine does.
func frames(list []message) []byte {
	var out []byte
	for _, m := range list {
		text := m.stamp + " " + string(m.data)
		out = append(out, byte(m.stream+1), 0, 0, 0)
		out = binary.BigEndian.AppendUint32(out, uint32(len(text)))
		out = append(out, text...)
	}
	return out
}

func stamp(n int) string {
	return time.Unix(int64(n), 0).UTC().Format("2006-01-02T15:04:05.000000000Z")
}

func TestSplit(t *testing.T) {
	in := []message{{0, stamp(1), []byte("a b\n")}, {1, stamp(1), []byte("x\n")}, {0, stamp(2), nil}}
	var got []message
	b := frames(in)
	if err := split(strings.NewReader(string(b)), false, func(m message) bool { got = append(got, m); return true }); err != nil || fmt.Sprint(got) != fmt.Sprint(in) {
		t.Errorf("%v %v; want fmt.Sprint(got) = %v", got, err, fmt.Sprint(in))
	}
	if err := split(strings.NewReader(string(b[:len(b)-2])), false, func(message) bool { return true }); err == nil {
		t.Error("a frame that was cut is no end")
	}
	if err := split(strings.NewReader("\xff\xff\xff\xff\xff\xff\xff\xff"), false, func(message) bool { return true }); err == nil {
		t.Error("nonsense was taken")
	}
	got = nil
	if err := split(strings.NewReader(stamp(1)+" one\r\nrest of a line\n"), true, func(m message) bool { got = append(got, m); return true }); err != nil || len(got) != 2 || string(got[0].data) != "one\r\n" || string(got[1].data) != "rest of a line\n" {
		t.Errorf("%q %v; want len(got) = 2, string(got[0].data) = \"one\\r\\n\", string(got[1].data) = \"rest of a line\\n\"", fmt.Sprint(got), err)
	}
	// A terminal's line that does not end comes in pieces, each with a stamp, which are not part of it.
	long := strings.Repeat("x", pieceMax)
	got = nil
	in2 := stamp(1) + " " + long + stamp(2) + " " + long + stamp(2) + " xx\n" + stamp(3) + " " + long + "\n"
	if err := split(strings.NewReader(in2), true, func(m message) bool { got = append(got, m); return true }); err != nil || len(got) != 4 {
		t.Fatalf("%d messages, %v", len(got), err)
	}
	for i, want := range []message{{0, stamp(1), []byte(long)}, {0, stamp(2), []byte(long)}, {0, stamp(2), []byte("xx\n")}, {0, stamp(3), []byte(long + "\n")}} {
		if got[i].stamp != want.stamp || string(got[i].data) != string(want.data) {
			t.Errorf("message %d: %s with %d bytes", i, got[i].stamp, len(got[i].data))
		}
	}
	most := 0
	endless := io.LimitReader(letters{}, 64<<20)
	if err := split(endless, true, func(m message) bool { most = max(most, len(m.data)); return true }); err != nil || most > pieceMax+1 {
		t.Errorf("a piece of %d bytes, %v", most, err)
	}
}

// letters is a line without an end.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// The log files have every byte once, no matter when the agent is killed.
func TestLogsSurviveKills(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp("", "logs")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		var all []message
		var want [2]string
		for i, at := 0, 0; i < rapid.IntRange(1, 60).Draw(r, "messages"); i++ {
			at += rapid.IntRange(0, 1).Draw(r, "later")
			m := message{rapid.IntRange(0, 1).Draw(r, "stream"), stamp(at), fmt.Appendf(nil, "m%d%s\n", i, strings.Repeat("x", rapid.IntRange(0, 30).Draw(r, "length")))}
			all = append(all, m)
			want[m.stream] += string(m.data)
		}
		d := &Driver{opt: Options{StateDir: dir + "/state"}}
		s := taskState{TaskID: "t", Logs: driver.LogConfig{StdoutBase: dir + "/o", StderrBase: dir + "/e", MaxFiles: 1000, MaxFileSize: int64(rapid.IntRange(20, 200).Draw(r, "size"))}}
		for done := false; !done; {
			c := &copier{d: d, task: s}
			if err := c.open(); err != nil {
				r.Fatal(err)
			}
			until := rapid.IntRange(0, len(all)).Draw(r, "killed after")
			done = until == len(all)
			leave, since, n := c.pos.Seen, c.pos.Since, 0
			for _, m := range all {
				if m.stamp < since {
					continue
				}
				if m.stamp == since && leave > 0 {
					leave--
					continue
				}
				leave = 0
				if n++; n > until {
					break
				}
				if err := c.write(m); err != nil {
					r.Fatal(err)
				}
				if rapid.IntRange(0, 5).Draw(r, "note") == 0 {
					c.note()
				}
			}
			for _, f := range c.out { // no note: the agent was killed
				f.close()
			}
		}
		for i, base := range []string{dir + "/o", dir + "/e"} {
			var got strings.Builder
			for k := range 1000 {
				b, err := os.ReadFile(base + "." + strconv.Itoa(k))
				if err != nil {
					break
				}
				got.Write(b)
			}
			if got.String() != want[i] {
				r.Fatalf("%s: got %q, want %q", base, got.String(), want[i])
			}
		}
	})
}

func TestLogFileRotates(t *testing.T) {
	base := filepath.Join(t.TempDir(), "x.stdout")
	l, err := newLogFile(base, 2, 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.open(0, 0); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := l.write([]byte("1234567"), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	l.close()
	names, _ := filepath.Glob(base + ".*")
	last, _ := os.ReadFile(base + ".3")
	if len(names) != 2 || string(last) != "34567" {
		t.Errorf(`%v %q; want len(names) = 2, string(last) = "34567"`, names, last)
	}
}

// TestLogStaysInItsDirectory puts what a container that is root can put where its next log file will be: it must not
// become a way to write a file of the host.
func TestLogStaysInItsDirectory(t *testing.T) {
	for name, put := range map[string]func(victim, next string) error{
		"symbolic link": os.Symlink,
		"hard link":     os.Link,
		"pipe":          func(_, next string) error { return syscall.Mkfifo(next, 0o666) },
		"directory":     func(_, next string) error { return os.Mkdir(next, 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			logs, victim := filepath.Join(dir, "logs"), filepath.Join(dir, "victim")
			if err := errors.Join(os.Mkdir(logs, 0o755), os.WriteFile(victim, []byte("host\n"), 0o600)); err != nil {
				t.Fatal(err)
			}
			l, err := newLogFile(filepath.Join(logs, "web.stdout"), 3, 16)
			if err != nil {
				t.Fatal(err)
			}
			defer l.close()
			if _, err := l.open(0, 0); err != nil {
				t.Fatal(err)
			}
			if err := put(victim, filepath.Join(logs, "web.stdout.1")); err != nil {
				t.Fatal(err)
			}
			if _, err := l.write([]byte("0123456789abcdef"+"EVIL\n"), time.Now()); err == nil {
				t.Error("output went through a name that is not a log file")
			}
			if b, err := os.ReadFile(victim); err != nil || string(b) != "host\n" {
				t.Errorf("the host's file is now %q, %v", b, err)
			}
			if err := os.Remove(filepath.Join(logs, "web.stdout.1")); err != nil {
				t.Fatal(err)
			}
			if _, err := l.write([]byte("after\n"), time.Now()); err != nil {
				t.Errorf("the log does not continue: %v", err)
			}
		})
	}
	dir := t.TempDir()
	etc := filepath.Join(dir, "etc")
	if err := errors.Join(os.Mkdir(etc, 0o755), os.Symlink(etc, filepath.Join(dir, "logs"))); err != nil {
		t.Fatal(err)
	}
	if l, err := newLogFile(filepath.Join(dir, "logs", "web.stdout"), 3, 16); err == nil {
		l.close()
		t.Error("a link was opened as the directory of logs")
	}
}

func TestAuthFile(t *testing.T) {
	file := []byte(`{"auths": {"https://index.docker.io/v1/": {"auth": "dTpw"}, "r.example:5000": {"username": "a", "password": "b"}, "bad": {"auth": "!"}},
		"credHelpers": {"h.example": "gcloud"}, "credsStore": "pass"}`)
	for server, want := range map[string]string{hub: "u p ", "r.example:5000": "a b ", "h.example": "  gcloud", "elsewhere": "  pass"} {
		a, helper, err := fromFile(file, server)
		got := "  " + helper
		if a != nil {
			got = a.Username + " " + a.Password + " " + helper
		}
		if err != nil || got != want {
			t.Errorf("%s: %q %v, want %q", server, got, err, want)
		}
	}
	if _, _, err := fromFile(file, "bad"); err == nil {
		t.Error("credentials that cannot be read were taken")
	}
	dir := t.TempDir()
	script := "#!/bin/sh\nread server\necho '{\"Username\":\"u\",\"Secret\":\"'$server'\"}'\n"
	if err := os.WriteFile(filepath.Join(dir, "docker-credential-x"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	if a, err := fromHelper(t.Context(), "x", "r.example"); err != nil || a.Username != "u" || a.Password != "r.example" {
		t.Errorf(`%+v %v; want a.Username = "u", a.Password = "r.example"`, a, err)
	}
	if _, err := fromHelper(t.Context(), "../x", "r.example"); err == nil {
		t.Error("a helper elsewhere was run")
	}
}

func TestProgress(t *testing.T) {
	b := progress{name: "x", layers: map[string]layer{}}
	for _, m := range []jsonstream.Message{
		{ID: "v1", Status: "Pulling from app"}, {ID: "a", Status: "Pulling fs layer"}, {ID: "b", Status: "Already exists"},
		{ID: "a", Status: "Downloading", Progress: &jsonstream.Progress{Current: 1 << 20, Total: 3 << 20}},
	} {
		b.note(m)
	}
	if got := b.String(); got != "Downloading image x: 1 of 2 layers, 1.0 of 3.0 MiB so far" {
		t.Error(got)
	}
}

func TestGrant(t *testing.T) {
	cdi := t.TempDir()
	other := "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n- name: all\n  containerEdits: {}\ncontainerEdits:\n  env:\n  - NVIDIA_VISIBLE_DEVICES=void\n  - NVIDIA_CTK=1\n  deviceNodes:\n  - path: /dev/nvidia-modeset\n  mounts:\n  - hostPath: /lib/libcuda.so.1\n    containerPath: /lib/libcuda.so.1\n"
	if err := os.WriteFile(filepath.Join(cdi, "nvidia.yaml"), []byte(other), 0o644); err != nil {
		t.Fatal(err)
	}
	d := newDriver(t, Options{CDIDir: cdi})
	cfg := task(t, map[string]any{})
	cfg.Resources.GPUs = []string{"GPU-1"}
	cfg.Resources.Devices = []driver.DeviceNode{{Major: 195, Minor: 3}, {Major: 195, Minor: 255}, {Major: 1, Minor: 3}}

	host := &container.HostConfig{}
	if err := d.grant(cfg, engine{cdiDirs: []string{"/etc/cdi", cdi}}, host); err != nil {
		t.Fatal(err)
	}
	if r := host.DeviceRequests; len(r) != 1 || r[0].Driver != "cdi" || fmt.Sprint(r[0].DeviceIDs) != "[muster.local/gpu="+cfg.TaskID+"]" {
		t.Errorf(`%+v; want len(r) = 1, r[0].Driver = "cdi", fmt.Sprint(r[0].DeviceIDs) = %v`, r, "[muster.local/gpu="+cfg.TaskID+"]")
	}
	if len(host.Devices) != 1 || host.Devices[0].PathOnHost != "/dev/null" { // no GPU: mapped by itself
		t.Errorf(`%+v; want len(host.Devices) = 1, host.Devices[0].PathOnHost = "/dev/null"`, host.Devices)
	}
	b, err := os.ReadFile(d.specFile(cfg.TaskID))
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Version string `json:"cdiVersion"`
		Kind    string
		Devices []struct {
			Name  string
			Edits struct {
				Env   []string
				Nodes []struct {
					Path         string
					Type         string
					Major, Minor int64
				} `json:"deviceNodes"`
			} `json:"containerEdits"`
		}
		Edits map[string]any `json:"containerEdits"`
	}
	if err := json.Unmarshal(b, &spec); err != nil {
		t.Fatal(err)
	}
	one := spec.Devices[0]
	if spec.Version != "0.6.0" || spec.Kind != "muster.local/gpu" || one.Name != cfg.TaskID || fmt.Sprint(one.Edits.Env) != "[NVIDIA_VISIBLE_DEVICES=GPU-1 CUDA_VISIBLE_DEVICES=GPU-1]" ||
		fmt.Sprint(one.Edits.Nodes) != "[{/dev/nvidia3 c 195 3} {/dev/nvidiactl c 195 255}]" {
		t.Errorf(`%s; want spec.Version = "0.6.0", spec.Kind = "muster.local/gpu", one.Name = %v, fmt.Sprint(one.Edits.Env) = "[NVIDIA_VISIBLE_DEVICES=GPU-1 CUDA_VISIBLE_DEVICES=GPU-1]", fmt.Sprint(one.Edits.Nodes) = "[{/dev/nvidia3 c 195 3} {/dev/nvidiactl c 195 255}]"`, b, cfg.TaskID)
	}
	if fmt.Sprint(spec.Edits["env"]) != "[NVIDIA_CTK=1]" || spec.Edits["deviceNodes"] != nil || spec.Edits["mounts"] == nil {
		t.Errorf("what NVIDIA's specification adds: %v", spec.Edits)
	}
	d.forget(cfg.TaskID)
	if _, err := os.Stat(d.specFile(cfg.TaskID)); err == nil {
		t.Error("the specification stays")
	}

	host = &container.HostConfig{}
	if err := d.grant(cfg, engine{runtimes: []string{"runc", "nvidia"}}, host); err != nil || host.Runtime != "nvidia" {
		t.Errorf(`%v %q; want "nvidia"`, err, host.Runtime)
	}
	if err := d.grant(cfg, engine{runtimes: []string{"runc"}}, &container.HostConfig{}); !errors.Is(err, driver.ErrPermanent) || !strings.Contains(err.Error(), `gpu = "devices"`) {
		t.Errorf("%v", err)
	}
	if os.Geteuid() != 0 {
		return
	}
	d = newDriver(t, Options{GPU: GPUDevices})
	host = &container.HostConfig{}
	if err := d.grant(cfg, engine{}, host); err != nil || len(host.Devices) != 3 || host.Devices[1].PathInContainer != "/dev/nvidia3" {
		t.Errorf(`%v %+v; want len(host.Devices) = 3, host.Devices[1].PathInContainer = "/dev/nvidia3"`, err, host.Devices)
	}
}

func TestImageBook(t *testing.T) {
	dir := t.TempDir()
	b := openImageBook(dir)
	b.pulled("sha256:1", "a", "")
	b.pulled("sha256:2", "b", "")
	b.pulled("sha256:2", "b", "sha256:2") // asked for again
	b.pulled("sha256:2", "c", "sha256:9") // the name stood for another one
	b.pulled("sha256:2", "d", "sha256:2") // which another user had created
	b.pulled("sha256:3", "theirs", "sha256:3")
	now := time.Now()
	if got := b.unused(map[string]bool{"sha256:1": true}, time.Minute, now.Add(30*time.Second)); len(got) != 0 {
		t.Errorf("too soon: %v", got)
	}
	got := openImageBook(dir).unused(nil, time.Minute, now.Add(80*time.Second))
	if len(got) != 1 || !slices.Equal(got["sha256:2"], []string{"b", "c"}) {
		t.Errorf(`%v; want len(got) = 1, got["sha256:2"] = %v`, got, []string{"b", "c"})
	}
	b.wanted("sha256:1")
	if got := b.unused(nil, time.Minute, time.Now().Add(50*time.Second)); len(got) != 0 {
		t.Errorf("a task was about to use it: %v", got)
	}
}
