package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// scriptMax is how much of a script is read for #SBATCH lines, which come first.
const scriptMax = 64 << 10

// warnDirectives says which options stand for the #SBATCH lines of a script that is run, because they are not read. It says nothing of
// options that were given.
func (o *adhoc) warnDirectives(given *pflag.FlagSet, words []string) {
	f, err := os.Open(words[0])
	if err != nil {
		return // a command of the nodes, or of PATH
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return
	}
	text, err := io.ReadAll(io.LimitReader(f, scriptMax))
	if err != nil {
		return
	}
	options, unknown := directives(string(text))
	line := "muster run"
	left := 0
	for _, opt := range options {
		if given.Changed(opt[0]) {
			continue
		}
		left++
		line += " -" + opt[0]
		if opt[1] != "" {
			line += " " + word(opt[1])
		}
	}
	if left == 0 && len(unknown) == 0 {
		return
	}
	given.Visit(func(g *pflag.Flag) {
		if g.Value.Type() == "bool" {
			line += " -" + g.Name
		} else {
			line += " -" + g.Name + " " + word(g.Value.String())
		}
	})
	o.hint("%s has #SBATCH lines, which are not read. As options:", words[0])
	if left > 0 {
		for i := range words {
			line += map[bool]string{true: " --"}[i == 0] + " " + word(words[i])
		}
		o.hint("  %s", line)
	}
	if len(unknown) > 0 {
		o.hint("  (nothing stands for %s)", strings.Join(unknown, ", "))
	}
}

// directives translates the #SBATCH lines at the beginning of a script into options of run, each with its value, and lists those for which
// there is none.
func directives(script string) (options [][2]string, unknown []string) {
	var all [][2]string
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		rest, is := strings.CutPrefix(line, "#SBATCH")
		switch {
		case is && rest != "" && (rest[0] == ' ' || rest[0] == '\t'):
			rest, _, _ = strings.Cut(rest, " #")
			all = append(all, directiveWords(strings.Fields(rest))...)
			continue
		case line == "" || line[0] == '#':
			continue
		}
		break // Slurm reads no further
	}
	nodes := 1
	for _, d := range all {
		if n, err := strconv.Atoi(d[1]); err == nil && directiveNames[d[0]] == "nodes" {
			nodes = n
		}
	}
	for _, d := range all {
		if opt, value, ok := translate(d[0], d[1], nodes); ok {
			options = append(options, [2]string{opt, value})
		} else {
			unknown = append(unknown, map[bool]string{true: "-", false: "--"}[len(d[0]) == 1]+d[0])
		}
	}
	return options, unknown
}

// directiveWords splits the words of a line into options with their values: --name=value, --name value, -n value and -nvalue.
func directiveWords(words []string) (out [][2]string) {
	for i := 0; i < len(words); i++ {
		name, value, has := strings.Cut(strings.TrimLeft(words[i], "-"), "=")
		if short := !strings.HasPrefix(words[i], "--"); short && len(words[i]) > 2 {
			name, value, has = words[i][1:2], strings.TrimPrefix(words[i][2:], "="), true
		}
		if !has && i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") {
			i++
			value = words[i]
		}
		out = append(out, [2]string{name, strings.Trim(value, `"'`)})
	}
	return out
}

// directiveNames are the options of run whose values are written as sbatch's.
var directiveNames = map[string]string{
	"job-name": "name", "J": "name", "nodes": "nodes", "N": "nodes", "cpus-per-task": "cores", "c": "cores", "partition": "pool", "p": "pool",
	"account": "queue", "A": "queue", "array": "array", "a": "array", "output": "log", "o": "log", "error": "log-error", "e": "log-error",
	"chdir": "dir", "D": "dir", "ntasks-per-node": "ranks", "mem": "mem", "begin": "begin", "b": "begin",
}

// waitsFor are the conditions of dependencies.
var waitsFor = map[string]string{"afterok": "", "afterany": ":completed", "afternotok": ":failed", "after": ":started"}

func translate(name, value string, nodes int) (option, out string, ok bool) {
	switch name {
	case "gpus-per-node":
		return "gpus", value, value != ""
	case "gres":
		kind, count, _ := strings.Cut(value, ":")
		return "gpus", count, kind == "gpu" && count != ""
	case "gpus", "G":
		return "gpus", value, value != "" && nodes == 1
	case "ntasks", "n":
		return "ranks", value, value != "" && nodes == 1
	case "time", "t":
		d, ok := slurmTime(value)
		return "time", shortDuration(d), ok
	case "dependency", "d":
		when, jobs, _ := strings.Cut(value, ":")
		suffix, known := waitsFor[when]
		return "depends", strings.ReplaceAll(jobs, ":", suffix+",") + suffix, known && jobs != "" && !strings.ContainsAny(jobs, ",?")
	case "requeue":
		return "requeue", "10", true
	}
	option, known := directiveNames[name]
	return option, value, known && value != ""
}

// slurmTime reads a time limit as Slurm writes it: MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS.
func slurmTime(s string) (time.Duration, bool) {
	days, rest, hasDays := strings.Cut(s, "-")
	if !hasDays {
		days, rest = "0", s
	}
	parts := strings.Split(rest, ":")
	units := []time.Duration{time.Hour, time.Minute, time.Second}
	if !hasDays && len(parts) < 3 {
		units = units[1:]
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil || len(parts) > len(units) {
		return 0, false
	}
	d := time.Duration(n) * 24 * time.Hour
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return 0, false
		}
		d += time.Duration(n) * units[i]
	}
	return d, d > 0
}

// shortDuration is a duration without the units that are zero: 10m, not 10m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// wantsDuration is the error for a value of a flag that is no duration.
func wantsDuration(flag, value string) error {
	if d, ok := slurmTime(value); ok && strings.ContainsAny(value, ":-") {
		return fmt.Errorf("-%s %q is no duration; did you mean %s?", flag, value, shortDuration(d))
	}
	return fmt.Errorf("-%s %q is no duration: want a number with its unit (s, m or h), such as 90s, 2h or 1h30m", flag, value)
}
