package shim

import _ "embed"

//go:embed shim_arm64.so
var image []byte
