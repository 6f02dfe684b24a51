package wire

import (
	"fmt"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// Problems lists the errors and warnings about a job. Each line names the place and what would be right.
type Problems struct {
	Errors   []string // at most problemsMax from each stage of Prepare
	Warnings []string

	moreErrors, moreWarnings int // beyond those that are listed
}

// problemsMax is how many errors, and how many warnings, of a job are listed: no one reads more.
const problemsMax = 40

func (p *Problems) errorf(where, format string, args ...any) {
	listed(&p.Errors, &p.moreErrors, where, format, args)
}

func (p *Problems) warnf(where, format string, args ...any) {
	listed(&p.Warnings, &p.moreWarnings, where, format, args)
}

func listed(list *[]string, more *int, where, format string, args []any) {
	if len(*list) == problemsMax {
		*more++
		return
	}
	*list = append(*list, where+": "+fmt.Sprintf(format, args...))
}

// Err returns nil without errors, else one error that lists them all, in the layout of Nomad's answers.
func (p Problems) Err() error {
	if len(p.Errors) == 0 {
		return nil
	}
	return structs.InvalidAll(p.Errors, p.moreErrors)
}

// WarningText lists the warnings as Nomad's clients print them; "" without any.
func (p Problems) WarningText() string {
	switch {
	case len(p.Warnings) == 0:
		return ""
	case len(p.Warnings) == 1 && p.moreWarnings == 0:
		return "1 warning:\n\n* " + p.Warnings[0]
	}
	text := fmt.Sprintf("%d warnings:\n\n* %s", len(p.Warnings)+p.moreWarnings, strings.Join(p.Warnings, "\n* "))
	if p.moreWarnings > 0 {
		text += fmt.Sprintf("\n* ... and %d more", p.moreWarnings)
	}
	return text
}

// Prepare turns a submitted job into one that a server may register: support check, defaults, validation, conversion.
// It changes j. Fields that only servers set (version, status, indexes, submitter) are cleared in the result, so that a
// client cannot choose them. With errors the result is nil.
func Prepare(j *Job) (*structs.Job, Problems) {
	if j == nil {
		return nil, Problems{Errors: []string{"job: the body holds no job; want {\"Job\": {...}}"}}
	}
	var p Problems
	j.takeMeta(&p)
	checkSupport(j, &p)
	chosen := val(j.Priority) != 0
	j.Canonicalize()
	v := j.Validate()
	p.Errors = append(p.Errors, v.Errors...)
	p.Warnings = append(p.Warnings, v.Warnings...)
	p.moreErrors, p.moreWarnings = p.moreErrors+v.moreErrors, p.moreWarnings+v.moreWarnings
	if len(p.Errors) > 0 {
		return nil, p
	}
	out, err := j.ToStructs()
	if err != nil {
		p.errorf("job", "%v", err)
		return nil, p
	}
	if !chosen {
		out.Priority = 0 // servers know the default
	}
	out.Stable, out.Version, out.VersionTag, out.SubmitTime = false, 0, nil, 0
	out.Submitter, out.Status, out.StatusDesc = structs.Submitter{}, "", ""
	out.CreateIndex, out.ModifyIndex, out.SpecIndex = 0, 0, 0
	return out, p
}
