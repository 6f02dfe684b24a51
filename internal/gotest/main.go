// Command gotest runs `go test` with its arguments. It prints one line per package, the full output of failures, every
// skipped test with its reason, which go test hides, and the tests that took longest. With CI=true a test that was skipped because the machine
// lacks something ("not run: ...") is a failure, so that coverage is not lost silently.
//
// The race detector of Go 1.26 sometimes fails itself in a program that uses testing/synctest (golang.org/issue/78156): two
// timers of a bubble are served at once and share what the detector knows of a goroutine. It finds that by its own checks,
// or faults outside Go code while it serves a timer of the bubble. That says nothing about the program. A package that
// ended so, without a failed test or a data race, continues with its other tests, up to three times.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

type key struct{ pkg, test string }

// report is what the tests of a run came to.
type report struct {
	passed, failed, skipped int
	lost                    int                 // of the skipped, because the machine lacks something
	skips                   []string            // with their reasons
	crashed                 []string            // packages whose race detector failed itself
	broken                  bool                // a package failed without a failed test
	done                    map[string][]string // tests that passed or were skipped, by package
	took                    []timed             // tests that passed
}

// timed is a test and the seconds it took.
type timed struct {
	key
	seconds float64
}

// add counts another run in.
func (r *report) add(b report) {
	r.passed, r.failed, r.skipped, r.lost = r.passed+b.passed, r.failed+b.failed, r.skipped+b.skipped, r.lost+b.lost
	r.skips, r.broken = append(r.skips, b.skips...), r.broken || b.broken
	r.took = append(r.took, b.took...)
}

// slowest returns a line for each of the tests that took longest.
func (r *report) slowest() (lines []string) {
	slices.SortStableFunc(r.took, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	for _, t := range r.took[:min(len(r.took), slowestMax)] {
		lines = append(lines, fmt.Sprintf("%6.1fs  %s %s", t.seconds, strings.TrimPrefix(t.pkg, module), t.test))
	}
	return lines
}

const slowestMax = 15

const crashesMax = 3 // of the race detector, in one package

func main() {
	start := time.Now()
	r := run(os.Args[1:])
	for _, pkg := range r.crashed {
		done := r.done[pkg]
		for n := 1; ; n++ {
			fmt.Printf("the race detector failed without a finding (golang.org/issue/78156); %s goes on after %d tests\n", pkg, len(done))
			next := run(rest(os.Args[1:], pkg, done))
			r.add(next)
			if len(next.crashed) == 0 {
				break
			}
			if n == crashesMax {
				fmt.Printf("FAIL  %s: the race detector failed %d times\n", pkg, n+1)
				r.failed++
				break
			}
			done = append(done, next.done[pkg]...)
		}
	}
	rc := 0
	if r.broken {
		r.failed = max(r.failed, 1)
	}
	if r.failed > 0 {
		rc = 1
	}
	if len(r.skips) > 0 {
		slices.Sort(r.skips)
		fmt.Println("tests that did not run:")
		fmt.Println(strings.Join(r.skips, "\n"))
		if r.lost > 0 && os.Getenv("CI") == "true" {
			fmt.Printf("%d of them because this machine lacks something; in CI that is a failure\n", r.lost)
			rc = 1
		}
	}
	fmt.Printf("tests that took longest:\n%s\n", strings.Join(r.slowest(), "\n"))
	fmt.Printf("took %s\n%d passed, %d failed, %d skipped\n", time.Since(start).Round(time.Second), r.passed, r.failed, r.skipped)
	os.Exit(rc)
}

// rest returns the arguments of go test for one package of those given, without some of its tests.
func rest(args []string, pkg string, done []string) (out []string) {
	if len(done) > 0 {
		out = append(out, "-skip", "^("+strings.Join(done, "|")+")$")
	}
	for _, a := range args {
		if !strings.HasPrefix(a, "./") && !strings.HasPrefix(a, module) {
			out = append(out, a)
		} else if pkg != "" {
			out, pkg = append(out, pkg), "" // flags of the tests may follow
		}
	}
	return out
}

const module = "github.com/muster-sched/muster/"

// run runs go test.
func run(args []string) report {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(2)
	}
	r := read(out)
	if err := cmd.Wait(); err != nil && len(r.crashed) == 0 {
		r.broken = true // a package did not build, or its process died outside a test
	}
	return r
}

// read prints what a reader wants to see of the events of go test, and counts the rest.
func read(in io.Reader) (r report) {
	r.done = map[string][]string{}
	output := map[key][]string{}
	failures := map[string]int{} // by package
	sc := bufio.NewScanner(in)
	sc.Buffer(make([]byte, 1<<20), 64<<20)
	for sc.Scan() {
		var e event
		if json.Unmarshal(sc.Bytes(), &e) != nil {
			fmt.Println(sc.Text()) // the compiler's output
			continue
		}
		k := key{e.Package, e.Test}
		top := !strings.Contains(e.Test, "/")
		switch e.Action {
		case "output", "build-output":
			output[k] = append(output[k], e.Output)
			continue
		case "pass":
			if e.Test == "" {
				fmt.Printf("ok    %-60s %6.1fs\n", e.Package, e.Elapsed)
			} else if top {
				r.passed++
				r.took = append(r.took, timed{k, e.Elapsed})
				r.done[e.Package] = append(r.done[e.Package], e.Test)
			}
		case "skip":
			if e.Test != "" {
				why := reason(output[k])
				r.skips = append(r.skips, fmt.Sprintf("      %s %s: %s", e.Package, e.Test, why))
				if strings.HasPrefix(why, "not run:") {
					r.lost++
				}
				if top {
					r.skipped++
					r.done[e.Package] = append(r.done[e.Package], e.Test)
				}
			}
		case "fail", "build-fail":
			if e.Test != "" {
				failures[e.Package]++
				fmt.Print(strings.Join(output[k], ""))
				if top {
					r.failed++
				}
				break
			}
			// A process that died or hung reports no result for the tests it was in; their output has the reason.
			var open []string
			for _, k := range slices.SortedFunc(maps.Keys(output), func(a, b key) int { return strings.Compare(a.test, b.test) }) {
				if k.pkg == e.Package && k.test != "" {
					open = append(open, output[k]...)
					delete(output, k)
				}
			}
			text := fmt.Sprintf("%sFAIL  %-60s %6.1fs\n%s", strings.Join(open, ""), e.Package, e.Elapsed, strings.Join(output[k], ""))
			fmt.Print(text)
			if why := death(append(open, output[k]...)); len(why) > 0 {
				fmt.Printf("it died of:\n%s", strings.Join(why, ""))
			}
			switch {
			case failures[e.Package] == 0 && detectorFailed.MatchString(text) && !strings.Contains(text, "DATA RACE"):
				r.crashed = append(r.crashed, e.Package)
			case failures[e.Package] == 0:
				r.broken = true
			}
		default:
			continue
		}
		delete(output, k)
	}
	return r
}

// detectorFailed matches what a process says whose race detector failed: the scheduler's own goroutine, at work for a bubble or
// called by a goroutine of one, has no frame of Go code when the fault is the detector's (seen in __tsan::SlotLock, whose
// thread had no slot, below runtime.(*timer).maybeRunChan).
var detectorFailed = regexp.MustCompile(`ThreadSanitizer: CHECK failed|SIGSEGV: segmentation violation\nPC=.*\n\ngoroutine 0 .*` +
	`(synctest bubble \d+\]:\n\n|\]:\n\ngoroutine \d+ .*\[running, synctest bubble \d+\]:\nruntime\.systemstack_switch\(\)\n)`)

// death returns what a process said when it died, with the goroutine that it was in: the rest of its output may be long.
func death(lines []string) []string {
	from := slices.IndexFunc(lines, func(l string) bool {
		l = strings.TrimLeft(l, "=0123456789") // the race detector begins with "==PID=="
		return slices.ContainsFunc(deaths, func(s string) bool { return strings.HasPrefix(l, s) })
	})
	if from < 0 {
		return nil
	}
	return lines[from:min(from+deathLines, len(lines))]
}

// deaths are the beginnings of lines by which the Go runtime and the race detector say why they end a process.
var deaths = []string{"panic: ", "fatal error: ", "unexpected fault", "runtime: ", "SIG", "ThreadSanitizer", "FATAL: ThreadSanitizer"}

const deathLines = 60

// reason returns a skipped test's message.
func reason(lines []string) string {
	text := strings.Join(lines, "")
	if _, after, ok := strings.Cut(text, "not run:"); ok {
		return "not run:" + strings.TrimRight(strings.SplitN(after, "\n", 2)[0], " ")
	}
	for _, l := range lines {
		if _, msg, ok := strings.Cut(l, ".go:"); ok {
			if _, msg, ok = strings.Cut(msg, ": "); ok {
				return strings.TrimSpace(msg)
			}
		}
	}
	return "no reason given"
}
