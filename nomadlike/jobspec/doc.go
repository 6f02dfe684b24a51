// Package jobspec reads job files: HCL2 as Nomad's users know it, HCL written as JSON, and the JSON of the API. All
// three become a wire.Job, so that defaults, validation and conversion are the same for each (see wire.Prepare).
//
// Untrusted HCL is dangerous to read. A few bytes can nest so deep that the parser overflows its stack, which no
// recover can catch, or evaluate to gigabytes. Therefore a gate counts tokens before the parser sees them (gate.go),
// and servers parse in a child process with limits on memory, processor and time (child.go).
//
// References that only a node can resolve (${attr.kernel.name}, ${NOMAD_ALLOC_ID}, ${meta.rack}, ...) are kept as
// written.
package jobspec
