package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// workRows describes the fields of a job that Nomad's jobs do not have.
func workRows(job *wire.Job, now time.Time) (rows [][2]string) {
	add := func(name, format string, args ...any) {
		rows = append(rows, [2]string{name, fmt.Sprintf(format, args...)})
	}
	if d := val(job.StatusDescription); d != "" {
		add("Reason", "%s", d)
	}
	if a := job.Array; a != nil {
		text := fmt.Sprintf("%d indices", val(a.Count))
		if n := val(a.Concurrency); n > 0 {
			text += fmt.Sprintf(", at most %d at once", n)
		}
		add("Array", "%s", text)
	}
	if r := job.Runtime; r != nil {
		var parts []string
		if r.Expected != nil {
			parts = append(parts, "expected "+r.Expected.String())
		}
		if r.Limit != nil {
			parts = append(parts, "at most "+r.Limit.String())
		}
		add("Runtime", "%s", strings.Join(parts, ", "))
	}
	if t, err := time.Parse(time.RFC3339Nano, val(job.Begin)); err == nil {
		add("Begin", "%s", date(t))
	}
	if t, err := time.Parse(time.RFC3339Nano, val(job.Deadline)); err == nil {
		switch left := t.Sub(now); {
		case val(job.Status) == "dead":
			add("Deadline", "%s", date(t))
		case left < 0:
			add("Deadline", "%s (missed %s ago)", date(t), span(-left))
		default:
			add("Deadline", "%s (in %s)", date(t), span(left))
		}
	}
	for _, d := range job.DependsOn {
		id := d.Job
		if id == "" {
			id = d.Name
		}
		if d.Namespace != "" {
			id = d.Namespace + "/" + id
		}
		add("Waits For", "%s (%s)", id, d.When)
	}
	return rows
}
