package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// stages are the parts of a server's work, as a placement meets them. A sample of a profile belongs to the first stage that
// matches the innermost function possible, so that encoding counts for the stage that needs it.
var stages = []struct {
	name string
	of   *regexp.Regexp
}{
	{"publish", regexp.MustCompile(`model\.\(\*View\)\.Advance|replica\.\(\*machine\)\.publish|server/watch\.|server/events\.|runFanOut`)},
	{"apply", regexp.MustCompile(`muster/fsm[./]`)},
	{"verify and propose", regexp.MustCompile(`server/planner\.|scheduler/verify\.`)},
	{"pass", regexp.MustCompile(`muster/scheduler[./]|server/decide\.|server/broker\.`)},
	{"write the log", regexp.MustCompile(`server/raftlog\.|hashicorp/raft-wal`)},
	{"HTTP", regexp.MustCompile(`muster/nomadlike[./]|net/http\.`)},
	{"nodes", regexp.MustCompile(`server/nodes\.|endpoint\.\(\*Set\)\.[nN]ode`)},
	{"calls", regexp.MustCompile(`internal/rpc\.|muster/server/endpoint\.|muster/server\.`)},
	{"raft", regexp.MustCompile(`hashicorp/raft\.|server/replica\.`)},
	{"collections", regexp.MustCompile(`runtime\.gcBgMarkWorker|runtime\.gcAssist|runtime\.bgsweep|runtime\.bgscavenge`)},
}

var traceRE = regexp.MustCompile(`^([0-9.]+)us\s+(\S.*)$`)

// stagesOf splits the processor time of one of n placements, seconds in all, by the stages of a profile.
func stagesOf(profile string, seconds float64, n int) string {
	out, err := exec.Command("go", "tool", "pprof", "-traces", "-unit=us", profile).Output()
	if err != nil {
		return "not known: " + err.Error()
	}
	return stagesIn(string(out), seconds, n)
}

// stagesIn is stagesOf for the traces that pprof prints.
func stagesIn(traces string, seconds float64, n int) string {
	spent, all := map[string]float64{}, 0.0
	for _, trace := range strings.Split(traces, "-----------+") {
		var us float64
		var stack []string
		for line := range strings.Lines(trace) {
			line = strings.TrimSpace(line)
			if m := traceRE.FindStringSubmatch(line); m != nil && len(stack) == 0 {
				us, _ = strconv.ParseFloat(m[1], 64)
				stack = append(stack, m[2])
			} else if len(stack) > 0 {
				stack = append(stack, line)
			}
		}
		all += us
		spent[stageOf(stack)] += us
	}
	if all == 0 {
		return "not known: the profile is empty"
	}
	names := []string{}
	for name := range spent {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return int(spent[b] - spent[a]) })
	var parts []string
	for _, name := range names {
		if us := spent[name] / all * seconds * 1e6 / float64(n); us >= 0.5 {
			parts = append(parts, fmt.Sprintf("%s %.0f", name, us))
		}
	}
	return strings.Join(parts, ", ") + " us"
}

func stageOf(stack []string) string {
	for _, f := range stack {
		for _, s := range stages {
			if s.of.MatchString(f) {
				return s.name
			}
		}
	}
	return "other"
}

// needProfiles makes a folder for profiles if none is wanted by name.
func needProfiles() (remove func()) {
	if profiles != "" {
		return func() {}
	}
	dir, err := os.MkdirTemp("", "muster-profiles")
	if err != nil {
		fatal(err)
	}
	profiles = dir
	return func() {
		profiles = ""
		_ = os.RemoveAll(dir)
	}
}

// stageRows prints where the processor time of each server went.
func (c *cluster) stageRows(name string, cpu usage, total int, cmd string) {
	lead := c.leader()
	for i, s := range cpu.each {
		who := fmt.Sprintf("follower%d", i)
		if i == lead {
			who = "leader"
		}
		row("of it by stage, "+who, stagesOf(filepath.Join(profiles, name+"-"+who+".pprof"), s, total), "-", "-", cmd)
	}
}
