// Package agentconfig reads the configuration of an agent: files in HCL or
// JSON, merged in the order given, checked, and completed with defaults. Key
// names are those operators of comparable schedulers already use, so that
// existing files can be read as they are.
//
// A file is read into one schema whichever syntax it is written in, so that
// `ports { http = 4646 }` in HCL and `"ports": {"http": 4646}` in JSON mean
// the same thing and fail in the same way. Every problem is reported with the
// file, the line and the column it was found at.
//
// The package knows nothing of servers or clients: package cmd/agent turns a
// finished Config into their settings.
//
//go:generate go test -run TestPage -update .
package agentconfig
