package structs

import (
	"strings"
)

// Limits of variables. A write beyond one is refused.
const (
	VariableSizeMax  = 64 << 10  // bytes of all keys and values of one variable
	VariableKeyMax   = 128       // bytes of a key
	VariablePathMax  = 128       // bytes of a path
	VariablesSizeMax = 256 << 20 // bytes of all variables of a region, sealed
)

// Variable is a small map of strings under a path of a namespace. The items are sealed before they reach the log, with
// a key that is in no log and no snapshot (SealKey).
type Variable struct {
	Namespace   string
	Path        string
	KeyID       string  // of the SealKey
	Sealed      []byte  // the items, encrypted
	CreateTime  LogTime // written by Apply, as the fields below
	ModifyTime  LogTime
	CreateIndex Index
	ModifyIndex Index
}

// VariableKey identifies a variable.
type VariableKey struct{ Namespace, Path string }

// Less orders variables by namespace, then path.
func (k VariableKey) Less(o VariableKey) bool {
	if k.Namespace != o.Namespace {
		return k.Namespace < o.Namespace
	}
	return k.Path < o.Path
}

// Key returns the variable's key.
func (v *Variable) Key() VariableKey { return VariableKey{v.Namespace, v.Path} }

// SealKey names a key that seals variables. The state has only its name, which is a digest of the key; the key itself
// is in the keystores of the servers.
type SealKey struct {
	ID          string
	Active      bool // new variables are sealed with it
	Retired     bool // it must not be used any more; the leader seals its variables again with the active key
	CreateTime  LogTime
	CreateIndex Index
	ModifyIndex Index
}

// Tasks may read variables below VariableJobs without a policy.
const (
	VariableRoot = "nomad"
	VariableJobs = "nomad/jobs"
)

// CheckVariablePath returns an error if a path is invalid. Below "nomad" only paths with a meaning are valid:
// nomad/jobs, nomad/jobs/JOB, nomad/jobs/JOB/GROUP, nomad/jobs/JOB/GROUP/TASK and nomad/job-templates/NAME.
func CheckVariablePath(path string) *Error {
	if path == "" {
		return Errorf(CodeInvalid, "variable requires a path")
	}
	if len(path) > VariablePathMax {
		return Errorf(CodeInvalid, "invalid variable path: it has %d bytes and may have %d", len(path), VariablePathMax)
	}
	for _, c := range []byte(path) {
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_~/", c) >= 0
		if !ok {
			return Errorf(CodeInvalid, "invalid variable path %q: it may have letters, digits and -_~/", path)
		}
	}
	parts := strings.Split(path, "/")
	for _, p := range parts {
		if p == "" {
			return Errorf(CodeInvalid, "invalid variable path %q: a part between slashes is empty", path)
		}
	}
	if parts[0] != VariableRoot {
		return nil
	}
	switch {
	case len(parts) == 1:
		return Errorf(CodeInvalid, "invalid variable path %q: it is reserved; write below nomad/jobs, or outside of nomad", path)
	case parts[1] == "jobs" && len(parts) <= 5:
		return nil
	case parts[1] == "jobs":
		return Errorf(CodeInvalid, "invalid variable path %q: below nomad/jobs are a job, its group and its task, and nothing more", path)
	case parts[1] == "job-templates" && len(parts) == 3:
		return nil
	}
	return Errorf(CodeInvalid, "invalid variable path %q: nomad/ is reserved; write below nomad/jobs, or outside of nomad", path)
}

// TaskMayRead reports whether the tasks of an allocation may read a path of their namespace without a policy. task is
// the one that asks; "" is the allocation as a whole, which may not read variables of one task.
func TaskMayRead(a *Allocation, task, path string) bool {
	job := a.JobID
	if a.Job != nil && a.Job.ParentID != "" {
		job = a.Job.ParentID
	}
	for _, p := range []string{job, string(a.Group), task} {
		if strings.Contains(p, "/") {
			return path == VariableJobs // the path of another job could be spelled like this one's
		}
	}
	ofJob := VariableJobs + "/" + job
	ofGroup := ofJob + "/" + string(a.Group)
	return path == VariableJobs || path == ofJob || path == ofGroup || task != "" && path == ofGroup+"/"+task
}
