// Command gotest runs `go test` with its arguments. It prints one line per package, the full output of failures, and
// every skipped test with its reason, which go test hides. With CI=true a test that was skipped because the machine
// lacks something ("not run: ...") is a failure, so that coverage is not lost silently.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

type key struct{ pkg, test string }

func main() {
	start := time.Now()
	cmd := exec.Command("go", append([]string{"test", "-json"}, os.Args[1:]...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(2)
	}
	output := map[key][]string{}
	var skips []string
	passed, failed, skipped, lost := 0, 0, 0, 0
	sc := bufio.NewScanner(out)
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
		case "pass":
			if e.Test == "" {
				fmt.Printf("ok    %-60s %6.1fs\n", e.Package, e.Elapsed)
			} else if top {
				passed++
			}
			delete(output, k)
		case "skip":
			if e.Test != "" {
				why := reason(output[k])
				skips = append(skips, fmt.Sprintf("      %s %s: %s", e.Package, e.Test, why))
				if strings.HasPrefix(why, "not run:") {
					lost++
				}
				if top {
					skipped++
				}
			}
			delete(output, k)
		case "fail", "build-fail":
			if e.Test == "" {
				// A process that died or hung reports no result for the tests it was in; their output has the reason.
				for open, text := range output {
					if open.pkg == e.Package && open.test != "" {
						fmt.Print(strings.Join(text, ""))
						delete(output, open)
					}
				}
				fmt.Printf("FAIL  %-60s %6.1fs\n%s", e.Package, e.Elapsed, strings.Join(output[k], ""))
			} else {
				fmt.Print(strings.Join(output[k], ""))
				if top {
					failed++
				}
			}
			delete(output, k)
		}
	}
	rc := 0
	if err := cmd.Wait(); err != nil {
		rc = 1
		if failed == 0 {
			failed = 1 // the package did not build, or its process died outside a test
		}
	}
	if len(skips) > 0 {
		slices.Sort(skips)
		fmt.Println("tests that did not run:")
		fmt.Println(strings.Join(skips, "\n"))
		if lost > 0 && os.Getenv("CI") == "true" {
			fmt.Printf("%d of them because this machine lacks something; in CI that is a failure\n", lost)
			rc = 1
		}
	}
	fmt.Printf("took %s\n%d passed, %d failed, %d skipped\n", time.Since(start).Round(time.Second), passed, failed, skipped)
	os.Exit(rc)
}

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
