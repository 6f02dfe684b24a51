//go:build e2e

package hostile

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

type m = map[string]any

// task is a job of one task that runs a shell script; set changes the job.
func task(id, driver, script string, memory int, set func(job, group, task m)) m {
	tk := m{
		"Name": "t", "Driver": driver, "KillTimeout": int64(2 * time.Second),
		"Config":    m{"command": "/bin/sh", "args": []string{"-c", script}},
		"Resources": m{"CPU": 20, "MemoryMB": memory},
		"LogConfig": m{"MaxFiles": 2, "MaxFileSizeMB": 1},
	}
	g := m{
		"Name": "g", "Count": 1, "Tasks": []any{tk}, "EphemeralDisk": m{"SizeMB": 30},
		"RestartPolicy":    m{"Attempts": 0, "Mode": "fail", "Interval": int64(time.Minute), "Delay": int64(time.Second)},
		"ReschedulePolicy": m{"Attempts": 0, "Unlimited": false},
	}
	j := m{"ID": id, "Name": id, "Type": "batch", "Datacenters": []string{"*"}, "TaskGroups": []any{g}}
	if set != nil {
		set(j, g, tk)
	}
	return m{"Job": j}
}

func (v *victim) submit(t *testing.T, job m) string {
	t.Helper()
	if err := v.api.Call("PUT", "/v1/jobs", job, nil); err != nil {
		t.Fatal(err)
	}
	return job["Job"].(m)["ID"].(string)
}

// ended waits until the job's only allocation is terminal.
func (v *victim) ended(t *testing.T, id string, limit time.Duration) harness.Alloc {
	t.Helper()
	var a harness.Alloc
	harness.Eventually(t, limit, id+" to end", func() (bool, string) {
		as, err := v.api.Allocs(id)
		if err != nil || len(as) == 0 {
			return false, fmt.Sprint(len(as), err)
		}
		a = as[0]
		return a.ClientStatus == "complete" || a.ClientStatus == "failed", a.ClientStatus + " " + events(a)
	})
	return a
}

func (v *victim) running(t *testing.T, id string) harness.Alloc {
	t.Helper()
	var a harness.Alloc
	harness.Eventually(t, 20*time.Second, id+" to run", func() (bool, string) {
		as, err := v.api.Allocs(id)
		if err != nil || len(as) == 0 {
			return false, fmt.Sprint(len(as), err)
		}
		a = as[0]
		return a.ClientStatus == "running", a.ClientStatus + " " + events(a)
	})
	return a
}

func events(a harness.Alloc) string {
	var s []string
	for _, e := range a.TaskStates["t"].Events {
		s = append(s, fmt.Sprintf("%s: %s (%d)", e.Type, e.DisplayMessage, e.ExitCode))
	}
	return strings.Join(s, "; ")
}

func (v *victim) stdout(t *testing.T, a harness.Alloc) string {
	t.Helper()
	_, out := send("GET", "/v1/client/fs/logs/"+a.ID+"?task=t&type=stdout&plain=true&origin=start", "", nil)
	return out
}

// purge stops a job and forgets it, without waiting.
func (v *victim) purge(t *testing.T, id string) {
	t.Helper()
	if err := v.api.Call("DELETE", "/v1/job/"+url.PathEscape(id)+"?purge=true", nil, nil); err != nil {
		t.Errorf("purge %s: %v", id, err)
	}
}

func testSandbox(t *testing.T, v *victim) {
	if os.Geteuid() != 0 {
		harness.NotRun(t, "the exec driver needs root")
	}
	data := filepath.Join(v.dir, "data")
	secret := v.file("secret.txt", "do-not-read-me")
	_ = os.Chmod(secret, 0o600)

	// A neighbour counts aloud all the time, and must not notice anything.
	neighbour := v.submit(t, task("neighbour", "exec", "echo private-$NOMAD_ALLOC_ID > $NOMAD_TASK_DIR/mine; i=0; while :; do i=$((i+1)); echo line $i; sleep 0.2; done", 20, nil))
	na := v.running(t, neighbour)
	defer v.purge(t, neighbour)
	minePath, _ := filepath.Glob(filepath.Join(data, "*", "alloc*", na.ID, "t", "local", "mine"))
	if len(minePath) == 0 {
		_ = filepath.Walk(data, func(p string, _ os.FileInfo, _ error) error {
			if filepath.Base(p) == "mine" {
				minePath = append(minePath, p)
			}
			return nil
		})
	}
	if len(minePath) == 0 {
		t.Fatal("the neighbour's file was not found")
	}

	check := func(name, script string, memory int, limit time.Duration, set func(job, group, task m), verdict func(t *testing.T, a harness.Alloc, out string)) {
		t.Run(name, func(t *testing.T) {
			id := v.submit(t, task("s-"+strings.ReplaceAll(name, " ", "-"), "exec", script, memory, set))
			a := v.ended(t, id, limit)
			out := v.stdout(t, a)
			if os.Getenv("MUSTER_E2E_SHOW") != "" {
				t.Logf("%s; %s\n%s", a.ClientStatus, events(a), head(out))
			}
			verdict(t, a, out)
			v.purge(t, id)
			v.alive(t)
			if as, err := v.api.Allocs(neighbour); err != nil || len(as) != 1 || as[0].ClientStatus != "running" || as[0].TaskStates["t"].Restarts != 0 {
				t.Errorf("the neighbour was harmed: %v %v", as, err)
			}
		})
	}
	none := func(bad ...string) func(*testing.T, harness.Alloc, string) {
		return func(t *testing.T, a harness.Alloc, out string) {
			if !strings.Contains(out, "END") {
				t.Errorf("the script did not end: %s\n%s", events(a), head(out))
			}
			for _, b := range bad {
				if strings.Contains(out, b) {
					t.Errorf("the task got %q:\n%s", b, head(out))
				}
			}
		}
	}
	failed := func(t *testing.T, a harness.Alloc, _ string) {
		if a.ClientStatus != "failed" {
			t.Errorf("%s, want failed: %s", a.ClientStatus, events(a))
		}
	}

	check("read what is not mine", fmt.Sprintf("for f in %s %s %s/server/raft/wal/wal-meta.db; do head -c 100 $f && echo GOT; done 2>&1; ls %s/server 2>/dev/null && echo LISTED; ls %s/client/allocs | grep -v $NOMAD_ALLOC_ID && echo LISTED; cat /proc/1/root%s 2>/dev/null && echo GOT; echo END",
		secret, minePath[0], data, data, data, secret), 20, 20*time.Second, nil, none("GOT", "do-not-read-me", "private-", "LISTED"))
	check("read as root what is not mine", fmt.Sprintf("for f in %s %s; do head -c 100 $f && echo GOT; done 2>&1; find /var /tmp /home /root /opt /srv -xdev -name mine -o -name raft.db 2>/dev/null | grep . && echo FOUND; echo END", secret, minePath[0]), 20, 2*time.Minute, // a machine may have many files
		func(_, _, tk m) { tk["User"] = "root" }, none("GOT", "do-not-read-me", "FOUND"))
	check("see processes", fmt.Sprintf("n=0; for p in /proc/[0-9]*; do n=$((n+1)); done; test $n -lt 10 || echo SEES $n; kill -9 %d 2>/dev/null && echo KILLED; tr '\\0' ' ' < /proc/%d/cmdline 2>/dev/null | grep agent && echo AGENT; echo END", v.proc.Pid(), v.proc.Pid()), 20, 20*time.Second,
		func(_, _, tk m) { tk["User"] = "root" }, none("SEES", "KILLED", "AGENT"))
	check("kill everybody", "kill -9 -1; echo END", 20, 20*time.Second, nil, func(*testing.T, harness.Alloc, string) {})
	check("kill everybody as root", "kill -9 -1; echo END", 20, 20*time.Second, func(_, _, tk m) { tk["User"] = "root" }, func(*testing.T, harness.Alloc, string) {})
	check("gain rights", "cp /bin/sh $NOMAD_TASK_DIR/sh 2>/dev/null; chmod 4755 $NOMAD_TASK_DIR/sh; grep -q 'NoNewPrivs:\t1' /proc/self/status || echo MAYGAIN; $NOMAD_TASK_DIR/sh -p -c 'id -u' | grep '^0$' && echo ROOT; su -c 'echo ROOT' </dev/null 2>/dev/null; echo END", 20, 20*time.Second, nil, none("ROOT", "MAYGAIN"))
	check("mount", "mount -t tmpfs x /mnt 2>/dev/null && echo MOUNTED; mount -o remount,rw / 2>/dev/null && echo REMOUNTED; mknod $NOMAD_TASK_DIR/sda b 8 0 2>/dev/null && head -c 1 $NOMAD_TASK_DIR/sda && echo DISK; echo 1 > /proc/sys/kernel/sysrq 2>/dev/null && echo SYSRQ; p=$(cat /proc/sys/kernel/core_pattern); echo \"$p\" > /proc/sys/kernel/core_pattern 2>/dev/null && echo CORE; for d in /sys/fs/cgroup /sys/fs/cgroup/*; do mkdir $d/hostile 2>/dev/null && echo CGROUP && rmdir $d/hostile; done; unshare -m true 2>/dev/null && echo UNSHARED; echo END", 20, 20*time.Second,
		func(_, _, tk m) { tk["User"] = "root" }, none("MOUNTED", "DISK", "SYSRQ", "CORE", "CGROUP"))
	check("write to the host", "for f in /usr/bin /etc /var/lib /root /boot / /proc/sys/kernel/core_pattern; do touch $f/hostile 2>/dev/null && echo WROTE && rm -f $f/hostile; done; echo END", 20, 20*time.Second, nil, none("WROTE"))
	check("user of another name", "echo STARTED", 20, 20*time.Second, func(_, _, tk m) { tk["User"] = "../../root" }, failed)
	check("work dir outside", "echo STARTED", 20, 20*time.Second, func(_, _, tk m) { tk["Config"].(m)["work_dir"] = "../../../../../../etc" }, failed)
	check("command through a variable", "echo STARTED", 20, 20*time.Second, func(_, _, tk m) { tk["Config"].(m)["command"] = "${NOMAD_ALLOC_DIR}/../../../../../../../nowhere/sh" }, failed)
	check("capability asked for", "echo STARTED", 20, 20*time.Second, func(_, _, tk m) { tk["Config"].(m)["cap_add"] = []string{"sys_admin"} }, failed)
	check("pid mode host", "echo STARTED", 20, 20*time.Second, func(_, _, tk m) { tk["Config"].(m)["pid_mode"] = "host" }, failed)
	check("fork bomb", "f() { f | f & f; }; (f) 2>/dev/null; sleep 1; echo END", 40, 30*time.Second, func(j, _, tk m) { tk["Config"].(m)["pids_limit"] = 64 }, func(*testing.T, harness.Alloc, string) {})
	check("memory hog", "head -c 400000000 /dev/zero | tail > /dev/null; exit 137", 20, 30*time.Second, nil, func(t *testing.T, a harness.Alloc, _ string) {
		failed(t, a, "")
		if !strings.Contains(strings.ToLower(events(a)), "oom") && !strings.Contains(events(a), "memory") {
			t.Errorf("no event says that memory was short: %s", events(a))
		}
	})
	check("shm hog", "head -c 400000000 /dev/zero > /dev/shm/x 2>/dev/null; ls -l /dev/shm/x; exit 3", 20, 30*time.Second, nil, failed)
	check("descriptors", "for i in 1 2 3 4 5 6 7 8; do (i=3; while [ $i -lt 9 ]; do eval \"exec $i</dev/null\"; i=$((i+1)); done; ulimit -n; ulimit -n 99999999 2>/dev/null && echo RAISED) & done; wait; echo END", 20, 30*time.Second, nil, none("RAISED"))
	check("a gigabyte of log", "head -c 1000000000 /dev/zero | tr '\\0' 'x'; echo; echo END", 20, 60*time.Second, nil, func(t *testing.T, a harness.Alloc, _ string) {
		if a.ClientStatus != "complete" {
			t.Errorf("%s: %s", a.ClientStatus, events(a))
		}
		var total int64
		_ = filepath.Walk(data, func(p string, fi os.FileInfo, err error) error {
			if err == nil && strings.Contains(p, a.ID) && strings.Contains(filepath.Base(p), ".stdout.") {
				total += fi.Size()
			}
			return nil
		})
		if total == 0 || total > 3<<20 {
			t.Errorf("%d bytes of log kept, want 2 files of 1 MiB", total)
		}
	})
	check("disk filler", "head -c 300000000 /dev/zero > $NOMAD_ALLOC_DIR/data/fill; sleep 40; echo END", 20, 35*time.Second, nil, failed)

	t.Run("raw_exec floods its log", func(t *testing.T) {
		id := v.submit(t, task("flood-raw", "raw_exec", "yes | head -c 200000000; echo END", 20, nil))
		if a := v.ended(t, id, 40*time.Second); a.ClientStatus != "complete" {
			t.Errorf("%s: %s", a.ClientStatus, events(a))
		}
		v.purge(t, id)
		v.alive(t)
	})
	t.Run("deaf to SIGTERM", func(t *testing.T) {
		id := v.submit(t, task("deaf", "exec", "trap '' TERM INT HUP; while :; do sleep 1; done", 20, func(j, _, _ m) { j["Type"] = "service" }))
		v.running(t, id)
		if err := v.api.Call("DELETE", "/v1/job/"+id, nil, nil); err != nil {
			t.Fatal(err)
		}
		v.ended(t, id, 8*time.Second)
		v.purge(t, id)
		v.alive(t)
	})
	t.Run("stop and purge while it starts", func(t *testing.T) {
		for i := range 20 {
			id := v.submit(t, task(fmt.Sprintf("early-%d", i), "exec", "sleep 300", 10, nil))
			time.Sleep(time.Duration(i*4) * time.Millisecond)
			v.purge(t, id)
		}
		harness.Eventually(t, 30*time.Second, "nothing of the purged jobs to run", func() (bool, string) {
			var left []string
			for _, tk := range harness.Tasks(data) {
				if tk.AllocID != na.ID {
					left = append(left, fmt.Sprintf("%+v", tk))
				}
			}
			return len(left) == 0, strings.Join(left, " ")
		})
		v.alive(t)
	})
	t.Run("200 short tasks", func(t *testing.T) {
		id := v.submit(t, task("short", "exec", "exit 0", 10, func(_, g, tk m) {
			g["Count"] = 200
			g["EphemeralDisk"] = m{"SizeMB": 3}
			tk["Resources"] = m{"CPU": 1, "MemoryMB": 10}
		}))
		harness.Eventually(t, 60*time.Second, "200 complete", func() (bool, string) {
			as, err := v.api.Allocs(id)
			return err == nil && harness.Count(as, "complete") == 200, fmt.Sprint(len(as), harness.Count(as, "complete"), harness.Count(as, "failed"), err)
		})
		v.purge(t, id)
		v.spent(t) // two hundred starts, none of which is dear
		v.alive(t)
	})

	t.Run("files outside", func(t *testing.T) {
		id := v.submit(t, task("links", "exec", "cd $NOMAD_ALLOC_DIR/data; ln -s /etc/passwd link; ln -s "+secret+" secret; ln -s ../../../../../../../../etc up; ln -s loop loop; mkfifo pipe; sleep 300", 20, nil))
		a := v.running(t, id)
		harness.Eventually(t, 10*time.Second, "the links", func() (bool, string) {
			code, out := send("GET", "/v1/client/fs/ls/"+a.ID+"?path=/alloc/data", "", nil)
			return strings.Contains(out, "pipe"), fmt.Sprint(code, out)
		})
		for _, p := range []string{"../../../../../../../../etc/passwd", "/alloc/../../../../../../../etc/passwd", "/alloc/data/link", "/alloc/data/secret", "/alloc/data/up/passwd", "/alloc/data/loop", "/alloc/data/pipe", "%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd", "/t/secrets/../../../../x", "a%00b"} {
			for _, verb := range []string{"cat", "stat", "ls", "readat", "stream"} {
				code, out := send("GET", "/v1/client/fs/"+verb+"/"+a.ID+"?offset=0&limit=100&follow=false&path="+p, "", nil)
				if strings.Contains(out, "root:") || strings.Contains(out, base64.StdEncoding.EncodeToString([]byte("root:x"))) || strings.Contains(out, "do-not-read-me") {
					t.Errorf("%s of %s got out of the allocation: %d %s", verb, p, code, head(out))
				}
				if code < 0 {
					t.Errorf("%s of %s: %s", verb, p, out)
				}
				if code >= 400 {
					clear(t, out)
				}
			}
		}
		ws := map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
		for _, c := range []struct {
			q      string
			header map[string]string
		}{
			{"task=t&command=%5B%22sh%22%5D", nil}, {"task=t&command=sh", nil}, {"task=t&command=%5B%5D", nil}, {"command=%5B%22sh%22%5D", nil}, {"task=nowhere&command=%5B%22sh%22%5D", nil},
		} {
			code, out := send("GET", "/v1/client/allocation/"+a.ID+"/exec?"+c.q, "", c.header)
			if code < 400 {
				t.Errorf("exec with %q: %d %s", c.q, code, out)
			}
			clear(t, out)
		}
		for _, q := range []string{"task=t&command=sh", "task=t&command=%5B%5D"} {
			if code, out := send("GET", "/v1/client/allocation/"+a.ID+"/exec?"+q, "", ws); code != 400 {
				t.Logf("exec over a websocket with %q: %d %q", q, code, head(out))
			}
		}
		for _, q := range []string{"task=t&type=banana", "task=..%2f..&type=stdout", "type=stdout", "task=t&type=stdout&offset=-5", "task=t&type=stdout&origin=banana"} {
			if code, out := send("GET", "/v1/client/fs/logs/"+a.ID+"?"+q, "", nil); code < 400 {
				t.Errorf("logs with %q: %d %s", q, code, head(out))
			}
		}
		v.purge(t, id)
		v.alive(t)
	})
	// The neighbour counted on without a gap.
	out := v.stdout(t, na)
	for i, l := range strings.Split(strings.TrimSpace(out), "\n") {
		if l != fmt.Sprintf("line %d", i+1) {
			t.Fatalf("the neighbour's line %d is %q", i+1, l)
		}
	}
}

// testRawExecOff: outside -dev, raw_exec must be switched on to run.
func testRawExecOff(t *testing.T, v *victim) {
	if os.Geteuid() != 0 {
		harness.NotRun(t, "a client needs root")
	}
	conf := v.file("plain.hcl", fmt.Sprintf("name = \"plain\"\ndata_dir = %q\nbind_addr = \"127.0.0.1\"\nports {\n  http = 27666\n  rpc = 27667\n  serf = 27668\n}\nserver {\n  enabled = true\n  bootstrap_expect = 1\n}\nclient {\n  enabled = true\n}\n", filepath.Join(v.dir, "plain-data")))
	p := harness.Start(t, nil, "plain", nil, "agent", "-config", conf)
	api := harness.NewAPI(t, nil, "", "http://127.0.0.1:27666")
	harness.Eventually(t, 30*time.Second, "the agent to be ready", func() (bool, string) {
		if dead, err := p.Exited(); dead {
			t.Fatalf("ended: %v\n%s", err, p.Log.Tail(20))
		}
		var ns []struct{ Status string }
		err := api.Call("GET", "/v1/nodes", nil, &ns)
		return err == nil && len(ns) == 1 && ns[0].Status == "ready", fmt.Sprint(ns, err)
	})
	proof := filepath.Join(v.dir, "raw-exec-ran")
	if err := api.Call("PUT", "/v1/jobs", task("raw", "raw_exec", "touch "+proof, 20, nil), nil); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 15*time.Second, "the evaluation", func() (bool, string) {
		var es []struct{ Status, BlockedEval string }
		err := api.Call("GET", "/v1/job/raw/evaluations", nil, &es)
		blocked := false
		for _, e := range es {
			blocked = blocked || e.Status == "blocked" || e.BlockedEval != ""
		}
		return err == nil && blocked, fmt.Sprint(es, err)
	})
	if _, err := os.Stat(proof); err == nil {
		t.Fatal("raw_exec ran although nobody switched it on")
	}
	// A task may be neither root, under any spelling, nor another user of the machine, unless the configuration allows it.
	for i, user := range []string{"root", "0", "daemon"} {
		id := fmt.Sprintf("as-root-%d", i)
		if err := api.Call("PUT", "/v1/jobs", task(id, "exec", "echo STARTED", 20, func(_, _, tk m) { tk["User"] = user }), nil); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, 15*time.Second, "the refusal", func() (bool, string) {
			as, err := api.Allocs(id)
			if err != nil || len(as) != 1 {
				return false, fmt.Sprint(as, err)
			}
			return as[0].ClientStatus == "failed" && strings.Contains(events(as[0]), "(client, run_as, allow)"), as[0].ClientStatus + " " + events(as[0])
		})
	}
	p.Kill9()
	v.alive(t)
}
