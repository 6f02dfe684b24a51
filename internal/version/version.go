// Package version identifies this build.
package version

import (
	"runtime"
	"runtime/debug"
)

// Version is the release that this tree leads to. NomadCompat is the version reported to Nomad's clients, some of which
// refuse to talk to older servers.
const (
	Version     = "0.1.0"
	NomadCompat = "2.0.6"
)

// Commit is set at link time by the makefile; a plain `go build` falls back to the module's build information.
var Commit = ""

// String returns the version with its commit.
func String() string {
	c := Commit
	if c == "" {
		c = "unknown"
		if bi, ok := debug.ReadBuildInfo(); ok {
			for _, s := range bi.Settings {
				if s.Key == "vcs.revision" {
					c = s.Value
				}
			}
		}
	}
	return "Muster v" + Version + " (" + c + ", " + runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH + ")"
}
