// Command planted plants bugs into the tree, one at a time, and wants the tests to find each. A bug is a file in bugs: a
// change for `go test -overlay`, so that the tree stays as it is, and the suite that must fail. DESIGN.md has the table.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/e2e/overlay"
)

func main() {
	sample := flag.Uint("sample", 0, "plant only so many bugs, drawn by -seed; 0: all")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the sample")
	only := flag.String("only", "", "plant only these bugs, separated by commas")
	write := flag.Bool("write", false, "write the table of DESIGN.md")
	mutants := flag.Bool("mutants", false, "plant the mutants of mutants.txt instead")
	mutations := flag.Bool("mutations", false, "plant the mutations of mutations.txt instead, each against the test that found it")
	per := flag.Uint("per", 0, "with -mutations: draw so many of each package, look for a test that finds each, and write mutations.txt")
	again := flag.Bool("again", false, "with -mutations: look again for tests that find the mutations of mutations.txt that none finds")
	changed := flag.String("changed", "", "with -mutations: draw only from files that changed since this revision, and add what is drawn to mutations.txt")
	flag.Parse()
	if *mutations {
		if err := score(int(*sample), int(*per), *again, *seed, *only, *changed); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	read := func() ([]*Bug, error) { return readBugs(bugsDir) }
	if *mutants {
		read, *write = func() ([]*Bug, error) { return readMutants(mutantsFile) }, false
	}
	if err := run(read, int(*sample), *seed, *only, *write); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const (
	bugsDir     = "e2e/planted/bugs"
	mutantsFile = "e2e/planted/mutants.txt"
	page        = "e2e/planted/DESIGN.md"
)

func run(read func() ([]*Bug, error), sample int, seed uint64, only string, write bool) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	all, err := read()
	if err != nil {
		return err
	}
	if err := check(root, all); err != nil {
		return err
	}
	bugs, err := choose(all, sample, seed, only)
	if err != nil {
		return err
	}
	if len(bugs) < len(all) && only == "" {
		fmt.Printf("%d of %d bugs, seed %d: repeat with -sample %d -seed %d\n", len(bugs), len(all), seed, sample, seed)
	}
	took, missed := map[string]string{}, 0
	for _, b := range bugs {
		began := time.Now()
		seconds, err := plant(root, b)
		what := "found by"
		if err != nil {
			what = "NOT FOUND by"
			missed++
		}
		took[b.Name] = seconds
		fmt.Printf("%-28s %s go test %s (test %s s, with building %.0f s)\n", b.Name, what, b.Suite, seconds, time.Since(began).Seconds())
		if err != nil {
			fmt.Printf("\t%s\n\t%v\n", b.Breaks, err)
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d of %d bugs were not found: a test is missing or has lost its teeth", missed, len(bugs))
	}
	fmt.Printf("%d bugs planted, %d found\n", len(bugs), len(bugs))
	if write {
		return writePage(page, all, took)
	}
	return nil
}

// choose returns the bugs to plant.
func choose(all []*Bug, sample int, seed uint64, only string) ([]*Bug, error) {
	if only != "" {
		var bugs []*Bug
		for _, name := range strings.Split(only, ",") {
			i := slices.IndexFunc(all, func(b *Bug) bool { return b.Name == name })
			if i < 0 {
				return nil, fmt.Errorf("there is no bug %q in %s", name, bugsDir)
			}
			bugs = append(bugs, all[i])
		}
		return bugs, nil
	}
	if sample <= 0 || sample >= len(all) {
		return all, nil
	}
	// The sample is for CI, which has little time: it leaves out the suites that start clusters of real processes.
	quick := slices.DeleteFunc(slices.Clone(all), (*Bug).endToEnd)
	var bugs []*Bug
	for _, i := range permutation(len(quick), sample, seed) {
		bugs = append(bugs, quick[i])
	}
	return bugs, nil
}

// permutation draws sample of n, all of them if sample is 0.
func permutation(n, sample int, seed uint64) []int {
	picks := rand.New(rand.NewPCG(seed, 1)).Perm(n)
	if sample > 0 {
		picks = picks[:min(sample, n)]
	}
	return picks
}

var testTime = regexp.MustCompile(`(?m)^FAIL\t\S+\t([0-9.]+)s$`)

// plant runs the suite of a bug with it. It returns the seconds that the test took, and an error unless the test has
// failed and said what it must.
func plant(root string, b *Bug) (seconds string, err error) {
	dir, err := os.MkdirTemp("", "planted-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	file, err := b.change.Write(root, dir)
	if err != nil {
		return "", err
	}
	args := []string{"test", "-count=1", "-timeout", "100s", "-overlay", file}
	env := os.Environ()
	if b.endToEnd() {
		bin := filepath.Join(dir, "muster")
		if err := overlay.Build(root, "./cmd/muster", bin, dir, b.change); err != nil {
			return "", err
		}
		args, env = append(args, "-tags", "e2e"), append(env, "MUSTER_BIN="+bin)
	}
	cmd := exec.Command("go", append(args, strings.Fields(b.Suite)...)...)
	cmd.Dir, cmd.Env = root, env
	out, err := cmd.CombinedOutput()
	if m := testTime.FindSubmatch(out); m != nil {
		seconds = string(m[1])
	}
	tail := out[max(0, len(out)-3000):]
	switch {
	case err == nil:
		return seconds, fmt.Errorf("the tests pass:\n%s", tail)
	case seconds == "":
		return "", fmt.Errorf("no test failed:\n%s", tail)
	case !strings.Contains(string(out), b.Says):
		return seconds, fmt.Errorf("a test fails, but does not say %q:\n%s", b.Says, tail)
	}
	return seconds, nil
}
