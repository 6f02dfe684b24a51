package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// mutated lists the packages that decide, each with the suites that check it, cheapest first.
var mutated = []struct {
	pkg    string
	suites []suite
}{
	{"scheduler", []suite{{"scheduler", "."}, bySim}},
	{"scheduler/queue", []suite{{"scheduler/queue", "."}, {"scheduler", "."}, bySim}},
	{"scheduler/contend", []suite{{"scheduler/contend", "."}, {"scheduler/queue", "."}, {"scheduler", "."}, bySim}},
	{"scheduler/search", []suite{{"scheduler/search", "."}, {"scheduler", "."}, bySim}},
	{"scheduler/reconcile", []suite{{"scheduler/reconcile", "."}, {"scheduler", "."}, bySim}},
	{"server/broker", []suite{{"server/broker", "."}, bySim}},
	{"server/planner", []suite{{"server/planner", "."}, bySim}},
	{"fsm", []suite{{"fsm", "."}, bySim}},
}

var bySim = suite{"sim", "^(TestWitnesses|TestMendedCombinations|TestCombinations)$"}

// suite is tests of a package.
type suite struct{ pkg, tests string }

const (
	scoreFile  = "e2e/planted/mutations.txt"
	mutantTime = 3 * time.Minute // of one run
	survives   = "-"             // instead of a test
	lateDeath  = "timeout"
)

// row is a line of the table: what found a mutation, or why nothing has to.
type row struct {
	key  string
	by   string // "package Test", or survives
	note string
}

func readRows(name string) ([]row, error) {
	lines, err := readTable(name, "file", "function", "change", "number", "found by", "note")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var out []row
	for _, l := range lines {
		f := l.fields
		out = append(out, row{strings.Join(f[:4], "\t"), f[4], f[5]})
	}
	return out, err
}

func writeRows(name string, rows []row) error {
	var b strings.Builder
	found := 0
	for _, r := range rows {
		if r.by != survives {
			found++
		}
	}
	fmt.Fprintf(&b, "# Mutations drawn by rule from the packages that decide, and the test that finds each: %d of %d. `make mutations PER=25` draws and runs\n"+
		"# them again. A row is file, function, change, number of the same change in the function, package and test that fails (%s:\n"+
		"# none), and a note.\n", found, len(rows), survives)
	for _, r := range rows {
		fmt.Fprintf(&b, "%s\t%s\t%s\n", r.key, r.by, r.note)
	}
	return os.WriteFile(name, []byte(b.String()), 0o644)
}

// score runs mutations against their suites.
//
// Without per, it runs those of the table that a test found, against that test alone: each must be found again. If sample is
// not 0, it runs only so many, all of one suite, and with only those of the suite of that package. Otherwise it draws per mutations of each package, looks for a test that finds each, and writes
// the table; notes of rows that are in it stay. With changed, a revision, it draws from the files that changed since then, and
// adds to the table: only rows of mutations that are no longer in the code are dropped. With again it does so for the rows of
// the table that no test finds.
func score(sample, per int, again bool, seed uint64, only, changed string) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	rows, err := readRows(scoreFile)
	if err != nil {
		return err
	}
	var pkgs []string
	for _, m := range mutated {
		pkgs = append(pkgs, m.pkg)
	}
	all, err := allMutations(root, pkgs)
	if err != nil {
		return err
	}
	by := map[string]*mutation{}
	for _, m := range all {
		by[m.key()] = m
	}
	if again {
		var ms []*mutation
		for _, r := range rows {
			if m := by[r.key]; m != nil && r.by == survives && r.note == "" {
				ms = append(ms, m)
			}
		}
		return find(root, ms, rows, only)
	}
	if changed != "" {
		files, err := changedSince(root, changed)
		if err != nil {
			return err
		}
		rows = slices.DeleteFunc(rows, func(r row) bool { return by[r.key] == nil })
		in := map[string]bool{}
		for _, r := range rows {
			in[r.key] = true
		}
		others := slices.DeleteFunc(all, func(m *mutation) bool { return in[m.key()] || !slices.Contains(files, m.File) })
		return find(root, drawn(others, max(per, 1), seed), rows, only)
	}
	if per > 0 {
		return find(root, drawn(all, per, seed), slices.DeleteFunc(rows, func(r row) bool { return only == "" || only == packageOf(r.key) }), only)
	}
	var ms []*mutation
	var want []row
	gone := 0
	for _, r := range rows {
		switch m := by[r.key]; {
		case m == nil:
			gone++
		case r.by != survives && !strings.HasSuffix(r.by, " "+lateDeath) && (only == "" || strings.HasPrefix(r.by, only+" ")):
			ms, want = append(ms, m), append(want, r)
		}
	}
	if len(ms) == 0 {
		return fmt.Errorf("%s has no mutation that a test of %q finds", scoreFile, only)
	}
	if gone > 0 {
		return fmt.Errorf("%d of %d mutations of %s are no longer in the code; TestMutationsFit of e2e/planted names them: draw others with `make mutations PER=1 CHANGED=REVISION`", gone, len(rows), scoreFile)
	}
	if sample > 0 && len(ms) > 0 { // of one suite, because each has to be built
		pkg, _, _ := strings.Cut(want[permutation(len(ms), 1, seed)[0]].by, " ")
		for i := len(ms) - 1; i >= 0; i-- {
			if !strings.HasPrefix(want[i].by, pkg+" ") {
				ms, want = slices.Delete(ms, i, i+1), slices.Delete(want, i, i+1)
			}
		}
	}
	picks := permutation(len(ms), sample, seed)
	if len(picks) < len(ms) {
		fmt.Printf("%d of %d mutations that %s finds, seed %d: repeat with SAMPLE=%d SEED=%d\n", len(picks), len(ms), strings.Fields(want[0].by)[0], seed, sample, seed)
	}
	chosen := make([]*mutation, len(picks))
	for i, p := range picks {
		chosen[i] = ms[p]
	}
	b, err := newBuilds(root, chosen)
	if err != nil {
		return err
	}
	defer b.close()
	missed := 0
	for i, p := range picks {
		pkg, test, _ := strings.Cut(want[p].by, " ")
		began := time.Now()
		name, out, err := b.run(suite{pkg, "^" + test + "$"}, i+1)
		if err != nil {
			return err
		}
		what := "found by"
		if name == "" {
			what = "NOT FOUND by"
			missed++
		}
		fmt.Printf("%s %s: %s\n\t%s %s %s (%.0f s)\n", chosen[i].File, chosen[i].Func, chosen[i].Change, what, pkg, test, time.Since(began).Seconds())
		if name == "" {
			fmt.Printf("%s\n", out)
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d of %d mutations were not found: a test has lost its teeth", missed, len(picks))
	}
	fmt.Printf("%d mutations planted, %d found\n", len(picks), len(picks))
	return nil
}

// changedSince lists the files that differ from a revision.
func changedSince(root, revision string) ([]string, error) {
	cmd := exec.Command("git", "diff", "--name-only", "--end-of-options", revision, "--")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("files that changed since %s: %w", revision, err)
	}
	return strings.Fields(string(out)), nil
}

// find looks for a test that finds each mutation, and puts the result into the table, in the place of the row of the same
// mutation or at the end.
func find(root string, ms []*mutation, rows []row, only string) error {
	b, err := newBuilds(root, ms)
	if err != nil {
		return err
	}
	defer b.close()
	for i, m := range ms {
		pkg := packageOf(m.File)
		if only != "" && only != pkg {
			continue
		}
		at := slices.IndexFunc(rows, func(r row) bool { return r.key == m.key() })
		if at < 0 {
			at, rows = len(rows), append(rows, row{key: m.key()})
		}
		rows[at].by = survives
		for _, s := range suitesOf(pkg) {
			name, _, err := b.run(s, i+1)
			if err != nil {
				return err
			}
			if name != "" {
				rows[at].by, rows[at].note = s.pkg+" "+name, ""
				break
			}
		}
		fmt.Printf("%d/%d %s\t%s\n", i+1, len(ms), m.key(), rows[at].by)
		if err := writeRows(scoreFile, rows); err != nil {
			return err
		}
	}
	return nil
}

// packageOf returns the directory of a file, or of the file with which a key begins.
func packageOf(key string) string {
	file, _, _ := strings.Cut(key, "\t")
	return path.Dir(file)
}

func suitesOf(pkg string) []suite {
	for _, m := range mutated {
		if m.pkg == pkg {
			return m.suites
		}
	}
	return nil
}

// builds are test binaries with mutations in them.
type builds struct {
	root, dir, overlay string
	bins               map[string]string
}

func newBuilds(root string, ms []*mutation) (*builds, error) {
	dir, err := os.MkdirTemp("", "mutations-")
	if err != nil {
		return nil, err
	}
	b := &builds{root: root, dir: dir, bins: map[string]string{}}
	change, err := instrument(root, ms)
	if err == nil {
		b.overlay, err = change.Write(root, dir)
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *builds) close() { os.RemoveAll(b.dir) }

var (
	failedTest  = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)
	runningTest = regexp.MustCompile(`running tests:\n\t(\w+)`)
)

// run runs tests with one mutation, 0 for none. It returns the test that failed, or "".
func (b *builds) run(s suite, id int) (test string, out []byte, err error) {
	bin := b.bins[s.pkg]
	if bin == "" {
		bin = filepath.Join(b.dir, strings.ReplaceAll(s.pkg, "/", "_")+".test")
		if out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", b.overlay, "-o", bin, "./"+s.pkg).CombinedOutput(); err != nil {
			return "", nil, fmt.Errorf("tests of %s with mutations: %w\n%s", s.pkg, err, out)
		}
		b.bins[s.pkg] = bin
		if name, out, err := b.run(s, 0); err != nil || name != "" {
			return "", nil, errors.Join(fmt.Errorf("tests of %s fail without a mutation: %s\n%s", s.pkg, name, out), err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), mutantTime+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "-test.run", s.tests, "-test.short", "-test.failfast", "-test.timeout", mutantTime.String())
	cmd.Dir = filepath.Join(b.root, s.pkg)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", mutantEnv, id), "MUSTER_PROPERTY_CHECKS=300000", "MUSTER_CHECKS=20000", "MUSTER_COMBINATIONS=100", "GOMEMLIMIT=3GiB")
	out, err = cmd.CombinedOutput()
	if err == nil {
		return "", tail(out), nil
	}
	if ctx.Err() != nil || bytes.Contains(out, []byte("panic: test timed out")) {
		return lateDeath, tail(out), nil
	}
	if m := failedTest.FindSubmatch(out); m != nil {
		return string(m[1]), tail(out), nil
	}
	if m := runningTest.FindSubmatch(out); m != nil {
		return string(m[1]), tail(out), nil
	}
	return lateDeath, tail(out), nil
}

func tail(out []byte) []byte { return out[max(0, len(out)-2000):] }
