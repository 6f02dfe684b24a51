package main

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
)

// updatingLines says how far a rolling update of a group is, what it waits for, and which command moves it.
func (e *env) updatingLines(job, namespace string, u *nomadlike.Updating) (lines []string) {
	add := func(f string, args ...any) { lines = append(lines, fmt.Sprintf(f, args...)) }
	at := func(nanos int64) string {
		t := time.Unix(0, nanos)
		if d := t.Sub(e.now()); d > 0 {
			return fmt.Sprintf("in %s (%s)", span(d), t.UTC().Format(time.RFC3339))
		}
		return "now"
	}
	if u.Old > 0 {
		add("group %s: %s of version %d, %d of version %d still to be replaced, %d at a time; the last step was %s", u.Group, plural(u.New, "allocation"), u.To, u.Old, u.From, u.AtOnce, e.ageNanos(u.Since, false))
	} else {
		add("group %s: %s of version %d, of which %d healthy; none of an older version; the last step was %s", u.Group, plural(u.New, "allocation"), u.To, u.Settled, e.ageNanos(u.Since, false))
	}
	if u.Failed != "" {
		add("  the update stopped: %s", u.Failed)
	}
	broken := ""
	for _, h := range u.Holds {
		text, exit := "", ""
		if h.ExitCode != 0 {
			exit = fmt.Sprintf(" with exit code %d", h.ExitCode)
		}
		switch h.Why {
		case "starting":
			text = fmt.Sprintf("has been starting for %s", span(e.now().Sub(time.Unix(0, h.Since))))
			broken = h.AllocID
		case "unhealthy":
			text = fmt.Sprintf("has run for %s, and not all of its checks pass", span(e.now().Sub(time.Unix(0, h.Since))))
			broken = h.AllocID
		case "settling":
			text = fmt.Sprintf("has been healthy for %s; it counts %s", span(e.now().Sub(time.Unix(0, h.Since))), at(h.Until))
			if h.Restarts > 0 {
				text += fmt.Sprintf("; before, it ended%s and was restarted %s", exit, plural(h.Restarts, "time"))
				broken = h.AllocID
			}
		case "restarting":
			text = fmt.Sprintf("ended%s %s and waits for restart %d", exit, e.ageNanos(h.Since, false), h.Restarts)
			broken = h.AllocID
		default:
			text = fmt.Sprintf("failed%s %s and is not started again", exit, e.ageNanos(h.Since, false))
			if h.Until > 0 {
				text = fmt.Sprintf("failed%s %s and is started again %s", exit, e.ageNanos(h.Since, false), at(h.Until))
			}
			broken = h.AllocID
		}
		add("  waits for %s on %s, which %s", shortID(h.AllocID, false), orDash(h.NodeName), text)
	}
	if u.MoreHolds > 0 {
		add("  and for %s", plural(u.MoreHolds, "more allocation"))
	}
	where := inNamespace(namespace)
	switch {
	case u.Next > 0 && len(u.Holds) == 0:
		add("  the next step is %s; at once with  muster job eval %s%s", at(u.Next), where, word(job))
	case u.Next > 0:
		add("  the next look is %s", at(u.Next))
	}
	if broken != "" && u.Old > 0 {
		add("  see  muster alloc status %s ; back to what runs:  muster job revert %s%s %d", shortID(broken, false), where, word(job), u.From)
	}
	return lines
}

// updating shows the rolling updates of a job that have not ended. It asks for them only if allocations of an older version run.
func (o *jobStatusOptions) updating(ctx context.Context, a *api, stub *wire.JobListStub, job *wire.Job, allocs []*wire.AllocationListStub) {
	older := false
	for _, s := range allocs {
		older = older || s.JobVersion < val(job.Version) && s.DesiredStatus == "run" && (s.ClientStatus == "running" || s.ClientStatus == "pending")
	}
	if !older || val(job.Stop) {
		return
	}
	var w nomadlike.Why
	if _, err := a.get(ctx, jobPath(stub.ID, "/why"), ns(stub.Namespace), &w); err != nil || len(w.Updating) == 0 {
		return
	}
	o.heading("Rolling Update")
	for i := range w.Updating {
		for _, l := range o.updatingLines(stub.ID, stub.Namespace, &w.Updating[i]) {
			o.println(l)
		}
	}
}

// rolloutEvery is the interval at which the monitor reads how far a rolling update is.
const rolloutEvery = time.Second

// rollout follows a rolling update of a job until all allocations are of its version and healthy. Its exit code is 1 if the
// update stops or another version takes over. started is what came of the start of the first allocations; it is the result
// for a job that updates nothing.
func (p *progress) rollout(ctx context.Context, started error) error {
	var index, version uint64 // JobModifyIndex and version of what was submitted
	said := ""
	for {
		var job wire.Job
		if _, err := p.api.get(ctx, jobPath(p.jobID, ""), ns(p.namespace), &job); err != nil {
			return fmt.Errorf("read job %q: %w", p.jobID, err)
		}
		var w nomadlike.Why
		if _, err := p.api.get(ctx, jobPath(p.jobID, "/why"), ns(p.namespace), &w); err != nil {
			return fmt.Errorf("read the rolling update of job %q: %w", p.jobID, err)
		}
		if index == 0 {
			index, version = val(job.JobModifyIndex), val(job.Version)
		}
		if val(job.JobModifyIndex) != index {
			ended := "before the rolling update had ended, "
			if why := p.api.describes(ctx, p.jobID, p.namespace, version); why != "" {
				ended = fmt.Sprintf("version %d: %s; ", version, why)
			}
			p.title("Job %q: %sversion %d took over. See  muster job history %s%s", p.jobID, ended, val(job.Version), inNamespace(p.namespace), word(p.jobID))
			return exitCode(exitError)
		}
		if len(w.Updating) == 0 {
			if said == "" {
				return started
			}
			p.title("Job %q: the rolling update to version %d is complete", p.jobID, val(job.Version))
			return nil
		}
		text := ""
		for i := range w.Updating {
			u := &w.Updating[i]
			text += fmt.Sprintf("%sgroup %q: %d of %s of version %d healthy, %d of an older version", sep(i), u.Group, u.Settled, plural(u.New, "allocation"), u.To, u.Old)
			if u.Failed == "" {
				continue
			}
			p.title("Job %q: the rolling update stopped: %s", p.jobID, u.Failed)
			for _, l := range p.updatingLines(p.jobID, p.namespace, u) {
				p.printf("    %s\n", l)
			}
			return exitCode(exitError)
		}
		if said == "" {
			p.title("Job %q: waiting for its rolling update", p.jobID)
		}
		if text != said {
			p.step("%s", text)
			said = text
		}
		if !sleepFor(ctx, rolloutEvery) {
			return ctx.Err()
		}
	}
}

// describes returns the description of a version of a job, or "": why its rolling update stopped.
func (a *api) describes(ctx context.Context, job, namespace string, version uint64) string {
	var resp wire.JobVersionsResponse
	if _, err := a.get(ctx, jobPath(job, "/versions"), ns(namespace), &resp); err != nil {
		return "" // it is only an addition
	}
	for _, j := range resp.Versions {
		if val(j.Version) == version {
			return val(j.StatusDescription)
		}
	}
	return ""
}

// sep separates the i-th of several sentences from the one before.
func sep(i int) string {
	if i == 0 {
		return ""
	}
	return "; "
}
