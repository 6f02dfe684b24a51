// Package examples holds complete job files. `muster job init -template NAME` writes them, and a test of e2e runs every one.
package examples

import "embed"

// Files has NAME.hcl for each example.
//
//go:embed *.hcl
var Files embed.FS
