package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/structs"
)

// scriptMax is the size up to which a script is looked at for #SBATCH lines, and submitted by sbatch.
const scriptMax = 64 << 10

// slurmShort are the long names of Slurm's options of one letter.
var slurmShort = map[byte]string{
	'J': "job-name", 'N': "nodes", 'n': "ntasks", 'c': "cpus-per-task", 'G': "gpus", 't': "time", 'p': "partition", 'A': "account", 'a': "array", 'd': "dependency",
	'o': "output", 'e': "error", 'i': "input", 'D': "chdir", 'b': "begin", 'W': "wait", 'H': "hold", 'w': "nodelist", 'x': "exclude", 'C': "constraint", 'q': "qos",
	's': "oversubscribe", 'O': "overcommit", 'm': "distribution", 'v': "verbose", 'Q': "quiet", 'L': "licenses", 'k': "no-kill", 'F': "nodefile", 'l': "label",
	'u': "unbuffered", 'K': "kill-on-bad-exit", 'h': "help", 'X': "disable-status",
}

// slurmFlags are Slurm's options that take no value, or only one after "=".
var slurmFlags = []string{
	"requeue", "no-requeue", "exclusive", "hold", "parsable", "wait", "test-only", "oversubscribe", "overcommit", "contiguous", "spread-job", "use-min-nodes", "verbose", "quiet",
	"no-kill", "label", "unbuffered", "kill-on-bad-exit", "help", "disable-status", "pty", "overlap", "exact", "multi-prog", "reboot", "ignore-pbs", "as-me", "pack", "usage",
	"no-color", "force-color", "tls-skip-verify",
}

// slurmOthers are Slurm's options with values that askSlurm does not read.
var slurmOthers = strings.Fields(`acctg-freq batch bb bbf cluster-constraint clusters comment constraint container container-id core-spec cores-per-socket cpu-freq
	deadline delay-boot distribution exclude export-file extra extra-node-info get-user-env gid gpu-freq gpus-per-socket gres-flags hint kill-on-invalid-dep licenses
	mail-type mail-user mcs-label mincpus network nice nodefile ntasks-per-core ntasks-per-gpu ntasks-per-socket oom-kill-step power prefer priority profile propagate qos
	reservation segment signal sockets-per-node switches thread-spec threads-per-core time-min tmp tres-per-task uid wait-all-nodes wckey
	bcast compress epilog het-group immediate interactive jobid msg-timeout preserve-env prolog quit-on-interrupt relative resv-ports send-libs slurmd-debug task-epilog
	task-prolog tres-bind x11 whole version`)

// slurmOption is one option of sbatch or srun, by its long name.
type slurmOption struct {
	name, value string
	bare        bool // the value that it needs is missing
	line        int  // of the script, from 1; 0: on the command line
}

// text is the option as a user writes it.
func (s slurmOption) text() string {
	if len(s.name) == 1 {
		return "-" + s.name
	}
	return "--" + s.name
}

// slurmWords splits a command line into the options before its first other word, and the rest: --name=value, --name value, -n value, -nvalue,
// and letters without values together.
func slurmWords(words []string) (options []slurmOption, rest []string) {
	for i := 0; i < len(words); i++ {
		w := words[i]
		switch {
		case w == "--":
			return options, words[i+1:]
		case len(w) < 2 || w[0] != '-':
			return options, words[i:]
		}
		var name, value string
		var has bool
		if long, is := strings.CutPrefix(w, "--"); is {
			name, value, has = strings.Cut(long, "=")
		} else {
			letters := w[1:]
			for len(letters) > 1 && slices.Contains(slurmFlags, slurmShort[letters[0]]) && slurmShort[letters[1]] != "" {
				options = append(options, slurmOption{name: slurmShort[letters[0]]})
				letters = letters[1:]
			}
			if name = slurmShort[letters[0]]; name == "" {
				name = letters[:1]
			}
			value, has = strings.TrimPrefix(letters[1:], "="), len(letters) > 1
		}
		bare := !has && !slices.Contains(slurmFlags, name)
		if bare && i+1 < len(words) {
			i++
			value, bare = words[i], false
		}
		options = append(options, slurmOption{name: name, value: value, bare: bare})
	}
	return options, nil
}

// directives returns the options in the #SBATCH lines at the beginning of a script, and words there that belong to none.
func directives(script string) (options []slurmOption, stray []string) {
	number := 0
	for line := range strings.Lines(script) {
		number++
		line = strings.TrimSpace(line)
		rest, is := strings.CutPrefix(line, "#SBATCH")
		switch {
		case is && rest != "" && (rest[0] == ' ' || rest[0] == '\t'):
			rest, _, _ = strings.Cut(rest, " #")
			own, others := slurmWords(strings.Fields(rest))
			for i := range own {
				own[i].value = strings.Trim(own[i].value, `"'`) // a shell does so on the command line
				own[i].line = number
			}
			options, stray = append(options, own...), append(stray, others...)
			continue
		case line == "" || line[0] == '#':
			continue
		}
		break // Slurm reads no further
	}
	return options, stray
}

// warnDirectives says that run does not read the #SBATCH lines of a script, if it has any.
func (o *adhoc) warnDirectives(words []string) {
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
	if options, _ := directives(string(text)); len(options) > 0 {
		for i := range words {
			words[i] = word(words[i])
		}
		o.hint("%s has #SBATCH lines, which run does not read. This does:  muster sbatch %s", words[0], strings.Join(words, " "))
	}
}

// slurmAsk is what options of sbatch or srun ask for.
type slurmAsk struct {
	run         [][2]string // options of muster run, with their values
	name        string
	nodes       int
	tasks       int // processes that srun starts, of all nodes
	perNode     int // of one node
	gpusPerTask int
	given       map[string]string // by long name, the last of each
	left        []string          // options for which nothing stands, as they were written
}

// simply are the options whose values muster run takes as they are.
var simply = [][2]string{{"partition", "pool"}, {"account", "queue"}, {"begin", "begin"}, {"output", "log"}, {"error", "log-error"}, {"chdir", "dir"}}

// silent are options that change nothing here, or that sbatch and srun read themselves.
var silent = []string{
	"job-name", "parsable", "wait", "wrap", "test-only", "help", "verbose", "quiet", "label", "unbuffered", "kill-on-bad-exit", "pty", "overlap", "exact", "array", "nodelist",
	"no-kill", "as-me", "pack", "mpi", "cpu-bind", "gpu-bind", "mem-bind", "disable-status", "input", "open-mode",
}

// waitsFor are the conditions of dependencies, as muster run writes them.
var waitsFor = map[string]string{"afterok": "", "afterany": ":completed", "afternotok": ":failed", "after": ":started"}

// located puts the line of the script before an error about an option that is from there. Errors name the option as it is
// spelled in full.
func located(err error, options []slurmOption) error {
	if err == nil {
		return nil
	}
	words := strings.Fields(err.Error())
	for _, opt := range slices.Backward(options) { // the last one counts
		if text := opt.text(); slices.ContainsFunc(words, func(w string) bool { return strings.TrimSuffix(w, ";") == text }) {
			if opt.line > 0 {
				return fmt.Errorf("line %d: %w", opt.line, err)
			}
			break
		}
	}
	return err
}

// askSlurm translates options; of one that was given twice the last counts.
func askSlurm(options []slurmOption) (*slurmAsk, error) {
	a := &slurmAsk{given: map[string]string{}}
	var order []slurmOption
	for _, opt := range options {
		if _, again := a.given[opt.name]; !again {
			order = append(order, opt)
		}
		a.given[opt.name] = opt.value
	}
	used := slices.Clone(silent)
	take := func(name string) (string, bool) {
		used = append(used, name)
		v, has := a.given[name]
		return v, has
	}
	var errs []error
	number := func(name string) int {
		v, has := take(name)
		if !has || slices.ContainsFunc(options, func(opt slurmOption) bool { return opt.name == name && opt.bare }) { // it lacks its value: said below
			return 0
		}
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > 1<<20 {
			errs = append(errs, fmt.Errorf("%s %q: want a number, 1 or more", slurmOption{name: name}.text(), v))
		}
		return n
	}
	add := func(option, value string) { a.run = append(a.run, [2]string{option, value}) }

	a.name = a.given["job-name"]
	for _, s := range simply {
		if v, has := take(s[0]); has && v != "" {
			add(s[1], v)
		}
	}
	if v, has := a.given["nodes"]; has { // 2-4 is at least 2
		a.given["nodes"], _, _ = strings.Cut(v, "-")
	}
	a.nodes = max(number("nodes"), 1)
	a.tasks, a.perNode = number("ntasks"), number("ntasks-per-node")
	counted := a.tasks > 0 || a.perNode > 0
	switch {
	case a.perNode == 0 && a.tasks == 0:
		a.tasks, a.perNode = a.nodes, 1
	case a.perNode == 0:
		if _, has := a.given["nodes"]; has {
			a.nodes = min(a.nodes, a.tasks)
		}
		a.perNode = (a.tasks + a.nodes - 1) / a.nodes
	case a.tasks == 0:
		a.tasks = a.perNode * a.nodes
	default:
		if _, has := a.given["nodes"]; !has {
			a.nodes = (a.tasks + a.perNode - 1) / a.perNode
		}
	}
	if a.nodes > 1 {
		add("nodes", strconv.Itoa(a.nodes))
	}
	gpus, err := a.gpus(take)
	if err != nil {
		errs = append(errs, err)
	}
	if gpus.count > 0 {
		add("gpus", strings.TrimPrefix(gpus.model+":"+strconv.Itoa(gpus.count), ":"))
	}
	cores, perGPU := number("cpus-per-task"), number("cpus-per-gpu")
	switch {
	case perGPU > 0 && gpus.count > 0:
		cores = perGPU * gpus.count
	case cores > 0:
		cores *= a.perNode
	case counted && gpus.count == 0 && a.perNode > 1:
		cores = a.perNode // as Slurm does: one for each
	}
	if cores > 0 {
		add("cores", strconv.Itoa(cores))
	}
	for _, m := range []struct {
		name  string
		times int
	}{{"mem", 1}, {"mem-per-cpu", max(cores, 1)}, {"mem-per-gpu", max(gpus.count, 1)}} {
		v, has := take(m.name)
		if !has || v == "0" { // all memory of the node; here GPUs bring their part
			continue
		}
		n, err := parseMiB(slurmOption{name: m.name}.text(), v)
		if errs = append(errs, err); err == nil {
			add("mem", strconv.Itoa(n*m.times))
		}
	}
	if v, has := take("time"); has && !strings.EqualFold(v, "UNLIMITED") && !strings.EqualFold(v, "INFINITE") {
		if d, ok := slurmTime(v); ok {
			add("time", structs.ShortDuration(d))
		} else {
			errs = append(errs, fmt.Errorf("--time %q: want minutes, or as 1:30:00 or 2-12:00:00 (days, hours, minutes, seconds)", v))
		}
	}
	if v, has := take("dependency"); has {
		errs = append(errs, a.depends(v, add))
	}
	if _, has := take("requeue"); has {
		add("requeue", "10")
	}
	if v, has := take("export"); has {
		for i, name := range strings.Split(v, ",") {
			switch {
			case name == "ALL":
				a.left = append(a.left, "--export=ALL (name the variables: --export=A,B)")
			case name == "":
			case name == "NONE" || name == "NIL":
				add("no-env", "true")
			default:
				if i == 0 {
					add("no-env", "true") // only what is named
				}
				add("env", name)
			}
		}
	}
	for _, opt := range order {
		switch known := slices.Contains(used, opt.name); {
		case known && opt.bare:
			errs = append(errs, fmt.Errorf("%s wants a value", opt.text()))
		case known:
		case slices.Contains(slurmOthers, opt.name), slices.Contains(slurmFlags, opt.name):
			a.left = append(a.left, opt.text())
		default:
			errs = append(errs, fmt.Errorf("Slurm has no option %s%s", opt.text(), suggest.DidYouMean(opt.text(), spelled(slices.Concat(used, slurmFlags)))))
		}
	}
	for i, err := range errs {
		errs[i] = located(err, options)
	}
	return a, errors.Join(errs...)
}

// spelled writes the names of options as users do.
func spelled(names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = slurmOption{name: n}.text()
	}
	return out
}

// gpus returns the GPUs of each node.
func (a *slurmAsk) gpus(take func(string) (string, bool)) (gpuAsk, error) {
	gres, has := take("gres")
	if v := gres; has {
		kind, count, counted := strings.Cut(v, ":")
		if kind != "gpu" {
			a.left = append(a.left, "--gres="+v)
		} else if a.given["gpus-per-node"] = count; !counted {
			a.given["gpus-per-node"] = "1"
		}
	}
	read := func(name string) (gpuAsk, error) {
		v, has := take(name)
		if !has || v == "0" {
			return gpuAsk{}, nil
		}
		ask, err := parseGPUs(v)
		if err != nil || v == "" {
			if gres != "" && name == "gpus-per-node" {
				return ask, fmt.Errorf("--gres %q: want gpu:number or gpu:model:number", gres)
			}
			return ask, fmt.Errorf("--%s %q: want a number, or model:number", name, v)
		}
		return ask, nil
	}
	task, err := read("gpus-per-task")
	if err != nil {
		return task, err
	}
	a.gpusPerTask = task.count
	each, err := read("gpus-per-node")
	switch {
	case err != nil || each.count > 0:
		return each, err
	case task.count > 0:
		task.count *= a.perNode
		return task, nil
	}
	if each, err = read("gpus"); err != nil || each.count == 0 {
		return each, err
	}
	if each.count%a.nodes != 0 {
		return each, fmt.Errorf("--gpus %s on %d nodes: every node gets as many, so the number must be a multiple; or give --gpus-per-node", a.given["gpus"], a.nodes)
	}
	each.count /= a.nodes
	return each, nil
}

// depends translates afterok:A:B,afterany:C.
func (a *slurmAsk) depends(text string, add func(option, value string)) error {
	var out []string
	for one := range strings.SplitSeq(text, ",") {
		when, jobs, _ := strings.Cut(one, ":")
		suffix, known := waitsFor[when]
		if !known || jobs == "" || strings.Contains(text, "?") {
			return fmt.Errorf("--dependency %q: there are afterok, afterany, afternotok and after, each as afterok:JOB, with commas between them; all must hold", text)
		}
		for job := range strings.SplitSeq(jobs, ":") {
			out = append(out, job+suffix)
		}
	}
	add("depends", strings.Join(out, ","))
	return nil
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

// wantsDuration is the error for a value of a flag that is no duration.
func wantsDuration(flag, value string) error {
	if d, ok := slurmTime(value); ok && strings.ContainsAny(value, ":-") {
		return fmt.Errorf("-%s %q is no duration; did you mean %s?", flag, value, structs.ShortDuration(d))
	}
	return fmt.Errorf("-%s %q is no duration: want a number with its unit (s, m or h), such as 90s, 2h or 1h30m", flag, value)
}
