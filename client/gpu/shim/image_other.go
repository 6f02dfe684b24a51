//go:build !amd64 && !arm64

package shim

var image []byte
