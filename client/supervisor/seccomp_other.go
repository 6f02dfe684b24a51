//go:build !amd64 && !arm64

package supervisor

// seccompArch 0 means that there is no filter for this architecture; there is no launcher for it either.
const seccompArch = 0

var denialsOfArch []denial
