// Command suite runs the test suite of github.com/hashicorp/nomad/api with the muster binary on the PATH as nomad, and
// prints what failed and why.
//
//	go run ./suite [-run REGEXP] [-want N]
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type event struct {
	Action, Test, Output string
	Elapsed              float64
}

func main() {
	run := flag.String("run", "", "only tests that match")
	want := flag.Int("want", 0, "exit with an error when fewer top-level tests pass")
	verbose := flag.Bool("v", false, "print the output of failed tests")
	flag.Parse()
	bin := os.Getenv("MUSTER_BIN")
	if bin == "" {
		fatal("set MUSTER_BIN to the binary, as `make nomad-api-suite` does")
	}
	dir, err := os.MkdirTemp("", "nomad-suite")
	if err != nil {
		fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Symlink(bin, filepath.Join(dir, "nomad")); err != nil {
		fatal(err)
	}
	start := time.Now()
	result := map[string]string{}
	output := map[string][]string{}
	pattern := *run
	if pattern == "" {
		pattern = "."
	}
	goTest(dir, result, output, "-parallel=4", "-run="+pattern, "-skip="+timed)
	goTest(dir, result, output, "-parallel=1", "-run="+timed, "-skip="+exclude(*run))
	killBelow(dir)

	var pass, skip int
	var failed []string
	for name, r := range result {
		if strings.Contains(name, "/") {
			continue
		}
		switch r {
		case "pass":
			pass++
		case "skip":
			skip++
		default:
			failed = append(failed, name)
		}
	}
	slices.Sort(failed)
	for _, name := range failed {
		fmt.Printf("FAIL %-50s %s\n", name, reason(name, output))
		if *verbose {
			fmt.Println(strings.Join(output[name], ""))
		}
	}
	fmt.Printf("nomad/api suite: %d passed, %d failed, %d skipped of %d tests in %s\n", pass, len(failed), skip, pass+len(failed)+skip, time.Since(start).Round(time.Second))
	if pass+len(failed) == 0 {
		fmt.Println(strings.Join(output[""], ""))
		os.Exit(1)
	}
	if pass < *want {
		fmt.Printf("fewer than the %d wanted\n", *want)
		os.Exit(1)
	}
}

// timed are tests of the client's lock keeper. They ask no server, count milliseconds and end the whole process when one
// is late, so they run after the others, with the machine to themselves.
const timed = "^(TestAcquireLock_MultipleInstances|TestFailedRenewal|TestStart_ProtectedFunctionError|Test_EarlyReturn)$"

// silent is the default address of the client in the tests. TestJobs_Parse expects that nothing answers there, but an agent of
// this machine may listen on the client's own default, port 4646.
const silent = "http://127.0.0.1:1"

// exclude returns what to skip of the timed tests: nothing, or all when only some tests are wanted.
func exclude(run string) string {
	if run == "" {
		return "^$"
	}
	return "."
}

// goTest runs tests of the client with muster first on the PATH, and notes what became of each.
func goTest(dir string, result map[string]string, output map[string][]string, args ...string) {
	args = append([]string{"test", "-json", "-count=1", "-timeout=20m"}, args...)
	cmd := exec.Command("go", append(args, "github.com/hashicorp/nomad/api")...)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "NOMAD_TEST_LOG_LEVEL=WARN", "TMPDIR="+dir, "NOMAD_ADDR="+silent)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		fatal(err)
	}
	if err := cmd.Start(); err != nil {
		fatal(err)
	}
	sc := bufio.NewScanner(out)
	sc.Buffer(make([]byte, 1<<20), 16<<20)
	for sc.Scan() {
		var e event
		if json.Unmarshal(sc.Bytes(), &e) != nil || e.Test == "" {
			if e.Action == "output" && e.Test == "" {
				output[""] = append(output[""], e.Output)
			}
			continue
		}
		switch e.Action {
		case "output":
			output[e.Test] = append(output[e.Test], e.Output)
		case "pass", "fail", "skip":
			result[e.Test] = e.Action
		}
	}
	_ = cmd.Wait()
}

// reason returns the line of a failed test's output (or of its subtests') that says most.
func reason(name string, output map[string][]string) string {
	var lines []string
	for test, out := range output {
		if test == name || strings.HasPrefix(test, name+"/") {
			lines = append(lines, out...)
		}
	}
	text := strings.Join(lines, "")
	var keep []string
	for l := range strings.Lines(text) {
		l = strings.TrimSpace(l)
		for _, mark := range []string{"Unexpected response code", "expected", "error:", "err:", "panic:", "not found", "got ", "timeout"} {
			if strings.Contains(l, mark) {
				keep = append(keep, l)
				break
			}
		}
		if len(keep) == 2 {
			break
		}
	}
	s := strings.Join(keep, " | ")
	if len(s) > 220 {
		s = s[:220]
	}
	return s
}

// killBelow ends what agents of killed tests left behind: their command line or environment names the folder. Then it
// unmounts the secrets directories of tasks.
func killBelow(dir string) {
	for range 50 {
		found := false
		procs, _ := filepath.Glob("/proc/[0-9]*")
		for _, p := range procs {
			pid, err := strconv.Atoi(filepath.Base(p))
			if err != nil || pid == os.Getpid() {
				continue
			}
			cmd, _ := os.ReadFile(p + "/cmdline")
			env, _ := os.ReadFile(p + "/environ")
			if len(cmd) > 0 && (strings.Contains(string(cmd), dir) || strings.Contains(string(env), dir)) {
				found = true
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if !found {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	b, _ := os.ReadFile("/proc/self/mounts")
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
			_ = syscall.Unmount(f[1], syscall.MNT_DETACH)
		}
	}
}

func fatal(v any) {
	fmt.Fprintln(os.Stderr, "suite:", v)
	os.Exit(1)
}
