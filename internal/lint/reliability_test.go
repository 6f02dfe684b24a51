package lint

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// aimsPage says what is tried, aimed at and reached.
const aimsPage = "docs/operate/reliability.md"

// areas is how many areas the page of aims has.
const areas = 34

var (
	// verdict is how the last cell of an area begins. What is missing follows, unless nothing is.
	verdict = regexp.MustCompile(`^(?:(yes)$|(?:(yes, by hand|in part|no): .))`)
	// ciStep is a line of .ci/run.
	ciStep     = regexp.MustCompile(`(?m)(?:^|\|\| )(?:step|aside|fill) (\S+) +(\d+) (make [^#\n]*)`)
	assignment = regexp.MustCompile(`\b([A-Z][A-Z_]*)=("[^"]*"|\S+)`)
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w*)\(`)
	runFlag    = regexp.MustCompile(`-(?:run|bench) '?([^' ]+)'?`)
	packageArg = regexp.MustCompile(` (\./[\w/]+)`)
)

// TestAimsAreTrue: each command on the page of aims can be typed (its make target, variables, packages and tests exist), each
// area has its row and a verdict, and the table of steps is that of .ci/run.
func TestAimsAreTrue(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	page, ci := read(aimsPage), read(".ci/run")
	targets := makeTargets(read("GNUmakefile"))
	next, commands, steps, met := 1, 0, map[string][]string{}, map[string]int{}
	for _, line := range strings.Split(page, "\n") {
		const bar = "\x00" // a | in a cell
		cells := strings.Split(strings.Trim(strings.ReplaceAll(line, `\|`, bar), "|"), "|")
		for i := range cells {
			cells[i] = strings.ReplaceAll(strings.TrimSpace(cells[i]), bar, "|")
		}
		switch {
		case !strings.HasPrefix(line, "| "):
		case len(cells) == 7 && cells[0] != "":
			if n, err := strconv.Atoi(strings.TrimPrefix(cells[0], "R")); err != nil || n != next {
				t.Errorf("%s: the row %q, want R%d", aimsPage, cells[0], next)
			}
			next++
			v := verdict.FindStringSubmatch(cells[6])
			if v == nil {
				t.Errorf("%s: R%d is %q; want yes, yes, by hand: ..., in part: ... or no: ...", aimsPage, next-1, cells[6])
				continue
			}
			met[v[1]+v[2]]++
			found := quoted.FindAllStringSubmatch(cells[5], -1)
			if len(found) == 0 && !strings.HasPrefix(cells[6], "no: ") {
				t.Errorf("%s: R%d names no command that shows it", aimsPage, next-1)
			}
			for _, m := range found {
				commands++
				if why := wrongCommand(m[1], targets); why != "" {
					t.Errorf("%s: R%d: `%s`: %s", aimsPage, next-1, m[1], why)
				}
			}
		case len(cells) == 5 && strings.HasPrefix(cells[0], "`"):
			steps[strings.Trim(cells[0], "`")] = cells
			for _, m := range quoted.FindAllStringSubmatch(cells[4], -1) {
				if why := wrongCommand(m[1], targets); why != "" {
					t.Errorf("%s: %s: `%s`: %s", aimsPage, cells[0], m[1], why)
				}
			}
		}
	}
	if next-1 != areas || commands < areas {
		t.Errorf("%s has %d rows and %d commands: want %d areas, and a command or more for each", aimsPage, next-1, commands, areas)
	}
	small := []string{"none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"}
	if most := max(met["yes"], met["yes, by hand"], met["no"]); most >= len(small) {
		t.Errorf("%v areas: write larger numbers as words", met)
	} else if sum := fmt.Sprintf("%s are met in each run and %s by hand; %s are not met, the rest in part", small[met["yes"]], small[met["yes, by hand"]], small[met["no"]]); !strings.Contains(page, sum) {
		t.Errorf("%s does not say %q", aimsPage, sum)
	}
	for _, m := range namedTest.FindAllStringSubmatch(page, -1) {
		if !functionsOf(m[1])[m[2]] {
			t.Errorf("%s names %s/%s, which does not exist", aimsPage, m[1], m[2])
		}
	}
	found := ciStep.FindAllStringSubmatch(ci, -1)
	if len(found) < 30 {
		t.Fatalf("only %d steps were found in .ci/run: did its form change?", len(found))
	}
	for _, m := range found {
		name, budget, command := m[1], m[2], strings.TrimSpace(m[3])
		cells := steps[name]
		delete(steps, name)
		if cells == nil {
			t.Errorf("%s does not have the step %s of .ci/run", aimsPage, name)
			continue
		}
		if strings.ReplaceAll(cells[2], ",", "") != budget {
			t.Errorf("%s: %s has a budget of %s s; .ci/run says %s", aimsPage, name, cells[2], budget)
		}
		if target := strings.Fields(command)[1]; !strings.HasPrefix(cells[3], "`make "+target+"`") && !strings.HasPrefix(cells[3], "`make "+target+" ") {
			t.Errorf("%s: %s is %s; .ci/run says %s", aimsPage, name, cells[3], command)
		}
		for _, a := range assignment.FindAllString(command, -1) {
			if !strings.Contains(a, "$") && !strings.Contains(cells[3], a) {
				t.Errorf("%s: %s is %s, which lacks %s", aimsPage, name, cells[3], a)
			}
		}
	}
	for name := range steps {
		t.Errorf("%s has the step %s, which .ci/run has no longer", aimsPage, name)
	}
}

// makeTargets returns the recipes of a makefile by target.
func makeTargets(text string) map[string]string {
	out, target := map[string]string{}, ""
	head := regexp.MustCompile(`^([a-z0-9-]+):`)
	for _, line := range strings.Split(text, "\n") {
		if m := head.FindStringSubmatch(line); m != nil {
			target = m[1]
		} else if !strings.HasPrefix(line, "\t") && !strings.HasPrefix(line, " ") {
			target = ""
		}
		if target != "" {
			out[target] += line + "\n"
		}
	}
	return out
}

// wrongCommand returns what of a command does not exist, or "".
func wrongCommand(command string, targets map[string]string) string {
	words := strings.Fields(command)
	if words[0] == "make" && len(words) > 1 {
		recipe, ok := targets[words[1]]
		if !ok {
			return "there is no target " + words[1]
		}
		for _, m := range assignment.FindAllStringSubmatch(command, -1) {
			if !strings.Contains(recipe, "$("+m[1]+")") {
				return "the target " + words[1] + " has no variable " + m[1]
			}
		}
		return ""
	}
	if !strings.Contains(command, "go test ") {
		return "want make or go test"
	}
	dirs := packageArg.FindAllStringSubmatch(command, -1)
	if len(dirs) == 0 {
		return "it names no package"
	}
	have := map[string]bool{}
	code := ""
	for _, d := range dirs {
		in := functionsOf(d[1])
		if len(in) == 0 {
			return "there are no tests in " + d[1]
		}
		for name := range in {
			have[name] = true
		}
		files, _ := filepath.Glob(filepath.Join(root, d[1], "*.go"))
		for _, f := range files {
			b, _ := os.ReadFile(f)
			code += string(b)
		}
	}
	for _, m := range runFlag.FindAllStringSubmatch(command, -1) {
		for name := range strings.SplitSeq(m[1], "|") {
			name, _, _ = strings.Cut(strings.Trim(name, "^$"), "/")
			some := name == ""
			for f := range have {
				some = some || strings.Contains(f, name)
			}
			if !some {
				return "no test is called " + name
			}
		}
	}
	before, _, _ := strings.Cut(command, "go test")
	for _, m := range assignment.FindAllStringSubmatch(before, -1) {
		if !strings.Contains(code, `"`+m[1]+`"`) {
			return "its tests do not read " + m[1]
		}
	}
	return ""
}

// functionsOf returns the tests, benchmarks and fuzz targets of a directory.
func functionsOf(dir string) map[string]bool {
	out := map[string]bool{}
	files, _ := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for _, m := range testFunc.FindAllStringSubmatch(string(b), -1) {
			out[m[1]] = true
		}
	}
	return out
}
