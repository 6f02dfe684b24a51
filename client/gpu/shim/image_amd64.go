package shim

import _ "embed"

//go:embed shim_amd64.so
var image []byte
