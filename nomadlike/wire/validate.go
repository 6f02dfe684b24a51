package wire

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/muster-sched/muster/internal/cron"
	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/structs"
)

// Limits that Validate checks, in addition to those in package structs.
const (
	nameMax         = 128     // bytes of group, task, port and action names
	jobIDMax        = 256     // bytes of a job's id; children add a suffix
	listMax         = 1_000   // constraints, affinities, spreads, devices, ports, ... of one block
	amountMax       = 1 << 40 // MHz or MiB
	durationMax     = 10 * 365 * 24 * time.Hour
	payloadMax      = 16 << 10
	minRescheduleIn = 5 * time.Second
)

var (
	namespaceRE = regexp.MustCompile(`^[a-zA-Z0-9-]{1,128}$`)
	poolRE      = regexp.MustCompile(`^[a-zA-Z0-9-_]{1,128}$`)
	queueRE     = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}(/[a-zA-Z0-9._-]{1,64}){0,7}$`)
)

// Validate checks a canonical job and returns all its problems. A job without errors converts and can be scheduled;
// whether it fits anywhere is another question.
func (j *Job) Validate() Problems {
	v := &validator{job: j, typ: structs.JobType(val(j.Type))}
	v.validateJob()
	return v.Problems
}

type validator struct {
	Problems
	job   *Job
	typ   structs.JobType
	tasks int
}

// everyNode reports whether the job runs once on each node.
func (v *validator) everyNode() bool {
	return v.typ == structs.JobSystem || v.typ == structs.JobSysBatch
}

func (v *validator) validateJob() {
	j := v.job
	switch id := val(j.ID); {
	case id == "":
		v.errorf("id", "a job needs an id")
	case len(id) > jobIDMax:
		v.errorf("id", "%d bytes long; want at most %d", len(id), jobIDMax)
	case strings.Contains(id, " ") || hasControl(strings.ReplaceAll(id, "\n", "")) || strings.ContainsRune(id, utf8.RuneError):
		// A line break is legal, as in Nomad, whose client tests have one. Other control characters could drive a
		// terminal. JSON decoding replaces bytes that are not UTF-8 by the replacement character.
		v.errorf("id", "%q holds a blank, a control character or bytes that are not UTF-8; use letters, digits, dashes, dots or slashes", id)
	}
	if n := val(j.Name); hasControl(n) || len(n) > jobIDMax {
		v.errorf("name", "want at most %d bytes without control characters", jobIDMax)
	}
	if ns := val(j.Namespace); !namespaceRE.MatchString(ns) {
		v.errorf("namespace", "%.64q is not a namespace: want 1 to 128 letters, digits or dashes", ns)
	}
	if r := val(j.Region); !poolRE.MatchString(r) {
		v.errorf("region", "%.64q is not a region: want 1 to 128 letters, digits, dashes or underscores", r)
	}
	if np := val(j.NodePool); np != "" && !poolRE.MatchString(np) {
		v.errorf("node_pool", "%.64q is not a node pool: want 1 to 128 letters, digits, dashes or underscores", np)
	}
	if q := j.queue(); q != "" && !queueRE.MatchString(string(q)) {
		v.errorf("queue", "%.64q is not a queue: want up to 8 names of letters, digits, dots, dashes or underscores, divided by slashes", q)
	}
	types := []string{string(structs.JobService), string(structs.JobBatch), string(structs.JobSystem), string(structs.JobSysBatch)}
	if !slices.Contains(types, string(v.typ)) {
		v.errorf("type", "%.64q is not a kind of job: want service, batch, system or sysbatch%s", string(v.typ), suggest.DidYouMean(string(v.typ), types))
	}
	if p := val(j.Priority); p < structs.JobPriorityMin || p > structs.JobPriorityMax {
		v.errorf("priority", "%d is out of range: want %d to %d", p, structs.JobPriorityMin, structs.JobPriorityMax)
	}
	for i, dc := range j.Datacenters {
		if dc == "" || hasControl(dc) {
			v.errorf(fmt.Sprintf("datacenters[%d]", i), "a datacenter must have a name; \"*\" means all")
		}
	}
	if len(j.Payload) > payloadMax {
		v.errorf("payload", "%d bytes; want at most %d", len(j.Payload), payloadMax)
	}
	v.count("datacenters", len(j.Datacenters))
	v.meta("", j.Meta)
	v.constraints("", j.Constraints, true)
	v.affinities("", j.Affinities, v.everyNode())
	v.nodeConditions("", j.Constraints, j.Affinities, slices.ContainsFunc(j.TaskGroups, groupAsksDevices))
	v.spreads("", j.Spreads)
	v.update("update", j.Update)
	v.periodic()
	v.parameterized()
	v.own()
	if len(j.TaskGroups) == 0 {
		v.errorf("group", "a job needs at least one group")
	}
	if len(j.TaskGroups) > structs.GroupsMax {
		v.errorf("group", "%d groups; want at most %d", len(j.TaskGroups), structs.GroupsMax)
		return
	}
	seen := map[string]bool{}
	count := 0
	for i, g := range j.TaskGroups {
		if g == nil {
			v.errorf(fmt.Sprintf("group %d", i+1), "is null; want an object")
			continue
		}
		name := val(g.Name)
		if seen[name] {
			v.errorf(fmt.Sprintf("group %q", name), "there are two groups with this name; names must differ")
		}
		seen[name] = true
		v.group(i, g)
		count += min(max(val(g.Count), 0), structs.JobCountMax)
	}
	if count > structs.JobCountMax {
		v.errorf("count", "%d over all groups; want at most %d", count, structs.JobCountMax)
	}
	if v.tasks > structs.TasksMax {
		v.errorf("task", "%d tasks over all groups; want at most %d", v.tasks, structs.TasksMax)
	}
}

func (v *validator) periodic() {
	p := v.job.Periodic
	if p == nil {
		return
	}
	if v.typ == structs.JobService || v.typ == structs.JobSystem {
		v.errorf("periodic", "a %s job cannot be periodic; use type batch or sysbatch", v.typ)
	}
	if v.job.ParameterizedJob != nil {
		v.errorf("periodic", "a job cannot be both periodic and parameterized; remove one of the blocks")
	}
	if val(p.SpecType) != "cron" {
		v.errorf("periodic", "the only kind of schedule is \"cron\", not %.64q", val(p.SpecType))
	}
	if val(p.Spec) != "" && len(p.Specs) > 0 {
		v.errorf("periodic", "both cron and crons are given; use one of them")
	}
	specs := p.specs()
	if len(specs) == 0 {
		v.errorf("periodic", "needs cron = \"...\" or crons = [...]")
	}
	v.count("periodic, crons", len(specs))
	for _, s := range specs {
		if err := cron.Check(s); err != nil {
			v.errorf("periodic, cron", "%v", err)
		}
	}
	if _, err := time.LoadLocation(val(p.TimeZone)); err != nil {
		v.errorf("periodic, time_zone", "%.64q is not known; want a name such as \"UTC\" or \"Europe/Berlin\"", val(p.TimeZone))
	}
}

func (v *validator) parameterized() {
	p := v.job.ParameterizedJob
	if p == nil {
		return
	}
	if v.typ == structs.JobService || v.typ == structs.JobSystem {
		v.errorf("parameterized", "a %s job cannot be parameterized; use type batch or sysbatch", v.typ)
	}
	v.oneOf("parameterized, payload", p.Payload, "Parameterized.Payload")
	v.count("parameterized, meta_required", len(p.MetaRequired))
	v.count("parameterized, meta_optional", len(p.MetaOptional))
	for _, k := range p.MetaOptional {
		if slices.Contains(p.MetaRequired, k) {
			v.errorf("parameterized", "the meta key %q is both required and optional", k)
		}
	}
}

func (v *validator) update(where string, u *UpdateStrategy) {
	if u == nil {
		return
	}
	if val(u.MaxParallel) < 0 {
		v.errorf(where+".max_parallel", "%d is negative; want 0 (all at once) or more", *u.MaxParallel)
	}
	if val(u.Canary) < 0 {
		v.errorf(where+".canary", "%d is negative", *u.Canary)
	}
	v.oneOf(where+".health_check", val(u.HealthCheck), "Update.HealthCheck")
	ok := true
	for _, d := range []struct {
		name string
		d    *Duration
	}{{"stagger", u.Stagger}, {"min_healthy_time", u.MinHealthyTime}, {"healthy_deadline", u.HealthyDeadline}, {"progress_deadline", u.ProgressDeadline}} {
		ok = v.duration(where+"."+d.name, d.d) && ok
	}
	if ok && val(u.MinHealthyTime) >= val(u.HealthyDeadline) && !u.empty() {
		v.errorf(where, "min_healthy_time (%s) must be less than healthy_deadline (%s)", val(u.MinHealthyTime), val(u.HealthyDeadline))
	}
	if ok && val(u.ProgressDeadline) != 0 && val(u.HealthyDeadline) >= val(u.ProgressDeadline) {
		v.errorf(where, "healthy_deadline (%s) must be less than progress_deadline (%s)", val(u.HealthyDeadline), val(u.ProgressDeadline))
	}
}

func (v *validator) restart(where string, r *RestartPolicy) {
	if r == nil {
		return
	}
	v.oneOf(where+".mode", val(r.Mode), "Restart.Mode")
	ok := v.duration(where+".interval", r.Interval)
	ok = v.duration(where+".delay", r.Delay) && ok
	n := val(r.Attempts)
	if n < 0 {
		v.errorf(where+".attempts", "%d is negative", n)
		return
	}
	if !ok || n == 0 {
		return
	}
	if dur(r.Interval) < minRescheduleIn {
		v.errorf(where+".interval", "%s is too short; want at least %s", val(r.Interval), minRescheduleIn)
	} else if int64(n) > int64(dur(r.Interval)/max(dur(r.Delay), 1)) {
		v.errorf(where, "%d attempts with a delay of %s do not fit into an interval of %s; lengthen the interval or shorten the delay", n, val(r.Delay), val(r.Interval))
	}
}

func (v *validator) reschedule(where string, r *ReschedulePolicy) {
	if r == nil {
		return
	}
	if v.everyNode() {
		v.errorf(where, "a %s job cannot be rescheduled, because it runs on every node; remove the block", v.typ)
		return
	}
	ok := v.duration(where+".interval", r.Interval)
	ok = v.duration(where+".delay", r.Delay) && ok
	ok = v.duration(where+".max_delay", r.MaxDelay) && ok
	n, unlimited := val(r.Attempts), val(r.Unlimited)
	if n < 0 {
		v.errorf(where+".attempts", "%d is negative", n)
		return
	}
	if !ok || n == 0 && !unlimited {
		return // never rescheduled: the rest has no effect
	}
	if n > 0 && unlimited {
		v.errorf(where, "attempts = %d and unlimited = true contradict each other; use one of them", n)
	}
	v.oneOf(where+".delay_function", val(r.DelayFunction), "Reschedule.DelayFunction")
	if dur(r.Delay) < minRescheduleIn {
		v.errorf(where+".delay", "%s is too short; want at least %s", val(r.Delay), minRescheduleIn)
	}
	if f := val(r.DelayFunction); (f == "exponential" || f == "fibonacci") && dur(r.MaxDelay) < dur(r.Delay) {
		v.errorf(where+".max_delay", "%s is less than delay (%s); want at least that", val(r.MaxDelay), val(r.Delay))
	}
	if n > 0 && !unlimited && dur(r.Interval) <= 0 {
		v.errorf(where+".interval", "a number of attempts needs an interval in which they count")
	}
}

func (v *validator) migrate(where string, m *MigrateStrategy) {
	if m == nil {
		return
	}
	if v.typ != structs.JobService {
		v.errorf(where, "only service jobs migrate; remove the block from this %s job", v.typ)
		return
	}
	if val(m.MaxParallel) < 1 {
		v.errorf(where+".max_parallel", "%d; want at least 1", val(m.MaxParallel))
	}
	v.oneOf(where+".health_check", val(m.HealthCheck), "Migrate.HealthCheck")
	ok := v.duration(where+".min_healthy_time", m.MinHealthyTime)
	if v.duration(where+".healthy_deadline", m.HealthyDeadline) && ok && val(m.MinHealthyTime) >= val(m.HealthyDeadline) {
		v.errorf(where, "min_healthy_time (%s) must be less than healthy_deadline (%s)", val(m.MinHealthyTime), val(m.HealthyDeadline))
	}
}

// --- small checks

func (v *validator) name(where, what, s string) {
	switch {
	case s == "":
		v.errorf(where, "%s needs a name", what)
	case len(s) > nameMax:
		v.errorf(where, "the name has %d bytes; want at most %d", len(s), nameMax)
	case hasControl(s) || strings.ContainsAny(s, "/\\") || s == "." || s == "..":
		v.errorf(where, "the name holds a slash or a control character; it becomes a directory name")
	}
}

// oneOf checks a value of structs.Enums[enum].
func (v *validator) oneOf(where, s, enum string) {
	if allowed := structs.Enums[enum]; !slices.Contains(allowed, s) {
		v.errorf(where, "%.64q is not known: want %s%s", s, strings.Join(allowed, ", "), suggest.DidYouMean(s, allowed))
	}
}

// oneOfOrNone is oneOf where "" is a value, too.
func (v *validator) oneOfOrNone(where, s, enum string) {
	if s != "" {
		v.oneOf(where, s, enum)
	}
}

func (v *validator) count(where string, n int) {
	if n > listMax {
		v.errorf(where, "%d entries; want at most %d", n, listMax)
	}
}

// duration checks a duration; false means that it cannot be compared.
func (v *validator) duration(where string, d *Duration) bool {
	switch {
	case d == nil:
		return true
	case *d < 0:
		v.errorf(where, "%s is negative; want 0 or more", *d)
		return false
	case d.D() > durationMax:
		v.errorf(where, "%s is longer than ten years", *d)
		return false
	}
	return true
}

func (v *validator) amount(where string, n *int, least int) {
	switch x := val(n); {
	case x < least:
		v.errorf(where, "%d; want at least %d", x, least)
	case x > amountMax:
		v.errorf(where, "%d; want at most %d", x, int64(amountMax))
	}
}

func (v *validator) meta(where string, m map[string]string) {
	v.count(prefix(where, "meta"), len(m))
	for _, k := range sortedKeys(m) {
		if k == "" || hasControl(k) {
			v.errorf(prefix(where, "meta"), "the key %q is empty or holds a control character", k)
		}
	}
}

func (v *validator) spreads(where string, in []*Spread) {
	w := prefix(where, "spread")
	v.count(w, len(in))
	if len(in) > 0 && v.everyNode() {
		v.errorf(w, "a %s job runs on every node, so it cannot be spread; remove the block", v.typ)
		return
	}
	for _, s := range in {
		if s == nil {
			continue
		}
		if s.Attribute == "" {
			v.errorf(w, "needs an attribute such as \"${node.datacenter}\"")
		}
		if n := int(val(s.Weight)); n < 1 || n > 100 {
			v.errorf(w+".weight", "%d is out of range: want 1 to 100", n)
		}
		v.count(w+", target", len(s.SpreadTarget))
		sum, seen := 0, map[string]bool{}
		for _, t := range s.SpreadTarget {
			if t == nil {
				continue
			}
			if seen[t.Value] {
				v.errorf(w, "there are two targets for %q", t.Value)
			}
			seen[t.Value] = true
			if t.Percent > 100 {
				v.errorf(w+".target.percent", "%d is out of range: want 0 to 100", t.Percent)
			}
			sum += int(t.Percent)
		}
		if sum > 100 {
			v.errorf(w, "the targets add up to %d percent; want at most 100", sum)
		}
	}
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, unicode.IsControl)
}

func parsesAsBool(s string) bool {
	_, err := strconv.ParseBool(s)
	return err == nil
}
