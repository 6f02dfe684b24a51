package wire

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/structs"
)

// Limits of Muster's extension blocks.
const (
	dependsMax    = 100
	requeueMaxMax = 10_000
	standbyMax    = 1_000
	ranksMax      = 1_024 // processes of an allocation
	paramsMax     = 100   // names of an array's parameters
)

var (
	paramRE = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)
	wordRE  = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,128}$`)
)

// own checks the job's extension blocks.
func (v *validator) own() {
	j := v.job
	if s := val(j.Placement); s != "" && !wordRE.MatchString(s) {
		v.errorf("placement", "%.64q is not a placement policy: want a name such as \"binpack\"", s)
	}
	if r := j.Runtime; r != nil {
		ok := v.duration("runtime.expected", r.Expected)
		ok = v.duration("runtime.limit", r.Limit) && ok
		if r.Limit != nil && *r.Limit == 0 {
			v.errorf("runtime.limit", "0s would stop the job at once; leave it out for no limit")
		}
		if ok && r.Limit != nil && *r.Limit > 0 && val(r.Expected) > *r.Limit {
			v.errorf("runtime", "expected (%s) is longer than limit (%s), so the job could never end well", *r.Expected, *r.Limit)
		}
	}
	v.times()
	v.requeue()
	v.depends()
	for i, t := range j.Tolerations {
		if t == nil {
			continue
		}
		w := fmt.Sprintf("toleration %d", i+1)
		if t.Key == "" && t.Value != "" {
			v.errorf(w, "a value (%.64q) without a key; a toleration without key accepts every taint", t.Value)
		}
		v.oneOfOrNone(w+".effect", t.Effect, "Toleration.Effect")
		if d := dur(t.For); d < 0 || d > 0 && t.Effect != "" && t.Effect != structs.TaintNoExecute {
			v.errorf(w, "for %v: give a time, and only where the effect is %s", d, structs.TaintNoExecute)
		}
	}
	v.count("toleration", len(j.Tolerations))
	v.placing()
	v.array()
}

func (v *validator) times() {
	j := v.job
	read := func(where string, s *string) structs.LogTime {
		t, err := parseTime(s)
		if err != nil {
			v.errorf(where, "%.64q is not a time: want RFC 3339, as \"2030-12-31T18:00:00Z\" or \"2030-12-31T18:00:00+01:00\"", val(s))
		}
		return t
	}
	begin, deadline := read("begin", j.Begin), read("deadline", j.Deadline)
	if begin != 0 && deadline != 0 && begin >= deadline {
		v.errorf("begin", "%s is not before the deadline, %s", *j.Begin, *j.Deadline)
	}
	if j.Periodic != nil {
		if begin != 0 {
			v.errorf("begin", "a periodic job begins by its schedule; remove one of them")
		}
		if deadline != 0 {
			v.errorf("deadline", "a deadline is one moment, but a periodic job runs again and again; use runtime.limit")
		}
	}
	if v.everyNode() && deadline != 0 {
		v.errorf("deadline", "a %s job runs on every node, so it has no order in a queue; remove the deadline", v.typ)
	}
}

func (v *validator) requeue() {
	r := v.job.Requeue
	if r == nil {
		return
	}
	if v.typ != structs.JobBatch {
		v.errorf("requeue", "only batch jobs return to the queue; a %s job is replaced by its reschedule policy", v.typ)
	}
	v.count("requeue.on", len(r.On))
	for _, on := range r.On {
		if code, ok := strings.CutPrefix(on, structs.RequeueExit); ok {
			if n, err := strconv.Atoi(code); err != nil || n < 1 || n > 255 {
				v.errorf("requeue.on", "%.64q: want an exit code from 1 to 255, as \"exit:75\"", on)
			}
		} else if !slices.Contains(structs.RequeueReasons, on) {
			v.errorf("requeue.on", "%.64q is not known: want %s or exit:N%s", on, strings.Join(structs.RequeueReasons, ", "), suggest.DidYouMean(on, structs.RequeueReasons))
		}
	}
	if n := val(r.Max); n < 0 || n > requeueMaxMax {
		v.errorf("requeue.max", "%d is out of range: want 0 (never) to %d", n, requeueMaxMax)
	}
}

func (v *validator) depends() {
	j := v.job
	if len(j.DependsOn) > dependsMax {
		v.errorf("depends_on", "%d dependencies; want at most %d", len(j.DependsOn), dependsMax)
		return
	}
	if len(j.DependsOn) > 0 && j.Periodic != nil {
		v.errorf("depends_on", "a periodic job begins by its schedule; let a dispatched or plain job wait instead")
	}
	seen := map[string]bool{}
	type group struct{ members, atLeast int }
	groups := map[string]*group{}
	for _, d := range j.DependsOn {
		if d == nil {
			continue
		}
		w := fmt.Sprintf("depends_on %q", d.Name)
		v.name(w, "a dependency", strings.ReplaceAll(d.Name, "/", "-")) // job ids may have slashes
		if seen[d.Name] {
			v.errorf(w, "there are two dependencies with this name; give them different names and the job as job = \"...\"")
		}
		seen[d.Name] = true
		id := d.Job
		if id == "" {
			id = d.Name
		}
		if len(id) > jobIDMax || hasControl(id) || strings.Contains(id, " ") {
			v.errorf(w+".job", "%.64q is not the id of a job", id)
		}
		if d.Namespace != "" && !namespaceRE.MatchString(d.Namespace) {
			v.errorf(w+".namespace", "%.64q is not a namespace: want 1 to 128 letters, digits or dashes", d.Namespace)
		}
		if id == val(j.ID) && (d.Namespace == "" || d.Namespace == val(j.Namespace)) {
			v.errorf(w, "the job would wait for itself")
		}
		v.oneOf(w+".when", d.When, "Dependency.When")
		v.duration(w+".timeout", d.Timeout)
		v.oneOfOrNone(w+".on_timeout", d.OnTimeout, "Dependency.OnTimeout")
		if d.OnTimeout != "" && val(d.Timeout) == 0 {
			v.errorf(w, "on_timeout = %q needs a timeout", d.OnTimeout)
		}
		if d.Group == "" {
			if val(d.AtLeast) != 0 {
				v.errorf(w, "at_least counts the dependencies of one group; add group = \"...\" to each of them")
			}
			continue
		}
		g := groups[d.Group]
		if g == nil {
			g = &group{atLeast: val(d.AtLeast)}
			groups[d.Group] = g
		}
		g.members++
		if n := val(d.AtLeast); n != g.atLeast {
			v.errorf(w+".at_least", "%d, but another dependency of group %q says %d; they must be equal", n, d.Group, g.atLeast)
		}
	}
	for _, name := range sortedKeys(groups) {
		if g := groups[name]; g.atLeast < 0 || g.atLeast > g.members {
			v.errorf("depends_on", "at_least = %d of group %q; it has %d dependencies, so want 1 to %d, or 0 for all", g.atLeast, name, g.members, g.members)
		}
	}
}

func (v *validator) array() {
	j, a := v.job, v.job.Array
	if a == nil {
		return
	}
	n := val(a.Count)
	switch {
	case n < 1:
		v.errorf("array.count", "%d; want 1 to %d", n, structs.ArrayCountMax)
	case n > structs.ArrayCountMax:
		v.errorf("array.count", "%d is too many; want at most %d, or several arrays", n, structs.ArrayCountMax)
	}
	if c := val(a.Concurrency); c < 0 {
		v.errorf("array.concurrency", "%d is negative; want 0 for no cap", c)
	}
	if v.typ != structs.JobBatch {
		v.errorf("array", "the tasks of an array end, so the job must be of type batch, not %s", v.typ)
	}
	if len(j.TaskGroups) != 1 {
		v.errorf("array", "an array has one group, whose allocations are its indices; this job has %d", len(j.TaskGroups))
	}
	if j.Periodic != nil || j.ParameterizedJob != nil {
		v.errorf("array", "a template (periodic or parameterized) cannot be an array")
	}
	for _, g := range j.TaskGroups {
		if g == nil {
			continue
		}
		w := fmt.Sprintf("group %q", val(g.Name))
		if c := val(g.Count); c != 1 {
			v.errorf(w+", count", "%d; the size of an array is array.count, so leave count out", c)
		}
		if g.Gang != nil || g.Elastic != nil || g.Scaling != nil {
			v.errorf(w, "each index of an array stands alone; remove gang, elastic and scaling, or write a job for each gang")
		}
	}
	if len(a.Params) > paramsMax {
		v.errorf("array.params", "%d parameters; want at most %d", len(a.Params), paramsMax)
		return
	}
	for _, k := range sortedKeys(a.Params) {
		w := "array.params." + k
		if !paramRE.MatchString(k) {
			v.errorf("array.params", "%.64q cannot be the name of a parameter: want letters, digits and underscores, not a digit first", k)
		}
		if m := len(a.Params[k]); m != n {
			v.errorf(w, "%d values for %d indices; want one for each", m, n)
		}
		for i, s := range a.Params[k] {
			if strings.ContainsRune(s, 0) {
				v.errorf(w, "value %d holds a zero byte", i)
				break
			}
		}
	}
}

// groupOwn checks a group's extension blocks.
func (v *validator) groupOwn(w string, g *TaskGroup) {
	count := val(g.Count)
	if x := g.Gang; x != nil {
		gw := w + ", gang"
		if v.everyNode() {
			v.errorf(gw, "a %s job runs once on every node, alone; a gang is of a batch or service job", v.typ)
		}
		switch n := val(x.Min); {
		case n < 0:
			v.errorf(gw+".min", "%d is negative; leave it out for all", n)
		case n > count:
			v.errorf(gw+".min", "%d is more than the group's count, %d", n, count)
		}
		v.duration(gw+".timeout", x.Timeout)
		v.oneOfOrNone(gw+".on_failure", x.OnFailure, "Gang.OnFailure")
		if n := val(x.Standby); n < 0 || n > standbyMax {
			v.errorf(gw+".standby", "%d is out of range: want 0 to %d", n, standbyMax)
		}
		if n := oneGPU(g); count > 1 && n == 1 {
			v.warnf(gw, "%d allocations of one GPU each: members on one node are separate allocations, which share neither its NVLink order nor /dev/shm; better one allocation a node with count = %d / GPUs per node and several GPUs each", count, count)
		}
	}
	if x := g.Elastic; x != nil {
		ew := w + ", elastic"
		least, most := val(x.Min), val(x.Max)
		switch {
		case v.everyNode():
			v.errorf(ew, "a %s job runs once on every node, so its count is not elastic", v.typ)
		case x.Max == nil:
			v.errorf(ew, "needs max")
		case least < 0:
			v.errorf(ew+".min", "%d is negative", least)
		case most > structs.GroupCountMax:
			v.errorf(ew+".max", "%d; want at most %d", most, structs.GroupCountMax)
		case least > most:
			v.errorf(ew, "min (%d) is more than max (%d)", least, most)
		case count < least || count > most:
			v.errorf(ew, "the group's count (%d), where it begins, is outside of min (%d) and max (%d)", count, least, most)
		case g.Gang != nil && least < val(g.Gang.Min):
			v.errorf(ew+".min", "%d is less than gang.min (%d), below which the gang does not run", least, val(g.Gang.Min))
		}
		if g.Scaling != nil {
			v.errorf(ew, "both elastic and scaling would move the count; remove one of them")
		}
	}
	v.peers(w, g.Near, g.Away)
	if x := g.Topology; x != nil {
		tw := w + ", topology"
		v.oneOfOrNone(tw+".inside", x.Inside, "Topology.Inside")
		if x.Across != "" && !wordRE.MatchString(x.Across) {
			v.errorf(tw+".across", "%.64q is not a level: want node, leaf, rack, a key of the nodes' meta, or any", x.Across)
		}
		v.oneOfOrNone(tw+".mode", x.Mode, "Topology.Mode")
		switch {
		case x.Across == "":
		case x.Across == structs.TopologyAny && x.Mode == structs.TopologyRequired:
			v.errorf(tw+".across", "any place cannot be required; name a level, or remove mode")
		case v.everyNode():
			v.errorf(tw+".across", "a %s job runs once on every node, so no place holds all of it; remove across", v.typ)
		case g.Gang == nil && x.Mode != structs.TopologyRequired:
			v.warnf(tw+".across", "without effect: only a gang is placed by a preferred level; add a gang block, or mode = \"required\"")
		}
		if x.Inside == "" && x.Across == "" {
			v.errorf(tw, "says neither inside nor across; want inside = \"nvlink\", or across = \"leaf\", or both")
		}
	}
	if x := g.Launch; x != nil {
		lw := w + ", launch"
		v.oneOfOrNone(lw+".mode", x.Mode, "Launch.Mode")
		if n := val(x.Ranks); n < 0 || n > ranksMax {
			v.errorf(lw+".ranks", "%d is out of range: want 0 (one for each GPU) to %d", n, ranksMax)
		}
		for _, c := range x.Compat {
			v.oneOf(lw+".compat", c, "Launch.Compat")
		}
		if n := val(x.Port); n < 0 || n > 65535 {
			v.errorf(lw+".port", "%d is not a port: want 1 to 65535, or 0 for a free one", n)
		}
		v.oneOfOrNone(lw+".gpus", x.GPUs, "Launch.GPUs")
		if x.GPUs != "" && x.Mode != structs.LaunchRank {
			v.errorf(lw+".gpus", "says what ranks see that the agent starts; with mode = \"node\" the launcher of the job decides")
		}
	}
	if x := g.Checkpoint; x != nil {
		v.checkpoint(w+", checkpoint", x)
		switch n := val(x.Members); {
		case x.Members == nil:
		case g.Gang == nil:
			v.errorf(w+", checkpoint.members", "says how many members of a gang write a checkpoint; add gang {}")
		case n < 1:
			v.errorf(w+", checkpoint.members", "%d: want a number from 1; leave it out if all members write, or only one", n)
		case g.Elastic != nil && n > val(g.Elastic.Max) || g.Elastic == nil && n > count:
			v.errorf(w+", checkpoint.members", "%d: the gang never has so many members, so no checkpoint would be complete", n)
		}
	}
}

func (v *validator) checkpoint(w string, x *Checkpoint) {
	if s := strings.TrimPrefix(strings.ToUpper(x.Signal), "SIG"); x.Signal != "" && !slices.Contains(signals, s) {
		v.errorf(w+".signal", "%.64q is not a signal%s", x.Signal, suggest.DidYouMean(s, signals))
	}
	v.count(w+".command", len(x.Command))
	if x.URL != "" && !strings.HasPrefix(x.URL, "http://") && !strings.HasPrefix(x.URL, "https://") {
		v.errorf(w+".url", "%.64q: want an address that begins with http:// or https://", x.URL)
	}
	v.oneOfOrNone(w+".to", x.To, "Checkpoint.To")
	if x.To == "ranks" && x.Signal == "" {
		v.errorf(w, "to = \"ranks\" says who gets the signal; add signal = \"SIGUSR1\" or the like")
	}
	for _, on := range x.On {
		v.oneOf(w+".on", on, "Checkpoint.On")
	}
	v.duration(w+".before", x.Before)
	v.duration(w+".grace", x.Grace)
	v.duration(w+".cost", x.Cost)
	if hasControl(x.Storage) || len(x.Storage) > structs.CheckpointStorageMax {
		v.errorf(w+".storage", "%.64q: want a name of at most %d bytes without control characters", x.Storage, structs.CheckpointStorageMax)
	}
	if hasControl(x.Dir) {
		v.errorf(w+".dir", "%.64q holds a control character", x.Dir)
	}
	if _, err := path.Match(path.Base(x.Path), ""); hasControl(x.Path) || err != nil {
		v.errorf(w+".path", "%.64q is neither a path nor a pattern", x.Path)
	}
	if strings.ContainsAny(path.Dir(x.Path), "*?[") {
		v.errorf(w+".path", "%.64q: only the last part may be a pattern, because one directory is listed", x.Path)
	}
	v.duration(w+".poll", x.Poll)
	if d := dur(x.Poll); d > 0 && d < structs.CheckpointPollLeast {
		v.errorf(w+".poll", "%s is too often; want at least %s", d, structs.CheckpointPollLeast)
	}
	v.duration(w+".interval", x.Interval)
	if dur(x.Interval) > 0 && x.Signal == "" && len(x.Command) == 0 && x.URL == "" {
		v.errorf(w+".interval", "says how often the task is asked to save its state; add signal, command or url to ask it")
	}
}

// oneGPU returns how many whole GPUs the tasks of a group ask for.
func oneGPU(g *TaskGroup) int {
	n := 0
	for _, t := range g.Tasks {
		if t == nil || t.Resources == nil {
			continue
		}
		if x := t.Resources.GPU; x != nil && x.Memory == "" && x.Share == nil {
			n += val(x.Count)
		}
		for _, d := range t.Resources.Devices {
			if d != nil && (d.Name == "gpu" || d.Name == "nvidia/gpu" || strings.HasPrefix(d.Name, "nvidia/gpu/")) {
				n += int(min(val(d.Count), 1<<16))
			}
		}
	}
	return n
}

// person checks the settings with which a task runs as its submitter would run it.
func (v *validator) person(w string, t *Task) {
	if d := t.WorkDir; d != "" && (!strings.HasPrefix(d, "/") && !strings.HasPrefix(d, "${") || hasControl(d)) {
		v.errorf(w+", work_dir", "%.128q must be absolute: a directory that the nodes have", d)
	}
	if _, err := structs.ParseUmask(t.Umask); err != nil {
		v.errorf(w+", umask", "%v", err)
	}
	for _, l := range []struct{ name, path string }{{"log_path", t.LogPath}, {"log_error_path", t.LogErrorPath}} {
		if l.path == "" {
			continue
		}
		if err := structs.CheckLogPath(l.path); err != nil {
			v.errorf(w+", "+l.name, "%v", err)
		} else if hasControl(l.path) {
			v.errorf(w+", "+l.name, "%.128q holds a control character", l.path)
		}
	}
	if t.Driver == "docker" && (t.Umask != "" || t.LogPath != "" || t.LogErrorPath != "") {
		v.errorf(w, "umask, log_path and log_error_path: a container has its own; this wants the driver exec or raw_exec")
	}
}
