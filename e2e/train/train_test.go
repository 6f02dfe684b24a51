//go:build e2e

package train

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "rendezvous" {
		os.Exit(rendezvous())
	}
	os.Exit(visibly(m.Run))
}

// visibly runs tests with programs that tasks can see: they have a /tmp of their own, and launchers in them call muster.
func visibly(run func() int) int {
	bin := os.Getenv("MUSTER_BIN")
	if !strings.HasPrefix(bin, "/tmp/") {
		return run()
	}
	dir, err := os.MkdirTemp("/var/tmp", "muster-bin-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		err = os.CopyFS(dir, os.DirFS(filepath.Dir(bin)))
	}
	if err == nil {
		err = os.Setenv("MUSTER_BIN", filepath.Join(dir, filepath.Base(bin)))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return run()
}

// rendezvous is a program that starts as training does, in no time: rank 0 waits for all others and lets them go.
func rendezvous() int {
	fail := func(what string, err error) int {
		fmt.Fprintln(os.Stderr, what, err)
		return 1
	}
	addr := net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT"))
	world, err := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	if err != nil {
		return fail("WORLD_SIZE", err)
	}
	if os.Getenv("RANK") == "0" {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return fail("listen", err)
		}
		var conns []net.Conn
		for range world - 1 {
			c, err := l.Accept()
			if err != nil {
				return fail("accept", err)
			}
			if _, err := bufio.NewReader(c).ReadString('\n'); err != nil {
				return fail("read", err)
			}
			conns = append(conns, c)
		}
		for _, c := range conns {
			fmt.Fprintln(c, "go")
		}
		fmt.Printf("barrier=%.3f\n", float64(time.Now().UnixMicro())/1e6)
		return 0
	}
	var c net.Conn
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if c, err = net.Dial("tcp", addr); err == nil {
			break
		}
		if time.Now().After(deadline) {
			return fail("dial", err)
		}
	}
	fmt.Fprintln(c, "here")
	if _, err := bufio.NewReader(c).ReadString('\n'); err != nil {
		return fail("wait", err)
	}
	return 0
}

// trainPy is a loop of all-reduces with a checkpoint. The time that Python and PyTorch take until they can do anything is
// printed, so that it can be left out.
const trainPy = `
import os, sys, time
import datetime
import torch, torch.distributed as dist
def began(pid):
    with open("/proc/%s/stat" % pid) as f: return int(f.read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
with open("/proc/uptime") as f: python = float(f.read().split()[0]) - began("self")
if "TORCHELASTIC_RUN_ID" in os.environ: python += began("self") - began(os.getppid()) # torchrun is Python with PyTorch, too
dist.init_process_group("gloo", init_method="env://", timeout=datetime.timedelta(seconds=60))
x = torch.ones(4) * (dist.get_rank() + 1)
dist.all_reduce(x)
world = dist.get_world_size()
assert x[0].item() == world * (world + 1) / 2, x
steps, dir = int(sys.argv[1]), os.environ.get("MUSTER_CHECKPOINT_DIR", "")
path, first = dir + "/" + os.environ["MUSTER_JOB_ID"] + ".ckpt", 0
if steps > 0 and os.path.exists(path): first = int(open(path).read().split()[0])
sys.stdout.write("rank %d of %d sum=%d python=%.3f barrier=%.3f from=%d epoch=%s restarts=%s/%s\n" % (dist.get_rank(), world, x[0].item(), python, time.time(), first,
    os.environ["MUSTER_GANG_EPOCH"], os.environ.get("MUSTER_RESTART_COUNT", ""), os.environ.get("MUSTER_RESTART_REASON", "")))
sys.stdout.flush()
for step in range(first, steps):
    time.sleep(0.1)
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        with open(path + ".new", "w") as f: f.write("%d %.3f" % (step + 1, time.time()))
        os.rename(path + ".new", path)
dist.barrier()
`

func haveTorch(t *testing.T) {
	for prog, pkg := range map[string]string{"torchrun": "python3-torch", "mpirun": "openmpi-bin"} {
		if _, err := exec.LookPath(prog); err != nil {
			harness.NotRun(t, prog+" is not installed (package "+pkg+")")
		}
	}
}

func TestTraining(t *testing.T) {
	haveTorch(t)
	c := newCluster(t)
	script := filepath.Join(c.dir, "train.py")
	site := filepath.Join(c.dir, "site")
	if err := os.Mkdir(site, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{script: trainPy, filepath.Join(site, "sitecustomize.py"): harness.SiteCustomize} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// check wants all four ranks through an all-reduce, and prints what the start took.
	check := func(t *testing.T, id string, at time.Time, out string) {
		t.Helper()
		if sums := figures(out, "sum"); len(sums) != 4 || slices.Min(sums) != 10 || slices.Max(sums) != 10 {
			errs, _ := c.muster("job", "logs", "-all", "-stderr", id)
			t.Fatalf("sums %v of four ranks, want 10 each:\n%s%s", sums, out, errs)
		}
		total := slices.Max(figures(out, "barrier")) - float64(at.UnixMicro())/1e6
		python := slices.Max(figures(out, "python"))
		t.Logf("%s: first barrier %.2f s after submission, Python's own start %.2f s, the rest %.2f s (goal 3 s)", id, total, python, total-python)
	}

	t.Run("rank by rank", func(t *testing.T) {
		at := c.run(job{id: "ranks", launch: `{ mode = "rank" }`, driver: "exec", command: "/usr/bin/python3", args: []string{script, "0"}})
		check(t, "ranks", at, c.ended("ranks", 120*time.Second))
		t.Run("GPUs", func(t *testing.T) { ranksSeeTheirOwn(t, c) })
		for rank := range 4 {
			if out, err := c.muster("job", "logs", "-stdout", "-rank", strconv.Itoa(rank), "ranks"); err != nil || !strings.HasPrefix(out, fmt.Sprintf("rank %d of 4 ", rank)) {
				t.Errorf("logs of rank %d: %v\n%s", rank, err, out)
			}
		}
	})
	t.Run("torchrun", func(t *testing.T) {
		at := c.run(job{id: "torchrun", launch: `{ mode = "node", compat = ["torchrun"] }`, driver: "exec", command: "/usr/bin/python3",
			args: []string{"-m", "torch.distributed.run", script, "0"}, env: map[string]string{"PYTHONPATH": site, "HOME": "/tmp"}})
		check(t, "torchrun", at, c.ended("torchrun", 120*time.Second))
	})
	t.Run("mpirun", func(t *testing.T) {
		at := c.run(job{id: "mpirun", launch: `{ mode = "node", compat = ["mpi"] }`, driver: "exec", command: "/bin/sh",
			args: []string{"-c", `if [ $MUSTER_NODE_RANK != 0 ]; then exec ` + harness.Bin(t) + ` rsh -wait; fi; exec mpirun -np 4 -mca btl_tcp_if_include eth0 -mca oob_tcp_if_include eth0 -x MASTER_ADDR -x MASTER_PORT /bin/sh -c "RANK=\$OMPI_COMM_WORLD_RANK WORLD_SIZE=\$OMPI_COMM_WORLD_SIZE exec /usr/bin/python3 ` + script + ` 0"`},
			env:  map[string]string{"HOME": "/tmp"}})
		check(t, "mpirun", at, c.ended("mpirun", 120*time.Second))
	})
	t.Run("a script of Slurm", func(t *testing.T) { scriptOfSlurm(t, c) })
	t.Run("as its submitter", func(t *testing.T) { asSubmitter(t, c) })
	t.Run("again and again", func(t *testing.T) { startMany(t, c) })
	t.Run("watched over a restart of the servers", func(t *testing.T) { watched(t, c) })
	t.Run("a node killed", func(t *testing.T) { killNode(t, c, script) })
}

// ranksSeeTheirOwn checks which GPUs each rank is shown: its own, or all if the job says so.
func ranksSeeTheirOwn(t *testing.T, c *cluster) {
	say := []string{"-c", "echo rank=$RANK local=$LOCAL_RANK sees $CUDA_VISIBLE_DEVICES of $NVIDIA_VISIBLE_DEVICES"}
	for _, gpus := range []string{"own", "all"} {
		id := "gpus-" + gpus
		c.run(job{id: id, launch: `{ mode = "rank", gpus = "` + gpus + `" }`, driver: "exec", command: "/bin/sh", args: say})
		out := c.ended(id, 60*time.Second)
		found := regexp.MustCompile(`local=(\d) sees (\S+) of (\S+)\n`).FindAllStringSubmatch(out, -1)
		if len(found) != 4 {
			t.Fatalf("not four ranks:\n%s", out)
		}
		for _, m := range found {
			local, _ := strconv.Atoi(m[1])
			want := m[3]
			if gpus == "own" {
				want = strings.Split(m[3], ",")[local]
			}
			if m[2] != want || strings.Count(m[3], ",") != 1 {
				t.Errorf("gpus = %q: local rank %d sees %s, want %s", gpus, local, m[2], want)
			}
		}
	}
}

// asSubmitter runs a command of two nodes with two ranks each as a real user, in a directory that is that user's alone, with a
// umask, and looks at what it left there: files, and logs by rank. Another user is refused, with a reason.
func asSubmitter(t *testing.T, c *cluster) {
	name := fmt.Sprintf("mtrain%d", os.Getpid())
	if out, err := exec.Command("useradd", "--no-create-home", name).CombinedOutput(); err != nil {
		harness.NotRun(t, fmt.Sprintf("cannot make a user: %v: %s", err, out))
	}
	t.Cleanup(func() { _ = exec.Command("userdel", name).Run() })
	home := filepath.Join(c.dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("chown", name, home).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := c.muster("run", "-name", "mine", "-nodes", "2", "-ranks", "2", "-user", name, "-dir", home, "-umask", "0027", "-log", "%x-%2t.log", "--",
		"/bin/sh", "-c", "echo $(id -un) $(pwd) $(umask) $NCCL_SOCKET_IFNAME rank $RANK; : >made-$RANK")
	if err != nil {
		t.Fatalf("run as %s: %v\n%s", name, err, out)
	}
	for rank := range 4 {
		log := filepath.Join(home, fmt.Sprintf("mine-%02d.log", rank))
		if b, err := os.ReadFile(log); err != nil || string(b) != fmt.Sprintf("%s %s 0027 =eth0 rank %d\n", name, home, rank) {
			t.Errorf("the log of rank %d has %q, %v", rank, b, err)
		}
		st, err := os.Stat(filepath.Join(home, fmt.Sprintf("made-%d", rank)))
		if err != nil || st.Mode().Perm() != 0o640 {
			t.Errorf("the file of rank %d: %v, %v", rank, st, err)
		}
	}
	if out, err = c.muster("run", "-name", "daemons", "-user", "daemon", "--", "/bin/true"); err == nil {
		t.Errorf("a user that the nodes do not allow ran:\n%s", out)
	}
	as, err := c.api.Allocs("daemons")
	if err != nil || len(as) == 0 {
		t.Fatal(as, err)
	}
	if out, _ = c.muster("alloc", "status", as[0].ID); !strings.Contains(out, `does not let the task run as "daemon": allowed are mtrain*`) {
		t.Errorf("the reason is not told:\n%s", out)
	}
}

// startMany starts a small program in 4 ranks on 2 nodes so many times that a lost start in a hundred would show.
func startMany(t *testing.T, c *cluster) {
	count := harness.Number(t, "COUNT", 100)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	prog := filepath.Join(c.dir, "rendezvous")
	if out, err := exec.Command("cp", self, prog).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var mu sync.Mutex
	var took []float64
	work := make(chan int)
	var wg sync.WaitGroup
	for range 2 { // two gangs fill the cluster
		wg.Go(func() {
			for i := range work {
				id := fmt.Sprintf("start-%d", i)
				at := c.run(job{id: id, launch: `{ mode = "rank" }`, driver: "raw_exec", command: prog, args: []string{"rendezvous"}})
				var as []harness.Alloc
				for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
					if as, err = c.api.Allocs(id); err == nil && harness.Count(as, "complete") == 2 {
						break
					}
				}
				if len(as) != 2 || harness.Count(as, "complete") != 2 {
					out, _ := c.muster("job", "logs", "-all", "-stderr", id)
					t.Errorf("start %d was lost: %v\n%s", i, as, out)
					continue
				}
				out, _ := c.muster("job", "logs", "-stdout", "-rank", "0", id)
				if b := figures(out, "barrier"); len(b) == 1 {
					mu.Lock()
					took = append(took, b[0]-float64(at.UnixMicro())/1e6)
					mu.Unlock()
				} else {
					t.Errorf("start %d: rank 0 said %q", i, out)
				}
			}
		})
	}
	for i := range count {
		work <- i
	}
	close(work)
	wg.Wait()
	if len(took) != count {
		t.Fatalf("%d of %d starts came through", len(took), count)
	}
	slices.Sort(took)
	t.Logf("%d starts of 4 ranks on 2 nodes, none lost: submission to barrier %.2f s at the median, %.2f s at the 99th percentile", count, took[count/2], took[count*99/100])
}

// watched runs a command and kills the server and the agents during it: none of its output may be lost or repeated, and
// its exit code has to arrive.
func watched(t *testing.T, c *cluster) {
	type result struct {
		out string
		err error
	}
	done := make(chan result, 1)
	const lines = 60
	go func() {
		out, err := c.muster("run", "-name", "watched", "--", "/bin/sh", "-c", fmt.Sprintf("for i in $(seq 1 %d); do echo line-$i-; sleep 0.2; done; exit 9", lines))
		done <- result{out, err}
	}()
	harness.Eventually(t, 60*time.Second, "a running command", func() (bool, string) {
		as, err := c.api.Allocs("watched")
		return err == nil && harness.Count(as, "running") == 1, fmt.Sprint(err, as)
	})
	harness.Eventually(t, 60*time.Second, "the command to write", func() (bool, string) {
		out, err := c.muster("job", "logs", "-stdout", "watched")
		return err == nil && strings.Contains(out, "line-3-"), fmt.Sprint(err, out)
	})
	for _, name := range append([]string{"s1"}, nodes...) {
		c.procs[name].Kill9()
	}
	c.start("s1")
	for _, n := range nodes {
		c.start(n, "-dev-gpus=2xH100")
	}
	var r result
	select {
	case r = <-done:
	case <-time.After(120 * time.Second):
		t.Fatal("the command that watches did not end")
	}
	if r.err == nil || !strings.Contains(r.err.Error(), "exit status 9") {
		t.Errorf("it ended with %v, want exit status 9", r.err)
	}
	for i := 1; i <= lines; i++ {
		if n := strings.Count(r.out, fmt.Sprintf("line-%d-\n", i)); n != 1 {
			t.Fatalf("line %d is there %d times:\n%s", i, n, r.out)
		}
	}
	harness.Eventually(t, 90*time.Second, "all nodes again", func() (bool, string) {
		out, err := c.muster("node", "status")
		return err == nil && strings.Count(out, " ready") == len(nodes), out
	})
}

// killNode ends a node under a gang: the gang continues elsewhere from its checkpoint.
func killNode(t *testing.T, c *cluster, script string) {
	const steps = 150
	c.run(job{id: "long", launch: `{ mode = "rank" }`, driver: "exec", command: "/usr/bin/python3", args: []string{script, strconv.Itoa(steps)}})
	ckpt := filepath.Join(c.dir, "long.ckpt")
	saved := func() (step int, at float64) {
		b, _ := os.ReadFile(ckpt)
		fmt.Sscan(string(b), &step, &at)
		return step, at
	}
	harness.Eventually(t, 120*time.Second, "thirty steps", func() (bool, string) {
		step, _ := saved()
		return step >= 30, fmt.Sprint(step)
	})
	var gangs []struct {
		Epoch   uint64
		Members []struct{ NodeName string }
	}
	if err := c.api.Call("GET", "/v1/job/long/gangs", nil, &gangs); err != nil || len(gangs) != 1 || len(gangs[0].Members) != 2 {
		t.Fatalf("gangs %+v, %v", gangs, err)
	}
	bad, epoch := gangs[0].Members[1].NodeName, gangs[0].Epoch
	c.net.Host(bad).Cut()
	c.procs[bad].Kill9()
	harness.KillBelow(t, filepath.Join(c.dir, "data-"+bad))
	step, at := saved()
	if step >= steps {
		t.Fatalf("the job had ended when its node was killed")
	}
	out := c.ended("long", 240*time.Second)
	if err := c.api.Call("GET", "/v1/job/long/gangs", nil, &gangs); err != nil || len(gangs) != 1 || len(gangs[0].Members) != 2 {
		t.Fatalf("gangs %+v, %v", gangs, err)
	}
	if gangs[0].Epoch <= epoch {
		t.Errorf("the gang went on in epoch %d after %d", gangs[0].Epoch, epoch)
	}
	for _, m := range gangs[0].Members {
		if m.NodeName == bad {
			t.Errorf("the gang went on at %s, which was killed", bad)
		}
	}
	from := figures(out, "from")
	if len(from) != 4 || int(slices.Min(from)) < step-1 || int(slices.Max(from)) > step+1 {
		t.Fatalf("it went on from %v, want step %d of the checkpoint:\n%s", from, step, out)
	}
	if last, _ := saved(); last != steps {
		t.Errorf("it ended at step %d of %d", last, steps)
	}
	again := slices.Max(figures(out, "barrier"))
	t.Logf("%s killed at step %d of epoch %d; all ranks went on from step %.0f in epoch %d after %.1f s: %.0f GPU-seconds lost", bad, step, epoch, from[0], gangs[0].Epoch, again-at, 4*(again-at))
}
