//go:build e2e

package pages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

const root = "../.."

// A guide is what a page's reader has before its first command.
type guide struct {
	gpus  string            // what -dev-gpus makes up; none if empty
	below string            // where the clone is, else below /var/tmp
	conf  string            // more configuration of the agent
	setup string            // typed before the first block
	words map[string]string // what the page writes in a command, and what the shell finds in its place
	early string            // a command whose output the page shows before one could type it
	after string            // the command after which it is typed
	files map[string]string // what the page writes in a file, and what this machine has instead
}

// reader is a person with a page in one hand.
type reader struct {
	t    *testing.T
	dir  string // where files of the page lie
	home string
	uid  uint32
	env  []string
	swap *strings.Replacer // in commands
	file *strings.Replacer // in files
}

// endless are commands that go on until they are interrupted. They must print something and not fail until then.
var endless = regexp.MustCompile(`^(muster (top|shell|nodesim|port-forward|event stream)\b)|^muster .* -f\b|-watch\b`)

// again are commands that change nothing. What they print is looked at until it is what the page shows.
var again = regexp.MustCompile(`^(muster (queue|gpu|top|acct|node|job|alloc|service|server|operator|quota|eval|status)\b|curl )`)
var changes = regexp.MustCompile(`^muster (job (run|stop|init)|queue apply|quota apply|node (drain|taint|eligibility))`)

// do runs one command as the page's reader in the directory that the commands before it left.
func (r *reader) do(text string, within time.Duration) (string, error) {
	script := "cd \"$(cat \"$PAGES/cwd\")\" && . \"$PAGES/env\"\n" + text + "\nrc=$?\nexport -p > \"$PAGES/env\"; pwd > \"$PAGES/cwd\"; exit $rc\n"
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Env = r.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: r.uid, Gid: r.uid}}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if ctx.Err() != nil {
		err = errors.Join(context.DeadlineExceeded, err)
	}
	return string(out), err
}

// follow runs a command and compares what the page shows of its output.
func (r *reader) follow(name string, c command) {
	text := r.swap.Replace(c.text)
	if endless.MatchString(text) {
		for end := time.Now().Add(30 * time.Second); ; { // what runs may need a while until it has something to print
			out, err := r.do("exec "+strings.Split(text, " #")[0]+" < /dev/null", 4*time.Second)
			if (err == nil || errors.Is(err, context.DeadlineExceeded)) && out != "" {
				return
			}
			if time.Now().After(end) {
				r.t.Errorf("%s:%d: %s\n%v\n%s", name, c.line, text, err, out)
				return
			}
		}
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(300 * time.Millisecond) {
		out, err := r.do(text, time.Minute)
		ended := &exec.ExitError{}
		tells := errors.As(err, &ended) && (c.show || strings.HasPrefix(text, "muster job plan ") && ended.ExitCode() == 1) // it shows an error, or a difference
		if (err == nil || tells) && (!c.show || shown(c.want, out)) {
			return
		}
		if time.Now().Before(end) && again.MatchString(text) && !changes.MatchString(text) {
			continue
		}
		r.t.Errorf("%s:%d: $ %s\n%v\nprints\n%s", name, c.line, text, err, out)
		if c.show {
			r.t.Errorf("the page shows\n%s\nmasked, wanted\n%s\nmasked, printed\n%s", c.want, masked(c.want), masked(out))
		}
		return
	}
}

// read follows a whole page: its HCL blocks become files, and jobs are validated by the cluster.
func (r *reader) read(name string, g guide, bs []block) (n int) {
	var early []command
	for _, b := range bs {
		if b.reason != "" {
			continue
		}
		switch b.lang {
		case "hcl":
			for _, f := range b.fileNames() {
				r.write(f, r.file.Replace(b.text))
			}
			if b.isJob() {
				n++
				if out, err := r.do("muster job validate "+b.fileNames()[0], time.Minute); err != nil {
					r.t.Errorf("%s:%d: this job is refused: %v\n%s", name, b.line, err, out)
				}
			}
		case "sh", "console":
			for _, c := range b.commands() {
				n++
				if c.text == g.early {
					early = append(early, c)
					continue
				}
				r.follow(name, c)
				if c.text == g.after {
					for _, c := range early {
						r.follow(name, c)
					}
					early = nil
				}
			}
		}
	}
	if len(early) > 0 {
		r.t.Errorf("%s has no command %q", name, g.after)
	}
	return n
}

func (r *reader) write(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Chown(path, int(r.uid), int(r.uid)); err != nil && os.Getuid() == 0 {
		r.t.Fatal(err)
	}
}

// newReader starts a cluster for a page in a new directory below another, as a user of the machine: 0 for root.
func newReader(t *testing.T, g guide, below string, uid uint32) *reader {
	dir, err := os.MkdirTemp(below, "muster-page-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Cleanup(func() { harness.KillBelow(t, dir) })
	r := &reader{t: t, dir: filepath.Join(dir, "work"), home: filepath.Join(dir, "home"), uid: uid}
	for _, d := range []string{dir, r.dir, r.home, filepath.Join(dir, "bin")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chmod(d, 0o755), os.Chown(d, int(uid), int(uid))); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "bin", "muster")
	copied := []string{"-r", harness.Bin(t)}
	if fake := filepath.Join(filepath.Dir(harness.Bin(t)), "fakegpu"); g.gpus != "" { // libraries that -dev-gpus finds next to the binary
		if _, err := os.Stat(fake); err == nil {
			copied = append(copied, fake)
		}
	}
	if out, err := exec.Command("cp", append(copied, filepath.Dir(bin))...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	tree, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	http, rpc, serf := harness.FreePort(t), harness.FreePort(t), harness.FreePort(t)
	r.write("../agent.hcl", fmt.Sprintf("name = \"node1\"\nports {\n  http = %d\n  rpc  = %d\n  serf = %d\n}\n%s", http, rpc, serf, g.conf))
	addr := fmt.Sprintf("http://127.0.0.1:%d", http)
	r.env = []string{"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH"), "HOME=" + r.home,
		"PAGES=" + dir, "MUSTER_ADDR=" + addr, "TREE=" + tree, "USER=reader", "LANG=C.UTF-8"}
	r.write("../env", "")
	r.write("../cwd", r.dir+"\n")

	args := []string{"--reuid", fmt.Sprint(uid), "--regid", fmt.Sprint(uid), "--clear-groups", bin, "agent", "-dev", "-config", filepath.Join(dir, "agent.hcl")}
	if g.gpus != "" {
		args = append(args, "-dev-gpus="+g.gpus)
	}
	agent := harness.StartProgram(t, nil, "setpriv", "agent", r.env, args...)
	t.Cleanup(func() {
		agent.Signal(syscall.SIGINT)
		if err := agent.WaitExit(60 * time.Second); err != nil {
			t.Errorf("the agent's end: %v", err)
		}
		if m := regexp.MustCompile(`Data +(\S+) `).FindStringSubmatch(agent.Log.String()); m != nil {
			harness.KillBelow(t, m[1]) // where the agent's end failed
			_ = os.RemoveAll(m[1])
		}
	})
	pairs := []string{"localhost:4646", fmt.Sprintf("127.0.0.1:%d", http), "127.0.0.1:4646", fmt.Sprintf("127.0.0.1:%d", http), "127.0.0.1:4647", fmt.Sprintf("127.0.0.1:%d", rpc)}
	harness.Eventually(t, 20*time.Second, "a ready node", func() (bool, string) {
		out, err := r.do("muster node status", 20*time.Second)
		return err == nil && strings.Contains(out, "ready"), out
	})
	if g.setup != "" {
		if out, err := r.do("set -e\n"+g.setup, time.Minute); err != nil {
			t.Fatalf("what the page's reader has before: %v\n%s", err, out)
		}
	}
	for _, old := range slices.Sorted(maps.Keys(g.words)) {
		pairs = append(pairs, old, g.words[old])
	}
	var files []string
	for _, old := range slices.Sorted(maps.Keys(g.files)) {
		files = append(files, old, strings.ReplaceAll(g.files[old], "$PAGES", dir))
	}
	r.file = strings.NewReplacer(files...)
	r.swap = strings.NewReplacer(pairs...)
	return r
}

// runs reports whether a page has anything that a reader types.
func runs(bs []block) bool {
	return slices.ContainsFunc(bs, func(b block) bool {
		return b.reason == "" && (b.lang == "sh" || b.lang == "console" || b.lang == "hcl" && b.isJob())
	})
}

// TestPages runs every command of every other page than those of TestFirstHour, as root.
func TestPages(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: pages run work with the driver exec")
	}
	names, err := all(root)
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	first := firstHour(t)
	for _, name := range names {
		if slices.Contains(first, name) {
			continue // TestFirstHour reads it
		}
		bs := blocksOf(t, name)
		if !runs(bs) {
			if _, known := guides[name]; known {
				t.Errorf("%s has no commands, and a guide", name)
			}
			continue
		}
		t.Run(name, func(t *testing.T) {
			total += newReader(t, guides[name], cmp.Or(guides[name].below, "/var/tmp"), 0).read(name, guides[name], bs)
		})
	}
	t.Logf("%d commands and jobs of pages", total)
}

// firstHour are the pages that a newcomer reads in the first hour: README, tutorial and the how-to pages for users.
func firstHour(t *testing.T) (out []string) {
	names, err := all(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if name == "README.md" || strings.HasPrefix(name, "docs/tutorial/") || strings.HasPrefix(name, "docs/how-to/") && runs(blocksOf(t, name)) {
			out = append(out, name)
		}
	}
	return out
}

// TestFirstHour reads the pages of the first hour as root and as a user who is not, below /tmp unless their guide says where, and prints how
// long the commands of each page take.
func TestFirstHour(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: to become another user, and for the driver exec")
	}
	names := firstHour(t)
	if len(names) < 5 {
		t.Fatalf("only %q", names)
	}
	table := fmt.Sprintf("%-32s %9s %10s %10s\n", "page", "commands", "as root", "as a user")
	for _, name := range names {
		var took [2]time.Duration
		n := 0
		for i, who := range []string{"root", "user"} {
			t.Run(name+"/"+who, func(t *testing.T) {
				g, uid := guides[name], uint32(0)
				if who == "user" {
					uid = 65534
					g.files = maps.Clone(g.files)
					if g.files == nil {
						g.files = map[string]string{}
					}
					g.files[`"exec"`] = `"raw_exec"` // as the pages say
				}
				r := newReader(t, g, cmp.Or(g.below, "/tmp"), uid)
				start := time.Now()
				n = r.read(name, g, blocksOf(t, name))
				took[i] = time.Since(start)
			})
		}
		table += fmt.Sprintf("%-32s %9d %9.1fs %9.1fs\n", name, n, took[0].Seconds(), took[1].Seconds())
	}
	fmt.Print(table) // also without -v
}

func blocksOf(t *testing.T, name string) []block {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	bs, err := blocks(string(page))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return bs
}
