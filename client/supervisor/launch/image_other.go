//go:build !amd64 && !arm64

package launch

var binaryImage []byte
