// Package wire is the JSON that Nomad's clients speak: the shapes of its v1 HTTP API, with exact names, durations in
// nanoseconds and pointers where a client may send null. It converts to and from package structs, fills in the defaults
// that Nomad documents, and checks a job before it is accepted. One table (support.go) says which parts of a job this
// build acts on, ignores with a warning or refuses; docs/reference/job-support.md is generated from it.
//
// A job from outside takes one path, in any language:
//
//	HCL (package jobspec) or JSON (Decode) -> Job -> Prepare: support check, Canonicalize, Validate, ToStructs
package wire

//go:generate go test -run TestSupportPage -update ./...
